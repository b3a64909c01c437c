//! A rig whose samples are answered with digests, and a book of what became of each.

use std::{
    collections::HashMap,
    ops::Deref,
    sync::{Arc, Mutex},
};

use xxhash_rust::xxh3::xxh3_64;

use super::*;
pub use crate::testkit::rig::{Digest, Over, Picky, Rig, RigCfgs, Wait, finished};
use crate::{
    counters::{Live, Recorder},
    response::RESPONSE_HEADER_BYTES,
    serve::{Arrival, Service},
};

/// Largest burst that the thread that issues posts, as by default.
pub const DEFAULT: u64 = 16 << 10;

/// Bytes of an answer with its header.
pub const RESPONSE: usize = RESPONSE_HEADER_BYTES + 8;

/// Keeps its arrivals, so that samples stay in flight.
#[derive(Default)]
pub(crate) struct Hoard(pub Mutex<Vec<Arrival>>);

impl Service for Hoard {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        self.0.lock().expect("alive").append(arrivals);
    }
}

/// Answers and events received. `answers` maps an id to the number of answers and the digest.
#[derive(Default)]
pub struct Book {
    pub answers: Mutex<HashMap<u64, (u32, Option<u64>)>>,
    pub events: Mutex<Vec<DispatchEvent>>,
    /// Samples with recorded times, and the payload bytes of their requests.
    pub recorded: AtomicU64,
    pub recorded_bytes: AtomicU64,
    pub records: AtomicU64,
}

impl Book {
    fn enter(&self, id: u64, digest: Option<u64>) {
        let mut answers = self.answers.lock().expect("alive");
        let e = answers.entry(id).or_insert((0, None));
        e.0 += 1;
        e.1 = digest;
    }
}

struct BookKeeper(Arc<Book>, Recorder);

impl Completer for BookKeeper {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        for r in responses {
            let digest = r.payload.try_into().ok().map(u64::from_le_bytes);
            self.0.enter(r.id, digest);
        }
    }
    fn recorder(&mut self, _: u64) -> Option<&mut Recorder> {
        Some(&mut self.1)
    }
}

impl Owner for Book {
    fn complete_empty(&self, samples: &[Sample]) {
        samples.iter().for_each(|s| self.enter(s.id, None));
    }
    fn event(&self, event: DispatchEvent) {
        self.events.lock().expect("alive").push(event);
    }
}

pub struct Bench {
    rig: Rig,
    pub book: Arc<Book>,
}

impl Deref for Bench {
    type Target = Rig;
    fn deref(&self) -> &Rig {
        &self.rig
    }
}

impl Bench {
    /// So many connections with so many slots each, answered with digests.
    pub(crate) fn of(connections: usize, slots: usize) -> Self {
        Bench::digests(RigCfgs::new(connections, slots))
    }

    pub(crate) fn digests(cfgs: RigCfgs) -> Self {
        Bench::new(cfgs, Arc::new(Digest))
    }

    #[allow(clippy::needless_pass_by_value, reason = "callers make it in place")]
    pub(crate) fn new(cfgs: RigCfgs, service: Arc<dyn Service>) -> Self {
        let book = Arc::new(Book::default());
        let keeper = || -> Box<dyn Completer> {
            let times = book.clone();
            let recorder = Recorder::new(Arc::new(Live::new(1)), 0);
            let recorder = recorder.observed(move |t, alike| {
                assert_eq!((t.queue_us, t.compute_us, t.bytes_in), (1, 2, 8));
                let bytes = alike * u64::from(t.bytes_out);
                times.recorded.fetch_add(alike, Ordering::Relaxed);
                times.recorded_bytes.fetch_add(bytes, Ordering::Relaxed);
                times.records.fetch_add(1, Ordering::Relaxed);
            });
            Box::new(BookKeeper(book.clone(), recorder))
        };
        Bench {
            rig: Rig::new(cfgs, &service, keeper, book.clone()),
            book,
        }
    }

    /// Issues samples `0..n` in bursts of at most 150.
    pub(crate) fn issue_in_bursts(&self, n: u64) {
        let mut id = 0;
        for burst in (1..).map(|i: u64| 1 + i * i % 150) {
            let end = (id + burst).min(n);
            self.issue(id..end);
            id = end;
            if id == n {
                break;
            }
        }
    }

    /// Waits for `n` events: a connection is down a moment before its loss is reported.
    pub(crate) fn wait_events(&self, n: usize) {
        eventually("no event came", || {
            self.book.events.lock().expect("alive").len() >= n
        });
    }

    #[track_caller]
    pub(crate) fn wait_posted(&self, n: u64) {
        let counts = || self.dispatcher.counts();
        eventually_or(|| format!("{:?}", counts()), || counts().posted >= n);
    }

    /// Checks that `n` samples were answered once with their own digest, and recorded.
    pub(crate) fn check(&self, n: u64) {
        self.check_answers(n);
        let bytes = (0..n).map(|id| u64::from(self.sample(id).len));
        self.check_recorded(n, bytes.sum());
        let c = self.dispatcher.counts();
        assert_eq!((c.issued, c.completed, c.completed_empty), (n, n, 0));
        assert_eq!(c.posted, n + c.again);
    }

    /// Checks that `n` samples were answered once with their own digest.
    pub(crate) fn check_answers(&self, n: u64) {
        let answers = self.book.answers.lock().expect("alive");
        assert_eq!(answers.len() as u64, n);
        for id in 0..n {
            let right = Some(xxh3_64(self.input(id)));
            assert_eq!(answers.get(&id), Some(&(1, right)), "sample {id}");
        }
    }

    /// Checks that the times of `n` samples with `bytes` payload bytes were recorded.
    pub(crate) fn check_recorded(&self, n: u64, bytes: u64) {
        let recorded = || self.book.recorded.load(Ordering::Relaxed);
        // That is the last thing of a turn.
        eventually_or(
            || format!("{} of {n} recorded", recorded()),
            || recorded() >= n,
        );
        let recorded_bytes = self.book.recorded_bytes.load(Ordering::Relaxed);
        assert_eq!((recorded(), recorded_bytes), (n, bytes));
    }
}
