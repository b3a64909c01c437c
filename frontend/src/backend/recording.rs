//! A backend for tests that records its calls, and a library of random samples.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fabric::os::Near;
use frontend_config::DatasetConfig;
use qdl::{
    dispatch::{Sample, WARM_UP_ID},
    model::ModelSpec,
};
use record::{EngineInfo, SystemRecord};

use super::Backend;
use crate::{
    dataset::Dataset,
    loadgen::{exit::Verdict, qsl::Qsl},
};

#[derive(Default)]
pub struct RecordingBackend {
    pub samples: Mutex<Vec<Sample>>,
    /// Number of calls to `issue` and `name`.
    pub calls: AtomicU64,
    /// For each warm-up: whether it was the first, and the indices of its samples.
    pub warm_ups: Mutex<Vec<(bool, Vec<u64>)>>,
    /// The nodes' engines.
    pub engines: Vec<(String, EngineInfo)>,
}

impl RecordingBackend {
    fn add_warm_up(&self, first: bool, samples: &[Sample]) {
        assert!(samples.iter().all(|s| s.id == WARM_UP_ID));
        let indices = samples.iter().map(|s| s.index).collect();
        self.warm_ups.lock().expect("alive").push((first, indices));
    }
}

impl Backend for RecordingBackend {
    fn warm_up(&self, samples: &[Sample]) -> Result<Option<String>, String> {
        self.add_warm_up(true, samples);
        Ok(None)
    }
    fn warm_up_again(&self, samples: &[Sample], _idle: Duration) {
        self.add_warm_up(false, samples);
    }
    fn issue(&self, samples: &[Sample]) {
        self.calls.fetch_add(1, Relaxed);
        self.samples.lock().expect("alive").extend(samples);
    }
    fn name(&self) -> (String, Option<Duration>) {
        let n = self.calls.fetch_add(1, Relaxed);
        (format!("Network SUT {n}"), Some(Duration::from_micros(n)))
    }
    fn engines(&self) -> Vec<(String, EngineInfo)> {
        self.engines.clone()
    }
    fn outstanding(&self) -> u64 {
        0
    }
    fn completed(&self) -> u64 {
        0
    }
    fn abort(&self, _: &str) {}
    fn finish(&self) -> SystemRecord {
        SystemRecord::default()
    }
}

/// Creates a library of `count` random samples of `bytes` bytes; LoadGen loads `loaded` at a time.
pub fn random_qsl(
    model: &ModelSpec,
    (count, bytes): (usize, usize),
    loaded: Option<usize>,
    verdict: &Verdict,
) -> Arc<Qsl> {
    let config = DatasetConfig::random(count, (bytes, bytes));
    let dataset = Dataset::open(&config, model).expect("sound");
    let near = Near::default();
    let qsl = Qsl::new(dataset, model, loaded, near, None, verdict.clone());
    Arc::new(qsl.expect("memory"))
}
