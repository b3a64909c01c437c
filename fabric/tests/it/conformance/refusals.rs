//! Refusals: writes out of bounds or without a grant are refused by the sender, and by the receiver
//! of a dishonest sender.

use std::time::Instant;

use super::{
    Fabric,
    rig::{LinkEnd, Shape, granted, join, pattern},
};
use fabric::{Broken, Control, Event, Imm, Post, PostError, SourceId};

/// Bounds, at the sender: `post` refuses a write outside the source or the slot.
pub fn a_post_outside_its_bounds_is_refused(fabric: &dyn Fabric) {
    let (mut a, _b) = granted(fabric, Shape::honest(4, 128));
    let source = a.source.len();
    let cases = [
        (source, 1, Imm::new(0, 1)),
        (source - 1, 2, Imm::new(0, 1)),
        (usize::MAX, 2, Imm::new(0, 1)),
        (0, 129, Imm::new(0, 1)),
        (0, 1, Imm::new(4, 1)),
    ];
    for (offset, len, imm) in cases {
        assert!(
            matches!(a.post(offset, len, imm), Err(PostError::OutOfBounds { .. })),
            "{offset} {len} {imm:?}"
        );
    }
    let stray = Post {
        source: SourceId(1),
        offset: 0,
        len: 1,
        at: 0,
        imm: Imm::new(0, 1),
    };
    assert!(a.link.tx.post(&stray).is_err(), "no such source");
    let late = Post {
        source: SourceId(0),
        at: 128,
        ..stray
    };
    assert!(a.link.tx.post(&late).is_err(), "past the end of the slot");
    assert_eq!(a.link.tx.posted(), 0);
}

/// Bounds: readers of an arrival read from the beginning of the slot.
pub fn a_write_that_begins_inside_its_slot_breaks_the_connection(fabric: &dyn Fabric) {
    if !fabric.looks_before_bytes_land() {
        return println!("skipped: offsets are not in the frame of this fabric");
    }
    let (mut a, mut b) = granted(fabric, Shape::honest(4, 128));
    a.fill(0, &pattern(1, 8));
    let post = Post {
        source: SourceId(0),
        offset: 0,
        len: 8,
        at: 64,
        imm: Imm::new(3, 1),
    };
    a.link.tx.post(&post).expect("inside the slot");
    a.flush();
    let broken = b.next_broken();
    assert!(
        matches!(broken, Broken::BadFrame { value: 64, .. }),
        "{broken}"
    );
    assert!(b.untouched());
}

/// Waits until one end breaks. A NIC may refuse a write without notice at the receiver; the sender
/// then breaks at its next write. A receiver that checks before bytes land must break itself.
fn either_breaks(fabric: &dyn Fabric, a: &mut LinkEnd, b: &mut LinkEnd) -> Broken {
    if fabric.looks_before_bytes_land() {
        a.flush();
        return b.next_broken();
    }
    let end = Instant::now() + fabric.patience();
    loop {
        let _ = a.link.tx.post(&Post::control(Control::Echo(0)));
        let _ = a.link.tx.flush();
        for link in [&mut a.link, &mut b.link] {
            let mut broken = None;
            link.rx.poll(1, &mut |e| match e {
                Event::Broken(b) => broken = Some(b),
                Event::Control(_) => {}
                Event::Arrived { .. } => panic!("reported: {e:?}"),
            });
            if let Some(broken) = broken {
                return broken;
            }
        }
        assert!(Instant::now() < end, "neither end breaks");
    }
}

/// Bounds, at the receiver: the sender believes in larger slots, or in more slots.
pub fn a_write_outside_its_slot_breaks_the_connection(fabric: &dyn Fabric) {
    for (claimed_slots, claimed_stride, written) in [(4, 256, (3, 129)), (100, 128, (4, 8))] {
        let lie = Shape {
            claimed_slots,
            claimed_stride,
            ..Shape::honest(4, 128)
        };
        let (mut a, mut b) = granted(fabric, lie);
        a.fill(0, &pattern(1, 256));
        let (slot, len) = written;
        a.post(0, len, Imm::new(slot, 1)).expect("posted");
        let broken = either_breaks(fabric, &mut a, &mut b);
        if fabric.looks_before_bytes_land() {
            let Broken::OutOfBounds { slot, len, .. } = broken else {
                panic!("{broken}")
            };
            assert_eq!((slot, len as usize), written);
            assert!(b.untouched());
        }
        assert!(b.guards_untouched());
    }
}

/// Asserts that a grant error breaks the connection and that no event follows.
fn refused(b: &mut LinkEnd) {
    let broken = b.next_broken();
    assert!(matches!(broken, Broken::Grant(_)), "{broken}");
    let mut more = 0;
    b.link.rx.poll(16, &mut |_| more += 1);
    assert_eq!(more, 0, "nothing follows a break");
}

/// Ownership: the receiver has opened no grant.
pub fn a_write_without_a_grant_breaks_the_connection(fabric: &dyn Fabric) {
    let (mut a, mut b) = join(fabric, Shape::honest(4, 128));
    a.send(0, 100, Imm::new(2, 1));
    refused(&mut b);
    if fabric.looks_before_bytes_land() {
        assert!(b.untouched());
    }
}

/// Ownership: the second write is a duplicate.
pub fn a_second_write_to_a_slot_breaks_the_connection(fabric: &dyn Fabric) {
    let (mut a, mut b) = granted(fabric, Shape::honest(4, 128));
    a.fill(0, &pattern(1, 100));
    a.fill(100, &pattern(2, 100));
    a.post(0, 100, Imm::new(2, 1)).expect("posted");
    a.post(100, 100, Imm::new(2, 1)).expect("posted");
    a.flush();
    assert!(matches!(b.next(), Event::Arrived { len: 100, .. }));
    refused(&mut b);
    if fabric.looks_before_bytes_land() {
        assert_eq!(b.slot(2, 100), pattern(1, 100), "the first write stands");
    }
}

/// Ownership: the second write carries the use count of an earlier use.
pub fn a_write_with_a_wrong_use_count_breaks_the_connection(fabric: &dyn Fabric) {
    let (mut a, mut b) = granted(fabric, Shape::honest(4, 128));
    a.send(0, 1, Imm::new(2, 1));
    assert!(matches!(b.next(), Event::Arrived { .. }));
    assert_eq!(b.window.grants().open(2), Some(2));
    a.send(0, 1, Imm::new(2, 1));
    refused(&mut b);
    assert!(b.window.grants().is_open(2), "the grant of use 2 stands");
}
