//! State that NIC threads and workers share, and the worker's loop.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst},
    },
};

use crossbeam_utils::CachePadded;
use fabric::clock;
use qdl::{
    connection::Spin,
    model::{Compression, Lengths},
    serve::{Arrival, Finished, Origin, respond_all},
};

use super::counters::WorkerCounters;
use crate::lock;
use crate::{
    batcher::{BatchDecision, Batcher},
    engine::{Batch, Decompressor, Engine, EngineError, Fault, Inline, Worker},
    event_count::EventCount,
    queue::Queue,
};

/// Longest sleep of an idle worker, in nanoseconds; the worker then checks for work.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

pub(super) const RUNNING: u8 = 0;
pub(super) const DRAINING: u8 = 1;
pub(super) const ABANDONED: u8 = 2;

/// The callback for the first error that ends the pipeline.
pub(super) type OnFatal = Box<dyn Fn(EngineError) + Send + Sync>;

/// State behind a lock that only workers take, once per batch.
pub(super) struct BatcherState {
    batcher: Batcher<Arrival>,
    busy: usize,
}

pub(super) struct Shared {
    pub engine: Arc<dyn Engine>,
    pub queue: Queue<Arrival>,
    pub events: EventCount,
    pub cells: Vec<CachePadded<WorkerCounters>>,
    pub in_flight: CachePadded<AtomicUsize>,
    state: Mutex<BatcherState>,
    pub max_batch: usize,
    spin: Spin,
    /// Size of every sample in bytes, if all have the same.
    sample_bytes: Option<usize>,
    /// `None` where the engine takes any bytes, or samples arrive compressed.
    lengths: Option<Lengths>,
    pub compression: Option<Compression>,
    mode: AtomicU8,
    failed: AtomicBool,
    on_fatal: OnFatal,
}

impl Shared {
    pub fn new(engine: Arc<dyn Engine>, options: &super::Options, on_fatal: OnFatal) -> Self {
        let policy = options.policy();
        let model = engine.model();
        let sample_bytes = model
            .fixed_size()
            .then(|| model.max_input_bytes())
            .flatten();
        // A model without lengths cannot be served: its workers return the reason.
        let as_they_are = !engine.takes_any_bytes() && options.compression.is_none();
        let lengths = as_they_are.then(|| Lengths::of_inputs(model).ok());
        Shared {
            lengths: lengths.flatten(),
            compression: options.compression,
            queue: Queue::new(options.queue),
            events: EventCount::default(),
            cells: (0..options.engine.threads.max(1))
                .map(|_| WorkerCounters::new(policy.max_batch))
                .collect(),
            in_flight: CachePadded::default(),
            state: Mutex::new(BatcherState {
                batcher: Batcher::new(policy, &options.engine.batch_sizes),
                busy: 0,
            }),
            max_batch: policy.max_batch,
            spin: Spin::new(options.engine.spin_us.saturating_mul(1_000)),
            sample_bytes,
            mode: AtomicU8::new(RUNNING),
            failed: AtomicBool::new(false),
            on_fatal,
            engine,
        }
    }

    /// The engine's inline path, if samples arrive uncompressed.
    pub fn inline(&self) -> Option<&dyn Inline> {
        self.engine.inline().filter(|_| self.compression.is_none())
    }

    /// The batch of a worker; the worker's thread calls this.
    pub fn batch(&self) -> Result<Batch, EngineError> {
        let model = self
            .engine
            .model()
            .clone()
            .with_compression(self.compression);
        let any = self.engine.takes_any_bytes();
        let decompressor = Decompressor::of(&model, any, self.max_batch)?;
        if let Some(decompressor) = &decompressor {
            self.engine.memory(decompressor.region());
        }
        Ok(Batch::with_capacity(self.max_batch).decompressing(decompressor))
    }

    /// True while the pipeline accepts samples.
    pub fn running(&self) -> bool {
        self.mode.load(SeqCst) == RUNNING
    }

    /// Hands samples from a NIC thread to the workers and wakes one worker.
    pub fn submit(&self, arrivals: &mut Vec<Arrival>) {
        if arrivals.is_empty() {
            return;
        }
        if !self.running() {
            arrivals.clear();
            return;
        }
        self.in_flight.fetch_add(arrivals.len(), SeqCst);
        let refused = accept(&self.queue, self.lengths.as_ref(), arrivals);
        if refused > 0 {
            self.in_flight.fetch_sub(refused, SeqCst);
        }
        self.events.notify();
        // `abandon` may have emptied the queue before these samples were pushed.
        if self.mode.load(SeqCst) == ABANDONED {
            self.drop_pending();
        }
    }

    /// Reports the first error and ends the pipeline. Samples in flight are dropped unanswered.
    pub fn fail(&self, error: EngineError) {
        self.abandon();
        if !self.failed.swap(true, SeqCst) {
            (self.on_fatal)(error);
        }
    }

    /// The body of a worker thread.
    pub fn serve(&self, index: usize, worker: &mut dyn Worker, batch: Batch) {
        // A panic leaves only the batch and the worker in an undefined state, and both are dropped.
        let served = catch_unwind(AssertUnwindSafe(|| {
            self.serve_batches(index, worker, batch)
        }));
        match served {
            Ok(Ok(())) => {}
            Ok(Err(error)) => self.fail(error),
            Err(panic) => {
                let panic = panic.as_ref();
                self.fail(EngineError::panicked(self.engine.name(), index, panic));
            }
        }
    }

    fn serve_batches(
        &self,
        index: usize,
        worker: &mut dyn Worker,
        mut batch: Batch,
    ) -> Result<(), EngineError> {
        let mut finished = Vec::with_capacity(self.max_batch);
        let mut ran = None;
        while self.next(&mut batch, ran) {
            let samples = batch.len();
            let guard = InFlight {
                batch: &mut batch,
                samples,
                in_flight: &self.in_flight,
            };
            let took = match self.run(index, worker, guard.batch, &mut finished) {
                Ok(took) => took,
                Err(error) => self.run_apart(index, worker, guard.batch, error, &mut finished)?,
            };
            ran = Some((samples, took));
        }
        Ok(())
    }

    /// Runs and answers a batch; returns its time in the engine, in nanoseconds.
    fn run(
        &self,
        index: usize,
        worker: &mut dyn Worker,
        batch: &mut Batch,
        finished: &mut Vec<Finished>,
    ) -> Result<u64, EngineError> {
        let started = clock::now_ns();
        batch.decompress()?;
        worker.run(batch)?;
        let took = clock::now_ns().saturating_sub(started);
        let compute_us = clock::micros(took);
        self.cells[index].batch(batch.len(), took, batch.counts());
        let answers = batch.take().map(|(arrival, len)| {
            let finished = Finished {
                ticket: arrival.ticket(),
                len,
                queue_us: clock::micros(started.saturating_sub(arrival.arrived_ns())),
                compute_us,
                sent: qdl::serve::Sent::default(),
            };
            (arrival, finished)
        });
        respond_all(answers, finished);
        Ok(took)
    }

    /// Runs the samples of a failed batch one by one, and refuses those that fail alone.
    ///
    /// # Errors
    /// An error that is the engine's fault.
    #[cold]
    fn run_apart(
        &self,
        index: usize,
        worker: &mut dyn Worker,
        batch: &mut Batch,
        error: EngineError,
        finished: &mut Vec<Finished>,
    ) -> Result<u64, EngineError> {
        let started = clock::now_ns();
        of_a_sample(worker, batch.len(), error)?;
        let samples: Vec<Arrival> = batch.take().map(|(arrival, _)| arrival).collect();
        for sample in samples {
            batch.fill(self.sample_bytes, |to| to.push(sample));
            if let Err(error) = self.run(index, worker, batch, finished) {
                let why = of_a_sample(worker, 1, error)?;
                for (sample, _) in batch.take() {
                    sample.refuse(&why);
                }
            }
        }
        Ok(clock::now_ns().saturating_sub(started))
    }

    /// Waits for the next batch and puts it into `batch`; false at the end of the pipeline. `ran`
    /// has the size of the last batch and its time in nanoseconds.
    fn next(&self, batch: &mut Batch, ran: Option<(usize, u64)>) -> bool {
        let mut ran = ran;
        loop {
            let seen = self.events.epoch();
            let mut state = lock(&self.state);
            if let Some((samples, ns)) = ran.take() {
                state.busy -= 1;
                state.batcher.observe(samples, ns);
            }
            // The next step needs at most a full batch; younger samples may stay in the queue.
            while state.batcher.len() < self.max_batch {
                let Some(arrival) = self.queue.pop() else {
                    break;
                };
                state.batcher.push(arrival.arrived_ns(), arrival);
            }
            let now = clock::now_ns();
            let step = match self.mode.load(SeqCst) {
                RUNNING => state.batcher.step(now, state.busy),
                DRAINING if !state.batcher.is_empty() => BatchDecision::Run,
                _ => return false,
            };
            let until = match step {
                BatchDecision::Run => {
                    state.busy += 1;
                    batch.fill(self.sample_bytes, |arrivals| {
                        state.batcher.take(now, arrivals);
                    });
                    let more = !state.batcher.is_empty() || !self.queue.is_empty();
                    drop(state);
                    if more {
                        // A sleeping worker runs the rest, or waits for its deadline.
                        self.events.notify();
                    }
                    return true;
                }
                BatchDecision::WaitUntil(t) => t,
                BatchDecision::Wait => now.saturating_add(LONGEST_SLEEP_NS),
            };
            drop(state);
            self.events.wait(seen, until, self.spin);
        }
    }

    /// Lets the workers end once no sample is pending; drops new samples.
    pub fn drain(&self) {
        let _ = self
            .mode
            .compare_exchange(RUNNING, DRAINING, SeqCst, SeqCst);
        self.events.notify_all();
    }

    /// Lets the workers end now, and drops the pending samples.
    pub fn abandon(&self) {
        self.mode.store(ABANDONED, SeqCst);
        self.events.notify_all();
        self.drop_pending();
    }

    fn drop_pending(&self) {
        let mut state = lock(&self.state);
        let mut dropped = state.batcher.len();
        state.batcher.clear();
        while self.queue.pop().is_some() {
            dropped += 1;
        }
        self.in_flight.fetch_sub(dropped, SeqCst);
    }

    /// The sum of all workers' counts.
    pub fn counters(&self) -> super::Counters {
        let mut sum = super::Counters::default();
        for cell in &self.cells {
            cell.add_to(&mut sum);
        }
        sum.wakeups = self.events.wake_ups();
        sum
    }
}

/// Pushes the arrivals of a valid length (all of them without `lengths`) and refuses the others;
/// returns the number of refusals.
pub(super) fn accept(
    queue: &Queue<Arrival>,
    lengths: Option<&Lengths>,
    arrivals: &mut Vec<Arrival>,
) -> usize {
    let mut refused = 0;
    for arrival in arrivals.drain(..) {
        let got = arrival.input_len();
        match lengths {
            Some(lengths) if lengths.rows(got).is_none() => {
                arrival.refuse(&EngineError::sample_size(lengths, got));
                refused += 1;
            }
            _ => queue.push(arrival),
        }
    }
    refused
}

/// Returns an error that is a sample's fault. For [`Fault::Either`], a batch of zeros of that size
/// decides, and clears the failed samples from the worker's buffers.
///
/// # Errors
/// The same error, if it is the engine's fault.
fn of_a_sample(
    worker: &mut dyn Worker,
    batch: usize,
    error: EngineError,
) -> Result<EngineError, EngineError> {
    match error.fault() {
        Fault::Sample => Ok(error),
        Fault::Either if worker.warm_up(batch).is_ok() => Ok(error),
        Fault::Either | Fault::Engine => Err(error),
    }
}

/// The samples of one batch: on drop, also after an error or panic, the samples are gone before the
/// in-flight count falls.
struct InFlight<'a> {
    batch: &'a mut Batch,
    samples: usize,
    in_flight: &'a AtomicUsize,
}

impl Drop for InFlight<'_> {
    fn drop(&mut self) {
        self.batch.clear();
        self.in_flight.fetch_sub(self.samples, SeqCst);
    }
}
