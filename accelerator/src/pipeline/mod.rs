//! The shell around batcher and engine: a queue, worker threads, counters.
//!
//! A [`Pipeline`] is the [`Service`] that NIC threads call. They push what a poll brought into a
//! lock-free queue and wake one worker, once per burst. A worker that is free moves samples from
//! the queue to the batcher, takes a batch when the batcher says so, runs it and answers it.
//! Workers share one lock, taken once per batch; NIC threads never take it while the pipeline
//! runs.
//!
//! An engine that answers inline needs none of that: its samples are answered on the NIC thread.
//! Neither does one that batches by itself ([`Streaming`](crate::engine::Streaming)): it is given
//! each sample as a [`Sequence`](crate::engine::Sequence), as many at once as it takes
//! (`sequences`).
//!
//! # When a connection is lost
//! Memory of a lost connection may be reused once no batch reads it. Every sample holds its origin
//! in an `Arc` from its arrival until its response has been given to the origin, so an origin whose
//! strong count has fallen to its owner's own references has no sample here any more.
//! [`Pipeline::in_flight`] counts the samples of all origins together; at 0 the pipeline reads and
//! writes nobody's memory.
//!
//! # When a sample cannot be run
//! A length that the model cannot have is refused on the NIC thread, before the queue. Where the
//! engine refuses a batch, for what it holds, its samples are run one by one. The reason of a
//! refusal lands in the sample's own slot, and nothing else is touched.
//!
//! # When the engine fails
//! The first error that is the engine's own, or panic, of a worker is given to the callback of
//! [`Pipeline::start`]; the samples in flight are dropped unanswered, and later ones are dropped on
//! arrival. The node then ends its session as it does when a peer is lost.

mod counters;
mod queue;
mod sequences;
mod shared;
mod warming;

use std::{
    cell::Cell,
    collections::BTreeMap,
    fmt,
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{Arc, Mutex, PoisonError, atomic::Ordering::SeqCst, mpsc},
    thread::{self, JoinHandle},
    time::{Duration, Instant},
};

use fabric::{Region, clock, os::Near};
use qdl::{
    config::EngineConfig,
    connection::join_all,
    model::Compression,
    serve::{Arrival, Finished, Service, respond_all},
};
use record::{DecompressedUse, EngineUse};

pub use counters::Counters;

use self::{
    sequences::Sequences,
    shared::{Live, Shared},
};
use crate::{
    batcher::Policy,
    engine::{Engine, EngineError, EngineParams, Inline, MAX_BATCH, panic_message},
};

/// How long threads without any work may take to end.
const THREAD_END: Duration = Duration::from_secs(1);

/// How a pipeline runs its engine.
#[derive(Clone, Debug)]
pub struct Options {
    /// What worker threads are called, with their index behind it.
    pub name: String,
    /// Batches and worker threads; a `max_batch` outside 1 to [`MAX_BATCH`] is moved inside, 0
    /// threads are 1.
    pub engine: EngineConfig,
    /// Samples that can wait without an allocation: the slots of all connections together.
    pub queue: usize,
    /// Where the workers of each GPU's engine run. Those of one that is not here run anywhere.
    pub near: BTreeMap<usize, Near>,
    /// How samples are compressed that arrive; the engine gets them decompressed.
    pub compression: Option<Compression>,
    /// Longest time that loading the model and warming up may take.
    pub start_timeout: Duration,
}

impl From<&EngineParams> for Options {
    fn from(p: &EngineParams) -> Self {
        // A server has deadlines of its own, and says which passed: this one is behind them.
        let server = p.engine.http.as_ref();
        let server = server.map_or(Duration::ZERO, |http| http.ready() + 2 * http.first_token());
        Options {
            name: "engine".to_owned(),
            engine: p.engine.clone(),
            queue: 16_384,
            near: BTreeMap::new(),
            compression: p.spec.as_ref().and_then(|spec| spec.compression),
            start_timeout: server.max(Duration::from_secs(300)),
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

/// How long one sample took before and after everything was allocated: the slowest worker's times.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct WarmUp {
    /// Microseconds of the very first batch, of one sample.
    pub cold_us: u32,
    /// Microseconds of a batch of one sample after warming up.
    pub warm_us: u32,
}

/// An engine that did not end in time.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum StopTimeout {
    /// Worker threads are left behind.
    #[error("{workers} engine worker(s) still run a batch after {waited_ms} ms")]
    Workers {
        /// How many.
        workers: usize,
        /// How long they were given, in milliseconds.
        waited_ms: u128,
    },
    /// An engine that batches by itself was told to stop, and keeps sequences.
    #[error("engine {engine} still holds {sequences} sequence(s) after {waited_ms} ms")]
    Sequences {
        /// The engine's name.
        engine: &'static str,
        /// How many.
        sequences: usize,
        /// How long it was given, in milliseconds.
        waited_ms: u128,
    },
}

/// An engine at work.
pub struct Pipeline(Work);

enum Work {
    /// Batches are made for it, or it answers inline.
    Batches(Batches),
    /// It batches by itself.
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
    /// Starts the workers, loads the model in each and warms it up; returns when all are ready. An
    /// engine that answers inline gets no threads, and one that batches by itself starts its own.
    ///
    /// `on_fatal` is called at most once, on the thread that failed; it should only pass the error
    /// on.
    ///
    /// # Errors
    /// What a worker could not be made for, or [`EngineError::StartTimeout`].
    pub fn start(
        engine: Arc<dyn Engine>,
        options: &Options,
        on_fatal: impl Fn(EngineError) + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        let on_fatal = Box::new(on_fatal);
        if engine.streaming().is_some() {
            let sequences = Sequences::start(engine, options, on_fatal)?;
            return Ok(Pipeline(Work::Sequences(sequences)));
        }
        // What is compressed is decompressed by a worker: it would keep a NIC thread from its
        // connections.
        let inline = engine.runs_inline() && options.compression.is_none();
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
        Ok(Pipeline(Work::Batches(batches)))
    }

    /// The engine.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        match &self.0 {
            Work::Batches(b) => &b.shared.engine,
            Work::Sequences(s) => s.engine(),
        }
    }

    /// How long the first sample took, and one after warming up; nothing where samples are answered
    /// inline, or the engine batches by itself.
    pub fn warm_up(&self) -> Option<WarmUp> {
        match &self.0 {
            Work::Batches(b) => b.warm_up,
            Work::Sequences(_) => None,
        }
    }

    /// Milliseconds that an engine took to start that batches by itself, and most sequences that it
    /// has at once; nothing for the others.
    pub fn sequences(&self) -> Option<(u64, usize)> {
        match &self.0 {
            Work::Batches(_) => None,
            Work::Sequences(s) => Some(s.started()),
        }
    }

    /// Samples that have arrived and are neither answered nor dropped, of all origins. Those that
    /// are answered inline are never counted: they are done when [`Service::arrived`] returns.
    pub fn in_flight(&self) -> usize {
        match &self.0 {
            Work::Batches(b) => b.shared.in_flight.load(SeqCst),
            Work::Sequences(s) => s.in_flight(),
        }
    }

    /// True where nothing is in flight.
    pub fn idle(&self) -> bool {
        self.in_flight() == 0
    }

    /// What the engine behind the batcher was used for since the start; nothing where samples are
    /// answered inline, or the engine batches by itself.
    pub fn used(&self) -> EngineUse {
        match &self.0 {
            Work::Batches(b) if b.shared.inline().is_none() => {
                let counters = b.shared.counters();
                EngineUse {
                    max_batch: b.shared.max_batch() as u64,
                    workers: u32::try_from(b.shared.cells.len()).unwrap_or(u32::MAX),
                    busy_us: counters.busy_ns / 1000,
                    batches: counters.batches,
                    samples: counters.samples,
                    decompressed: DecompressedUse {
                        samples: counters.decompressed.samples,
                        from_bytes: counters.decompressed.from_bytes,
                        to_bytes: counters.decompressed.to_bytes,
                        took_us: counters.decompressed.ns / 1000,
                    },
                }
            }
            Work::Batches(_) | Work::Sequences(_) => EngineUse::default(),
        }
    }

    /// True where samples are answered on the NIC thread that brought them.
    pub fn runs_inline(&self) -> bool {
        matches!(&self.0, Work::Batches(b) if b.shared.inline().is_some())
    }

    fn compressed(&self) -> bool {
        matches!(&self.0, Work::Batches(b) if b.shared.compression.is_some())
    }

    /// Counts since the start.
    pub fn counters(&self) -> Counters {
        match &self.0 {
            Work::Batches(b) => b.shared.counters(),
            Work::Sequences(s) => s.counters(),
        }
    }

    /// Stops: what is pending is still run, what arrives from now on is dropped. After `timeout`
    /// the rest is dropped too, and workers that still run a batch are left to end by themselves,
    /// as is an engine that does not let go of its sequences. A second call does nothing new.
    ///
    /// # Errors
    /// [`StopTimeout`] counts what is left.
    pub fn stop(&self, timeout: Duration) -> Result<(), StopTimeout> {
        match &self.0 {
            Work::Batches(b) => b.stop(timeout),
            Work::Sequences(s) => s.stop(timeout),
        }
    }
}

impl Batches {
    fn start_workers(&self, options: &Options) -> Result<WarmUp, EngineError> {
        let workers = options.engine.threads.max(1);
        let (ready, readies) = mpsc::channel();
        for index in 0..workers {
            let live = Live::new(&self.shared);
            let options = options.clone();
            let ready = ready.clone();
            let thread = thread::Builder::new()
                .name(format!("{}-{index}", options.name))
                .spawn(move || work(&live, index, &options, &ready))
                .map_err(|source| EngineError::Thread {
                    worker: index,
                    source,
                })?;
            self.threads
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(thread);
        }
        drop(ready);
        let deadline = Instant::now() + options.start_timeout;
        let mut slowest = WarmUp::default();
        for _ in 0..workers {
            let left = deadline.saturating_duration_since(Instant::now());
            let warm_up = readies
                .recv_timeout(left)
                .map_err(|_| EngineError::StartTimeout {
                    seconds: options.start_timeout.as_secs(),
                })??;
            slowest.cold_us = slowest.cold_us.max(warm_up.cold_us);
            slowest.warm_us = slowest.warm_us.max(warm_up.warm_us);
        }
        Ok(slowest)
    }

    fn stop(&self, timeout: Duration) -> Result<(), StopTimeout> {
        let workers = self.shared.stop(timeout);
        if workers > 0 {
            return Err(StopTimeout::Workers {
                workers,
                waited_ms: timeout.as_millis(),
            });
        }
        let threads =
            std::mem::take(&mut *self.threads.lock().unwrap_or_else(PoisonError::into_inner));
        // They are past their last batch: what is left is what libraries do when a thread ends.
        join_all(threads, THREAD_END);
        Ok(())
    }
}

impl Drop for Batches {
    fn drop(&mut self) {
        // Whoever cares has called `stop` with more patience.
        let _ = self.stop(Duration::from_secs(1));
    }
}

impl Service for Pipeline {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let batches = match &self.0 {
            Work::Sequences(s) => return s.arrived(arrivals),
            Work::Batches(b) => b,
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
        if self.compressed() {
            return Err("samples are compressed, and decompressed by the CPU".to_owned());
        }
        self.engine().slots(bytes).map_err(|e| e.to_string())
    }
}

thread_local! {
    /// Lengths and responses of one burst, kept so that a NIC thread allocates only while bursts
    /// grow.
    static SCRATCH: Cell<(Vec<u32>, Vec<Finished>)> = const { Cell::new((Vec::new(), Vec::new())) };
}

impl Batches {
    fn answer_inline(&self, inline: &dyn Inline, arrivals: &mut Vec<Arrival>) {
        if arrivals.is_empty() {
            return;
        }
        if !self.shared.running() {
            arrivals.clear();
            return;
        }
        let (mut lens, mut finished) = SCRATCH.take();
        lens.clear();
        let started = clock::now_ns();
        for arrival in arrivals.iter_mut() {
            match inline.answer(arrival) {
                Ok(len) => lens.push(len),
                Err(error) => {
                    arrivals.clear();
                    return self.shared.fail(error);
                }
            }
        }
        let compute_us = clock::micros(clock::now_ns().saturating_sub(started));
        self.shared.cells[0].inline(arrivals.len());
        let answers = arrivals.drain(..).zip(&lens).map(|(arrival, &len)| {
            let finished = Finished {
                ticket: arrival.ticket(),
                len,
                queue_us: clock::micros(started.saturating_sub(arrival.arrived_ns())),
                compute_us,
                sent: qdl::serve::Sent::default(),
            };
            (arrival, finished)
        });
        respond_all(answers, &mut finished);
        SCRATCH.set((lens, finished));
    }
}

/// The body of a worker thread, from the first instruction to the last.
fn work(
    live: &Live,
    index: usize,
    options: &Options,
    ready: &mpsc::Sender<Result<WarmUp, EngineError>>,
) {
    let shared = &live.0;
    let made = catch_unwind(AssertUnwindSafe(|| {
        let mut worker = shared.engine.worker(index)?;
        let max_batch = options.policy().max_batch;
        let batch = shared.batch()?;
        let sizes = &options.engine.batch_sizes;
        let warm_up = warming::warm_up(worker.as_mut(), max_batch, sizes)?;
        Ok((worker, batch, warm_up))
    }));
    let made = made.unwrap_or_else(|panic| {
        Err(EngineError::Panicked {
            engine: shared.engine.name(),
            worker: index,
            message: panic_message(panic.as_ref()),
        })
    });
    match made {
        Ok((mut worker, batch, warm_up)) => {
            // Nobody listens any more where another worker failed first: then the pipeline is being
            // dropped.
            let _ = ready.send(Ok(warm_up));
            shared.serve(index, worker.as_mut(), batch);
        }
        Err(error) => {
            let _ = ready.send(Err(error));
        }
    }
}
