//! The query sample library for LoadGen: after each load, before LoadGen issues a sample, the
//! library warms up the connections with loaded samples.
//!
//! LoadGen reloads samples for every phase, with no sample outstanding: for each step of find-peak,
//! and for the performance run of a submission run. Each phase is timed separately, so each has its
//! own warm-up. The first warm-up must succeed. A later warm-up lasts as long as the load took, and
//! leaves out lost connections.
//!
//! The load is the last moment before LoadGen's clock starts. A connection warmed up earlier idles
//! while gigabytes of samples are read from disk, and loses its congestion window again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Instant,
};

use fabric::SourceId;
use loadgen_bridge::QuerySampleLibrary;
use qdl::{
    dispatch::{Sample, WARM_UP_ID},
    rails::size_class,
};

use crate::{
    backend::Backend,
    loadgen::exit::{ExitCode, Verdict},
    loadgen::{phases::Phases, qsl::Qsl},
};

/// A query sample library that warms the connections up after each load.
pub struct WarmLibrary {
    pub qsl: Arc<Qsl>,
    pub backend: Arc<dyn Backend>,
    pub verdict: Verdict,
    pub notes: Sender<String>,
    pub phases: Arc<Phases>,
    /// True after the first warm-up.
    pub done: AtomicBool,
}

impl WarmLibrary {
    /// Returns the longest loaded sample of each size class. If every engine counts tokens, the
    /// samples limit their answers, so that a warm-up takes no longer with long answers.
    fn samples(&self, indices: &[usize]) -> Vec<Sample> {
        let engines = self.backend.engines();
        let limits = !engines.is_empty() && engines.iter().all(|(_, engine)| engine.tokens);
        let mut longest: BTreeMap<usize, Sample> = BTreeMap::new();
        for &index in indices {
            let limited = match limits {
                true => self.qsl.limited_place(index),
                false => None,
            };
            let Some((offset, len)) = limited.or_else(|| self.qsl.place(index)) else {
                continue;
            };
            let sample = Sample {
                id: WARM_UP_ID,
                index: index as u64,
                source: SourceId(0),
                offset,
                len,
                issued_ns: 0,
                has_options: limited.is_some(),
            };
            let kept = longest.entry(size_class(len)).or_insert(sample);
            if kept.len < len {
                *kept = sample;
            }
        }
        longest.into_values().collect()
    }
}

impl QuerySampleLibrary for WarmLibrary {
    fn name(&self) -> String {
        self.qsl.name()
    }

    fn total_sample_count(&self) -> usize {
        self.qsl.total_sample_count()
    }

    fn performance_sample_count(&self) -> usize {
        self.qsl.performance_sample_count()
    }

    fn load_samples(&self, indices: &[usize]) {
        let began = Instant::now();
        self.qsl.load_samples(indices);
        if self.verdict.failure().is_some() {
            return;
        }
        if self.done.swap(true, Ordering::Relaxed) {
            self.phases.prepare();
            self.backend
                .warm_up_again(&self.samples(indices), began.elapsed());
            return;
        }
        match self.backend.warm_up(&self.samples(indices)) {
            Ok(Some(line)) => {
                // Ignore the error: no thread reads notes after the run.
                let _ = self.notes.send(line);
            }
            Ok(None) => {}
            Err(failure) => self.verdict.fail(ExitCode::Lost, failure),
        }
    }

    fn unload_samples(&self, indices: &[usize]) {
        self.phases.unloaded();
        self.qsl.unload_samples(indices);
    }
}

#[cfg(test)]
mod tests {
    use std::sync::mpsc;

    use qdl::model::ModelSpec;
    use record::EngineInfo;

    use super::*;
    use crate::backend::recording::{RecordingBackend, random_qsl};

    fn library(qsl: Arc<Qsl>, backend: Arc<RecordingBackend>, verdict: &Verdict) -> WarmLibrary {
        WarmLibrary {
            qsl,
            backend,
            verdict: verdict.clone(),
            notes: mpsc::channel().0,
            phases: Arc::new(Phases::new(1, qdl::counters::Histograms::new())),
            done: AtomicBool::new(false),
        }
    }

    #[test]
    fn samples_limit_their_answers_if_every_engine_counts_tokens() {
        let verdict = Verdict::default();
        let model = ModelSpec::of_tokens("m", 16, 8);
        for (engines, limits) in [
            (&[true, true][..], true),
            (&[true, false], false),
            (&[], false),
        ] {
            let engine = |tokens: &bool| EngineInfo {
                tokens: *tokens,
                ..EngineInfo::default()
            };
            let backend = RecordingBackend {
                engines: engines.iter().map(|t| (String::new(), engine(t))).collect(),
                ..RecordingBackend::default()
            };
            let qsl = random_qsl(&model, (4, 64), None, &verdict);
            let library = library(qsl, Arc::new(backend), &verdict);
            library.load_samples(&[3]);
            let sample = library.samples(&[3])[0];
            let len = 64 + 8 * u32::from(limits);
            assert_eq!((sample.len, sample.has_options), (len, limits));
        }
    }

    #[test]
    fn every_phase_is_warmed_up_with_its_own_samples() {
        let verdict = Verdict::default();
        let book = Arc::new(RecordingBackend::default());
        let model = ModelSpec::opaque("m", 64, 8);
        let qsl = random_qsl(&model, (8, 64), Some(4), &verdict);
        let library = library(qsl, book.clone(), &verdict);
        for phase in [[0, 1], [2, 3], [0, 1]] {
            library.load_samples(&phase);
            library.unload_samples(&phase);
        }
        let warmed = [(true, vec![0]), (false, vec![2]), (false, vec![0])];
        assert_eq!(*book.warm_ups.lock().expect("alive"), warmed);
        verdict.fail(ExitCode::Lost, "the run is over".to_owned());
        library.load_samples(&[0]);
        assert_eq!(book.warm_ups.lock().expect("alive").len(), 3);
    }
}
