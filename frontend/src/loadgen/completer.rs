//! From responses to LoadGen's `QuerySamplesComplete`, and from first tokens to its
//! `FirstTokenComplete`: in bulk, with nothing copied and nothing allocated.
//!
//! Where LoadGen measures tokens it hears of each sample's first token once, of that token alone,
//! and then of all of them and their number. Offline it asks for the latter alone.

use std::sync::{Arc, Mutex, PoisonError};

use fabric::clock::now_ns;
use loadgen_bridge::{
    QuerySampleResponse, ResponseId, complete, first_token_complete, log_may_be_outgrown,
    outgrow_log,
};
use qdl::{
    counters::{Live, Recorder},
    dispatch::{Completer, Contradiction, Part, Response, Sample, SampleTimes},
};

use crate::{
    accuracy::Whose,
    loadgen::{
        tokens::{self, Tokens},
        verify::Verifier,
    },
    outcome::phases::{Phases, Share, Told},
};

/// So often may a sample go again and its parts still feed the watchdog: a long answer that comes
/// anew after a loss is no stall. One that begins again and again comes to no end.
const BEGINS_AGAIN: u16 = 3;

/// One call to LoadGen in so many is timed. A power of two.
const TIMED: u32 = 32;
/// Which of them: not the first, which is cold.
const TIMED_FIRST: u32 = 3;

/// What a completer leaves behind.
pub struct Left {
    /// Its counts; its histograms are those of its last series of queries.
    pub recorder: Recorder,
    /// The border before that series ([`Phases`]).
    pub series_ns: u64,
    /// When the first sample of that series was issued.
    pub first_ns: u64,
    /// When its last sample was completed, on [`fabric::clock`]; 0 without one.
    pub last_ns: u64,
    /// First tokens reported.
    pub first_tokens: u64,
    /// What telling LoadGen took in that series.
    pub told: Told,
}

impl From<Left> for Share {
    fn from(left: Left) -> Self {
        Share {
            series_ns: left.series_ns,
            histograms: left.recorder.into_histograms(),
            first_ns: left.first_ns,
            last_ns: left.last_ns,
            told: left.told,
        }
    }
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
    phases: Arc<Phases>,
    /// Where answers are scored.
    whose: Option<Arc<Whose>>,
    /// Samples come so quickly that LoadGen's log may be outgrown.
    quick: bool,
    loadgen: LoadGen,
}

impl Completers {
    /// For as many shares of NICs as `live` has places.
    pub fn new(
        live: Arc<Live>,
        verifier: Option<Arc<Verifier>>,
        tokens: Option<Arc<Tokens>>,
    ) -> Self {
        let sizes = tokens.as_ref().map(|t| t.sizes);
        Completers {
            phases: Arc::new(Phases::new(live.rails(), sizes)),
            verifier,
            live,
            left: Arc::default(),
            tokens,
            whose: None,
            quick: false,
            loadgen: LoadGen {
                first_token: first_token_complete,
                complete,
            },
        }
    }

    /// The same, which write down by which connection each sample was answered.
    #[must_use]
    pub fn noting(mut self, whose: Option<Arc<Whose>>) -> Self {
        self.whose = whose;
        self
    }

    /// The same, for a test that is to come to so many samples a second, where it says so.
    #[must_use]
    pub fn at_rate(mut self, per_s: Option<f64>) -> Self {
        self.quick = per_s.is_some_and(log_may_be_outgrown);
        self
    }

    /// The completer of one share of a NIC.
    pub fn make(&self, share: usize) -> LoadgenCompleter {
        LoadgenCompleter {
            scratch: Vec::with_capacity(256),
            first_scratch: Vec::with_capacity(256),
            recorder: Some(match &self.tokens {
                Some(t) => Recorder::of_tokens(self.live.clone(), share, t.sizes),
                None => Recorder::new(self.live.clone(), share),
            }),
            series_ns: 0,
            latest_ns: 0,
            first_ns: u64::MAX,
            last_ns: 0,
            first_tokens: 0,
            calls: 0,
            told: Told::default(),
            shared: self.clone(),
        }
    }

    /// The figures that completers show while the run goes on.
    pub fn live(&self) -> &Arc<Live> {
        &self.live
    }

    /// The phases that completers record by.
    pub fn phases(&self) -> &Arc<Phases> {
        &self.phases
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
    /// who gave the run up has stopped its test ([`Verdict::fail`](crate::run::exit::Verdict::fail)).
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
            if let Some(whose) = &self.whose {
                whose.answered(r.index, r.connection);
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

/// Completes the samples of one share of a NIC, on whichever thread has that.
pub struct LoadgenCompleter {
    scratch: Vec<QuerySampleResponse<'static>>,
    first_scratch: Vec<QuerySampleResponse<'static>>,
    /// Gone only while it is dropped.
    recorder: Option<Recorder>,
    /// The border before the series of queries that is being recorded.
    series_ns: u64,
    /// The latest border, as of this burst.
    latest_ns: u64,
    /// When the first sample of that series was issued.
    first_ns: u64,
    last_ns: u64,
    first_tokens: u64,
    /// Calls to LoadGen.
    calls: u32,
    /// What those that were timed took, in this series.
    told: Told,
    shared: Completers,
}

impl LoadgenCompleter {
    /// Hands over what was recorded in the series of queries that is over. All of its samples are
    /// recorded: LoadGen has waited for them, and this thread records a burst before the next.
    #[cold]
    fn next_series(&mut self) {
        let Some(recorder) = &mut self.recorder else {
            return;
        };
        let (series_ns, first_ns, last_ns) = (self.series_ns, self.first_ns, self.last_ns);
        let told = std::mem::take(&mut self.told);
        self.shared.phases.exchange(|empty| Share {
            series_ns,
            histograms: recorder.exchange(empty),
            first_ns,
            last_ns,
            told,
        });
        self.series_ns = self.latest_ns;
        self.first_ns = u64::MAX;
    }

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
    fn begin(&self) -> Option<fn()> {
        self.shared.quick.then_some(outgrow_log as fn())
    }

    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        self.latest_ns = self.shared.phases.latest_ns();
        let mut batch: Vec<QuerySampleResponse<'_>> = std::mem::take(&mut self.scratch);
        let mut first: Vec<QuerySampleResponse<'_>> = std::mem::take(&mut self.first_scratch);
        self.shared.gather(responses, &mut first, &mut batch);
        self.tell_first(first);
        // SAFETY: the ids are LoadGen's, of samples it issued in this process's one test; the
        // dispatcher hands each to exactly one completer once (its tracker gives a slot's record to
        // one owner), and the test does not end before all are completed.
        let tell = |batch: &[_]| unsafe { (self.shared.loadgen.complete)(batch) };
        self.calls = self.calls.wrapping_add(1);
        if self.calls % TIMED == TIMED_FIRST {
            let began = now_ns();
            tell(&batch);
            self.told.call(now_ns().saturating_sub(began), batch.len());
        } else {
            tell(&batch);
        }
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

    fn record(&mut self, times: &SampleTimes, alike: u64) {
        if times.issued_ns >= self.latest_ns && self.series_ns != self.latest_ns {
            self.next_series();
        }
        if let Some(recorder) = &mut self.recorder {
            recorder.record_alike(times, alike);
            self.first_ns = self.first_ns.min(times.issued_ns);
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
                series_ns: self.series_ns,
                first_ns: self.first_ns,
                last_ns: self.last_ns,
                first_tokens: self.first_tokens,
                told: self.told,
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
mod tests;
