//! From responses to LoadGen's `QuerySamplesComplete`:
//! in bulk, with nothing copied and nothing allocated.

use std::sync::{Arc, Mutex, PoisonError};

use loadgen_bridge::{QuerySampleResponse, ResponseId, complete};
use qdl::{
    dispatch::{Completer, Response, Sample, SampleTimes},
    stats::{Live, Recorder},
};

use crate::verify::Verifier;

/// What a completer leaves behind.
pub struct Left {
    /// Its histograms and counts.
    pub recorder: Recorder,
    /// When its last sample was completed, on [`qdl::clock`]; 0 without one.
    pub last_ns: u64,
}

/// Makes the completers of a run.
#[derive(Clone)]
pub struct Completers {
    verifier: Option<Arc<Verifier>>,
    live: Arc<Live>,
    left: Arc<Mutex<Vec<Left>>>,
    /// Tokens reported with each response, where LoadGen measures tokens.
    tokens: Option<i64>,
}

impl Completers {
    /// For as many rails as `live` has places.
    pub fn new(live: Arc<Live>, verifier: Option<Arc<Verifier>>, tokens: Option<i64>) -> Self {
        Completers {
            verifier,
            live,
            left: Arc::default(),
            tokens,
        }
    }

    /// The completer of one NIC.
    pub fn make(&self, nic_index: usize) -> LoadgenCompleter {
        LoadgenCompleter {
            scratch: Vec::with_capacity(256),
            recorder: Some(Recorder::new(self.live.clone(), nic_index)),
            last_ns: 0,
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

    /// Completes samples with no bytes at all, after an abort.
    pub fn complete_empty(&self, samples: &[Sample]) {
        // SAFETY: as in `LoadgenCompleter::complete`.
        unsafe { complete(&self.unanswered(samples)) };
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
            .map(|s| self.response(s.id, &[]))
            .collect()
    }

    /// Adds the responses that LoadGen is to hear of: those to samples not completed before.
    fn gather<'a>(
        &self,
        responses: &mut dyn ExactSizeIterator<Item = Response<'a>>,
        batch: &mut Vec<QuerySampleResponse<'a>>,
    ) {
        for r in responses {
            let fresh = match &self.verifier {
                Some(v) => v.answered(r.id, r.index, r.payload),
                None => true,
            };
            if fresh {
                batch.push(self.response(r.id, r.payload));
            }
        }
    }

    fn response<'a>(&self, id: u64, payload: &'a [u8]) -> QuerySampleResponse<'a> {
        // SAFETY: sample ids are made from LoadGen's own in `Sut::issue_query`, and never leave
        // this process: what comes back from the dispatcher is what its tracker kept.
        let id = unsafe { ResponseId::from_bits(id) };
        let response = QuerySampleResponse::new(id, payload);
        match self.tokens {
            Some(n) => response.with_tokens(n),
            None => response,
        }
    }
}

/// Completes the samples of one NIC. It lives on the NIC's thread.
pub struct LoadgenCompleter {
    scratch: Vec<QuerySampleResponse<'static>>,
    /// Gone only while it is dropped.
    recorder: Option<Recorder>,
    last_ns: u64,
    shared: Completers,
}

impl Completer for LoadgenCompleter {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        let mut batch: Vec<QuerySampleResponse<'_>> = std::mem::take(&mut self.scratch);
        self.shared.gather(responses, &mut batch);
        if self.shared.tokens.is_some() {
            // The whole response comes at once, so its first token comes no earlier.
            // SAFETY: as below.
            unsafe { loadgen_bridge::first_token_complete(&batch) };
        }
        // SAFETY: the ids are LoadGen's, of samples it issued in this process's one test; the
        // dispatcher hands each to exactly one completer once (its tracker gives a slot's record to
        // one owner), and the test does not end before all are completed.
        unsafe { complete(&batch) };
        self.scratch = recycled(batch);
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
    use qdl::fabric::SourceId;

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
            payload: &[7; 8],
            whole: true,
        };
        let mut batch = Vec::new();
        completers.gather(&mut [64, 128, 64].map(response).into_iter(), &mut batch);
        assert_eq!(ids(&batch), [64, 128]);
        let sample = |id| Sample {
            id,
            index: 0,
            source: SourceId(0),
            offset: 0,
            len: 8,
            issued_ns: 0,
            first: None,
        };
        let rest = completers.unanswered(&[64, 192, 192].map(sample));
        assert_eq!(ids(&rest), [192]);
        assert_eq!(verifier.findings().duplicates, 3);
        assert!(completers.unanswered(&[]).is_empty());
    }
}
