//! Tests of counters and failures, for real devices and the in-process provider.

use std::{fmt::Display, sync::Arc, time::Instant};

use fabric::wire::Stream;
use fabric::{
    Armed, Control, Event, FabricCounts, Flushed, Grants, Imm, Link, Post, Region,
    ib::{IbCfgs, IbConnection, IbEnd, IbKeys},
    keys::Auto,
};

use super::rig::{Pair, alone, assert_has, endpoint, eventually, next, next_broken, post};

/// Number of samples that `offline` sends: about 150 MB.
const SAMPLES: usize = 1024;

/// Offline traffic: bursts of 64 samples of 150,528 bytes in free slots, each answered with 24
/// bytes.
fn offline(split_above: Option<u32>) -> (FabricCounts, FabricCounts) {
    const STRIDE: usize = 150_528;
    let (slots, samples) = (128, SAMPLES);
    let pair = Pair::open(|keys| {
        keys.adaptive_routing.split_above = split_above;
        // An emulated machine may stall for longer than the default retries last.
        keys.timeout = 18;
    });
    let mut requests = endpoint(slots, 64, 4096);
    requests.peer_stride = STRIDE;
    requests.sources = vec![Arc::new(Region::new(STRIDE).expect("memory"))];
    let mut responses = endpoint(slots, STRIDE, 4096);
    responses.peer_stride = 64;
    let (mut a, mut b) = pair.link(&requests, &responses);
    let (at_a, at_b) = (requests.window.grants(), responses.window.grants());
    (0..slots as u16).for_each(|s| {
        at_b.open(s);
    });
    let mut free: Vec<u16> = (0..slots as u16).collect();
    let (mut sent, mut done) = (0, 0);
    while done < samples {
        let burst = (samples - sent).min(64);
        if free.len() >= burst && burst > 0 {
            for slot in free.drain(..burst) {
                let use_count = at_a.open(slot).expect("free");
                a.tx.post(&post(0, STRIDE as u32, Imm::new(slot, use_count)))
                    .expect("room");
                sent += 1;
            }
            assert_eq!(a.tx.flush(), Ok(Flushed::Done));
        }
        let mut arrived = Vec::new();
        b.rx.poll(256, &mut |e| match e {
            Event::Arrived { imm, len, .. } => {
                assert_eq!(len as usize, STRIDE);
                arrived.push(imm);
            }
            other => panic!("{other:?}"),
        });
        for imm in &arrived {
            at_b.open(imm.slot()).expect("ours");
            b.tx.post(&post(0, 24, *imm)).expect("room");
        }
        if !arrived.is_empty() {
            assert_eq!(b.tx.flush(), Ok(Flushed::Done));
        }
        a.rx.poll(256, &mut |e| match e {
            Event::Arrived { imm, len: 24, .. } => {
                free.push(imm.slot());
                done += 1;
            }
            other => panic!("{other:?}"),
        });
    }
    a.tx.finish();
    let (out, back) = (a.tx.counts(), b.tx.counts());
    let (got, answered) = (b.rx.counts(), a.rx.counts());
    let samples = samples as u64;
    assert_eq!((out.writes, out.copies, got.copies), (samples, 0, 0));
    assert_eq!(
        (back.inline, back.work_requests),
        (samples, samples),
        "answers ride inline"
    );
    // Work requests, completions, sends and slots reconcile; the goodbye is one request more.
    let each = if split_above.is_some() { 2 } else { 1 };
    assert_eq!(out.work_requests, each * samples + 1);
    assert_eq!(out.retired, out.work_requests);
    assert_eq!(
        out.cqes, out.signaled,
        "every completion but the last flushed ones is a signaled one"
    );
    assert_eq!((got.cqes, got.writes), (samples, samples));
    assert_eq!((answered.cqes, answered.writes), (samples, samples));
    assert!(
        got.receives - got.cqes >= slots as u64,
        "a receive for every slot at all times"
    );
    (out, got)
}

#[test]
fn one_work_request_carries_a_sample_and_few_are_signaled() {
    let _alone = alone();
    let (out, _) = offline(None);
    assert!(out.signaled * 64 <= out.work_requests + 64, "{out:?}");
    assert!(out.work_requests >= 16 * out.doorbells, "{out:?}");
}

#[test]
fn two_work_requests_carry_a_split_sample() {
    let _alone = alone();
    let (out, got) = offline(Some(8192));
    assert!(out.signaled * 64 <= out.work_requests + 64, "{out:?}");
    assert!(out.work_requests >= 16 * out.doorbells, "{out:?}");
    assert_eq!(got.bytes, SAMPLES as u64 * 150_528);
}

/// The receiver sleeps and is woken many times; under load, one event covers many completions.
#[test]
fn one_event_stands_for_a_burst() {
    let _alone = alone();
    let (slots, bursts) = (64u16, 50u64);
    let e = [
        endpoint(slots.into(), 64, 256),
        endpoint(slots.into(), 64, 256),
    ];
    let pair = Pair::open(|_| {});
    let (mut a, mut b) = pair.link(&e[0], &e[1]);
    let grants = e[1].window.grants();
    for _ in 0..bursts {
        while b.rx.arm() == Armed::Ready {
            b.rx.poll(1, &mut |e| panic!("{e:?}"));
        }
        for slot in 0..slots {
            let use_count = grants.open(slot).expect("closed");
            a.tx.post(&post(0, 64, Imm::new(slot, use_count)))
                .expect("room");
        }
        a.tx.flush().expect("alive");
        let mut got = 0;
        eventually("a burst is stuck", || {
            b.rx.poll(1000, &mut |_| got += 1);
            got == slots
        });
    }
    let counts = b.rx.counts();
    // A poll may precede the event of the completions that it finds.
    assert!(counts.cq_events >= bursts / 2, "it did sleep: {counts:?}");
    assert!(counts.cq_events * 16 <= counts.cqes, "{counts:?}");
}

/// Posts a write of `len` bytes for each immediate, and returns the immediates that arrive.
fn carry(from: &mut Link, to: &mut Link, len: u32, imms: &[Imm]) -> Vec<Imm> {
    for imm in imms {
        eventually("no room to send", || {
            from.tx.room() > 0 || from.tx.flush().is_err()
        });
        from.tx.post(&post(0, len, *imm)).expect("room");
    }
    let mut arrived = Vec::with_capacity(imms.len());
    eventually("writes are stuck", || {
        from.tx.flush().expect("alive");
        to.rx.poll(imms.len(), &mut |e| match e {
            Event::Arrived { imm, .. } => arrived.push(imm),
            other => panic!("{other:?}"),
        });
        arrived.len() == imms.len()
    });
    arrived
}

/// Whether this half's descriptor becomes readable within `ms` milliseconds.
fn wakes(link: &Link, ms: i32) -> bool {
    let mut fd = libc::pollfd {
        fd: link.rx.fd(),
        events: libc::POLLIN,
        revents: 0,
    };
    // SAFETY: `fd` is one live structure; `link` keeps its descriptor open.
    unsafe { libc::poll(&raw mut fd, 1, ms) == 1 }
}

#[test]
fn an_unsolicited_write_wakes_no_sleeper() {
    let _alone = alone();
    let mut pair = Pair::open(|_| {});
    pair.keys[0].solicited = false;
    let e = [endpoint(4, 64, 8), endpoint(4, 64, 8)];
    let (ha, hb) = (pair.prepare(0, &e[0], 4), pair.prepare(1, &e[1], 4));
    // The receiver believes that the sender marks its bursts, and sleeps until a solicited write.
    let (mut end, peer) = (ha.end(), hb.end());
    end.solicited = true;
    let mut b = hb.connect(&end).expect("connected");
    let mut a = ha.connect(&peer).expect("connected");
    let imm = Imm::new(0, e[1].window.grants().open(0).expect("closed"));
    assert_eq!(b.rx.arm(), Armed::Sleep);
    a.tx.post(&post(0, 8, imm)).expect("room");
    a.tx.flush().expect("alive");
    assert!(!wakes(&b, 100), "an unsolicited write wakes the sleeper");
    // The goodbye is always solicited.
    a.tx.finish();
    assert!(wakes(&b, 5000), "the solicited write wakes no sleeper");
    assert!(matches!(next(&mut b), Event::Arrived { len: 8, .. }));
}

#[test]
fn the_automatic_gid_is_the_ipv4_address() {
    let _alone = alone();
    let gid = Pair::open(|_| {})
        .prepare(0, &endpoint(4, 64, 8), 4)
        .end()
        .gid;
    assert!(gid.to_ipv4_mapped().is_some(), "{gid}");
}

#[test]
fn more_inline_bytes_than_the_device_takes_are_refused() {
    let _alone = alone();
    let pair = Pair::open(|keys| keys.inline_bytes = 1 << 20);
    let limits = pair.resources[0].device().limits().clone();
    let cfgs = IbCfgs::resolve(&pair.keys[0], &limits, 4).expect("within limits");
    let refused = IbConnection::prepare(&pair.resources[0], endpoint(4, 64, 8), &cfgs);
    let text = refused.expect_err("a megabyte inline").to_string();
    assert_has(&text, &["1048576 inline bytes", &*pair.keys[0].device]);
}

#[test]
fn eight_thousand_slots_are_used_again_and_again() {
    let _alone = alone();
    const SLOTS: usize = 8192;
    const ROUNDS: usize = 10;
    let pair = Pair::open(|keys| keys.send_depth = Auto::Fixed(8192));
    let (ea, eb) = (endpoint(SLOTS, 64, SLOTS), endpoint(SLOTS, 64, SLOTS));
    let (mut a, mut b) = pair.link(&ea, &eb);
    let [at_a, at_b] = [&ea, &eb].map(|e| e.window.grants().clone());
    let open = |grants: &Grants, slot| Imm::new(slot, grants.open(slot).expect("closed"));
    let mut granted: Vec<Imm> = (0..SLOTS as u16).map(|s| open(&at_b, s)).collect();
    for _ in 0..ROUNDS {
        granted.iter().for_each(|imm| {
            open(&at_a, imm.slot());
        });
        let requests = carry(&mut a, &mut b, 8, &granted);
        granted = requests.iter().map(|r| open(&at_b, r.slot())).collect();
        let answers = carry(&mut b, &mut a, 24, &requests);
        let mut slots: Vec<u16> = answers.iter().map(|imm| imm.slot()).collect();
        slots.sort_unstable();
        assert!(slots.into_iter().eq(0..SLOTS as u16), "each slot once");
    }
    a.tx.finish();
    let total = (ROUNDS * SLOTS) as u64;
    let (out, got) = (a.tx.counts(), b.rx.counts());
    assert_eq!((out.writes, out.retired), (total, out.work_requests));
    assert_eq!((got.writes, got.cqes), (total, total));
}

#[test]
fn a_wrong_rkey_is_reported_at_both_ends() {
    let _alone = alone();
    let pair = Pair::open(|_| {});
    let e = [endpoint(4, 64, 8), endpoint(4, 64, 8)];
    let (ha, hb) = (pair.prepare(0, &e[0], 4), pair.prepare(1, &e[1], 4));
    let (ea, mut eb) = (ha.end(), hb.end());
    eb.slots.rkey ^= 0x100;
    let mut a = ha.connect(&eb).expect("connected");
    let mut b = hb.connect(&ea).expect("connected");
    e[1].window.grants().open(0).expect("closed");
    a.tx.post(&post(0, 40, Imm::new(0, 1))).expect("room");
    let _ = a.tx.flush();
    let at_a = next_broken(&mut a).to_string();
    assert_has(&at_a, &["IBV_WC_REM_ACCESS_ERR", &*pair.keys[0].device]);
    let at_b = next_broken(&mut b).to_string();
    assert!(
        [
            "QP_ACCESS_ERR",
            "IBV_WC_WR_FLUSH_ERR",
            "IBV_WC_REM_ACCESS_ERR"
        ]
        .iter()
        .any(|e| at_b.contains(e)),
        "{at_b}"
    );
    assert!(e[1].window.grants().is_open(0), "nothing arrived");
}

#[test]
fn a_peer_that_announces_too_little_is_refused() {
    let _alone = alone();
    let pair = Pair::open(|_| {});
    let e = endpoint(4, 64, 8);
    for (field, change) in [
        ("slots.length", (|e| e.slots.length = 255) as fn(&mut IbEnd)),
        ("cells.length", |e| e.cells.length = 63),
        ("slots.length", |e| e.slots.address = u64::MAX - 9),
        ("mtu", |e| e.mtu = 1500),
        ("rq_psn", |e| e.psn = 1 << 24),
        ("dest_qp_num", |e| e.qp_num = 1 << 24),
    ] {
        let (ha, hb) = (pair.prepare(0, &e, 4), pair.prepare(1, &e, 4));
        let mut end = hb.end();
        change(&mut end);
        let text = ha.connect(&end).expect_err("refused").to_string();
        assert!(text.contains(field), "{field}: {text}");
    }
}

#[test]
fn control_messages_have_receives_of_their_own() {
    let _alone = alone();
    let e = [endpoint(4, 64, 64), endpoint(4, 64, 64)];
    let few = |keys: &mut IbKeys| {
        (keys.receive_depth, keys.send_depth) = (Auto::Fixed(21), Auto::Fixed(64));
    };
    let pair = Pair::open(few);
    let (mut a, mut b) = pair.link(&e[0], &e[1]);
    for round in 0..100u32 {
        (0..4u16).for_each(|s| {
            let use_count = e[1].window.grants().open(s).expect("closed");
            a.tx.post(&post(0, 64, Imm::new(s, use_count)))
                .expect("room");
        });
        (0..16).for_each(|_| {
            a.tx.post(&Post::control(Control::Echo(round)))
                .expect("room")
        });
        a.tx.flush().expect("alive");
        let mut seen = 0;
        eventually("messages are stuck", || {
            b.rx.poll(100, &mut |e| {
                assert!(!matches!(e, Event::Broken(_)), "{e:?}");
                seen += 1;
            });
            seen == 20
        });
        eventually("the send queue stays full", || {
            a.tx.flush().expect("alive");
            a.tx.retired() == a.tx.posted()
        });
    }
}

/// With the fewest receives that a configuration permits, ten times as many parts and a receiver
/// that pauses, no part is lost and the connection stays up.
#[test]
fn parts_that_find_no_receive_wait_for_one() {
    let _alone = alone();
    const LEN: usize = 16;
    let (slots, parts) = (4, 210);
    let stride = parts * LEN;
    let pair = Pair::open(|keys| keys.receive_depth = Auto::Fixed(21));
    let mut e = [endpoint(slots, stride, 64), endpoint(slots, stride, 64)];
    e[0].peer_stream = Stream::All;
    e[1].window = e[1].window.clone().in_parts(Stream::All);
    let (mut a, mut b) = pair.link(&e[0], &e[1]);
    e[1].window.grants().open(2);
    let imm = Imm::new(2, 1);
    let (mut posted, mut came) = (0, 0);
    let mut post_on = |a: &mut Link| {
        while posted < parts && a.tx.room() > 0 {
            let last = posted + 1 == parts;
            let at = (posted * LEN) as u32;
            let part = Post {
                at,
                ..post(
                    at as usize,
                    LEN as u32,
                    if last { imm } else { imm.with_more() },
                )
            };
            a.tx.post(&part).expect("room");
            posted += 1;
        }
        a.tx.flush().expect("alive");
    };
    post_on(&mut a);
    std::thread::sleep(std::time::Duration::from_millis(50));
    eventually("parts were lost", || {
        post_on(&mut a);
        b.rx.poll(8, &mut |event| {
            let (more, at) = (came + 1 < parts, (came * LEN) as u32);
            let imm = if more { imm.with_more() } else { imm };
            let len = LEN as u32;
            assert_eq!(event, Event::Arrived { imm, at, len });
            came += 1;
        });
        came == parts
    });
    assert!(!e[1].window.grants().is_open(2));
}

/// Prints the time to the report of a fault, and its text. In an emulated guest these times are
/// upper bounds.
pub fn report(what: &str, since: Instant, by: &dyn Display) {
    println!(
        "{what}: reported after {} ms: {by}",
        since.elapsed().as_millis()
    );
}

#[test]
fn a_peer_that_is_gone_without_a_word_is_reported_by_the_retries() {
    let _alone = alone();
    // The defaults: a timeout of 67 ms and six retries.
    let pair = Pair::open(|_| {});
    let e = [endpoint(4, 64, 8), endpoint(4, 64, 8)];
    let (ha, hb) = (pair.prepare(0, &e[0], 4), pair.prepare(1, &e[1], 4));
    let mut a = ha.connect(&hb.end()).expect("connected");
    // As after SIGKILL: the kernel destroys the queue pair, and no goodbye is sent.
    drop(hb);
    let began = Instant::now();
    a.tx.post(&post(0, 40, Imm::new(0, 1))).expect("room");
    let _ = a.tx.flush();
    let text = next_broken(&mut a).to_string();
    report("peer gone", began, &text);
    assert_has(&text, &["IBV_WC_RETRY_EXC_ERR", "did not answer"]);
}

#[test]
fn a_queue_pair_forced_to_err_is_reported_at_both_ends() {
    let _alone = alone();
    let pair = Pair::open(|_| {});
    let e = [endpoint(4, 64, 8), endpoint(4, 64, 8)];
    let (mut a, mut b) = pair.link(&e[0], &e[1]);
    let began = Instant::now();
    pair.resources[1].device().force_error();
    let at_b = next_broken(&mut b).to_string();
    report("queue pair in ERR, its own side", began, &at_b);
    assert_has(&at_b, &["IBV_WC_WR_FLUSH_ERR", &*pair.keys[1].device]);
    // A queue pair in ERR accepts and sends nothing: its peer detects that at the next send.
    let began = Instant::now();
    a.tx.post(&post(0, 40, Imm::new(0, 1))).expect("room");
    let _ = a.tx.flush();
    let at_a = next_broken(&mut a).to_string();
    report("queue pair in ERR, the other side", began, &at_a);
    assert!(at_a.contains("IBV_WC_"), "{at_a}");
}

#[test]
fn a_message_one_byte_too_long_is_reported_at_both_ends() {
    let _alone = alone();
    let pair = Pair::open(|_| {});
    let mut e = [endpoint(1, 64, 8), endpoint(1, 64, 8)];
    // The sender assumes that the peer's only slot is one byte longer.
    e[0].peer_stride = 65;
    e[0].sources = vec![Arc::new(Region::new(65).expect("memory"))];
    let (mut a, mut b) = pair.link(&e[0], &e[1]);
    e[1].window.grants().open(0).expect("closed");
    let began = Instant::now();
    a.tx.post(&post(0, 65, Imm::new(0, 1))).expect("room");
    let _ = a.tx.flush();
    let at_a = next_broken(&mut a).to_string();
    report("one byte too long, sender", began, &at_a);
    assert!(at_a.contains("IBV_WC_REM_ACCESS_ERR"), "{at_a}");
    let at_b = next_broken(&mut b).to_string();
    report("one byte too long, receiver", began, &at_b);
    assert!(e[1].window.grants().is_open(0), "nothing arrived");
}

#[test]
fn an_exhausted_receive_queue_is_reported_by_the_sender() {
    let _alone = alone();
    let pair = Pair::open(|_| {});
    let e = [endpoint(64, 64, 64), endpoint(64, 64, 64)];
    let limits = pair.resources[1].device().limits().clone();
    let mut few = IbCfgs::resolve(&pair.keys[1], &limits, 64).expect("within limits");
    // Fewer receives than slots, which no configuration permits, and a receiver that does not poll.
    (few.receive_depth, few.receive_batch) = (4, 1);
    let hb = IbConnection::prepare(&pair.resources[1], e[1].clone(), &few).expect("prepared");
    let ha = pair.prepare(0, &e[0], 64);
    let end = ha.end();
    let mut a = ha.connect(&hb.end()).expect("connected");
    let mut b = hb.connect(&end).expect("connected");
    let began = Instant::now();
    for slot in 0..8 {
        e[1].window.grants().open(slot).expect("closed");
        a.tx.post(&post(0, 40, Imm::new(slot, 1))).expect("room");
    }
    let _ = a.tx.flush();
    let text = next_broken(&mut a).to_string();
    report("no receive left", began, &text);
    assert!(text.contains("IBV_WC_RNR_RETRY_EXC_ERR"), "{text}");
    // The writes that had a receive have arrived.
    (0..4).for_each(|_| assert!(matches!(next(&mut b), Event::Arrived { .. })));
}
