//! Slots in a device's memory: a NIC writes the GPU's memory, and this process never touches it.

use std::{
    os::fd::OwnedFd,
    ptr::NonNull,
    sync::Arc,
    time::{Duration, Instant},
};

use super::{
    Endpoint, Event, Grants, Imm, Link, MAX_SLOTS, Post, PostError, Region, RegionError, SourceId,
    Window,
};

/// A range of a device's memory, behind a [`Region`] ([`Region::of_device`]). The device and the
/// NICs that registered the memory use its addresses; this process must not dereference them.
/// Dropping the value frees the memory.
pub trait DeviceMemory: Send + Sync {
    /// Address of the first byte.
    fn base(&self) -> NonNull<u8>;

    /// Length in bytes, at least 1.
    fn bytes(&self) -> usize;

    /// Name of the device for messages, such as `GPU 0`.
    fn device(&self) -> String;

    /// Copies `bytes` from this process to `offset`, and returns when the copy is complete. The
    /// caller has checked that the range lies inside.
    ///
    /// # Errors
    /// The device refuses the copy; the error is the device's message.
    fn store(&self, offset: usize, bytes: &[u8]) -> Result<(), String>;

    /// Copies bytes from `offset` as the device sees them. The caller has checked the range.
    ///
    /// # Errors
    /// The device refuses the copy; the error is the device's message.
    fn load(&self, offset: usize, bytes: &mut [u8]) -> Result<(), String>;

    /// Makes earlier writes by NICs visible to the device. One call per batch suffices.
    ///
    /// # Errors
    /// The fence fails; the error is the device's message.
    fn fence(&self) -> Result<(), String>;

    /// Exports the memory as a dma-buf to register with a NIC, and the first byte's offset in it.
    ///
    /// # Errors
    /// The device cannot export the memory; the error says why.
    fn dma_buf(&self) -> Result<(OwnedFd, u64), String>;
}

/// Error of [`probe`]: writes through a fabric did not reach the memory.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum ProbeError {
    /// No connection could be made to the memory.
    #[error("no connection to it: {0}")]
    Connection(String),
    /// The fabric refused a write, or a write broke the connection.
    #[error("a write to it failed: {0}")]
    Write(String),
    /// Some writes did not arrive in time.
    #[error("of {sent} writes to it {arrived} arrived within {waited_ms} ms")]
    Lost {
        /// Writes posted.
        sent: usize,
        /// Writes that arrived.
        arrived: usize,
        /// Time waited, in milliseconds.
        waited_ms: u128,
    },
    /// The writes arrived, but the device reads different bytes.
    #[error("{wrong} of {bytes} bytes written to it are not there, the first at {first}")]
    Different {
        /// Offset of the first wrong byte.
        first: usize,
        /// Wrong bytes.
        wrong: usize,
        /// Bytes written.
        bytes: usize,
    },
    /// The device failed to copy or to fence.
    #[error("{0}")]
    Device(String),
}

/// Least bytes of each write of a probe, where the region is that large.
const PROBED: usize = 64 << 10;

/// Writes a pattern through a fabric to the first and the last slot of `region`, and reads it back
/// as the memory's device sees it. A NIC may register a GPU's memory although its writes do not
/// reach it, so only this probe shows that they do. `pair` connects the writer's end and the
/// memory's end through the fabric under test. The region's content is lost.
///
/// # Errors
/// [`ProbeError`] names the step that failed.
pub fn probe(
    region: &Arc<Region>,
    patience: Duration,
    pair: impl FnOnce(Endpoint, Endpoint) -> Result<(Link, Link), String>,
) -> Result<(), ProbeError> {
    // The probe writes the first and the last slot.
    let slots = (region.len() / PROBED).clamp(2, MAX_SLOTS);
    let len = region.len() / slots;
    let made = |e: RegionError| ProbeError::Device(e.to_string());
    let pattern: Vec<u8> = (0..2 * len)
        .map(|i| (i * 167 + i / 251 + 13) as u8)
        .collect();
    let other: Vec<u8> = pattern.iter().map(|b| !b).collect();
    let places = [0, slots - 1];
    let source = Arc::new(Region::new(2 * len).map_err(made)?);
    // SAFETY: only this function knows `source`, and the caller leaves the region to this probe, so
    // no other thread reads or writes either memory.
    unsafe {
        source.store(0, &pattern).map_err(made)?;
        for (bytes, slot) in other.chunks(len).zip(places) {
            region.store(slot * len, bytes).map_err(made)?;
        }
    }
    let grants = Arc::new(Grants::new(slots));
    let uses = places.map(|slot| {
        let slot = slot as u16;
        Imm::new(slot, grants.open(slot).unwrap_or_default())
    });
    let writer = Endpoint {
        window: Window::new(source.clone(), 0, len, Arc::new(Grants::new(1))).map_err(made)?,
        sources: vec![source],
        peer_slots: slots,
        peer_stride: len,
        peer_stream: crate::wire::Stream::None,
        send_depth: 16,
    };
    let memory = Endpoint {
        window: Window::new(region.clone(), 0, len, grants).map_err(made)?,
        sources: writer.sources.clone(),
        peer_slots: 1,
        peer_stride: len,
        peer_stream: crate::wire::Stream::None,
        send_depth: 16,
    };
    let (mut from, mut to) = pair(writer, memory).map_err(ProbeError::Connection)?;
    for (i, imm) in uses.into_iter().enumerate() {
        let post = Post {
            source: SourceId(0),
            offset: i * len,
            len: len as u32,
            at: 0,
            imm,
        };
        let refused = |e: PostError| ProbeError::Write(e.to_string());
        from.tx.post(&post).map_err(refused)?;
    }
    let begun = Instant::now();
    let (mut arrived, mut broken) = (0, None);
    while arrived < places.len() && broken.is_none() {
        let waited = begun.elapsed();
        if waited > patience {
            return Err(ProbeError::Lost {
                sent: places.len(),
                arrived,
                waited_ms: waited.as_millis(),
            });
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
        return Err(ProbeError::Write(broken.to_string()));
    }
    if let Some(device) = region.device() {
        device.fence().map_err(ProbeError::Device)?;
    }
    let mut seen = vec![0; 2 * len];
    for (bytes, slot) in seen.chunks_mut(len).zip(places) {
        // SAFETY: both writes have arrived, and this probe posts no others.
        unsafe { region.load(slot * len, bytes) }.map_err(made)?;
    }
    let wrong = || {
        seen.iter()
            .zip(&pattern)
            .enumerate()
            .filter(|(_, (a, b))| a != b)
    };
    match wrong().next() {
        None => Ok(()),
        Some((first, _)) => Err(ProbeError::Different {
            first,
            wrong: wrong().count(),
            bytes: 2 * len,
        }),
    }
}

#[cfg(all(test, not(qdl_loom)))]
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
        assert_eq!(
            probe(&region, PATIENCE, over_memory),
            Err(ProbeError::Different {
                first: 0,
                wrong: 2,
                bytes: 4096
            })
        );
        handle.blind.store(false, SeqCst);
        // The writes land in a second region, so this region keeps the pattern's complement.
        let elsewhere = Arc::new(Region::new(4096).expect("memory"));
        let astray = |a: Endpoint, mut b: Endpoint| {
            let grants = b.window.grants().clone();
            b.window = Window::new(elsewhere, 0, 2048, grants).map_err(|e| e.to_string())?;
            over_memory(a, b)
        };
        let result = probe(&region, PATIENCE, astray);
        let all = ProbeError::Different {
            first: 0,
            wrong: 4096,
            bytes: 4096,
        };
        assert_eq!(result, Err(all));
        let unconnected = probe(&region, PATIENCE, |_, _| Err("no way".to_owned()));
        assert_eq!(
            unconnected,
            Err(ProbeError::Connection("no way".to_owned()))
        );
        let kept = std::cell::Cell::new(None);
        let cut = |a: Endpoint, b: Endpoint| {
            let (a, b, faults) = memory::pair(a, b).map_err(|e| e.to_string())?;
            faults.cut();
            kept.set(Some(faults));
            Ok((a, b))
        };
        assert!(matches!(
            probe(&region, PATIENCE, cut),
            Err(ProbeError::Write(_))
        ));
    }
}
