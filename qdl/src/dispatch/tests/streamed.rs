//! Answers in parts through a server: an engine emits tokens step by step, for samples in any
//! order, over connections that fill up or are cut.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
    time::Duration,
};

use xxhash_rust::xxh3::xxh3_64;

use super::{
    rig::{Over, Rig, RigCfgs, Wait, finished},
    tampered::{Tamper, tampered},
    *,
};
use crate::counters::{Live, Recorder};
use crate::{
    response::{RESPONSE_HEADER_BYTES, RESPONSE_TRAILER_BYTES, ResponseHeader, ResponseTrailer},
    serve::{self, Arrival, Sent, Service, respond_all},
};
use fabric::{Event, Flushed, Imm, Post, SourceId, Tx, testkit::memory, wire::Stream};

const SLOTS: usize = 16;
const REQUEST: usize = 64;
/// Most tokens of an answer.
const MOST: usize = 24;
const RESPONSE: usize = RESPONSE_HEADER_BYTES + 4 * MOST + RESPONSE_TRAILER_BYTES;

/// The expected answer to a sample.
fn answer(input: &[u8]) -> Vec<u32> {
    let h = xxh3_64(input);
    let n = 1 + h as usize % MOST;
    (0..n as u32).map(|i| (h >> 8) as u32 ^ (i * 77)).collect()
}

/// A sample whose answer is in progress.
struct Sequence {
    arrival: Arrival,
    answer: Vec<u32>,
    done: usize,
    sent: Sent,
}

impl Sequence {
    fn new(arrival: Arrival) -> Self {
        Sequence {
            answer: answer(arrival.input()),
            arrival,
            done: 0,
            sent: Sent::default(),
        }
    }

    /// Emits `n` tokens, sent at once where parts are wanted. Returns true with the last token.
    fn step(&mut self, n: usize) -> bool {
        let end = (self.done + n).min(self.answer.len());
        for i in self.done..end {
            let bytes = self.answer[i].to_le_bytes();
            self.arrival.output_from(4 * i)[..4].copy_from_slice(&bytes);
        }
        self.done = end;
        let origin = self.arrival.origin().clone();
        let wanted = match origin.stream() {
            Stream::None => false,
            Stream::First => self.sent.parts == 0,
            Stream::All => true,
        };
        let last = end == self.answer.len();
        if wanted && !last {
            origin.part(&serve::Part {
                ticket: self.arrival.ticket(),
                from: self.sent.bytes,
                to: 4 * end as u32,
                queue_us: 1,
                compute_us: 2,
            });
            self.sent.bytes = 4 * end as u32;
            self.sent.parts += 1;
            self.sent.sum_us += 3;
        }
        last
    }

    fn finish(self) {
        let len = 4 * self.answer.len() as u32;
        let finished = finished(&self.arrival, len, self.sent);
        respond_all([(self.arrival, finished)], &mut Vec::new());
    }
}

/// Hands arrivals to a second thread, which advances them in an order of its own choice.
struct Engine(Mutex<mpsc::Sender<Arrival>>);

impl Service for Engine {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let engine = self.0.lock().expect("alive");
        arrivals.drain(..).for_each(|a| {
            let _ = engine.send(a);
        });
    }
}

fn engine() -> (Engine, JoinHandle<()>) {
    let (give, take) = mpsc::channel::<Arrival>();
    let thread = std::thread::spawn(move || {
        let mut at_work: Vec<Sequence> = Vec::new();
        let mut random = 12_345u64;
        loop {
            if at_work.is_empty() {
                let Ok(a) = take.recv() else { return };
                at_work.push(Sequence::new(a));
            }
            at_work.extend(take.try_iter().map(Sequence::new));
            random = random
                .wrapping_mul(6_364_136_223_846_793_005)
                .wrapping_add(1);
            let i = (random >> 33) as usize % at_work.len();
            if at_work[i].arrival.origin().is_gone() {
                at_work.swap_remove(i);
            } else if at_work[i].step(1 + (random >> 60) as usize % 3) {
                at_work.swap_remove(i).finish();
            }
        }
    });
    (Engine(Mutex::new(give)), thread)
}

/// Record of each sample: its parts so far, reports of its first token, and completions.
#[derive(Clone, Debug, Default)]
struct Entry {
    parts: Vec<u8>,
    firsts: u32,
    ends: u32,
    whole: bool,
    answer: Vec<u8>,
}

#[derive(Default)]
struct Book {
    entries: Mutex<HashMap<u64, Entry>>,
    lost: AtomicU64,
}

struct Keeper(Arc<Book>, Recorder);

impl Completer for Keeper {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        let mut entries = self.0.entries.lock().expect("alive");
        for r in responses {
            let e = entries.entry(r.id).or_default();
            e.ends += 1;
            e.whole = r.whole;
            e.answer = r.payload.to_vec();
            assert!(e.answer.starts_with(&e.parts), "sample {}", r.id);
        }
    }
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        let mut entries = self.0.entries.lock().expect("alive");
        for p in parts {
            let e = entries.entry(p.id).or_default();
            assert_eq!(e.ends, 0, "a part of sample {} after its end", p.id);
            if p.at == 0 {
                // After a retry, the parts begin again.
                e.parts.clear();
            }
            assert_eq!(e.parts.len(), p.at as usize, "sample {}", p.id);
            e.parts.extend(p.payload);
            e.firsts += u32::from(p.first);
        }
    }
    fn contradicted(&mut self, what: Contradiction) {
        panic!("{what:?}");
    }
    fn recorder(&mut self, _: u64) -> Option<&mut Recorder> {
        Some(&mut self.1)
    }
}

impl Owner for Book {
    fn complete_empty(&self, _: &[Sample]) {}
    fn event(&self, event: DispatchEvent) {
        if let DispatchEvent::ConnectionLost { cause, .. } = event {
            assert_eq!(cause, Broken::Closed);
            self.lost.fetch_add(1, Ordering::SeqCst);
        }
    }
}

/// A [`Rig`] with an engine that answers in parts, and a book of what came.
struct Streamed {
    rig: Rig,
    book: Arc<Book>,
    engine: Option<JoinHandle<()>>,
}

impl Deref for Streamed {
    type Target = Rig;
    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Streamed {
    fn new(connections: usize, stream: Stream) -> Self {
        let (service, engine) = engine();
        let service: Arc<dyn Service> = Arc::new(service);
        Streamed {
            engine: Some(engine),
            ..Streamed::serving(connections, stream, &service)
        }
    }

    fn serving(connections: usize, stream: Stream, service: &Arc<dyn Service>) -> Self {
        let book = Arc::new(Book::default());
        let cfgs = RigCfgs {
            request: REQUEST,
            response: RESPONSE,
            stream,
            wait: Wait::patient(),
            ..RigCfgs::new(connections, SLOTS)
        };
        let keeper = || -> Box<dyn Completer> {
            let recorder = Recorder::new(Arc::new(Live::new(1)), 0).observed(|t, _| {
                assert_eq!((t.queue_us, t.compute_us), (1, 2));
                assert_eq!((t.first_residence_us, t.parts_residence_us), (3, 3));
                assert!(t.parts > 0 && t.first_ns <= t.seen_ns && t.first_ns >= t.issued_ns);
            });
            Box::new(Keeper(book.clone(), recorder))
        };
        Streamed {
            rig: Rig::new(cfgs, service, keeper, book.clone()),
            book,
            engine: None,
        }
    }

    /// Checks that `n` samples were answered once, correctly, with one report of each first token.
    /// Returns the number of answers in one piece.
    fn check(mut self, n: u64) -> usize {
        self.drain();
        self.dispatcher.stop();
        let parts = self.dispatcher.parts();
        let records = self.dispatcher.connection_records();
        if self.book.lost.load(Ordering::SeqCst) == 0 {
            assert_eq!(records.iter().map(|r| r.rx.parts).sum::<u64>(), parts);
            assert_eq!(records.iter().map(|r| r.rx.writes).sum::<u64>(), n + parts);
        }
        let entries = std::mem::take(&mut *self.book.entries.lock().expect("alive"));
        assert_eq!(entries.len() as u64, n);
        for (id, e) in &entries {
            let expected: Vec<_> = answer(self.input(*id))
                .iter()
                .flat_map(|t| t.to_le_bytes())
                .collect();
            assert_eq!(e.answer, expected, "sample {id}");
            assert_eq!(
                (e.ends, e.firsts),
                (1, u32::from(!e.whole)),
                "sample {id}: {e:?}"
            );
        }
        drop(self.rig);
        let engine = self.engine.take().expect("started");
        engine.join().expect("it ends with its service");
        entries.values().filter(|e| e.whole).count()
    }
}

/// Checks that every sample comes back in the parts that `stream` allows.
fn everything_comes_back(stream: Stream, depth: usize) {
    for over in [Over::Memory, Over::Tcp] {
        let rig = Streamed::new(3, stream);
        (0..3).for_each(|c| drop(rig.connect_with_depth(c, 1, over, depth)));
        rig.wait_up(3);
        let n = 5_000;
        for id in 0..n {
            rig.dispatcher.issue(&[rig.sample(id)]);
        }
        rig.drain();
        let parts = rig.dispatcher.parts();
        let whole = rig.check(n) as u64;
        match stream {
            Stream::None => assert_eq!((whole, parts), (n, 0)),
            // An answer that is complete at once is one piece.
            Stream::First => assert_eq!(whole + parts, n),
            // With little room, waiting tokens leave together, but the first leaves alone.
            Stream::All => {
                let least = if depth > 1 { n } else { n - whole };
                assert!(whole < n / 2 && parts >= least, "{whole} {parts}");
            }
        }
    }
}

/// With room to send, and with hardly any.
#[test]
fn everything_comes_back_whole_with_its_first_token_ahead_and_token_by_token() {
    everything_comes_back(Stream::None, 64);
    for depth in [64, 1] {
        everything_comes_back(Stream::First, depth);
        everything_comes_back(Stream::All, depth);
    }
}

#[test]
fn first_tokens_are_reported_once_whenever_connections_are_cut() {
    for stream in [Stream::First, Stream::All] {
        let rig = Streamed::new(3, stream);
        let mut faults = rig.connect_all(Over::Memory);
        let (n, mut epochs, mut lost) = (6_000, [1; 3], 0);
        for id in 0..n {
            rig.dispatcher.issue(&[rig.sample(id)]);
            if id % 100 == 50 {
                let c = (id / 100) as usize % 3;
                faults[c].take().expect("memory").cut();
                lost += 1;
                eventually("a loss was never reported", || {
                    rig.book.lost.load(Ordering::SeqCst) >= lost
                });
                epochs[c] += 1;
                faults[c] = rig.connect(c, epochs[c], Over::Memory);
            }
        }
        rig.drain();
        assert!(rig.dispatcher.counts().again > 0);
        rig.check(n);
    }
}

/// Has no room until the test opens it.
struct Gate(Arc<AtomicBool>);

impl Tamper for Gate {
    fn room(&self, tx: &dyn Tx) -> usize {
        if self.0.load(Ordering::SeqCst) {
            tx.room()
        } else {
            0
        }
    }
    fn flush(&mut self, tx: &mut dyn Tx) -> Result<Flushed, Broken> {
        match tx.flush()? {
            Flushed::Done if !self.0.load(Ordering::SeqCst) => Ok(Flushed::Blocked),
            flushed => Ok(flushed),
        }
    }
}

/// Keeps its arrivals.
struct Hoard(Mutex<mpsc::Sender<Arrival>>);

impl Service for Hoard {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let hoard = self.0.lock().expect("alive");
        arrivals.drain(..).for_each(|a| {
            let _ = hoard.send(a);
        });
    }
}

#[test]
fn parts_that_wait_for_room_leave_together_and_the_first_by_itself() {
    for stream in [Stream::First, Stream::All] {
        let (give, take) = mpsc::channel();
        let service: Arc<dyn Service> = Arc::new(Hoard(Mutex::new(give)));
        let rig = Streamed::serving(1, stream, &service);
        let serve = rig.serve_connection(0, 1);
        let (mut near, far, _faults) =
            memory::pair(rig.dispatcher.endpoint(0), serve.endpoint(64)).expect("joined");
        let open = Arc::new(AtomicBool::new(false));
        rig.server
            .attach(0, serve.clone(), tampered(far, Gate(open.clone())));
        rig.dispatcher.shared.connections[0].window.grants().open(3);
        let imm = Imm::new(3, 1);
        let request = Post {
            source: SourceId(0),
            offset: 0,
            len: 16,
            at: 0,
            imm,
        };
        near.tx.post(&request).expect("room");
        near.tx.flush().expect("alive");
        let patience = Duration::from_secs(10);
        let mut sequence = Sequence::new(take.recv_timeout(patience).expect("it arrives"));
        sequence.answer = (50..60).collect();
        while !sequence.step(2) {}
        sequence.finish();
        assert!(
            !serve.window().grants().is_open(3),
            "its answer is not posted"
        );
        open.store(true, Ordering::SeqCst);
        let mut came = Vec::new();
        eventually("both come", || {
            near.rx.poll(4, &mut |e| came.push(e));
            came.len() >= 2
        });
        let at = RESPONSE_HEADER_BYTES as u32 + 8;
        let first = Event::Arrived {
            imm: imm.with_more(),
            at: 0,
            len: at,
        };
        let rest = Event::Arrived {
            imm,
            at,
            len: 8 * 4 + RESPONSE_TRAILER_BYTES as u32,
        };
        assert_eq!(came, [first, rest], "{stream:?}");
        let window = &rig.dispatcher.shared.connections[0].window;
        let (begin, len) = (window.slot_offset(3), 16 + 40 + 16);
        // SAFETY: all of these bytes have arrived.
        let bytes = unsafe { window.region().bytes(begin, len) }.expect("inside");
        let header = ResponseHeader::decode(&bytes[..at as usize], at, 1).expect("a header");
        assert_eq!((header.len, header.queue_us, header.compute_us), (8, 1, 2));
        let tokens: Vec<_> = (50u32..60).flat_map(u32::to_le_bytes).collect();
        assert_eq!(bytes[16..56], tokens);
        let trailer = bytes[56..].first_chunk().expect("16 bytes");
        let trailer = ResponseTrailer::decode(trailer, 40, 2).expect("two parts");
        assert_eq!((trailer.compute_us, trailer.mean_us), (2, 3));
        eventually("it is granted again", || {
            serve.window().grants().is_open(3) && serve.responded() == 1
        });
        assert_eq!((serve.responded(), serve.parts()), (1, 1));
    }
}
