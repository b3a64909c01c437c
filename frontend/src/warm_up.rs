//! The query sample library that LoadGen sees: once LoadGen has loaded samples, and before it issues one, the
//! connections are warmed up with them.
//!
//! LoadGen loads samples anew for every phase, with all of the last one's answered: each step of find-peak, and in a
//! submission run the performance run behind the accuracy run. Each is timed on its own, so each has its warm-up; the first
//! must succeed, the others are as long as the loading took and leave out what is down.
//!
//! That is the last moment before LoadGen's clock: a connection that is warmed up earlier, and then idle while gigabytes
//! of samples are read from a disk, has lost its congestion window again.

use std::{
    collections::BTreeMap,
    sync::{
        Arc,
        atomic::{AtomicBool, Ordering},
        mpsc::Sender,
    },
    time::Instant,
};

use loadgen_bridge::QuerySampleLibrary;
use qdl::{
    dispatch::{Sample, WARM_UP_ID},
    fabric::SourceId,
    rails::size_class,
};

use crate::{
    backend::Backend,
    exit::{ExitCode, Verdict},
    qsl::Qsl,
};

/// See the module.
pub struct WarmLibrary {
    qsl: Arc<Qsl>,
    backend: Arc<dyn Backend>,
    verdict: Verdict,
    notes: Sender<String>,
    done: AtomicBool,
}

impl WarmLibrary {
    /// Over the samples of `qsl`.
    pub fn new(
        qsl: Arc<Qsl>,
        backend: Arc<dyn Backend>,
        verdict: Verdict,
        notes: Sender<String>,
    ) -> Self {
        WarmLibrary {
            qsl,
            backend,
            verdict,
            notes,
            done: AtomicBool::new(false),
        }
    }

    /// The longest loaded sample of each size class.
    fn samples(&self, indices: &[usize]) -> Vec<Sample> {
        let mut longest: BTreeMap<usize, Sample> = BTreeMap::new();
        for &index in indices {
            let Some((offset, len)) = self.qsl.place(index) else {
                continue;
            };
            let sample = Sample {
                id: WARM_UP_ID,
                index: index as u64,
                source: SourceId(0),
                offset,
                len,
                issued_ns: 0,
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
            self.backend
                .warm_up_again(&self.samples(indices), began.elapsed());
            return;
        }
        match self.backend.warm_up(&self.samples(indices)) {
            Ok(Some(line)) => {
                // Nobody reads notes of a run that is over.
                let _ = self.notes.send(line);
            }
            Ok(None) => {}
            Err(failure) => self.verdict.fail(ExitCode::Lost, failure),
        }
    }

    fn unload_samples(&self, indices: &[usize]) {
        self.qsl.unload_samples(indices);
    }
}
