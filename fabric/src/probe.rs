//! A probe of slots in a device's memory: a NIC writes them, and the device reads them back.

use std::{
    fmt,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Endpoint, Event, Grants, Imm, Link, MAX_SLOTS, Post, Region, RegionError, SourceId, Window,
};

/// Least bytes of each write of a probe, where the region is that large.
const PROBED: usize = 64 << 10;

/// Writes a pattern through a fabric to the first and the last slot of `region`, and reads it back
/// as the memory's device sees it. A NIC may register a GPU's memory although its writes do not
/// reach it, so only this probe shows that they do. `pair` connects the writer's end and the
/// memory's end through the fabric under test. The region's content is lost.
///
/// # Errors
/// The step that failed, as text: the connection, a write, or bytes that the device does not see.
pub fn probe(
    region: &Arc<Region>,
    patience: Duration,
    pair: impl FnOnce(Endpoint, Endpoint) -> Result<(Link, Link), String>,
) -> Result<(), String> {
    let text = |e: RegionError| e.to_string();
    // The probe writes the first and the last slot.
    let slots = (region.len() / PROBED).clamp(2, MAX_SLOTS);
    let len = region.len() / slots;
    let pattern: Vec<u8> = (0..2 * len)
        .map(|i| (i * 167 + i / 251 + 13) as u8)
        .collect();
    let other: Vec<u8> = pattern.iter().map(|b| !b).collect();
    let places = [0, slots - 1];
    let source = Arc::new(Region::new(2 * len).map_err(text)?);
    // SAFETY: only this function knows `source`, and the caller leaves the region to this probe, so
    // no other thread reads or writes either memory.
    unsafe {
        source.store(0, &pattern).map_err(text)?;
        for (bytes, slot) in other.chunks(len).zip(places) {
            region.store(slot * len, bytes).map_err(text)?;
        }
    }
    let grants = Arc::new(Grants::new(slots));
    let uses = places.map(|slot| {
        let slot = slot as u16;
        Imm::new(slot, grants.open(slot).unwrap_or_default())
    });
    let writer = Endpoint {
        window: Window::new(source.clone(), 0, len, Arc::new(Grants::new(1))).map_err(text)?,
        sources: vec![source],
        peer_slots: slots,
        peer_stride: len,
        peer_stream: crate::wire::Stream::None,
        send_depth: 16,
    };
    let memory = Endpoint {
        window: Window::new(region.clone(), 0, len, grants).map_err(text)?,
        sources: writer.sources.clone(),
        peer_slots: 1,
        peer_stride: len,
        peer_stream: crate::wire::Stream::None,
        send_depth: 16,
    };
    let connected = pair(writer, memory).map_err(|e| format!("no connection to it: {e}"));
    let (mut from, mut to) = connected?;
    let failed = |e: &dyn fmt::Display| format!("a write to it failed: {e}");
    for (i, imm) in uses.into_iter().enumerate() {
        let post = Post {
            source: SourceId(0),
            offset: i * len,
            len: len as u32,
            at: 0,
            imm,
        };
        from.tx.post(&post).map_err(|e| failed(&e))?;
    }
    let begun = Instant::now();
    let (mut arrived, mut broken) = (0, None);
    while arrived < places.len() && broken.is_none() {
        let waited = begun.elapsed();
        if waited > patience {
            let (sent, ms) = (places.len(), waited.as_millis());
            return Err(format!(
                "of {sent} writes to it {arrived} arrived within {ms} ms"
            ));
        }
        if let Err(e) = from.tx.flush() {
            broken = Some(e);
        }
        for half in [&mut from.rx, &mut to.rx] {
            let events = half.poll(8, &mut |event| match event {
                Event::Arrived { .. } => arrived += 1,
                Event::Broken(b) => broken = Some(b),
                Event::Control(_) => {}
            });
            if events == 0 {
                std::thread::sleep(Duration::from_micros(20));
            }
        }
    }
    if let Some(broken) = broken {
        return Err(failed(&broken));
    }
    if let Some(device) = region.device() {
        device.fence()?;
    }
    let mut seen = vec![0; 2 * len];
    for (bytes, slot) in seen.chunks_mut(len).zip(places) {
        // SAFETY: both writes have arrived, and this probe posts no others.
        unsafe { region.load(slot * len, bytes) }.map_err(text)?;
    }
    let pairs = seen.iter().zip(&pattern).enumerate();
    let mut wrong = pairs.filter(|(_, (a, b))| a != b).map(|(at, _)| at);
    match wrong.next() {
        None => Ok(()),
        Some(first) => Err(format!(
            "{} of {} bytes written to it are not there, the first at {first}",
            1 + wrong.count(),
            2 * len
        )),
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::sync::atomic::Ordering::SeqCst;

    use super::*;
    use crate::testkit::{
        device_memory::{Handle, Pretended},
        memory,
    };

    const PATIENCE: Duration = Duration::from_secs(10);

    fn region(bytes: usize) -> (Arc<Region>, Arc<Handle>) {
        let handle = Arc::default();
        let memory = Pretended::new(bytes, &handle).expect("memory");
        (Arc::new(Region::of_device(Box::new(memory))), handle)
    }

    fn over_memory(a: Endpoint, b: Endpoint) -> Result<(Link, Link), String> {
        let (a, b, _) = memory::pair(a, b).map_err(|e| e.to_string())?;
        Ok((a, b))
    }

    #[test]
    fn this_process_does_not_touch_it() {
        let (region, _) = region(8192);
        assert_eq!(region.len(), 8192);
        region.prefault();
        assert!(region.at(8191, 1).is_ok() && region.at(8191, 2).is_err());
        // SAFETY: only this test uses the region.
        unsafe {
            let text = region.bytes(0, 4).expect_err("not ours").to_string();
            assert!(text.contains("GPU 77"), "{text}");
            assert!(region.bytes_mut(0, 4).is_err());
            region.store(8190, &[3, 4]).expect("inside");
            assert!(region.store(8190, &[3, 4, 5]).is_err());
            let mut back = [0; 2];
            region.load(8190, &mut back).expect("inside");
            assert_eq!(back, [3, 4]);
        }
    }

    #[test]
    fn a_probe_finds_writes_that_arrive() {
        for bytes in [2, 4096, 400_000] {
            let (region, handle) = region(bytes);
            probe(&region, PATIENCE, over_memory).expect("they arrive");
            assert_eq!(handle.fences.load(SeqCst), 1);
            let host = Arc::new(Region::new(bytes).expect("memory"));
            probe(&host, PATIENCE, over_memory).expect("they arrive");
        }
    }

    #[test]
    fn a_probe_finds_writes_that_do_not() {
        let (region, handle) = region(4096);
        handle.blind.store(true, SeqCst);
        let error = probe(&region, PATIENCE, over_memory).expect_err("not seen");
        assert!(error.starts_with("2 of 4096 bytes"), "{error}");
        assert!(error.ends_with("the first at 0"), "{error}");
        handle.blind.store(false, SeqCst);
        // The writes land in a second region, so this region keeps the pattern's complement.
        let elsewhere = Arc::new(Region::new(4096).expect("memory"));
        let astray = |a: Endpoint, mut b: Endpoint| {
            let grants = b.window.grants().clone();
            b.window = Window::new(elsewhere, 0, 2048, grants).map_err(|e| e.to_string())?;
            over_memory(a, b)
        };
        let error = probe(&region, PATIENCE, astray).expect_err("elsewhere");
        assert!(error.starts_with("4096 of 4096 bytes"), "{error}");
        let error = probe(&region, PATIENCE, |_, _| Err("no way".to_owned()));
        assert_eq!(error, Err("no connection to it: no way".to_owned()));
        let kept = std::cell::Cell::new(None);
        let cut = |a: Endpoint, b: Endpoint| {
            let (a, b, faults) = memory::pair(a, b).map_err(|e| e.to_string())?;
            faults.cut();
            kept.set(Some(faults));
            Ok((a, b))
        };
        let error = probe(&region, PATIENCE, cut).expect_err("cut");
        assert!(error.starts_with("a write to it failed"), "{error}");
    }
}
