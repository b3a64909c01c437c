//! The send queue: its capacity, and when the memory of a write is free.

use std::time::Instant;

use super::{
    Fabric,
    rig::{Progress, Shape, granted, pattern},
};
use fabric::{Event, Flushed, Imm, PostError};

/// A full queue refuses a write, and the same write can be posted later.
pub fn a_full_send_queue_is_an_answer_and_not_a_wait(fabric: &dyn Fabric) {
    let slots = 600;
    let stride = 20_000;
    let shape = Shape {
        send_depth: 8,
        ..Shape::honest(slots, stride)
    };
    let (mut a, mut b) = granted(fabric, shape);
    let mut sent = 0;
    let mut full = false;
    // The receiver does not read, so the queue fills up.
    while sent < slots {
        assert!(a.link.tx.room() <= 8);
        match a.post(0, stride, Imm::new(sent as u16, 1)) {
            Ok(()) => sent += 1,
            Err(PostError::Full) => {
                assert_eq!(a.link.tx.room(), 0);
                let before = a.link.tx.retired();
                if a.link.tx.flush() == Ok(Flushed::Blocked) && a.link.tx.retired() == before {
                    full = true;
                    break;
                }
            }
            Err(e) => panic!("{e}"),
        }
    }
    assert!(
        full || !fabric.fills_up_unread(),
        "12 MB went nowhere and the queue never filled"
    );
    let mut arrived = 0;
    let mut progress = Progress::new(fabric.patience());
    while arrived < slots {
        assert!(
            progress.goes_on(arrived),
            "stuck after {arrived} of {slots}"
        );
        b.link.rx.poll(64, &mut |e| match e {
            Event::Arrived { imm, .. } => {
                let in_order = usize::from(imm.slot()) == arrived;
                assert!(in_order || !fabric.keeps_order(), "{imm:?} as {arrived}");
                arrived += 1;
            }
            other => panic!("{other:?}"),
        });
        a.link.tx.flush().expect("alive");
        while sent < slots && a.post(0, stride, Imm::new(sent as u16, 1)).is_ok() {
            sent += 1;
        }
    }
}

/// Inline memory may be changed as soon as `post` returns.
pub fn inline_memory_is_free_at_once(fabric: &dyn Fabric) {
    let (mut a, mut b) = granted(fabric, Shape::honest(4, 128));
    let n = a.link.tx.inline_limit().min(64);
    assert!(n >= 16, "a fabric takes at least 16 bytes inline");
    for slot in 0..4u16 {
        a.fill(0, &pattern(usize::from(slot), n));
        a.post(0, n, Imm::new(slot, 1)).expect("posted");
    }
    a.fill(0, &[0xdd; 64]);
    a.flush();
    for _ in 0..4 {
        assert!(matches!(b.next(), Event::Arrived { .. }));
    }
    for slot in 0..4u16 {
        assert_eq!(b.slot(slot, n), pattern(usize::from(slot), n));
    }
}

/// Memory of a retired write may be changed.
pub fn retired_memory_is_free(fabric: &dyn Fabric) {
    let stride = 50_000;
    let (mut a, mut b) = granted(fabric, Shape::honest(8, stride));
    for slot in 0..8u16 {
        a.fill(0, &pattern(usize::from(slot), stride));
        a.post(0, stride, Imm::new(slot, 1)).expect("posted");
        let end = Instant::now() + fabric.patience();
        // Some fabrics retire a write only after the peer has read.
        let mut seen = None;
        while a.link.tx.retired() < a.link.tx.posted() || seen.is_none() {
            assert!(Instant::now() < end, "never retired or never arrived");
            a.link.tx.flush().expect("alive");
            let retired = a.link.tx.retired() == a.link.tx.posted();
            if retired {
                a.fill(0, &[0xdd; 1000]);
            }
            b.link.rx.poll(1, &mut |e| seen = Some(e));
            a.link.rx.poll(1, &mut |e| panic!("{e:?}"));
        }
        assert!(matches!(seen, Some(Event::Arrived { .. })));
        assert_eq!(b.slot(slot, stride), pattern(usize::from(slot), stride));
    }
}
