//! Answers in parts, with an accelerator whose writes the test makes: first tokens are reported
//! once, in order, and compared after a retry.

use std::{
    ops::Deref,
    sync::{Arc, Mutex, mpsc},
    time::Duration,
};

use super::{
    rig::{Hoard, Rig, RigCfgs, Wait},
    *,
};
use crate::{
    counters::{Live, Recorder, SampleTimes},
    response::{RESPONSE_HEADER_BYTES, Refusal, ResponseHeader, ResponseTrailer},
    serve::Service,
};
use fabric::{
    Event, Grants, Imm, Post, SourceId, Window,
    testkit::{memory, memory::MemoryFaults},
    wire::Stream,
};

const SLOTS: usize = 8;
const REQUEST: usize = 64;
const RESPONSE: usize = 256;
pub(super) const PATIENCE: Duration = Duration::from_secs(10);

#[derive(Clone, Debug, PartialEq)]
pub(super) enum Call {
    Part(u64, u32, Vec<u32>, bool),
    Whole(u64, Vec<u32>, bool),
    Contradicted(Contradiction),
    Times(SampleTimes),
}

struct Teller(mpsc::Sender<Call>, Recorder);

fn tokens(payload: &[u8]) -> Vec<u32> {
    let (words, rest) = payload.as_chunks::<4>();
    assert!(rest.is_empty(), "{payload:?}");
    words.iter().map(|w| u32::from_le_bytes(*w)).collect()
}

impl Completer for Teller {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        for r in responses {
            let _ = self.0.send(Call::Whole(r.id, tokens(r.payload), r.whole));
        }
    }
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        for p in parts {
            assert_eq!(p.index, 100 + p.id);
            let _ = self
                .0
                .send(Call::Part(p.id, p.at, tokens(p.payload), p.first));
        }
    }
    fn contradicted(&mut self, what: Contradiction) {
        let _ = self.0.send(Call::Contradicted(what));
    }
    fn recorder(&mut self, _: u64) -> Option<&mut Recorder> {
        Some(&mut self.1)
    }
}

#[derive(Default)]
struct Events(Mutex<Vec<DispatchEvent>>);

impl Owner for Events {
    fn complete_empty(&self, _: &[Sample]) {}
    fn event(&self, event: DispatchEvent) {
        self.0.lock().expect("alive").push(event);
    }
}

/// A dispatcher whose completer reports its calls. The test plays the server.
pub(super) struct Parts {
    rig: Rig,
    calls: mpsc::Receiver<Call>,
    events: Arc<Events>,
}

impl Deref for Parts {
    type Target = Rig;
    fn deref(&self) -> &Rig {
        &self.rig
    }
}

pub(super) struct Far {
    link: Link,
    source: Arc<Region>,
    grants: Arc<Grants>,
    /// Per slot: bytes written.
    at: [usize; SLOTS],
    faults: MemoryFaults,
}

impl Parts {
    fn new(connections: usize) -> Self {
        Parts::made(connections, false)
    }

    pub(crate) fn of_peers(peers: usize) -> Self {
        Parts::made(peers, true)
    }

    fn made(connections: usize, peers: bool) -> Self {
        let (tell, calls) = mpsc::channel();
        let events = Arc::new(Events::default());
        let cfgs = RigCfgs {
            nics: 1,
            peers,
            request: REQUEST,
            response: RESPONSE,
            stream: Stream::All,
            policy: Policy::RoundRobin,
            wait: Wait::asleep(),
            ..RigCfgs::new(connections, SLOTS)
        };
        let teller = || -> Box<dyn Completer> {
            let times = tell.clone();
            let recorder = Recorder::new(Arc::new(Live::new(1)), 0);
            let recorder = recorder.observed(move |t, alike| {
                (0..alike).for_each(|_| _ = times.send(Call::Times(*t)));
            });
            Box::new(Teller(tell.clone(), recorder))
        };
        let service: Arc<dyn Service> = Arc::new(Hoard::default());
        Parts {
            rig: Rig::new(cfgs, &service, teller, events.clone()),
            calls,
            events,
        }
    }

    pub(crate) fn connect(&self, connection: usize, epoch: u32) -> Far {
        let region = |bytes| Arc::new(Region::new(bytes).expect("memory"));
        let grants = Arc::new(Grants::new(SLOTS));
        (0..SLOTS as u16).for_each(|s| {
            grants.open(s);
        });
        let source = region(SLOTS * RESPONSE);
        let far = Endpoint {
            window: Window::new(region(SLOTS * REQUEST), 0, REQUEST, grants.clone()).expect("fits"),
            sources: vec![source.clone()],
            peer_slots: SLOTS,
            peer_stride: RESPONSE,
            peer_stream: Stream::All,
            send_depth: 64,
        };
        let near = self.dispatcher.endpoint(connection);
        let (near, link, faults) = memory::pair(near, far).expect("joined");
        let up = self.dispatcher.connections_up();
        self.dispatcher.attach(connection, epoch, near);
        eventually("it does not come up", || {
            self.dispatcher.connections_up() != up
        });
        let at = [0; SLOTS];
        Far {
            link,
            source,
            grants,
            at,
            faults,
        }
    }

    /// The completer's next call; times are left out.
    pub(crate) fn next(&self) -> Call {
        loop {
            match self.calls.recv_timeout(PATIENCE).expect("a call") {
                Call::Times(_) => {}
                call => return call,
            }
        }
    }

    pub(crate) fn times(&self) -> SampleTimes {
        match self.calls.recv_timeout(PATIENCE).expect("times") {
            Call::Times(t) => t,
            other => panic!("{other:?}"),
        }
    }

    /// Checks that the completer receives no further call.
    pub(crate) fn nothing_more(self) {
        assert!(self.dispatcher.drain(PATIENCE));
        self.dispatcher.stop();
        let more: Vec<_> = self.calls.try_iter().collect();
        let times = |t: &Call| matches!(t, Call::Times(_));
        assert!(more.iter().all(times), "{more:?}");
    }

    /// The nth refusal reported, if no other events came.
    pub(crate) fn refused(&self, n: usize) -> RefusedSample {
        match self.event(n) {
            DispatchEvent::Refused(r) => r,
            other => panic!("{other:?}"),
        }
    }

    /// Cause of the loss that is the nth event.
    fn broken(&self, n: usize) -> Broken {
        match self.event(n) {
            DispatchEvent::ConnectionLost { cause, .. } => cause,
            other => panic!("{other:?}"),
        }
    }

    fn event(&self, n: usize) -> DispatchEvent {
        let events = || self.events.0.lock().expect("alive");
        eventually("an event comes", || events().len() > n);
        events()[n].clone()
    }
}

impl Far {
    pub(crate) fn request(&mut self) -> Imm {
        let mut next = None;
        eventually("a request comes", || {
            next = self.try_request();
            next.is_some()
        });
        next.expect("just seen")
    }

    pub(crate) fn try_request(&mut self) -> Option<Imm> {
        let mut got = None;
        self.link.rx.poll(1, &mut |e| got = Some(e));
        match got? {
            Event::Arrived { imm, .. } => {
                self.at[usize::from(imm.slot())] = 0;
                Some(imm)
            }
            other => panic!("{other:?}"),
        }
    }

    pub(crate) fn refuse(&mut self, imm: Imm, why: &str) {
        self.refuse_as(imm, Refusal::Whole, why);
    }

    pub(crate) fn refuse_as(&mut self, imm: Imm, refusal: Refusal, why: &str) {
        let header = ResponseHeader {
            len: why.len() as u32,
            use_count: imm.use_count(),
            refusal: Some(refusal),
            queue_us: 0,
            compute_us: 0,
        };
        self.post(imm, &[&header.encode()[..], why.as_bytes()].concat());
    }

    pub(crate) fn refuse_rest(&mut self, imm: Imm, why: &str, parts: u32) {
        let before = self.at[usize::from(imm.slot())] - RESPONSE_HEADER_BYTES;
        let trailer = ResponseTrailer {
            len: (before + why.len()) as u32,
            parts,
            refusal: Some(Refusal::Whole),
            ..ResponseTrailer::default()
        };
        self.post(imm, &[why.as_bytes(), &trailer.encode()].concat());
    }

    /// Posts the next bytes of a slot; they leave with the next flush.
    fn post(&mut self, imm: Imm, bytes: &[u8]) {
        let slot = usize::from(imm.slot());
        let at = self.at[slot];
        let offset = slot * RESPONSE + at;
        // SAFETY: no write in flight covers these bytes.
        unsafe { self.source.store(offset, bytes) }.expect("inside");
        let post = Post {
            source: SourceId(0),
            offset,
            len: bytes.len() as u32,
            at: at as u32,
            imm,
        };
        self.link.tx.post(&post).expect("room");
        self.at[slot] += bytes.len();
        if !imm.more() {
            self.grants.open(imm.slot());
        }
    }

    pub(crate) fn flush(&mut self) {
        self.link.tx.flush().expect("alive");
    }

    fn header(imm: Imm, tokens: &[u32]) -> Vec<u8> {
        let header = ResponseHeader {
            len: 4 * tokens.len() as u32,
            use_count: imm.use_count(),
            refusal: None,
            queue_us: 1,
            compute_us: 2,
        };
        [&header.encode()[..], &Self::bytes(tokens)].concat()
    }

    fn bytes(tokens: &[u32]) -> Vec<u8> {
        tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
    }

    /// Answers in one piece, and flushes.
    pub(crate) fn whole(&mut self, imm: Imm, tokens: &[u32]) {
        self.post(imm, &Self::header(imm, tokens));
        self.flush();
    }

    pub(crate) fn first(&mut self, imm: Imm, tokens: &[u32]) {
        self.post(imm.with_more(), &Self::header(imm, tokens));
    }

    pub(crate) fn more(&mut self, imm: Imm, tokens: &[u32]) {
        self.post(imm.with_more(), &Self::bytes(tokens));
    }

    fn last(&mut self, imm: Imm, tokens: &[u32], parts: u32) {
        let before = self.at[usize::from(imm.slot())] - RESPONSE_HEADER_BYTES;
        let trailer = ResponseTrailer {
            len: before as u32 + 4 * tokens.len() as u32,
            parts,
            refusal: None,
            compute_us: 9,
            mean_us: 6,
        };
        let bytes = [&Self::bytes(tokens)[..], &trailer.encode()].concat();
        self.post(imm, &bytes);
    }
}

#[test]
fn parts_of_one_poll_are_handed_over_in_order_and_before_their_end() {
    let rig = Parts::new(1);
    let mut far = rig.connect(0, 1);
    rig.issue(0..1);
    rig.issue(1..2);
    let (a, b) = (far.request(), far.request());
    // One doorbell carries all parts, so one poll brings them.
    far.first(a, &[10]);
    far.first(b, &[20, 21]);
    far.more(a, &[11, 12]);
    far.last(b, &[], 2);
    far.more(a, &[13]);
    far.last(a, &[], 4);
    far.flush();
    assert_eq!(rig.next(), Call::Part(0, 0, vec![10], true));
    assert_eq!(rig.next(), Call::Part(1, 0, vec![20, 21], true));
    assert_eq!(rig.next(), Call::Part(0, 4, vec![11, 12], false));
    assert_eq!(rig.next(), Call::Part(0, 12, vec![13], false));
    assert_eq!(rig.next(), Call::Whole(1, vec![20, 21], false));
    assert_eq!(rig.next(), Call::Whole(0, vec![10, 11, 12, 13], false));
    for (parts, bytes, first) in [(2, 8, 8), (4, 16, 4)] {
        let t = rig.times();
        assert_eq!((t.parts, t.bytes_in, t.first_bytes), (parts, bytes, first));
        assert_eq!((t.queue_us, t.compute_us), (1, 9), "the last part's");
        assert_eq!((t.first_residence_us, t.parts_residence_us), (3, 6));
        assert_eq!(t.first_ns, t.seen_ns, "one poll");
        let round_trip_us = (t.seen_ns - t.posted_ns) / 1000;
        assert_eq!(u64::from(t.parts_after_us), round_trip_us);
    }
    assert_eq!(rig.dispatcher.parts(), 4);
    let counts = rig.dispatcher.counts();
    assert_eq!((counts.completed, counts.parts), (2, 4));
    rig.nothing_more();
}

#[test]
fn an_answer_in_one_piece_is_whole_and_a_slot_begins_anew() {
    let rig = Parts::new(1);
    let mut far = rig.connect(0, 1);
    for id in 0..3 * SLOTS as u64 {
        rig.issue(id..id + 1);
        let imm = far.request();
        let t = id as u32;
        if id % 2 == 0 {
            far.whole(imm, &[t, t + 1]);
            assert_eq!(rig.next(), Call::Whole(id, vec![t, t + 1], true));
            let times = rig.times();
            assert_eq!((times.parts, times.first_ns), (1, times.seen_ns));
            assert_eq!(times.first_bytes, 8);
            assert_eq!((times.first_residence_us, times.parts_residence_us), (3, 3));
        } else {
            far.first(imm, &[t]);
            far.flush();
            assert_eq!(rig.next(), Call::Part(id, 0, vec![t], true));
            far.last(imm, &[t + 1], 2);
            far.flush();
            assert_eq!(rig.next(), Call::Whole(id, vec![t, t + 1], false));
            let times = rig.times();
            assert!(times.first_ns <= times.seen_ns && times.parts == 2);
        }
    }
    rig.nothing_more();
}

/// A sample whose first token, 10, is reported and whose connection is then lost; and the
/// accelerator that it goes to next.
fn lost_after_its_first_token() -> (Parts, Far, Imm) {
    let rig = Parts::new(2);
    let mut far = rig.connect(0, 1);
    rig.issue(7..8);
    let imm = far.request();
    far.first(imm, &[10]);
    far.more(imm, &[11]);
    far.flush();
    assert_eq!(rig.next(), Call::Part(7, 0, vec![10], true));
    assert_eq!(rig.next(), Call::Part(7, 4, vec![11], false));
    far.faults.cut();
    rig.broken(0);
    let mut other = rig.connect(1, 1);
    let imm = other.request();
    (rig, other, imm)
}

#[test]
fn the_first_token_of_a_sample_sent_again_came_when_it_was_reported() {
    for whole in [true, false] {
        let (rig, mut far, imm) = lost_after_its_first_token();
        if whole {
            far.whole(imm, &[10, 11]);
        } else {
            far.first(imm, &[10]);
            far.last(imm, &[11], 2);
        }
        far.flush();
        let t = loop {
            if let Call::Times(t) = rig.calls.recv_timeout(PATIENCE).expect("times") {
                break t;
            }
        };
        assert!(
            t.issued_ns < t.first_ns && t.first_ns < t.posted_ns && t.posted_ns < t.seen_ns,
            "{t:?}"
        );
        rig.nothing_more();
    }
}

#[test]
fn another_first_token_after_a_loss_is_a_contradiction() {
    let other = |again| {
        Call::Contradicted(Contradiction {
            index: 107,
            reported: 10,
            again,
            connection: 1,
        })
    };
    let (rig, mut far, imm) = lost_after_its_first_token();
    far.first(imm, &[11]);
    far.flush();
    assert_eq!(rig.next(), other(11));
    assert_eq!(rig.next(), Call::Part(7, 0, vec![11], false));
    far.last(imm, &[12], 2);
    far.flush();
    assert_eq!(rig.next(), Call::Whole(7, vec![11, 12], false));
    rig.nothing_more();
    // The same with an answer in one piece, and with an answer without tokens.
    for (tokens, again) in [(vec![9, 10], 9), (vec![], 0)] {
        let (rig, mut far, imm) = lost_after_its_first_token();
        far.whole(imm, &tokens);
        assert_eq!(rig.next(), other(again));
        assert_eq!(rig.next(), Call::Whole(7, tokens, false));
        rig.nothing_more();
    }
}

#[test]
fn a_first_token_stays_reported_through_two_losses() {
    let (rig, far, imm) = lost_after_its_first_token();
    // The connection is lost again, once before and once after the first part.
    let _ = imm;
    far.faults.cut();
    rig.broken(1);
    let mut far = rig.connect(0, 2);
    let imm = far.request();
    far.first(imm, &[10]);
    far.flush();
    assert_eq!(rig.next(), Call::Part(7, 0, vec![10], false));
    far.faults.cut();
    rig.broken(2);
    let mut far = rig.connect(1, 2);
    let imm = far.request();
    far.whole(imm, &[10, 11]);
    assert_eq!(rig.next(), Call::Whole(7, vec![10, 11], false));
    assert_eq!(rig.dispatcher.counts().again, 3);
    rig.nothing_more();
}

/// Writes invalid parts after a request has come.
type Nonsense = fn(&mut Far, Imm);

#[test]
fn parts_that_contradict_themselves_end_the_connection_and_the_sample_goes_again() {
    let cases: [(&str, Nonsense); 8] = [
        ("response header", |far, imm| {
            // The following parts arrive with it, and are invalid too.
            far.post(imm.with_more(), &Far::header(imm, &[10, 11])[..20]);
            far.more(imm, &[11]);
            far.last(imm, &[12], 3);
        }),
        ("response header", |far, imm| {
            // As above, with a trailer whose counts match the parts.
            far.post(imm.with_more(), &Far::header(imm, &[]));
            far.last(imm, &[12], 2);
        }),
        ("response header", |far, imm| {
            // A header that promises more bytes than arrived.
            let mut bytes = Far::header(imm, &[10, 11]);
            bytes.truncate(20);
            far.post(imm.with_more(), &bytes);
        }),
        ("response header", |far, imm| {
            // A first part without a token.
            far.post(imm.with_more(), &Far::header(imm, &[]));
        }),
        ("response header", |far, imm| {
            let other = Imm::new(imm.slot(), imm.use_count() + 1);
            far.post(imm.with_more(), &Far::header(other, &[10]));
        }),
        ("response trailer", |far, imm| {
            far.first(imm, &[10]);
            far.last(imm, &[11], 3);
        }),
        ("response trailer", |far, imm| {
            far.first(imm, &[10]);
            // Too short for a trailer.
            far.post(imm, &[1; 15]);
        }),
        ("response trailer", |far, imm| {
            far.first(imm, &[10]);
            let trailer = ResponseTrailer {
                len: 9,
                parts: 2,
                ..ResponseTrailer::default()
            };
            far.post(imm, &trailer.encode());
        }),
    ];
    for (i, (field, nonsense)) in cases.into_iter().enumerate() {
        let rig = Parts::new(2);
        let mut far = rig.connect(0, 1);
        rig.issue(7..8);
        let imm = far.request();
        nonsense(&mut far, imm);
        far.flush();
        let broken = rig.broken(0);
        assert!(
            matches!(broken, Broken::BadFrame { what, .. } if what == field),
            "case {i}: {broken}"
        );
        let mut far = rig.connect(1, 1);
        let imm = far.request();
        far.whole(imm, &[10, 11]);
        let reported = field == "response trailer";
        if reported {
            assert_eq!(rig.next(), Call::Part(7, 0, vec![10], true), "case {i}");
        }
        assert_eq!(
            rig.next(),
            Call::Whole(7, vec![10, 11], !reported),
            "case {i}"
        );
        rig.nothing_more();
    }
}

/// Whether a sample was said to be worn out: its index, its losses, the last connection.
fn worn_out(rig: &Parts) -> Option<(u64, u16, usize, Broken)> {
    let events = rig.events.0.lock().expect("alive");
    events.iter().find_map(|e| match e {
        DispatchEvent::WornOut {
            index,
            losses,
            connection,
            cause,
        } => Some((*index, *losses, *connection, cause.clone())),
        _ => None,
    })
}

/// Its connection is lost so many times, each time after its first token.
fn lose(rig: &Parts, times: usize, how: impl Fn(&mut Far, Imm)) {
    for n in 0..times {
        assert_eq!(worn_out(rig), None, "after {n} losses");
        let mut far = rig.connect(0, n as u32 + 1);
        let imm = far.request();
        how(&mut far, imm);
        rig.broken(n);
    }
}

#[test]
fn a_sample_that_every_connection_is_lost_with_is_named() {
    for nonsense in [true, false] {
        let rig = Parts::new(2);
        rig.issue(7..8);
        lose(&rig, 64, |far, imm| {
            far.first(imm, &[10]);
            if nonsense {
                far.post(imm, &[1; 15]);
            }
            far.flush();
            if !nonsense {
                assert!(matches!(rig.next(), Call::Part(7, 0, _, _)));
                far.faults.cut();
            }
        });
        eventually("it goes on for ever", || worn_out(&rig).is_some());
        let (index, losses, connection, cause) = worn_out(&rig).expect("reported");
        assert_eq!((index, losses, connection), (107, 64, 0));
        assert_eq!(matches!(cause, Broken::BadFrame { .. }), nonsense);
        // The owner may let the sample go on.
        let mut far = rig.connect(1, 1);
        let imm = far.request();
        far.whole(imm, &[10, 11]);
        assert!(rig.dispatcher.drain(PATIENCE));
    }
}

#[test]
fn losses_without_the_sample_in_flight_do_not_count() {
    let rig = Parts::new(2);
    rig.issue(7..8);
    lose(&rig, 63, |far, _| far.faults.cut());
    let mut far = rig.connect(1, 1);
    let imm = far.request();
    // The sample stays in flight while the other connection is lost again and again.
    for n in 63..70 {
        rig.connect(0, n + 1).faults.cut();
        rig.broken(n as usize);
    }
    far.whole(imm, &[10, 11]);
    assert_eq!(rig.next(), Call::Whole(7, vec![10, 11], true));
    // The next sample begins anew.
    rig.issue(8..9);
    let _ = far.request();
    far.faults.cut();
    rig.broken(70);
    assert_eq!(worn_out(&rig), None);
}

#[test]
fn parts_of_a_warm_up_reach_no_completer() {
    let rig = Parts::new(1);
    let mut far = rig.connect(0, 1);
    let cfgs = WarmUpCfgs {
        samples: vec![rig.sample(0)],
        budget: Duration::ZERO,
        deadline: PATIENCE,
        again: false,
    };
    let report = std::thread::scope(|scope| {
        let dispatcher = &rig.rig.dispatcher;
        let warm = scope.spawn(|| dispatcher.warm_up(&cfgs));
        let imm = far.request();
        far.first(imm, &[1]);
        far.flush();
        far.last(imm, &[2], 2);
        far.flush();
        warm.join().expect("returns").expect("warm")
    });
    assert_eq!(report.samples, 1);
    assert_eq!(rig.dispatcher.parts(), 0);
    rig.nothing_more();
}
