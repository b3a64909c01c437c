//! Shared by the tests: samples, pipelines, and callbacks for errors.

// Each test file uses another part of this.
#![allow(dead_code, unused_imports)]

#[path = "../../src/testkit.rs"]
mod models;
pub mod processes;
mod samples;

use std::{
    ops::Range,
    path::{Path, PathBuf},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
};

use engines::{
    Batch, Engine, EngineError, EngineParams, Sequence, Streaming, Worker, create,
    pipeline::{Options, Pipeline},
    streaming::{SequenceOutcome, SequenceSource},
};
use qdl::{model::ModelSpec, serve::Service};

pub use models::{model, ragged, tensor};
pub use qdl::testkit::eventually;
pub use samples::{Answer, BLANK, Samples, Started};

pub fn repository() -> PathBuf {
    let here = Path::new(env!("CARGO_MANIFEST_DIR"));
    here.parent().expect("a crate of the workspace").to_owned()
}

/// Callback for pipelines whose engine does not fail.
#[allow(clippy::needless_pass_by_value)]
pub fn no_error(e: EngineError) {
    panic!("unexpected: {e}");
}

#[derive(Clone, Default)]
pub struct Errors(Arc<Mutex<Vec<String>>>);

impl Errors {
    pub fn all(&self) -> Vec<String> {
        self.0.lock().expect("no panic inside").clone()
    }

    pub fn first(&self) -> String {
        eventually("an error is reported", || !self.all().is_empty());
        self.all().remove(0)
    }
}

pub fn failing(engine: Arc<dyn Engine>, options: &Options) -> (Pipeline, Errors) {
    let errors = Errors::default();
    let to = errors.clone();
    let started = Pipeline::start(engine, options, move |e| {
        to.0.lock().expect("no panic inside").push(e.to_string());
    });
    (started.unwrap_or_else(|e| panic!("{e}")), errors)
}

/// Passes on the samples `of`, which follow those before, and waits until all are answered.
pub fn answer(pipeline: &Pipeline, samples: &Arc<Samples>, of: Range<usize>) {
    pipeline.arrived(&mut samples.arrivals(of.clone()));
    eventually("all answered", || samples.total() == of.end);
}

/// Passes on all samples in bursts of many sizes. In the pauses between them, the engine's threads
/// fall asleep.
pub fn submit_in_bursts(pipeline: &Pipeline, samples: &Arc<Samples>) {
    let mut i = 0;
    while i < samples.len() {
        let n = (1 + i % 37).min(samples.len() - i);
        let mut burst = samples.arrivals(i..i + n);
        pipeline.arrived(&mut burst);
        assert!(burst.is_empty(), "the service takes everything");
        i += n;
        if i % 5 == 0 {
            std::thread::sleep(std::time::Duration::from_micros(50));
        }
    }
}

pub fn start(params: &EngineParams) -> Pipeline {
    let engine = create(params).unwrap_or_else(|e| panic!("{e}"));
    Pipeline::start(engine, &Options::from(params), no_error).expect("starts")
}

type Act = dyn Fn(&mut Batch) -> Result<(), EngineError> + Send + Sync;

#[derive(Clone)]
pub struct Puppet {
    model: ModelSpec,
    act: Arc<Act>,
    /// True if batches of zeros fail after the first batch failed.
    pub broken: bool,
    failed: Arc<AtomicBool>,
    pub make: fn(usize) -> Result<(), EngineError>,
}

impl Puppet {
    /// An engine for samples of `bytes`, with answers of 8 bytes.
    pub fn new(
        bytes: usize,
        act: impl Fn(&mut Batch) -> Result<(), EngineError> + Send + Sync + 'static,
    ) -> Self {
        let mut model = ModelSpec::opaque("puppet", bytes, 8);
        model.inputs[0].ragged = false;
        Puppet {
            model,
            act: Arc::new(act),
            broken: false,
            failed: Arc::default(),
            make: |_| Ok(()),
        }
    }
}

impl Engine for Puppet {
    fn name(&self) -> &'static str {
        "puppet"
    }
    fn model(&self) -> &ModelSpec {
        &self.model
    }
    fn worker(&self, index: usize) -> Result<Box<dyn Worker>, EngineError> {
        (self.make)(index)?;
        Ok(Box::new(self.clone()))
    }
}

impl Worker for Puppet {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        assert!(!batch.is_empty(), "no batch is empty");
        let result = (self.act)(batch);
        self.failed.fetch_or(result.is_err(), SeqCst);
        result
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        match self.broken && self.failed.load(SeqCst) {
            true => Err(puppet_error(batch, "zeros")),
            false => Ok(()),
        }
    }
}

pub fn puppet_error(batch: usize, reason: &str) -> EngineError {
    EngineError::run("puppet", batch, reason)
}
