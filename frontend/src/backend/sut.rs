//! LoadGen's system under test, over any backend.

use std::{
    cell::RefCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fabric::os::lock;
use fabric::{SourceId, clock::now_ns, os::thread_id};
use loadgen_bridge::{QuerySample, SystemUnderTest};
use qdl::{counters::Live, dispatch::Sample};

use crate::{
    backend::Backend,
    loadgen::exit::{ExitCode, Verdict},
    loadgen::{phases::Phases, qsl::Qsl, verify::Verifier},
};

/// Samples per call to the backend. Limits the extra memory of an Offline query of millions of
/// samples.
const CHUNK: usize = 4096;

thread_local! {
    /// Buffer of each issue thread, reused so that issuing does not allocate.
    static SCRATCH: RefCell<Vec<Sample>> = const { RefCell::new(Vec::new()) };
}

/// The SUT's answer to LoadGen's `Name()`.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct NameAnswer {
    /// The name that the SUT gave last.
    pub name: String,
    /// Round trip of the first query for the name, if that query went over the network.
    pub round_trip: Option<Duration>,
}

/// LoadGen's system under test over a backend.
pub struct Sut {
    backend: Arc<dyn Backend>,
    qsl: Arc<Qsl>,
    verifier: Option<Arc<Verifier>>,
    verdict: Verdict,
    /// Time of the first query; 0 before it.
    first_ns: AtomicU64,
    /// System ids of the threads on which LoadGen issues queries.
    issue_threads: Mutex<Vec<u64>>,
    answer: Mutex<Option<NameAnswer>>,
    phases: Arc<Phases>,
    /// Counters that need the start time of the run.
    live: Arc<Live>,
}

impl Sut {
    /// Creates the SUT over a backend and the samples of `qsl`.
    pub fn new(
        backend: Arc<dyn Backend>,
        qsl: Arc<Qsl>,
        verifier: Option<Arc<Verifier>>,
        verdict: Verdict,
        phases: Arc<Phases>,
        live: Arc<Live>,
    ) -> Self {
        Sut {
            backend,
            qsl,
            verifier,
            verdict,
            first_ns: AtomicU64::new(0),
            issue_threads: Mutex::default(),
            answer: Mutex::default(),
            phases,
            live,
        }
    }

    /// Returns the time of the first query, on [`fabric::clock`].
    pub fn first_query_ns(&self) -> Option<u64> {
        match self.first_ns.load(Relaxed) {
            0 => None,
            ns => Some(ns),
        }
    }

    pub fn issue_threads(&self) -> Vec<u64> {
        lock(&self.issue_threads).clone()
    }

    /// Returns the answer of `Name()`, if LoadGen has asked.
    pub fn name_answer(&self) -> Option<NameAnswer> {
        lock(&self.answer).clone()
    }

    /// Converts LoadGen's samples into the backend's. Returns false, and fails the run, if a
    /// sample is not loaded.
    fn find(&self, samples: &[QuerySample], now: u64, found: &mut Vec<Sample>) -> bool {
        found.clear();
        for s in samples {
            let Some((offset, len)) = self.qsl.place(s.index) else {
                let why = format!("LoadGen issued sample {}, which is not loaded", s.index);
                self.verdict.fail(ExitCode::Setup, why);
                return false;
            };
            found.push(Sample {
                id: s.id.to_bits(),
                index: s.index as u64,
                source: SourceId(0),
                offset,
                len,
                issued_ns: now,
                has_options: false,
            });
        }
        if let Some(verifier) = &self.verifier {
            found.iter().for_each(|s| verifier.issued(s.id));
        }
        true
    }
}

impl SystemUnderTest for Sut {
    fn name(&self) -> String {
        self.phases.named();
        let (name, round_trip) = self.backend.name();
        let mut answer = lock(&self.answer);
        let first = answer.take().and_then(|a| a.round_trip);
        *answer = Some(NameAnswer {
            name: name.clone(),
            round_trip: first.or(round_trip),
        });
        name
    }

    fn issue_query(&self, samples: &[QuerySample]) {
        let now = now_ns();
        if self.first_ns.load(Relaxed) == 0 {
            self.first_ns.store(now.max(1), Relaxed);
            self.live.begin(now);
        }
        SCRATCH.with_borrow_mut(|scratch| {
            if scratch.capacity() == 0 {
                // The first query of this thread: reserve its buffer.
                scratch.reserve(CHUNK);
                lock(&self.issue_threads).push(thread_id());
            }
            for chunk in samples.chunks(CHUNK) {
                if !self.find(chunk, now, scratch) {
                    return;
                }
                self.backend.issue(scratch);
            }
        });
    }

    fn flush_queries(&self) {
        // The SUT holds no sample back, so there is nothing to flush.
        self.phases.flushed(now_ns());
    }
}

#[cfg(test)]
mod tests {
    use loadgen_bridge::{QuerySampleLibrary, ResponseId};
    use qdl::model::ModelSpec;

    use super::*;
    use crate::backend::recording::{RecordingBackend, random_qsl};

    fn sut(count: usize) -> (Sut, Arc<RecordingBackend>, Arc<Qsl>) {
        let verdict = Verdict::default();
        let qsl = random_qsl(&ModelSpec::opaque("m", 32, 8), (count, 32), None, &verdict);
        let book = Arc::new(RecordingBackend::default());
        (
            Sut::new(
                book.clone(),
                qsl.clone(),
                None,
                verdict,
                Arc::new(Phases::new(1, qdl::counters::Histograms::new())),
                Arc::new(Live::new(1)),
            ),
            book,
            qsl,
        )
    }

    fn query(indices: impl IntoIterator<Item = usize>) -> Vec<QuerySample> {
        let sample = |(i, index): (usize, usize)| QuerySample {
            // SAFETY: the id is never passed to LoadGen.
            id: unsafe { ResponseId::from_bits(0x1000 + i as u64) },
            index,
        };
        indices.into_iter().enumerate().map(sample).collect()
    }

    #[test]
    fn samples_go_out_from_where_they_lie_in_chunks() {
        let (sut, book, qsl) = sut(4);
        qsl.load_samples(&[2, 0]);
        assert_eq!(sut.first_query_ns(), None);
        sut.issue_query(&query((0..2 * CHUNK + 1).map(|i| 2 * (i % 2))));
        let issued = book.samples.lock().expect("alive");
        assert_eq!((issued.len(), book.calls.load(Relaxed)), (2 * CHUNK + 1, 3));
        assert_eq!(
            (issued[0].index, issued[0].offset, issued[0].len),
            (0, 32, 32)
        );
        assert_eq!(
            (issued[1].index, issued[1].offset, issued[1].id),
            (2, 0, 0x1001)
        );
        assert_eq!(sut.first_query_ns(), Some(issued[0].issued_ns));
    }

    #[test]
    fn a_sample_that_is_not_loaded_gives_the_run_up() {
        let (sut, book, qsl) = sut(4);
        qsl.load_samples(&[0]);
        sut.issue_query(&query(
            std::iter::once(3).chain(std::iter::repeat_n(0, CHUNK)),
        ));
        assert!(book.samples.lock().expect("alive").is_empty());
        let failure = sut.verdict.failure().expect("noticed");
        assert!(failure.cause.contains("sample 3"), "{failure}");
    }

    #[test]
    fn every_question_for_the_name_is_asked_anew() {
        let (sut, _, _) = sut(1);
        assert_eq!(sut.name(), "Network SUT 0");
        assert_eq!(sut.name(), "Network SUT 1");
        let answer = sut.name_answer().expect("asked");
        assert_eq!(answer.name, "Network SUT 1");
        assert_eq!(answer.round_trip, Some(Duration::ZERO));
    }
}
