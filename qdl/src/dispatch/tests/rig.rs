//! The book of a dispatcher's reports.

use std::sync::{Arc, Mutex};

use super::*;
use crate::counters::{Live, Recorder, SampleTimes};
pub use crate::testkit::rig::{RigCfgs, Wait};

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
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = ResponsePart<'_>>) {
        let part =
            |p: ResponsePart<'_>| Call::Part(p.id, p.offset, tokens(p.payload), p.has_first_token);
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
