//! One suite for every fabric: each clause of the contract as a function that joins two endpoints and
//! panics where the fabric breaks its word.
//!
//! A fabric implements [`Fabric`] and calls [`fabric_conformance!`](crate::fabric_conformance), which
//! makes one test of each case.

use std::{
    collections::VecDeque,
    sync::Arc,
    thread,
    time::{Duration, Instant},
};

use super::{
    Armed, Broken, Control, Endpoint, Event, Flushed, Grants, Imm, Link, Post, PostError, Region,
    SourceId, Window,
};

/// What the suite needs of a fabric.
pub trait Fabric: Sync {
    /// Joins two endpoints.
    fn pair(&self, a: Endpoint, b: Endpoint) -> (Link, Link);

    /// True where a refused write leaves the slot untouched. A NIC writes first and is found out after.
    fn looks_before_bytes_land(&self) -> bool {
        true
    }

    /// True where writes stay in the sender's queue until the peer's software reads. A NIC takes them all by itself,
    /// since every one has its slot.
    fn fills_up_unread(&self) -> bool {
        true
    }

    /// False where this machine has not what the fabric needs: the cases are skipped then, and say so.
    fn available(&self) -> bool {
        true
    }

    /// How many requests the long exchange makes.
    fn exchanges(&self) -> usize {
        4000
    }

    /// How long to wait for the next thing that must come. Never for all of them: how long those take together is the
    /// machine's speed.
    fn patience(&self) -> Duration {
        Duration::from_secs(20)
    }
}

/// Makes one test of each case for the fabric that the expression names (seen from a module inside the
/// caller's).
#[macro_export]
macro_rules! fabric_conformance {
    ($fabric:expr) => {
        mod conformance_suite {
            $crate::fabric_conformance!(@cases $fabric;
                bytes_arrive_whole_and_in_order,
                a_post_outside_its_bounds_is_refused,
                a_write_past_its_slot_breaks_the_connection,
                a_write_to_a_slot_outside_the_window_breaks_the_connection,
                a_write_without_a_grant_breaks_the_connection,
                a_second_write_to_a_slot_breaks_the_connection,
                a_write_with_a_wrong_use_count_breaks_the_connection,
                a_full_send_queue_is_an_answer_and_not_a_wait,
                inline_memory_is_free_at_once,
                retired_memory_is_free,
                control_messages_keep_their_place,
                a_sleeper_is_woken,
                a_dead_peer_breaks_the_connection_after_what_it_sent,
                nothing_lands_after_a_connection_is_torn_down,
                slots_are_used_again_and_again_in_both_directions,
            );
        }
    };
    (@cases $fabric:expr; $($case:ident,)*) => {
        $(#[test]
        fn $case() {
            use $crate::fabric::conformance::Fabric as _;
            let fabric = $fabric;
            if fabric.available() {
                $crate::fabric::conformance::$case(&fabric);
            } else {
                println!("skipped: this fabric is not available here");
            }
        })*
    };
}

/// One end under test: its link, its window and the region it sends from.
struct End {
    link: Link,
    window: Window,
    source: Arc<Region>,
    patience: Duration,
}

/// What an end claims; a liar's sender claims a window that is not there.
#[derive(Clone, Copy)]
struct Shape {
    slots: usize,
    stride: usize,
    claimed_slots: usize,
    claimed_stride: usize,
    send_depth: usize,
}

impl Shape {
    fn honest(slots: usize, stride: usize) -> Self {
        Shape {
            slots,
            stride,
            claimed_slots: slots,
            claimed_stride: stride,
            send_depth: 64,
        }
    }
}

const GUARD: u8 = 0xee;

fn endpoint(shape: Shape) -> Endpoint {
    // A guard page's worth on both sides of the slots shows a write that strays.
    let bytes = shape.slots * shape.stride;
    let region = Arc::new(Region::new(bytes + 8192).expect("memory"));
    // SAFETY: nobody else knows the region yet.
    unsafe { region.bytes_mut(0, bytes + 8192) }
        .expect("in bounds")
        .fill(GUARD);
    let source_len = (shape.claimed_slots * shape.claimed_stride).max(4096);
    Endpoint {
        window: Window::new(
            region,
            4096,
            shape.stride,
            Arc::new(Grants::new(shape.slots)),
        )
        .expect("fits"),
        sources: vec![Arc::new(Region::new(source_len).expect("memory"))],
        peer_slots: shape.claimed_slots,
        peer_stride: shape.claimed_stride,
        send_depth: shape.send_depth,
    }
}

fn join(fabric: &dyn Fabric, shape: Shape) -> (End, End) {
    let (a, b) = (endpoint(shape), endpoint(shape));
    let end = |e: &Endpoint, link| End {
        link,
        window: e.window.clone(),
        source: e.sources[0].clone(),
        patience: fabric.patience(),
    };
    let (la, lb) = fabric.pair(a.clone(), b.clone());
    (end(&a, la), end(&b, lb))
}

impl End {
    fn grant_all(&self) {
        for slot in 0..self.window.slots() as u16 {
            self.window.grants().open(slot).expect("closed");
        }
    }

    fn fill(&self, offset: usize, bytes: &[u8]) {
        // SAFETY: these bytes are not being sent: each case fills before it posts or after a retirement.
        unsafe { self.source.bytes_mut(offset, bytes.len()) }
            .expect("in bounds")
            .copy_from_slice(bytes);
    }

    fn slot(&self, slot: u16, len: usize) -> Vec<u8> {
        let offset = self.window.slot_offset(slot);
        // SAFETY: read after its arrival or after the connection broke: nobody writes it.
        unsafe { self.window.region().bytes(offset, len) }
            .expect("in bounds")
            .to_vec()
    }

    fn untouched(&self) -> bool {
        let r = self.window.region();
        // SAFETY: as in `slot`.
        let all = unsafe { r.bytes(0, r.len()) }.expect("in bounds");
        all.iter().all(|b| *b == GUARD)
    }

    fn guards_untouched(&self) -> bool {
        let r = self.window.region();
        // SAFETY: nobody has any business in the guards.
        let (before, after) = unsafe { (r.bytes(0, 4096), r.bytes(r.len() - 4096, 4096)) };
        before.expect("in bounds").iter().all(|b| *b == GUARD)
            && after.expect("in bounds").iter().all(|b| *b == GUARD)
    }

    fn post(&mut self, offset: usize, len: usize, imm: Imm) -> Result<(), PostError> {
        self.link.tx.post(&Post {
            source: SourceId(0),
            offset,
            len: len as u32,
            at: 0,
            imm,
        })
    }

    /// Posts and flushes, whatever it takes.
    fn send(&mut self, offset: usize, len: usize, imm: Imm) {
        self.post(offset, len, imm).expect("posted");
        self.flush();
    }

    fn flush(&mut self) {
        let end = Instant::now() + self.patience;
        while self.link.tx.flush().expect("flushed") == Flushed::Blocked {
            assert!(Instant::now() < end, "blocked for ever");
            thread::yield_now();
        }
    }

    /// The next event.
    fn next(&mut self) -> Event {
        let end = Instant::now() + self.patience;
        loop {
            let mut got = None;
            self.link.rx.poll(1, &mut |e| got = Some(e));
            if let Some(e) = got {
                return e;
            }
            assert!(Instant::now() < end, "nothing came");
            thread::yield_now();
        }
    }

    fn next_broken(&mut self) -> Broken {
        match self.next() {
            Event::Broken(b) => b,
            other => panic!("expected a broken connection, got {other:?}"),
        }
    }
}

/// Tells what is stuck from what is slow: counts the time since the last step, not since the first.
struct Progress {
    patience: Duration,
    at: usize,
    end: Instant,
}

impl Progress {
    fn new(patience: Duration) -> Self {
        Progress {
            patience,
            at: 0,
            end: Instant::now() + patience,
        }
    }

    /// False once `at` has been the same for as long as the patience lasts.
    fn goes_on(&mut self, at: usize) -> bool {
        let now = Instant::now();
        if at != self.at {
            (self.at, self.end) = (at, now + self.patience);
        }
        now < self.end
    }
}

fn pattern(seed: usize, len: usize) -> Vec<u8> {
    (0..len)
        .map(|i| (seed * 31 + i * 7 + i / 251) as u8)
        .collect()
}

/// Order and visibility.
pub fn bytes_arrive_whole_and_in_order(fabric: &dyn Fabric) {
    let stride = 70_000;
    let (mut a, mut b) = join(fabric, Shape::honest(24, stride));
    b.grant_all();
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
    for (i, len) in sizes.iter().enumerate() {
        let imm = Imm::new(i as u16, 1);
        assert_eq!(
            b.next(),
            Event::Arrived {
                imm,
                len: *len as u32
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

/// Bounds, at the sender.
pub fn a_post_outside_its_bounds_is_refused(fabric: &dyn Fabric) {
    let (mut a, b) = join(fabric, Shape::honest(4, 128));
    b.grant_all();
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

/// Bounds, at the receiver: a sender that believes slots to be larger.
pub fn a_write_past_its_slot_breaks_the_connection(fabric: &dyn Fabric) {
    let lie = Shape {
        claimed_stride: 256,
        ..Shape::honest(4, 128)
    };
    let (mut a, mut b) = join(fabric, lie);
    b.grant_all();
    a.fill(0, &pattern(1, 256));
    a.send(0, 129, Imm::new(3, 1));
    let broken = b.next_broken();
    if fabric.looks_before_bytes_land() {
        assert!(
            matches!(
                broken,
                Broken::OutOfBounds {
                    slot: 3,
                    len: 129,
                    ..
                }
            ),
            "{broken}"
        );
        assert!(b.untouched());
    }
    assert!(b.guards_untouched());
}

/// Bounds, at the receiver: a sender that believes in more slots.
pub fn a_write_to_a_slot_outside_the_window_breaks_the_connection(fabric: &dyn Fabric) {
    let lie = Shape {
        claimed_slots: 100,
        ..Shape::honest(4, 128)
    };
    let (mut a, mut b) = join(fabric, lie);
    b.grant_all();
    a.send(0, 8, Imm::new(4, 1));
    let broken = b.next_broken();
    if fabric.looks_before_bytes_land() {
        assert!(
            matches!(broken, Broken::OutOfBounds { slot: 4, .. }),
            "{broken}"
        );
        assert!(b.untouched());
    }
    assert!(b.guards_untouched());
}

fn refused(fabric: &dyn Fabric, b: &mut End) {
    let broken = b.next_broken();
    assert!(matches!(broken, Broken::Grant(_)), "{broken}");
    let mut more = 0;
    b.link.rx.poll(16, &mut |_| more += 1);
    assert_eq!(more, 0, "nothing follows a break");
    let _ = fabric;
}

/// Ownership: the receiver has granted nothing.
pub fn a_write_without_a_grant_breaks_the_connection(fabric: &dyn Fabric) {
    let (mut a, mut b) = join(fabric, Shape::honest(4, 128));
    a.send(0, 100, Imm::new(2, 1));
    refused(fabric, &mut b);
    if fabric.looks_before_bytes_land() {
        assert!(b.untouched());
    }
}

/// Ownership: a duplicate.
pub fn a_second_write_to_a_slot_breaks_the_connection(fabric: &dyn Fabric) {
    let (mut a, mut b) = join(fabric, Shape::honest(4, 128));
    b.grant_all();
    a.fill(0, &pattern(1, 100));
    a.fill(100, &pattern(2, 100));
    a.post(0, 100, Imm::new(2, 1)).expect("posted");
    a.post(100, 100, Imm::new(2, 1)).expect("posted");
    a.flush();
    assert!(matches!(b.next(), Event::Arrived { len: 100, .. }));
    refused(fabric, &mut b);
    if fabric.looks_before_bytes_land() {
        assert_eq!(b.slot(2, 100), pattern(1, 100), "the first write stands");
    }
}

/// Ownership: a late completion of an earlier use.
pub fn a_write_with_a_wrong_use_count_breaks_the_connection(fabric: &dyn Fabric) {
    let (mut a, mut b) = join(fabric, Shape::honest(4, 128));
    b.grant_all();
    a.send(0, 1, Imm::new(2, 1));
    assert!(matches!(b.next(), Event::Arrived { .. }));
    assert_eq!(b.window.grants().open(2), Some(2));
    a.send(0, 1, Imm::new(2, 1));
    refused(fabric, &mut b);
    assert!(b.window.grants().is_open(2), "the grant of use 2 stands");
}

/// A full queue, and that what was refused can be posted later.
pub fn a_full_send_queue_is_an_answer_and_not_a_wait(fabric: &dyn Fabric) {
    let slots = 600;
    let stride = 20_000;
    let shape = Shape {
        send_depth: 8,
        ..Shape::honest(slots, stride)
    };
    let (mut a, mut b) = join(fabric, shape);
    b.grant_all();
    let mut sent = 0;
    let mut full = false;
    // Nobody reads: sooner or later nothing more is taken.
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
                assert_eq!(usize::from(imm.slot()), arrived, "in order");
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
    let (mut a, mut b) = join(fabric, Shape::honest(4, 128));
    b.grant_all();
    let n = a.link.tx.inline_limit().min(64);
    assert!(n >= 16, "a fabric takes at least 16 bytes inline");
    for slot in 0..4u16 {
        a.fill(0, &pattern(usize::from(slot), n));
        a.post(0, n, Imm::new(slot, 1)).expect("posted");
    }
    a.fill(0, &[0xdd; 64]);
    a.flush();
    for slot in 0..4u16 {
        assert!(matches!(b.next(), Event::Arrived { .. }));
        assert_eq!(b.slot(slot, n), pattern(usize::from(slot), n));
    }
}

/// Memory of a retired write may be changed.
pub fn retired_memory_is_free(fabric: &dyn Fabric) {
    let stride = 50_000;
    let (mut a, mut b) = join(fabric, Shape::honest(8, stride));
    b.grant_all();
    for slot in 0..8u16 {
        a.fill(0, &pattern(usize::from(slot), stride));
        a.post(0, stride, Imm::new(slot, 1)).expect("posted");
        let end = Instant::now() + fabric.patience();
        // The peer may have to read for it to retire.
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

/// Control messages need no grant and keep their place among the writes.
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
    assert_eq!(b.next(), Event::Control(Control::Echo(7)));
    assert!(matches!(b.next(), Event::Arrived { len: 3, .. }));
    assert_eq!(b.next(), Event::Control(Control::EchoReply(0x0fff_ffff)));
}

/// Sleeping: arm, sleep on the descriptor, be woken; what came before arming is never slept through.
pub fn a_sleeper_is_woken(fabric: &dyn Fabric) {
    let rounds = 200u16;
    let (mut a, mut b) = join(fabric, Shape::honest(usize::from(rounds), 64));
    b.grant_all();
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
            // Long enough for the sleeper to be asleep, most of the time.
            thread::sleep(Duration::from_micros(300));
        }
    }
    sleeper.join().expect("woken every time");
}

/// Breaking: arrivals first, then the break, then nothing; and the sender hears of it too.
pub fn a_dead_peer_breaks_the_connection_after_what_it_sent(fabric: &dyn Fabric) {
    let (mut a, mut b) = join(fabric, Shape::honest(4, 128));
    b.grant_all();
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

/// Quarantine begins with this: once both halves are dropped, the window stays as it is.
pub fn nothing_lands_after_a_connection_is_torn_down(fabric: &dyn Fabric) {
    let (mut a, b) = join(fabric, Shape::honest(8, 4096));
    b.grant_all();
    let End { link, window, .. } = b;
    drop(link);
    for slot in 0..8u16 {
        let _ = a.post(0, 4096, Imm::new(slot, 1));
        let _ = a.link.tx.flush();
    }
    thread::sleep(Duration::from_millis(20));
    let r = window.region();
    // SAFETY: the connection is gone: nobody writes.
    let all = unsafe { r.bytes(0, r.len()) }.expect("in bounds");
    assert!(all.iter().all(|b| *b == GUARD), "a late write landed");
    assert!((0..8).all(|s| window.grants().is_open(s)), "and was taken");
}

/// A long exchange: each request is answered in the same slot with bytes that depend on it.
pub fn slots_are_used_again_and_again_in_both_directions(fabric: &dyn Fabric) {
    let (slots, stride, total) = (32usize, 2048usize, fabric.exchanges());
    let (mut a, mut b) = join(fabric, Shape::honest(slots, stride));
    b.grant_all();
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
                Event::Arrived { imm, len } => ready.push_back((imm, len as usize)),
                other => panic!("{other:?}"),
            });
            while let Some((imm, len)) = ready.front().copied() {
                // A slot's source is in use until its last response has retired; so wait for all.
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
            Event::Arrived { imm, len } => got.push((imm, len as usize)),
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
