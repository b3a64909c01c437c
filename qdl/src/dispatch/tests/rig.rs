//! The book of a dispatcher's reports, and a rig of real threads whose samples are answered with
//! digests.

use std::{
    ops::Deref,
    sync::{Arc, Mutex},
};

use xxhash_rust::xxh3::xxh3_64;

use super::*;
pub use crate::testkit::rig::{Digest, Hoard, Over, Rig, RigCfgs, Wait};
use crate::{
    counters::{Live, Recorder, SampleTimes},
    serve::Service,
};

/// A call of the completer: the sample's id, the offset of a part, tokens, and whether the first
/// token is among them, or the answer is whole.
#[derive(Clone, Debug, PartialEq)]
pub enum Call {
    Part(u64, u32, Vec<u32>, bool),
    Whole(u64, Vec<u32>, bool),
    Contradicted(Contradiction),
}

/// The reports of a dispatcher.
#[derive(Debug, Default)]
pub struct Reports {
    pub calls: Vec<Call>,
    /// Times, and the number of samples that have them.
    pub times: Vec<(SampleTimes, u64)>,
    pub events: Vec<DispatchEvent>,
    /// Samples completed empty.
    pub empty: Vec<u64>,
}

/// The reports of a dispatcher so far.
#[derive(Clone, Default)]
pub struct Book(Arc<Mutex<Reports>>);

struct BookKeeper(Book, Recorder);

impl Book {
    pub fn lock(&self) -> MutexGuard<'_, Reports> {
        self.0.lock().expect("alive")
    }

    /// The completer of one share.
    pub fn keeper(&self) -> Box<dyn Completer> {
        let times = self.clone();
        let recorder = Recorder::new(Arc::new(Live::new(1)), 0);
        let recorder = recorder.observed(move |t, alike| times.lock().times.push((*t, alike)));
        Box::new(BookKeeper(self.clone(), recorder))
    }
}

fn tokens(payload: &[u8]) -> Vec<u32> {
    let (words, rest) = payload.as_chunks::<4>();
    assert!(rest.is_empty(), "{payload:?}");
    words.iter().map(|w| u32::from_le_bytes(*w)).collect()
}

impl Completer for BookKeeper {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        let whole = |r: Response<'_>| Call::Whole(r.id, tokens(r.payload), r.whole);
        self.0.lock().calls.extend(responses.map(whole));
    }
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        let part = |p: Part<'_>| Call::Part(p.id, p.at, tokens(p.payload), p.first);
        self.0.lock().calls.extend(parts.map(part));
    }
    fn contradicted(&mut self, what: Contradiction) {
        self.0.lock().calls.push(Call::Contradicted(what));
    }
    fn recorder(&mut self, _: u64) -> Option<&mut Recorder> {
        Some(&mut self.1)
    }
}

impl Owner for Book {
    fn complete_empty(&self, samples: &[Sample]) {
        self.lock().empty.extend(samples.iter().map(|s| s.id));
    }
    fn event(&self, event: DispatchEvent) {
        self.lock().events.push(event);
    }
}

pub struct Bench {
    rig: Rig,
    pub book: Book,
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
        let book = Book::default();
        let owner = Arc::new(book.clone());
        Bench {
            rig: Rig::new(cfgs, &service, || book.keeper(), owner),
            book,
        }
    }

    /// Waits for `n` events: a connection is down a moment before its loss is reported.
    pub(crate) fn wait_events(&self, n: usize) {
        eventually("no event came", || self.book.lock().events.len() >= n);
    }

    /// Checks that `n` samples were answered once with their own digest, and recorded.
    pub(crate) fn check(&self, n: u64) {
        let mut calls = self.book.lock().calls.clone();
        calls.sort_by_key(|call| match call {
            Call::Whole(id, ..) => *id,
            _ => u64::MAX,
        });
        let right = |id| Call::Whole(id, tokens(&self.digest(id)), true);
        assert_eq!(calls, (0..n).map(right).collect::<Vec<_>>());
        let c = self.dispatcher.counts();
        assert_eq!((c.issued, c.completed, c.completed_empty), (n, n, 0));
        assert_eq!(c.posted, n + c.again);
        // The recording is the last thing of a turn.
        let recorded = || {
            let times = &self.book.lock().times;
            times.iter().map(|(_, alike)| alike).sum::<u64>()
        };
        eventually_or(|| format!("{} of {n}", recorded()), || recorded() >= n);
        assert_eq!(recorded(), n);
    }

    fn digest(&self, id: u64) -> [u8; 8] {
        xxh3_64(self.input(id)).to_le_bytes()
    }
}
