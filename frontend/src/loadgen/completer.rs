//! Turns responses into LoadGen's `QuerySamplesComplete`, and first tokens into its
//! `FirstTokenComplete`: in batches, without copies and without allocation.
//!
//! Where LoadGen measures tokens, it gets each sample's first token once, and later the whole
//! answer with the number of tokens. In Offline LoadGen gets no first tokens.

use std::sync::{Arc, Mutex};

use fabric::clock::now_ns;
use fabric::os::lock;
use loadgen_bridge::{
    QuerySampleResponse, ResponseId, Scenario, TestSettings, complete, first_token_complete,
    outgrow_log,
};
use qdl::{
    counters::{Histograms, Live, Recorder, TokenLimits},
    dispatch::{Completer, Contradiction, Response, ResponsePart, Sample},
};

use crate::{
    accuracy::AnswerOrigins,
    loadgen::{
        phases::{CallTime, Phases, Share},
        tokens::{self, Tokens},
        verify::Verifier,
    },
};

/// Maximum number of losses after which the parts of a sample still count as progress for the
/// watchdog. A long answer that restarts after a loss is no stall; endless restarts are one.
const BEGINS_AGAIN: u16 = 3;

/// A completer times one of this many calls to LoadGen. A power of two.
const TIMED: u32 = 32;
/// Index of the timed call among [`TIMED`]: not the first, whose caches are cold.
const TIMED_FIRST: u32 = 3;

/// Results of a dropped completer.
pub struct Left {
    /// The counts, and the histograms of the last series of queries.
    pub recorder: Recorder,
    /// Time of the border ([`Phases`]) before the last series.
    pub series_ns: u64,
    /// Number of answers given to LoadGen, and of first tokens.
    pub answered: u64,
    pub first_tokens: u64,
    /// Time spent in calls to LoadGen in the last series.
    pub call_time: CallTime,
}

impl From<Left> for Share {
    fn from(left: Left) -> Self {
        Share {
            series_ns: left.series_ns,
            first_ns: left.recorder.first_ns(),
            last_ns: left.recorder.last_ns(),
            histograms: left.recorder.into_histograms(),
            call_time: left.call_time,
        }
    }
}

#[derive(Clone, Copy)]
struct LoadGen {
    first_token: unsafe fn(&[QuerySampleResponse<'_>]),
    complete: unsafe fn(&[QuerySampleResponse<'_>]),
}

#[derive(Clone)]
pub struct Completers {
    verifier: Option<Arc<Verifier>>,
    /// The counters that completers update during the run.
    pub live: Arc<Live>,
    left: Arc<Mutex<Vec<Left>>>,
    tokens: Option<Arc<Tokens>>,
    /// LoadGen's phases, by which completers divide their records.
    pub phases: Arc<Phases>,
    /// The connection that answered each sample, if answers are scored.
    pub origins: Option<Arc<AnswerOrigins>>,
    /// True if the sample rate is high enough to outgrow LoadGen's log.
    pub quick: bool,
    loadgen: LoadGen,
}

/// LoadGen's limits on the token times of each sample, which only Server has.
pub fn limits(test: &TestSettings) -> Option<TokenLimits> {
    let has_limits = test.use_token_latencies && test.scenario == Scenario::Server;
    has_limits.then_some(TokenLimits {
        ttft_ns: test.server_ttft_latency,
        tpot_ns: test.server_tpot_latency,
    })
}

impl Completers {
    /// Creates the maker of the completers, one for each share of a NIC that `live` has. They count
    /// the samples within `limits`.
    pub fn new(
        live: Arc<Live>,
        verifier: Option<Arc<Verifier>>,
        tokens: Option<Arc<Tokens>>,
        limits: Option<TokenLimits>,
    ) -> Self {
        let empty = match &tokens {
            Some(tokens) => Histograms::of_tokens(tokens.sizes),
            None => Histograms::new(),
        };
        Completers {
            phases: Arc::new(Phases::new(live.rails(), empty.limited(limits))),
            verifier,
            live,
            left: Arc::default(),
            tokens,
            origins: None,
            quick: false,
            loadgen: LoadGen {
                first_token: first_token_complete,
                complete,
            },
        }
    }

    /// Creates the completer of one share of a NIC.
    pub fn make(&self, share: usize) -> LoadgenCompleter {
        let recorder = Recorder::with(self.live.clone(), share, self.phases.empty());
        LoadgenCompleter {
            scratch: Vec::with_capacity(256),
            first_scratch: Vec::with_capacity(256),
            recorder: Some(recorder),
            series_ns: 0,
            latest_ns: 0,
            answered: 0,
            first_tokens: 0,
            calls: 0,
            call_time: CallTime::default(),
            shared: self.clone(),
        }
    }

    /// Takes the results of all dropped completers, for a merge.
    pub fn left(&self) -> Vec<Left> {
        let mut left = lock(&self.left);
        std::mem::take(&mut left)
    }

    /// Completes samples without bytes, after the run is aborted.
    ///
    /// Where LoadGen measures first tokens, this function reports nothing. LoadGen 6.0.17 reads a
    /// first token of each completed sample; if the sample has none, LoadGen reads past the end of
    /// a buffer (`AsyncLog::LogAccuracy`, `RecordSampleCompletion`). An invented first token is no
    /// remedy: LoadGen reads the records of several threads in no order. LoadGen does not wait for
    /// these samples: an abort ([`fail`](super::exit::Verdict::fail)) stops its test.
    pub fn complete_empty(&self, samples: &[Sample]) {
        let unanswered = self.unanswered(samples);
        if !self.tokens.as_ref().is_some_and(|t| t.first) {
            // SAFETY: as in `LoadgenCompleter::complete`.
            unsafe { (self.loadgen.complete)(&unanswered) };
        }
    }

    /// Returns empty responses to those of `samples` that are not completed.
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

    /// Appends the responses to `batch`, except to samples completed before. Where LoadGen measures
    /// first tokens, appends those that LoadGen does not have yet to `first`.
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
            if let Some(origins) = &self.origins {
                origins.answered(r.index, r.connection);
            }
            let mut answer = response(r.id, r.payload);
            if let Some(t) = tokens {
                t.answered(r.connection, r.index, r.payload);
                answer = answer.with_tokens(tokens::count(r.payload));
            }
            batch.push(answer);
        }
    }

    /// Appends a sample's first token to `first`, if LoadGen measures first tokens and lacks it.
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
    // SAFETY: `Sut::issue_query` makes sample ids from LoadGen's ids, and ids never leave this
    // process: the dispatcher returns the id that its tracker kept.
    let id = unsafe { ResponseId::from_bits(id) };
    QuerySampleResponse::new(id, payload)
}

/// Completes the samples of one share of a NIC, on the thread that owns the share.
pub struct LoadgenCompleter {
    scratch: Vec<QuerySampleResponse<'static>>,
    first_scratch: Vec<QuerySampleResponse<'static>>,
    /// `None` only while the completer is dropped.
    recorder: Option<Recorder>,
    /// Time of the border before the current series of queries.
    series_ns: u64,
    /// Time of the latest border, read at the start of the current burst.
    latest_ns: u64,
    answered: u64,
    first_tokens: u64,
    /// Number of completion calls to LoadGen; wraps around.
    calls: u32,
    /// Time of the timed calls to LoadGen in the current series.
    call_time: CallTime,
    shared: Completers,
}

impl LoadgenCompleter {
    /// Hands the records of the finished series to the phases. The series has no sample left to
    /// record: LoadGen has waited for all, and this thread records one burst before the next.
    #[cold]
    fn next_series(&mut self) {
        let Some(recorder) = &mut self.recorder else {
            return;
        };
        let series_ns = self.series_ns;
        let (first_ns, last_ns) = (recorder.first_ns(), recorder.last_ns());
        let call_time = std::mem::take(&mut self.call_time);
        self.shared.phases.exchange(|empty| Share {
            series_ns,
            histograms: recorder.exchange(empty),
            first_ns,
            last_ns,
            call_time,
        });
        self.series_ns = self.latest_ns;
    }

    fn tell_first(&mut self, first: Vec<QuerySampleResponse<'_>>) {
        self.first_tokens += first.len() as u64;
        // SAFETY: as in `complete`. The dispatcher marks exactly one part, or one whole response,
        // of a sample as holder of its first token.
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
        // SAFETY: the ids are LoadGen's, of samples it issued in this process's one test. The
        // dispatcher's tracker gives a slot's record to one owner, so exactly one completer gets
        // each id, once. The test does not end before all samples are completed.
        let tell = |batch: &[_]| unsafe { (self.shared.loadgen.complete)(batch) };
        self.answered += batch.len() as u64;
        self.calls = self.calls.wrapping_add(1);
        if self.calls % TIMED == TIMED_FIRST {
            let began = now_ns();
            tell(&batch);
            self.call_time
                .add_call(now_ns().saturating_sub(began), batch.len());
        } else {
            tell(&batch);
        }
        self.scratch = recycled(batch);
    }

    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = ResponsePart<'_>>) {
        let mut first: Vec<QuerySampleResponse<'_>> = std::mem::take(&mut self.first_scratch);
        let (mut n, mut moving) = (0, 0);
        for p in parts {
            n += 1;
            moving += u64::from(p.losses <= BEGINS_AGAIN);
            if p.has_first_token {
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

    fn recorder(&mut self, issued_ns: u64) -> Option<&mut Recorder> {
        if issued_ns >= self.latest_ns && self.series_ns != self.latest_ns {
            self.next_series();
        }
        self.recorder.as_mut()
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
                series_ns: self.series_ns,
                recorder,
                answered: self.answered,
                first_tokens: self.first_tokens,
                call_time: self.call_time,
            };
            lock(&self.shared.left).push(left);
        }
    }
}

/// Reuses a vector's allocation under another lifetime: collecting in place keeps the allocation.
fn recycled<'a>(mut batch: Vec<QuerySampleResponse<'_>>) -> Vec<QuerySampleResponse<'a>> {
    batch.clear();
    batch
        .into_iter()
        .map(|r| QuerySampleResponse::new(r.id(), &[]))
        .collect()
}

#[cfg(test)]
mod tests;
