//! A peer that writes on after it was given up.

use qdl::fabric::{Event, Imm, Region};

use super::rig::{Provider, endpoint, next, post, until};

/// The provider, unless this machine has none.
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
    // SAFETY: nobody writes it: no connection has it, or its connection is gone.
    let bytes = unsafe { region.bytes_mut(0, region.len()) };
    bytes.expect("in bounds").fill(byte);
}

fn landed(region: &Region, byte: u8) -> usize {
    // SAFETY: a glimpse of memory that a provider may write on this very thread alone.
    let bytes = unsafe { region.bytes(0, region.len()) }.expect("in bounds");
    bytes.iter().take_while(|b| **b == byte).count()
}

/// A peer that was given up in the middle of a write, and writes on: into slots that have a new
/// epoch by then. Slots of `stride` bytes, so that a write takes its time.
pub fn a_late_writer(provider: Provider, stride: usize) {
    let Some(provider) = here(provider) else {
        return;
    };
    let pair = provider.open();
    let (a, b) = (endpoint(2, stride, 8), endpoint(2, stride, 8));
    let (mut la, mut lb) = pair.link(&a, &b);
    fill(&a.sources[0], 7);
    b.window.grants().open(0).expect("closed");
    la.tx
        .post(&post(0, stride as u32, Imm::new(0, 1)))
        .expect("room");
    until("it begins", || {
        let _ = la.tx.flush();
        lb.rx.poll(1, &mut |e| panic!("{e:?}"));
        landed(b.window.region(), 7) > 0
    });
    drop(lb);
    let begun = landed(b.window.region(), 7);
    assert!(begun < stride, "too late to see anything");
    // The same memory, of the next epoch, with a peer of its own.
    fill(b.window.region(), 0xee);
    b.window.grants().reset();
    b.window.grants().open(1).expect("closed");
    let again = endpoint(2, stride, 8);
    let (mut lc, mut lb) = pair.link(&again, &b);
    // The old peer writes on for as long as it can.
    let mut tries = 0;
    until("the late writer hears of it", || {
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
    lc.tx.post(&post(0, 4096, Imm::new(1, 1))).expect("room");
    lc.tx.flush().expect("alive");
    let event = next(&mut lb, &mut lc);
    assert!(
        matches!(event, Event::Arrived { len: 4096, .. }),
        "{event:?}"
    );
    // SAFETY: both peers are done.
    let bytes = unsafe { b.window.region().bytes(0, 2 * stride) }.expect("in bounds");
    let stray = bytes[..stride].iter().filter(|b| **b != 0xee).count();
    assert_eq!(stray, 0, "bytes of a peer that was given up");
    assert!(bytes[stride..stride + 4096].iter().all(|b| *b == 9));
}
