//! The end of a connection: earlier writes arrive, later writes do not.

use std::{
    thread,
    time::{Duration, Instant},
};

use super::{
    Fabric,
    rig::{GUARD, LinkEnd, Shape, granted},
};
use fabric::{Event, Imm, PostError};

/// Breaking: `rx` reports arrivals, the break, then nothing. `tx` of the same end breaks too.
pub fn a_dead_peer_breaks_the_connection_after_what_it_sent(fabric: &dyn Fabric) {
    let (mut a, mut b) = granted(fabric, Shape::honest(4, 128));
    a.send(0, 100, Imm::new(0, 1));
    a.send(0, 100, Imm::new(1, 1));
    drop(a);
    assert!(matches!(b.next(), Event::Arrived { .. }));
    assert!(matches!(b.next(), Event::Arrived { .. }));
    b.next_broken();
    let mut more = 0;
    b.link.rx.poll(16, &mut |_| more += 1);
    assert_eq!(more, 0, "nothing follows a break");
    let end = Instant::now() + fabric.patience();
    loop {
        assert!(Instant::now() < end, "a dead peer takes everything");
        let posted = b.post(0, 100, Imm::new(0, 1));
        if matches!(posted, Err(PostError::Broken(_))) || b.link.tx.flush().is_err() {
            break;
        }
    }
}

/// Torn-down connections leave the window unchanged, which quarantine relies on. A half that looks
/// before bytes land stores them itself, and is gone.
pub fn nothing_lands_after_a_connection_is_torn_down(fabric: &dyn Fabric) {
    if fabric.looks_before_bytes_land() {
        return println!("skipped: the receiving half, which is gone, stores the bytes");
    }
    let (mut a, b) = granted(fabric, Shape::honest(8, 4096));
    let LinkEnd { link, window, .. } = b;
    drop(link);
    for slot in 0..8u16 {
        let _ = a.post(0, 4096, Imm::new(slot, 1));
        let _ = a.link.tx.flush();
    }
    thread::sleep(Duration::from_millis(20));
    let r = window.region();
    // SAFETY: both halves of the receiver are dropped, so no thread writes the window.
    let all = unsafe { r.bytes(0, r.len()) }.expect("in bounds");
    assert!(all.iter().all(|b| *b == GUARD), "a late write landed");
    assert!((0..8).all(|s| window.grants().is_open(s)), "and was taken");
}
