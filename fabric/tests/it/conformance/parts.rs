//! Parts: writes of one slot land behind one another, and each is reported as it arrives.

use super::{
    Fabric,
    rig::{GUARD, LinkEnd, Progress, Shape, granted, pattern},
};
use fabric::{Broken, Event, Imm, testkit::dice::Dice};

/// `imm`, marked as a part that more parts follow unless `is_last`.
fn part(imm: Imm, is_last: bool) -> Imm {
    if is_last { imm } else { imm.with_more() }
}

/// Asserts that the next event is this arrival.
fn arrives(b: &mut LinkEnd, imm: Imm, at: usize, len: usize) {
    let (at, len) = (at as u32, len as u32);
    assert_eq!(b.next(), Event::Arrived { imm, at, len });
}

/// Asserts that a bad frame breaks the connection, and returns the frame's field and value.
fn bad_frame(b: &mut LinkEnd) -> (&'static str, u64) {
    match b.next_broken() {
        Broken::BadFrame { what, value } => (what, value),
        other => panic!("{other}"),
    }
}

/// Order: each part begins where the part before it ended, whatever the sizes. A part's bytes are
/// readable once the part is reported.
pub fn parts_land_behind_one_another(fabric: &dyn Fabric) {
    let sizes = [1, 16, 4, 700, 65_000, 1, 511, 512, 513, 9];
    let stride = 70_000;
    let (mut a, mut b) = granted(fabric, Shape::in_parts(4, stride));
    let bytes = pattern(3, sizes.iter().sum());
    a.fill(0, &bytes);
    let mut at = 0;
    for (i, len) in sizes.iter().copied().enumerate() {
        let imm = part(Imm::new(2, 1), i + 1 == sizes.len());
        a.post_at(at, len, at, imm).expect("posted");
        at += len;
    }
    // The parts exceed some socket buffers, so both ends must make progress.
    let (mut came, mut progress) = (Vec::new(), Progress::new(fabric.patience()));
    while came.len() < sizes.len() {
        assert!(progress.goes_on(came.len()), "{came:?}");
        a.link.tx.flush().expect("alive");
        b.link.rx.poll(1, &mut |e| came.push(e));
    }
    let mut at = 0;
    for (i, (event, len)) in came.into_iter().zip(sizes).enumerate() {
        let imm = part(Imm::new(2, 1), i + 1 == sizes.len());
        let (from, len32) = (at as u32, len as u32);
        assert_eq!(
            event,
            Event::Arrived {
                imm,
                at: from,
                len: len32
            }
        );
        at += len;
        assert_eq!(b.slot(2, at), bytes[..at], "up to part {i}");
    }
    assert!(b.guards_untouched());
    let parts = sizes.len() as u64;
    for counts in [a.link.tx.counts(), b.link.rx.counts()] {
        assert_eq!((counts.writes, counts.parts), (parts, parts - 1));
        assert_eq!(counts.bytes, at as u64);
    }
}

/// Compares with a model of the bytes sent to each slot: parts of many slots, in any mixture and
/// size, over many uses.
pub fn parts_of_any_size_and_mixture_arrive_as_sent(fabric: &dyn Fabric) {
    let (slots, stride, total) = (8, 1500, fabric.exchanges());
    let (mut a, mut b) = granted(fabric, Shape::in_parts(slots, stride));
    let mut dice = Dice::of(7, &[]);
    let mut below = |n: usize| dice.below(n as u64) as usize;
    // Per slot: use count, length, bytes sent and bytes arrived of the current use.
    let mut uses = vec![(1u16, 0, 0, 0); slots];
    let (mut posted, mut came, mut answers) = (0, 0, 0);
    let mut progress = Progress::new(fabric.patience());
    while came < total {
        assert!(progress.goes_on(posted + came), "{posted} {came}");
        // At most as many parts as the receiver surely has receive buffers for.
        while posted < total && posted - came < 2 * slots && a.link.tx.room() > 0 {
            let slot = below(slots);
            let (use_count, len, sent, _) = &mut uses[slot];
            if *len == 0 {
                *len = 1 + below(stride);
                *sent = 0;
                a.fill(
                    slot * stride,
                    &pattern(slot + usize::from(*use_count), *len),
                );
            }
            if *sent == *len {
                // The answer is sent in full.
                break;
            }
            let bytes = 1 + below(*len - *sent);
            let imm = part(Imm::new(slot as u16, *use_count), *sent + bytes == *len);
            a.post_at(slot * stride + *sent, bytes, *sent, imm)
                .expect("room");
            *sent += bytes;
            posted += 1;
        }
        a.link.tx.flush().expect("alive");
        let mut events = Vec::new();
        b.link.rx.poll(8, &mut |e| events.push(e));
        for event in events {
            let Event::Arrived { imm, at, len } = event else {
                panic!("{event:?}")
            };
            let slot = usize::from(imm.slot());
            let (use_count, whole, _, got) = &mut uses[slot];
            assert_eq!((imm.use_count(), at as usize), (*use_count, *got));
            *got += len as usize;
            let expected = pattern(slot + usize::from(*use_count), *whole);
            assert_eq!(b.slot(imm.slot(), *got), expected[..*got], "slot {slot}");
            assert_eq!(imm.more(), *got < *whole);
            came += 1;
            if !imm.more() {
                // After its last part, the model sends no byte of the answer again.
                answers += 1;
                let next = b.window.grants().open(imm.slot()).expect("closed");
                uses[slot] = (next, 0, 0, 0);
            }
        }
    }
    let counts = b.link.rx.counts();
    assert_eq!(
        (counts.writes, counts.parts),
        (total as u64, (total - answers) as u64)
    );
    assert!(answers > 0 && answers < total && b.guards_untouched());
}

/// Bounds: parts cannot extend a slot.
pub fn a_part_past_its_slot_breaks_the_connection(fabric: &dyn Fabric) {
    let lie = Shape {
        claimed_stride: 256,
        ..Shape::in_parts(4, 128)
    };
    let (mut a, mut b) = granted(fabric, lie);
    a.fill(0, &pattern(1, 200));
    let imm = Imm::new(0, 1);
    a.send_at(0, 100, 0, imm.with_more());
    arrives(&mut b, imm.with_more(), 0, 100);
    a.send_at(100, 29, 100, imm);
    let broken = b.next_broken();
    let outside = Broken::OutOfBounds {
        slot: 0,
        slots: 4,
        at: 100,
        len: 29,
        stride: 128,
    };
    assert_eq!(broken, outside);
    assert!(b.window.grants().is_open(0));
    if fabric.looks_before_bytes_land() {
        assert_eq!(b.slot(0, 128)[100..], [GUARD; 28]);
        assert_eq!(b.slot(1, 128), [GUARD; 128]);
    }
}

/// Order: the offset in a frame must equal the end of the slot's previous part.
pub fn a_part_at_another_offset_breaks_the_connection(fabric: &dyn Fabric) {
    if !fabric.looks_before_bytes_land() {
        return println!("skipped: offsets are not in the frame of this fabric");
    }
    for at in [0, 8, 17, 64] {
        let (mut a, mut b) = granted(fabric, Shape::in_parts(4, 128));
        a.fill(0, &pattern(1, 128));
        let imm = Imm::new(3, 1).with_more();
        a.send_at(0, 16, 0, imm);
        arrives(&mut b, imm, 0, 16);
        a.send_at(100, 8, at, imm);
        assert_eq!(bad_frame(&mut b), ("offset within the slot", at as u64));
        assert_eq!(b.slot(3, 16), pattern(1, 16), "what came stands");
        assert_eq!(b.slot(3, 128)[16..], [GUARD; 112]);
    }
}

/// Each part has at least 1 byte, the last part too.
pub fn an_empty_part_breaks_the_connection(fabric: &dyn Fabric) {
    let imm = Imm::new(3, 1);
    let (mut a, mut b) = granted(fabric, Shape::in_parts(4, 128));
    a.send_at(0, 0, 0, imm.with_more());
    assert_eq!(bad_frame(&mut b), ("length of a part", 0));

    let (mut a, mut b) = granted(fabric, Shape::in_parts(4, 128));
    a.send_at(0, 16, 0, imm.with_more());
    arrives(&mut b, imm.with_more(), 0, 16);
    a.send_at(0, 0, 16, imm);
    assert_eq!(bad_frame(&mut b), ("length of a part", 0));
    assert!(b.window.grants().is_open(3));
}
