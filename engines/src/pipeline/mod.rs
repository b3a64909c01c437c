//! Connects NIC threads, batcher and engine: a queue, worker threads, counters.
//!
//! A [`Pipeline`] is the [`Service`] that NIC threads call. A NIC thread pushes the samples of a
//! poll into a lock-free queue and wakes one worker. A free worker moves samples from the queue to
//! the batcher, takes a batch when the batcher allows one, runs the batch and answers. All workers
//! share the batcher's lock; NIC threads never take this lock while the pipeline runs.
//!
//! An engine that answers inline uses neither queue nor workers: the NIC thread answers. An engine
//! that batches by itself ([`Streaming`](crate::Streaming)) gets each sample as a
//! [`Sequence`](crate::Sequence), up to its limit of concurrent sequences (`sequences`).
//!
//! # Lost connections
//! The memory of a lost connection may be reused once no batch reads it. Every sample holds its
//! origin in an `Arc` from arrival until the origin has the response. So the pipeline has no sample
//! of an origin once only the origin's owner holds a reference. [`Pipeline::in_flight`] counts the
//! samples of all origins; at 0 the pipeline reads and writes no connection's memory.
//!
//! # Refused samples
//! The NIC thread refuses a sample whose length the model cannot have, before the queue. If a batch
//! fails because of a sample, the worker runs the samples of the batch one by one. The reason of a
//! refusal goes into the slot of the refused sample; other samples are not affected.
//!
//! # Engine failures
//! The first panic, or error that is the engine's fault, goes to the callback `on_fatal` of
//! [`Pipeline::start`]. The pipeline drops the samples in flight unanswered, and later samples on
//! arrival. The node then ends its session as after the loss of a peer.

mod counters;
mod intake;
mod sequences;
mod shared;
mod warming;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt,
    sync::{Arc, Mutex, atomic::Ordering::SeqCst, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use crate::config::EngineConfig;
use fabric::{
    Region, clock,
    os::{Near, lock},
};
use qdl::serve::{Arrival, Finished, Service, respond_all};
use record::EngineUse;

pub use counters::Counters;

use self::{
    intake::{Intake, RUNNING},
    sequences::Sequences,
    shared::{Shared, finish},
};
use crate::{
    Batch, Engine, EngineError, EngineParams, Inline, MAX_BATCH, batcher::Policy, catch_panic,
};

/// Least time that an engine that batches by itself gets for its stop.
const ENGINE_END: Duration = Duration::from_secs(1);
/// Interval at which a stop checks for remaining workers or samples.
const LOOK: Duration = Duration::from_micros(200);

/// How a pipeline runs its engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// Prefix of the worker threads' names; the worker's index follows.
    pub name: String,
    /// Batches and worker threads. The pipeline clamps `max_batch` to 1 ..= [`MAX_BATCH`]; 0
    /// threads count as 1.
    pub engine: EngineConfig,
    /// Samples that the queue holds without an allocation: the slots of all connections together.
    pub queue: usize,
    /// CPUs and memory near each GPU, for the workers of its engine. Workers of a GPU without an
    /// entry run anywhere.
    pub near: BTreeMap<usize, Near>,
    /// Longest time for loading the model and warming up.
    pub start_timeout: Duration,
}

impl From<&EngineParams> for Options {
    fn from(p: &EngineParams) -> Self {
        let own = (p.engine.kind.entry().start)(&p.engine);
        Options {
            name: "engine".to_owned(),
            engine: p.engine.clone(),
            queue: 16_384,
            near: BTreeMap::new(),
            start_timeout: own.max(Duration::from_secs(300)),
        }
    }
}

impl Options {
    fn policy(&self) -> Policy {
        let micros = |us: u64| us.saturating_mul(1_000);
        Policy {
            max_batch: self.engine.max_batch.clamp(1, MAX_BATCH),
            max_delay_ns: micros(self.engine.max_delay_us),
            latency_ns: self.engine.latency_us.map(micros),
            begin_apart_ns: micros(self.engine.begin_apart_us),
        }
    }
}

/// Times of a batch of one sample on the slowest worker, before and after warming up.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Microseconds of the worker's first batch.
    pub cold_us: u32,
    /// Microseconds of the last batch of the warm-up.
    pub warm_us: u32,
}

impl WarmUp {
    /// The longer of the two cold times, and the longer of the two warm times.
    pub(crate) fn max(self, other: WarmUp) -> WarmUp {
        WarmUp {
            cold_us: self.cold_us.max(other.cold_us),
            warm_us: self.warm_us.max(other.warm_us),
        }
    }
}

/// A running engine.
pub struct Pipeline(PipelineKind);

enum PipelineKind {
    Batches(Batches),
    Sequences(Sequences),
}

struct Batches {
    shared: Arc<Shared>,
    threads: Mutex<Vec<JoinHandle<()>>>,
    warm_up: Option<WarmUp>,
}

impl fmt::Debug for Pipeline {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_struct("Pipeline")
            .field("engine", &self.engine().name())
            .field("in_flight", &self.in_flight())
            .finish_non_exhaustive()
    }
}

impl Pipeline {
    /// Starts the workers; each loads the model and warms up. Returns when all are ready. An engine
    /// that answers inline has no threads; an engine that batches by itself starts its own threads.
    ///
    /// The pipeline calls `on_fatal` at most once, on the thread that failed. The callback should
    /// return soon: it should only pass the error on.
    ///
    /// # Errors
    /// The error of the first worker that failed, or the time limit of the start.
    pub fn start(
        engine: Arc<dyn Engine>,
        options: &Options,
        on_fatal: impl Fn(EngineError) + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        let on_fatal = Box::new(on_fatal);
        if engine.streaming().is_some() {
            let sequences = Sequences::start(engine, options, on_fatal)?;
            return Ok(Pipeline(PipelineKind::Sequences(sequences)));
        }
        let inline = engine.inline().is_some();
        let mut options = options.clone();
        if let Some(fixed) = engine.fixed_batch() {
            options.engine.max_batch = options.engine.max_batch.min(fixed);
            tracing::info!(
                "the model's batch is fixed at {fixed}: up to {} samples run together, and zeros \
                 fill a batch up",
                options.engine.max_batch
            );
        }
        let mut batches = Batches {
            shared: Arc::new(Shared::new(engine, &options, on_fatal)),
            threads: Mutex::new(Vec::new()),
            warm_up: None,
        };
        if !inline {
            batches.warm_up = Some(batches.start_workers(&options)?);
        }
        Ok(Pipeline(PipelineKind::Batches(batches)))
    }

    fn intake(&self) -> &Intake {
        match &self.0 {
            PipelineKind::Batches(b) => &b.shared.intake,
            PipelineKind::Sequences(s) => &s.inner.intake,
        }
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.intake().engine
    }

    /// Times of one sample before and after warming up. `None` if the engine answers inline or
    /// batches by itself.
    pub fn warm_up(&self) -> Option<WarmUp> {
        match &self.0 {
            PipelineKind::Batches(b) => b.warm_up,
            PipelineKind::Sequences(_) => None,
        }
    }

    /// For an engine that batches by itself: milliseconds that its start took, and its limit of
    /// concurrent sequences. `None` for other engines.
    pub fn sequences(&self) -> Option<(u64, usize)> {
        match &self.0 {
            PipelineKind::Batches(_) => None,
            PipelineKind::Sequences(s) => Some(s.started()),
        }
    }

    /// Number of samples, of all origins, that have arrived and are neither answered nor dropped.
    /// Samples answered inline never count: [`Service::arrived`] returns after their answers.
    pub fn in_flight(&self) -> usize {
        self.intake().in_flight.load(SeqCst)
    }

    /// True if no sample is in flight.
    pub fn idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// Work of the engine since the start: nothing if the engine answers inline; events and a busy
    /// server's refusals alone if it batches by itself.
    pub fn used(&self) -> EngineUse {
        match &self.0 {
            PipelineKind::Batches(b) if b.shared.inline().is_none() => {
                let counters = b.shared.counters();
                EngineUse {
                    max_batch: b.shared.max_batch as u64,
                    workers: u32::try_from(b.shared.cells.len()).unwrap_or(u32::MAX),
                    busy_us: counters.busy_ns / 1000,
                    batches: counters.batches,
                    samples: counters.samples,
                    ..EngineUse::default()
                }
            }
            PipelineKind::Batches(_) => EngineUse::default(),
            PipelineKind::Sequences(s) => s.used(),
        }
    }

    /// True if the NIC thread that received a sample answers it.
    pub fn runs_inline(&self) -> bool {
        matches!(&self.0, PipelineKind::Batches(b) if b.shared.inline().is_some())
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        match &self.0 {
            PipelineKind::Batches(b) => b.shared.counters(),
            PipelineKind::Sequences(s) => s.counters(),
        }
    }

    /// Stops the pipeline: workers run pending samples, and the pipeline drops new ones. After
    /// `timeout` it drops the pending samples and returns. Workers in a batch, or an engine that
    /// keeps sequences, then end by themselves. A second call has no further effect.
    ///
    /// # Errors
    /// Text: the number of workers that still run, or of sequences that the engine still holds.
    pub fn stop(&self, timeout: Duration) -> Result<(), String> {
        match &self.0 {
            PipelineKind::Batches(b) => b.stop(timeout),
            PipelineKind::Sequences(s) => s.stop(timeout),
        }
    }
}

impl Batches {
    fn start_workers(&self, options: &Options) -> Result<WarmUp, EngineError> {
        let workers = options.engine.threads.max(1);
        let (ready, readies) = mpsc::channel();
        for index in 0..workers {
            let shared = Arc::clone(&self.shared);
            let options = options.clone();
            let ready = ready.clone();
            let thread = thread::Builder::new()
                .name(format!("{}-{index}", options.name))
                .spawn(move || work(&shared, index, &options, &ready))
                .map_err(|e| EngineError::thread(index, &e))?;
            lock(&self.threads).push(thread);
        }
        drop(ready);
        let deadline = Instant::now() + options.start_timeout;
        let mut slowest = WarmUp::default();
        for _ in 0..workers {
            let left = deadline.saturating_duration_since(Instant::now());
            let warm_up = readies.recv_timeout(left).map_err(|_| {
                EngineError::engine(format!(
                    "the engine's workers were not ready after {} s: a smaller max_batch warms \
                         up faster",
                    options.start_timeout.as_secs()
                ))
            })??;
            slowest = slowest.max(warm_up);
        }
        Ok(slowest)
    }

    fn stop(&self, timeout: Duration) -> Result<(), String> {
        self.shared.drain();
        let deadline = Instant::now() + timeout;
        let mut threads = lock(&self.threads);
        let running = |t: &JoinHandle<()>| !t.is_finished();
        while threads.iter().any(running) && Instant::now() < deadline {
            thread::sleep(LOOK);
        }
        self.shared.abandon();
        for ended in threads.extract_if(.., |t| t.is_finished()) {
            // The worker is past its last batch: only thread-exit handlers of libraries remain. A
            // worker that panicked has reported the panic.
            let _ = ended.join();
        }
        match threads.len() {
            0 => Ok(()),
            workers => Err(format!(
                "{workers} engine worker(s) still run a batch after {} ms",
                timeout.as_millis()
            )),
        }
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // A caller that needs a longer timeout has called `stop` before.
        let _ = self.stop(Duration::from_secs(1));
    }
}

impl Service for Pipeline {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let batches = match &self.0 {
            PipelineKind::Sequences(s) => return s.inner.arrived(arrivals),
            PipelineKind::Batches(b) => b,
        };
        match batches.shared.inline() {
            Some(inline) => batches.answer_inline(inline, arrivals),
            None => batches.shared.submit(arrivals),
        }
    }

    fn memory(&self, inputs: &Arc<Region>) {
        self.engine().memory(inputs);
    }

    fn slots(&self, _gpu: Option<u32>, bytes: usize) -> Result<Arc<Region>, String> {
        self.engine().slots(bytes).map_err(|e| e.to_string())
    }
}

thread_local! {
    /// Lengths and responses of one burst, kept: a NIC thread allocates only while bursts grow.
    static SCRATCH: Cell<(Vec<u32>, Vec<Finished>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

impl Batches {
    fn answer_inline(&self, inline: &dyn Inline, arrivals: &mut Vec<Arrival>) {
        if self.shared.intake.mode() != RUNNING {
            arrivals.clear();
        }
        if arrivals.is_empty() {
            return;
        }
        let (mut lens, mut finished) = SCRATCH.take();
        let started = clock::now_ns();
        if let Err(error) = inline.answer(arrivals, &mut lens) {
            arrivals.clear();
            return self.shared.fail(error);
        }
        let compute_us = clock::micros(clock::now_ns().saturating_sub(started));
        self.shared.inline_counts.add(arrivals.len());
        let answers = arrivals.drain(..).zip(lens.drain(..));
        let answers = answers.map(|answer| finish(answer, started, compute_us));
        respond_all(answers, &mut finished);
        SCRATCH.set((lens, finished));
    }
}

fn work(
    shared: &Shared,
    index: usize,
    options: &Options,
    ready: &mpsc::Sender<Result<WarmUp, EngineError>>,
) {
    let engine = &shared.intake.engine;
    let made = catch_panic(engine.name(), index, || {
        let mut worker = engine.worker(index)?;
        let max_batch = options.policy().max_batch;
        let batch = Batch::new(shared.max_batch);
        let sizes = &options.engine.batch_sizes;
        let warm_up = warming::warm_up(worker.as_mut(), max_batch, sizes)?;
        Ok((worker, batch, warm_up))
    });
    match made {
        Ok((mut worker, batch, warm_up)) => {
            // The send fails only if another worker failed first and the pipeline is being dropped.
            let _ = ready.send(Ok(warm_up));
            shared.serve(index, worker.as_mut(), batch);
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    }
}
