//! Delivery: writes arrive whole and in order, in their slots, and wake a sleeping receiver.

use std::{collections::VecDeque, thread, time::Duration};

use super::{
    Fabric,
    rig::{Progress, Shape, granted, join, pattern},
};
use fabric::{Armed, Broken, Control, Event, Imm, Post};

pub fn bytes_arrive_whole_and_in_order(fabric: &dyn Fabric) {
    let stride = 70_000;
    let (mut a, mut b) = granted(fabric, Shape::honest(24, stride));
    let sizes = [
        0, 1, 15, 16, 17, 63, 64, 65, 255, 4095, 4096, 4097, 65_535, 65_536, stride,
    ];
    for (i, len) in sizes.iter().enumerate() {
        a.fill(i * stride, &pattern(i, *len));
    }
    let sender = thread::spawn(move || {
        for (i, len) in sizes.iter().enumerate() {
            a.post(i * stride, *len, Imm::new(i as u16, 1))
                .expect("posted");
        }
        a.flush();
        a
    });
    let mut seen = vec![false; sizes.len()];
    for turn in 0..sizes.len() {
        let event = b.next();
        let Event::Arrived { imm, .. } = event else {
            panic!("{event:?}")
        };
        let i = usize::from(imm.slot());
        let len = &sizes[i];
        assert!(turn == i || !fabric.keeps_order(), "{i} comes as {turn}");
        assert!(!std::mem::replace(&mut seen[i], true), "{i} comes twice");
        let (imm, len32) = (Imm::new(i as u16, 1), *len as u32);
        assert_eq!(
            event,
            Event::Arrived {
                imm,
                at: 0,
                len: len32
            }
        );
        assert_eq!(
            b.slot(i as u16, *len),
            pattern(i, *len),
            "bytes of write {i}"
        );
        assert!(!b.window.grants().is_open(i as u16), "the grant is closed");
    }
    assert!(b.guards_untouched());
    let a = sender.join().expect("joined");
    assert_eq!(a.link.tx.posted(), sizes.len() as u64);
}

/// Order: control messages need no grant and keep their place among the writes.
pub fn control_messages_keep_their_place(fabric: &dyn Fabric) {
    let (mut a, mut b) = join(fabric, Shape::honest(4, 128));
    b.window.grants().open(0).expect("closed");
    a.link
        .tx
        .post(&Post::control(Control::Echo(7)))
        .expect("posted");
    a.post(0, 3, Imm::new(0, 1)).expect("posted");
    a.link
        .tx
        .post(&Post::control(Control::EchoReply(0x0fff_ffff)))
        .expect("posted");
    a.flush();
    let imm = Imm::new(0, 1);
    let expected = [
        Event::Control(Control::Echo(7)),
        Event::Arrived { imm, at: 0, len: 3 },
        Event::Control(Control::EchoReply(0x0fff_ffff)),
    ];
    let came = [b.next(), b.next(), b.next()];
    if fabric.keeps_order() {
        assert_eq!(came, expected);
    }
    assert!(expected.iter().all(|e| came.contains(e)), "{came:?}");
}

/// Options: the bit arrives with its write, which closes the grant, at any length. A window that
/// takes no options refuses the bit.
pub fn a_request_with_options_arrives_marked_and_whole(fabric: &dyn Fabric) {
    let shape = Shape {
        options: true,
        ..Shape::honest(4, 20_000)
    };
    let (mut a, mut b) = granted(fabric, shape);
    for (slot, len) in [(0, 8), (1, 600), (2, 9_000), (3, 20_000)] {
        let bytes = pattern(usize::from(slot), len);
        a.fill(0, &bytes);
        let imm = Imm::new(slot, 1).with_options(true);
        a.send(0, len, imm);
        let (at, len32) = (0, len as u32);
        assert_eq!(
            b.next(),
            Event::Arrived {
                imm,
                at,
                len: len32
            }
        );
        assert_eq!(b.slot(slot, len), bytes);
        assert!(!b.window.grants().is_open(slot));
    }
    for counts in [a.link.tx.counts(), b.link.rx.counts()] {
        assert_eq!((counts.writes, counts.parts), (4, 0));
    }
    let (mut a, mut b) = granted(fabric, Shape::honest(4, 128));
    a.send(0, 8, Imm::new(0, 1).with_options(true));
    let broken = b.next_broken();
    assert!(matches!(broken, Broken::BadFrame { .. }), "{broken}");
}

/// Sleeping: the receiver arms, sleeps on the descriptor and is woken. A write before arming is
/// never missed.
pub fn a_sleeper_is_woken(fabric: &dyn Fabric) {
    let rounds = 200u16;
    let (mut a, mut b) = granted(fabric, Shape::honest(usize::from(rounds), 64));
    let patience = fabric.patience();
    let sleeper = thread::spawn(move || {
        let mut got = 0;
        let mut poller = mio::Poll::new().expect("poll");
        let mut events = mio::Events::with_capacity(4);
        let fd = b.link.rx.fd();
        poller
            .registry()
            .register(
                &mut mio::unix::SourceFd(&fd),
                mio::Token(0),
                mio::Interest::READABLE | mio::Interest::WRITABLE,
            )
            .expect("registered");
        while got < rounds {
            let mut n = b.link.rx.poll(16, &mut |e| match e {
                Event::Arrived { .. } => got += 1,
                other => panic!("{other:?}"),
            });
            n += usize::from(b.link.rx.arm() == Armed::Ready);
            if n == 0 && got < rounds {
                poller.poll(&mut events, Some(patience)).expect("polled");
                assert!(!events.is_empty(), "slept through write {got}");
            }
        }
        b
    });
    for i in 0..rounds {
        a.send(0, 8, Imm::new(i, 1));
        if i % 3 == 0 {
            // 300 us: the receiver is asleep most of the time.
            thread::sleep(Duration::from_micros(300));
        }
    }
    sleeper.join().expect("woken every time");
}

/// Ownership: each of many requests is answered in its slot with bytes computed from the request.
pub fn slots_are_used_again_and_again_in_both_directions(fabric: &dyn Fabric) {
    let (slots, stride, total) = (32usize, 2048usize, fabric.exchanges());
    let (mut a, mut b) = granted(fabric, Shape::honest(slots, stride));
    let patience = fabric.patience();
    let size = move |i: usize| (i * 37) % (stride + 1);

    let server = thread::spawn(move || {
        let mut served = 0;
        let mut ready: VecDeque<(Imm, usize)> = VecDeque::new();
        let mut progress = Progress::new(patience);
        while served < total {
            assert!(
                progress.goes_on(served),
                "server stuck after {served}: {:?}",
                b.link
            );
            b.link.rx.poll(8, &mut |e| match e {
                Event::Arrived { imm, len, .. } => ready.push_back((imm, len as usize)),
                other => panic!("{other:?}"),
            });
            while let Some((imm, len)) = ready.front().copied() {
                // A slot's source is in use until its last response has retired: wait for all.
                if b.link.tx.retired() < b.link.tx.posted() || b.link.tx.room() == 0 {
                    break;
                }
                let mut bytes = b.slot(imm.slot(), len);
                bytes.iter_mut().for_each(|x| *x ^= 0x5a);
                let offset = usize::from(imm.slot()) * stride;
                b.fill(offset, &bytes);
                b.window.grants().open(imm.slot()).expect("ours");
                b.post(offset, len, imm).expect("room");
                ready.pop_front();
                served += 1;
                b.link.tx.flush().expect("alive");
            }
            b.link.tx.flush().expect("alive");
        }
        b.flush();
        b
    });

    let mut free: VecDeque<u16> = (0..slots as u16).collect();
    let mut of_slot = vec![0usize; slots];
    let (mut sent, mut done) = (0, 0);
    let mut progress = Progress::new(patience);
    while done < total {
        assert!(
            progress.goes_on(sent + done),
            "client stuck: {sent} sent, {done} done: {:?}",
            a.link
        );
        while sent < total && a.link.tx.room() > 0 && a.link.tx.retired() == a.link.tx.posted() {
            let Some(slot) = free.pop_front() else { break };
            let use_count = a.window.grants().open(slot).expect("free");
            let offset = usize::from(slot) * stride;
            a.fill(offset, &pattern(sent, size(sent)));
            a.post(offset, size(sent), Imm::new(slot, use_count))
                .expect("room");
            of_slot[usize::from(slot)] = sent;
            sent += 1;
            a.link.tx.flush().expect("alive");
        }
        a.link.tx.flush().expect("alive");
        let mut got = Vec::new();
        a.link.rx.poll(8, &mut |e| match e {
            Event::Arrived { imm, len, .. } => got.push((imm, len as usize)),
            other => panic!("{other:?}"),
        });
        for (imm, len) in got {
            let i = of_slot[usize::from(imm.slot())];
            let mut expected = pattern(i, size(i));
            expected.iter_mut().for_each(|x| *x ^= 0x5a);
            assert_eq!(len, size(i));
            assert_eq!(a.slot(imm.slot(), len), expected, "response {i}");
            free.push_back(imm.slot());
            done += 1;
        }
    }
    let b = server.join().expect("served");
    assert!(a.guards_untouched() && b.guards_untouched());
    assert_eq!(a.link.tx.counts().writes, total as u64);
    assert_eq!(a.link.rx.counts().writes, total as u64);
    assert_eq!(a.link.tx.counts().bytes, b.link.rx.counts().bytes);
}
