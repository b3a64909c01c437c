//! From responses to LoadGen's `QuerySamplesComplete`, and from first tokens to its
//! `FirstTokenComplete`: in bulk, with nothing copied and nothing allocated.
//!
//! Where LoadGen measures tokens it hears of each sample's first token once, of that token alone,
//! and then of all of them and their number. Offline it asks for the latter alone.

use std::sync::{Arc, Mutex, PoisonError};

use loadgen_bridge::{QuerySampleResponse, ResponseId, complete, first_token_complete};
use qdl::{
    dispatch::{Completer, Contradiction, Part, Response, Sample, SampleTimes},
    stats::{Live, Recorder},
};

use crate::{
    tokens::{self, Tokens},
    verify::Verifier,
};

/// So often may a sample go again and its parts still feed the watchdog: a long answer that comes
/// anew after a loss is no stall. One that begins again and again comes to no end.
const BEGINS_AGAIN: u16 = 3;

/// What a completer leaves behind.
pub struct Left {
    /// Its histograms and counts.
    pub recorder: Recorder,
    /// When its last sample was completed, on [`qdl::clock`]; 0 without one.
    pub last_ns: u64,
    /// First tokens reported.
    pub first_tokens: u64,
}

/// LoadGen's two calls.
#[derive(Clone, Copy)]
struct LoadGen {
    first_token: unsafe fn(&[QuerySampleResponse<'_>]),
    complete: unsafe fn(&[QuerySampleResponse<'_>]),
}

/// Makes the completers of a run.
#[derive(Clone)]
pub struct Completers {
    verifier: Option<Arc<Verifier>>,
    live: Arc<Live>,
    left: Arc<Mutex<Vec<Left>>>,
    /// Where answers are tokens.
    tokens: Option<Arc<Tokens>>,
    loadgen: LoadGen,
}

impl Completers {
    /// For as many NICs as `live` has places.
    pub fn new(
        live: Arc<Live>,
        verifier: Option<Arc<Verifier>>,
        tokens: Option<Arc<Tokens>>,
    ) -> Self {
        Completers {
            verifier,
            live,
            left: Arc::default(),
            tokens,
            loadgen: LoadGen {
                first_token: first_token_complete,
                complete,
            },
        }
    }

    /// The completer of one NIC.
    pub fn make(&self, nic_index: usize) -> LoadgenCompleter {
        LoadgenCompleter {
            scratch: Vec::with_capacity(256),
            first_scratch: Vec::with_capacity(256),
            recorder: Some(match &self.tokens {
                Some(t) => Recorder::of_tokens(self.live.clone(), nic_index, t.sizes),
                None => Recorder::new(self.live.clone(), nic_index),
            }),
            last_ns: 0,
            first_tokens: 0,
            shared: self.clone(),
        }
    }

    /// The figures that completers show while the run goes on.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// What the completers that have been dropped left behind, to be merged.
    pub fn left(&self) -> Vec<Left> {
        let mut left = self.left.lock().unwrap_or_else(PoisonError::into_inner);
        std::mem::take(&mut left)
    }

    /// Completes samples with no bytes at all, after the run was given up.
    ///
    /// Where LoadGen wants first tokens it hears nothing. It would read one of each sample that
    /// ends, whether there is one or not, beyond the end of its memory (6.0.17,
    /// `AsyncLog::LogAccuracy` and `RecordSampleCompletion`); a first token made up here would not
    /// do, as LoadGen reads the records of several threads in no order. Nor does it wait for any:
    /// who gave the run up has stopped its test ([`Verdict::fail`](crate::exit::Verdict::fail)).
    pub fn complete_empty(&self, samples: &[Sample]) {
        let unanswered = self.unanswered(samples);
        if !self.tokens.as_ref().is_some_and(|t| t.first) {
            // SAFETY: as in `LoadgenCompleter::complete`.
            unsafe { (self.loadgen.complete)(&unanswered) };
        }
    }

    /// Empty responses to those of the samples that were not completed before.
    fn unanswered(&self, samples: &[Sample]) -> Vec<QuerySampleResponse<'static>> {
        let wanted = |s: &&Sample| {
            self.verifier
                .as_ref()
                .is_none_or(|v| v.completed(s.id, s.index))
        };
        samples
            .iter()
            .filter(wanted)
            .map(|s| response(s.id, &[]))
            .collect()
    }

    /// Adds the responses that LoadGen is to hear of: those to samples not completed before. And,
    /// where it measures them, their first tokens that it has not heard of.
    fn gather<'a>(
        &self,
        responses: &mut dyn ExactSizeIterator<Item = Response<'a>>,
        first: &mut Vec<QuerySampleResponse<'a>>,
        batch: &mut Vec<QuerySampleResponse<'a>>,
    ) {
        let tokens = self.tokens.as_deref().filter(|t| t.measured);
        for r in responses {
            if r.whole {
                self.first(r.id, r.index, r.payload, first);
            }
            let fresh = match &self.verifier {
                Some(v) => v.answered(r.id, r.index, r.payload),
                None => true,
            };
            if !fresh {
                continue;
            }
            let mut answer = response(r.id, r.payload);
            if let Some(t) = tokens {
                t.answered(r.connection, r.index, r.payload);
                answer = answer.with_tokens(tokens::count(r.payload));
            }
            batch.push(answer);
        }
    }

    /// Adds a sample's first token, where LoadGen is to hear of it.
    fn first<'a>(
        &self,
        id: u64,
        index: u64,
        payload: &'a [u8],
        first: &mut Vec<QuerySampleResponse<'a>>,
    ) {
        if !self.tokens.as_ref().is_some_and(|t| t.first) {
            return;
        }
        let token = tokens::first(payload);
        let fresh = match &self.verifier {
            Some(v) => v.first(id, index, token),
            None => true,
        };
        if fresh {
            first.push(response(id, token));
        }
    }
}

fn response(id: u64, payload: &[u8]) -> QuerySampleResponse<'_> {
    // SAFETY: sample ids are made from LoadGen's own in `Sut::issue_query`, and never leave this
    // process: what comes back from the dispatcher is what its tracker kept.
    let id = unsafe { ResponseId::from_bits(id) };
    QuerySampleResponse::new(id, payload)
}

/// Completes the samples of one NIC. It lives on the NIC's thread.
pub struct LoadgenCompleter {
    scratch: Vec<QuerySampleResponse<'static>>,
    first_scratch: Vec<QuerySampleResponse<'static>>,
    /// Gone only while it is dropped.
    recorder: Option<Recorder>,
    last_ns: u64,
    first_tokens: u64,
    shared: Completers,
}

impl LoadgenCompleter {
    /// Tells LoadGen of first tokens.
    fn tell_first(&mut self, first: Vec<QuerySampleResponse<'_>>) {
        self.first_tokens += first.len() as u64;
        // SAFETY: as in `complete`; and the dispatcher says of one part, or one whole response, of
        // a sample that it holds a first token that was not handed over before.
        unsafe { (self.shared.loadgen.first_token)(&first) };
        self.first_scratch = recycled(first);
    }
}

impl Completer for LoadgenCompleter {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        let mut batch: Vec<QuerySampleResponse<'_>> = std::mem::take(&mut self.scratch);
        let mut first: Vec<QuerySampleResponse<'_>> = std::mem::take(&mut self.first_scratch);
        self.shared.gather(responses, &mut first, &mut batch);
        self.tell_first(first);
        // SAFETY: the ids are LoadGen's, of samples it issued in this process's one test; the
        // dispatcher hands each to exactly one completer once (its tracker gives a slot's record to
        // one owner), and the test does not end before all are completed.
        unsafe { (self.shared.loadgen.complete)(&batch) };
        self.scratch = recycled(batch);
    }

    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        let mut first: Vec<QuerySampleResponse<'_>> = std::mem::take(&mut self.first_scratch);
        let (mut n, mut moving) = (0, 0);
        for p in parts {
            n += 1;
            moving += u64::from(p.losses <= BEGINS_AGAIN);
            if p.first {
                self.shared.first(p.id, p.index, p.payload, &mut first);
            }
        }
        self.tell_first(first);
        if let Some(recorder) = &mut self.recorder {
            recorder.parts(n, moving);
        }
    }

    fn contradicted(&mut self, what: Contradiction) {
        if let Some(tokens) = &self.shared.tokens {
            tokens.contradicted(what);
        }
    }

    fn record(&mut self, times: &SampleTimes) {
        if let Some(recorder) = &mut self.recorder {
            recorder.record(times);
            self.last_ns = self.last_ns.max(times.completed_ns);
        }
    }

    fn tick(&mut self, now_ns: u64) {
        if let Some(recorder) = &mut self.recorder {
            recorder.show(now_ns);
        }
    }
}

impl Drop for LoadgenCompleter {
    fn drop(&mut self) {
        if let Some(recorder) = self.recorder.take() {
            let left = Left {
                recorder,
                last_ns: self.last_ns,
                first_tokens: self.first_tokens,
            };
            self.shared
                .left
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(left);
        }
    }
}

/// The memory of an emptied vector under another
/// lifetime. Collecting in place keeps the allocation.
fn recycled<'a>(mut batch: Vec<QuerySampleResponse<'_>>) -> Vec<QuerySampleResponse<'a>> {
    batch.clear();
    batch
        .into_iter()
        .map(|r| QuerySampleResponse::new(r.id(), &[]))
        .collect()
}

#[cfg(test)]
mod tests {
    use std::cell::RefCell;

    use loadgen_bridge::{Scenario, TestSettings};
    use qdl::{dispatch::First, fabric::SourceId, stats::TokenSizes};

    use super::*;

    #[test]
    fn a_recycled_vector_keeps_its_memory() {
        let bytes = [1u8, 2, 3];
        // SAFETY: it is never handed to LoadGen.
        let id = unsafe { ResponseId::from_bits(64) };
        let mut v: Vec<QuerySampleResponse<'_>> = Vec::with_capacity(100);
        v.push(QuerySampleResponse::new(id, &bytes));
        let at = v.as_ptr() as usize;
        let v: Vec<QuerySampleResponse<'static>> = recycled(v);
        assert_eq!((v.len(), v.capacity(), v.as_ptr() as usize), (0, 100, at));
    }

    #[test]
    fn recorders_come_back_when_completers_are_dropped() {
        let completers = Completers::new(Arc::new(Live::new(2)), None, None);
        let (mut a, b) = (completers.make(0), completers.make(1));
        a.record(&SampleTimes {
            bytes_out: 9,
            completed_ns: 77,
            ..SampleTimes::default()
        });
        a.tick(1);
        assert_eq!(completers.live().figures().bytes_out, 9);
        assert!(completers.left().is_empty());
        drop((a, b));
        let left = completers.left();
        let facts: Vec<_> = left
            .iter()
            .map(|l| (l.recorder.completed(), l.last_ns))
            .collect();
        assert_eq!(facts, [(1, 77), (0, 0)]);
    }

    #[test]
    fn a_sample_is_completed_once_whatever_comes_for_it() {
        let verifier = Arc::new(Verifier::new(4));
        for id in [64, 128, 192] {
            verifier.issued(id);
        }
        let completers = Completers::new(Arc::new(Live::new(1)), Some(verifier.clone()), None);
        let ids = |batch: &[QuerySampleResponse<'_>]| -> Vec<u64> {
            batch.iter().map(|r| r.id().to_bits()).collect()
        };
        let response = |id| Response {
            id,
            index: 0,
            connection: 0,
            payload: &[7; 8],
            whole: true,
        };
        let (mut first, mut batch) = (Vec::new(), Vec::new());
        let mut three = [64, 128, 64].map(response).into_iter();
        completers.gather(&mut three, &mut first, &mut batch);
        assert_eq!(ids(&batch), [64, 128]);
        assert!(first.is_empty(), "LoadGen measures no tokens");
        let sample = |id| Sample {
            id,
            index: 0,
            source: SourceId(0),
            offset: 0,
            len: 8,
            issued_ns: 0,
            first: None,
            losses: 0,
        };
        let rest = completers.unanswered(&[64, 192, 192].map(sample));
        assert_eq!(ids(&rest), [192]);
        assert_eq!(verifier.findings().duplicates, 3);
        assert!(completers.unanswered(&[]).is_empty());
    }

    /// What LoadGen was told, in order: the call, the sample, its bytes, the number of tokens.
    type Told = Vec<(&'static str, u64, Vec<u8>, i64)>;

    thread_local! {
        static TOLD: RefCell<Told> = const { RefCell::new(Vec::new()) };
    }

    fn tell(call: &'static str, responses: &[QuerySampleResponse<'_>]) {
        let told = responses
            .iter()
            .map(|r| (call, r.id().to_bits(), r.data().to_vec(), r.n_tokens()));
        TOLD.with_borrow_mut(|t| t.extend(told));
    }

    fn told() -> Told {
        TOLD.take()
    }

    /// Completers of a run under `scenario` whose LoadGen is this test.
    fn of_tokens(scenario: Scenario, verifier: Option<Arc<Verifier>>) -> Completers {
        let test = TestSettings {
            scenario,
            use_token_latencies: true,
            ..TestSettings::default()
        };
        let sizes = TokenSizes {
            input: 4,
            output: 4,
        };
        let tokens = Arc::new(Tokens::new(sizes, &test));
        let mut completers = Completers::new(Arc::new(Live::new(1)), verifier, Some(tokens));
        completers.loadgen = LoadGen {
            first_token: |r| tell("first", r),
            complete: |r| tell("all", r),
        };
        completers
    }

    fn bytes(tokens: &[i32]) -> Vec<u8> {
        tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
    }

    fn part(id: u64, at: u32, payload: &[u8], first: bool) -> Part<'_> {
        Part {
            id,
            index: id,
            at,
            payload,
            first,
            losses: 0,
        }
    }

    fn answer(id: u64, payload: &[u8], whole: bool) -> Response<'_> {
        Response {
            id,
            index: id,
            connection: 0,
            payload,
            whole,
        }
    }

    /// Takes what one poll brought.
    fn take(c: &mut LoadgenCompleter, parts: &[Part<'_>], responses: &[Response<'_>]) {
        c.parts(&mut parts.iter().copied());
        c.complete(&mut responses.iter().copied());
    }

    #[test]
    fn loadgen_hears_of_each_first_token_once_and_alone() {
        let completers = of_tokens(Scenario::Server, None);
        let mut c = completers.make(0);
        let (five, three) = (bytes(&[7, 8, 9, 10, 11]), bytes(&[1, 2, 3]));
        // Two tokens at once: the first alone is reported. A later part is not, nor is the first
        // one of a sample that was sent again.
        take(&mut c, &[part(64, 0, &five[..8], true)], &[]);
        take(&mut c, &[part(64, 8, &five[8..12], false)], &[]);
        take(&mut c, &[part(64, 0, &five[..8], false)], &[]);
        assert_eq!(told(), [("first", 64, bytes(&[7]), 0)]);
        // The last part of it, and another sample's answer in one piece.
        take(
            &mut c,
            &[],
            &[answer(64, &five, false), answer(128, &three, true)],
        );
        assert_eq!(
            told(),
            [
                ("first", 128, bytes(&[1]), 0),
                ("all", 64, five, 5),
                ("all", 128, three, 3)
            ]
        );
        drop(c);
        let left = completers.left();
        assert_eq!(
            (left[0].first_tokens, left[0].recorder.parts_taken()),
            (2, 3)
        );
        assert_eq!(completers.live().figures().parts, 3);
    }

    #[test]
    fn a_sample_that_begins_again_and_again_does_not_feed_the_watchdog() {
        let completers = of_tokens(Scenario::Server, None);
        let mut c = completers.make(0);
        let token = bytes(&[7]);
        for losses in 0..20 {
            let part = Part {
                losses,
                ..part(64, 0, &token, losses == 0)
            };
            take(&mut c, &[part], &[]);
        }
        assert_eq!(completers.live().figures().parts, 4);
        drop(c);
        assert_eq!(completers.left()[0].recorder.parts_taken(), 20);
        told();
    }

    #[test]
    fn loadgen_hears_the_true_count_straight_from_the_slot() {
        let completers = of_tokens(Scenario::Server, None);
        let mut c = completers.make(0);
        for n in [2usize, 3, 100, 1024] {
            let payload = bytes(&vec![5; n]);
            take(&mut c, &[], &[answer(n as u64 * 64, &payload, false)]);
            let told = told();
            assert_eq!((told.len(), told[0].3), (1, n as i64));
        }
        let batch = &mut Vec::new();
        let payload = bytes(&[4, 5]);
        let mut one = [answer(64, &payload, true)].into_iter();
        let first = &mut Vec::new();
        completers.gather(&mut one, first, batch);
        assert_eq!(batch[0].data().as_ptr(), payload.as_ptr(), "no copy");
        assert_eq!(first[0].data().as_ptr(), payload.as_ptr(), "no copy");
    }

    #[test]
    fn offline_has_no_first_tokens() {
        let completers = of_tokens(Scenario::Offline, None);
        let mut c = completers.make(0);
        let two = bytes(&[1, 2]);
        take(
            &mut c,
            &[part(64, 0, &two[..4], true)],
            &[answer(64, &two, false)],
        );
        take(&mut c, &[], &[answer(128, &two, true)]);
        assert_eq!(told(), [("all", 64, two.clone(), 2), ("all", 128, two, 2)]);
    }

    #[test]
    fn loadgen_hears_of_no_empty_answer_where_it_would_look_for_a_first_token() {
        let sample = |id, first| Sample {
            id,
            index: 0,
            source: SourceId(0),
            offset: 0,
            len: 8,
            issued_ns: 0,
            first,
            losses: 0,
        };
        for scenario in [Scenario::Server, Scenario::Offline] {
            let verifier = Arc::new(Verifier::tokens(200, true, |prompt| prompt.to_vec()));
            [64, 128].iter().for_each(|id| verifier.issued(*id));
            let completers = of_tokens(scenario, Some(verifier.clone()));
            let first = First { token: 7, at_ns: 1 };
            completers.complete_empty(&[sample(64, None), sample(128, Some(first))]);
            let empty = match scenario {
                Scenario::Offline => vec![("all", 64, vec![], 0), ("all", 128, vec![], 0)],
                _ => vec![],
            };
            assert_eq!(told(), empty, "{scenario:?}");
            assert_eq!(verifier.findings().lost, 0, "they are accounted for");
        }
    }

    #[test]
    fn an_answer_of_no_two_tokens_is_told_as_it_is_and_is_a_fault() {
        let completers = of_tokens(Scenario::Server, None);
        let mut c = completers.make(0);
        let one = bytes(&[9]);
        take(
            &mut c,
            &[],
            &[answer(64, &[], true), answer(128, &one, true)],
        );
        assert_eq!(
            told(),
            [
                ("first", 64, vec![], 0),
                ("first", 128, one.clone(), 0),
                ("all", 64, vec![], 0),
                ("all", 128, one, 1)
            ]
        );
        let tokens = completers.tokens.as_ref().expect("tokens");
        assert_eq!(tokens.findings().too_short, 2);
    }

    #[test]
    fn a_contradiction_is_kept() {
        let completers = of_tokens(Scenario::Server, None);
        completers.make(0).contradicted(Contradiction {
            index: 3,
            reported: 1,
            again: 2,
            connection: 0,
        });
        let tokens = completers.tokens.as_ref().expect("tokens");
        assert_eq!(tokens.findings().contradicted, 1);
    }

    #[test]
    fn a_first_token_that_comes_twice_is_kept_from_loadgen_where_answers_are_verified() {
        let verifier = Arc::new(Verifier::tokens(200, true, |prompt| prompt.to_vec()));
        verifier.loaded(64, &bytes(&[7, 8]));
        verifier.issued(64);
        let completers = of_tokens(Scenario::Server, Some(verifier.clone()));
        let mut c = completers.make(0);
        let two = bytes(&[7, 8]);
        let first = part(64, 0, &two[..4], true);
        take(&mut c, &[first, first], &[answer(64, &two, true)]);
        assert_eq!(told().len(), 2, "one first token and one answer");
        assert_eq!(verifier.findings().duplicates, 2);
    }

    #[test]
    fn nothing_is_allocated_for_parts_and_answers_once_there_is_room() {
        let completers = of_tokens(Scenario::Server, None);
        let mut c = completers.make(0);
        let two = bytes(&[1, 2]);
        let room = |c: &LoadgenCompleter| {
            let (a, b) = (&c.first_scratch, &c.scratch);
            (
                a.as_ptr() as usize,
                a.capacity(),
                b.as_ptr() as usize,
                b.capacity(),
            )
        };
        let before = room(&c);
        for _ in 0..10 {
            take(
                &mut c,
                &[part(64, 0, &two[..4], true)],
                &[answer(64, &two, false)],
            );
        }
        assert_eq!(room(&c), before, "the vectors keep their memory");
        told();
    }
}
