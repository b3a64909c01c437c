//! A peer that continues to write after its connection was dropped.

use fabric::{Endpoint, Event, Imm, Region};

use super::rig::{Provider, endpoint, eventually, next, post};

const PAGE: usize = 4096;

/// The provider; `None` if this machine does not have it.
pub fn here(provider: Provider) -> Option<Provider> {
    match provider.is_absent() {
        None => Some(provider),
        Some(why) => {
            println!("skipped: {why}");
            None
        }
    }
}

fn fill(region: &Region, byte: u8) {
    // SAFETY: no peer writes the region: it has no connection yet, or its connection is gone.
    let bytes = unsafe { region.bytes_mut(0, region.len()) };
    bytes.expect("in bounds").fill(byte);
}

/// Length of the region's front that holds `byte`, in whole pages. (On an emulated machine,
/// checking each byte takes longer than the writes.)
fn landed(region: &Region, byte: u8) -> usize {
    // SAFETY: a provider may write these bytes concurrently; the test reads single bytes of them.
    let bytes = unsafe { region.bytes(0, region.len()) }.expect("in bounds");
    let pages = bytes.iter().step_by(PAGE);
    pages.take_while(|b| **b == byte).count() * PAGE
}

/// Drops a connection amid the peer's writes, and reuses its slots for a new connection. Many
/// writes of `stride` bytes make the writes last long enough.
pub fn a_late_writer(provider: Provider, stride: usize, writes: u16) {
    let Some(provider) = here(provider) else {
        return;
    };
    let pair = provider.open();
    let slots = usize::from(writes) + 1;
    let (a, b) = (endpoint(slots, stride, 32), endpoint(slots, stride, 32));
    let (mut la, mut lb) = pair.link(&a, &b);
    fill(&a.sources[0], 7);
    for slot in 0..writes {
        b.window.grants().open(slot).expect("closed");
        la.tx
            .post(&post(0, stride as u32, Imm::new(slot, 1)))
            .expect("room");
    }
    eventually("it begins", || {
        let _ = la.tx.flush();
        lb.rx.poll(1, &mut |_| {});
        // SAFETY: as in `landed`.
        let first = unsafe { b.window.region().bytes(0, 1) };
        first.expect("in bounds") == [7]
    });
    drop(lb);
    let late = usize::from(writes) * stride;
    let begun = landed(b.window.region(), 7);
    assert!(begun < late, "too late to see anything");
    println!("{begun} of {late} bytes had landed");
    // The same memory for a new connection with another peer.
    fill(b.window.region(), 0xee);
    b.window.grants().reset();
    b.window.grants().open(writes).expect("closed");
    let again = endpoint(slots, 4096, 8);
    let again = Endpoint {
        peer_slots: slots,
        peer_stride: stride,
        ..again
    };
    let (mut lc, mut lb) = pair.link(&again, &b);
    // The old peer continues to write as long as it can.
    let mut tries = 0;
    eventually("the late writer hears of it", || {
        tries += 1;
        let late = la.tx.post(&post(0, 4096, Imm::new(0, 1))).is_err();
        let _ = la.tx.flush();
        let mut broken = late;
        la.rx
            .poll(8, &mut |e| broken |= matches!(e, Event::Broken(_)));
        lb.rx.poll(8, &mut |e| panic!("{e:?}"));
        broken && tries > 2000
    });
    fill(&again.sources[0], 9);
    lc.tx
        .post(&post(0, 4096, Imm::new(writes, 1)))
        .expect("room");
    lc.tx.flush().expect("alive");
    let event = next(&mut lb, &mut lc);
    assert!(
        matches!(event, Event::Arrived { len: 4096, .. }),
        "{event:?}"
    );
    // SAFETY: both peers have finished writing.
    let bytes = unsafe { b.window.region().bytes(0, slots * stride) }.expect("in bounds");
    let strays = bytes[..late].chunks(PAGE).filter(|c| *c != [0xee; PAGE]);
    assert_eq!(strays.count(), 0, "pages of a peer that was given up");
    assert!(bytes[late..late + 4096].iter().all(|b| *b == 9));
}
