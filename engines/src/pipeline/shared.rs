//! State that NIC threads and workers share, and the loop of a worker.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicUsize, Ordering::SeqCst},
};

use crossbeam_utils::CachePadded;
use fabric::clock;
use qdl::{
    connection::Spin,
    serve::{Arrival, Finished, Sent, respond_all},
};

use super::{
    Counters,
    intake::{ABANDONED, DRAINING, Intake, OnFatal, RUNNING},
};
use fabric::os::lock;

use crate::{
    Batch, Engine, EngineError, Fault, Inline, SizeCounts, Worker,
    batcher::{BatchDecision, Batcher},
    catch_panic,
    event_count::EventCount,
};

/// Time in nanoseconds after which a sleeping worker checks for work without a notification.
const LONGEST_SLEEP_NS: u64 = 1_000_000_000;

/// State behind the lock that workers share; a worker takes the lock about once per batch.
pub(super) struct BatcherState {
    batcher: Batcher<Arrival>,
    busy: usize,
}

pub(super) struct Shared {
    pub intake: Intake,
    events: EventCount,
    /// The counters of each worker. A worker locks its own counters once per batch.
    pub cells: Vec<CachePadded<Mutex<Counters>>>,
    /// The samples of each NIC poll that its thread answered inline.
    pub inline_counts: SizeCounts,
    state: Mutex<BatcherState>,
    pub max_batch: usize,
    spin: Spin,
    /// Bytes of every sample, if the model's inputs have a fixed size.
    sample_bytes: Option<usize>,
}

impl Shared {
    pub fn new(engine: Arc<dyn Engine>, options: &super::Options, on_fatal: OnFatal) -> Self {
        let policy = options.policy();
        let model = engine.model();
        let sample_bytes = model
            .fixed_size()
            .then(|| model.max_input_bytes())
            .flatten();
        let cells = 0..options.engine.threads.max(1);
        Shared {
            events: EventCount::default(),
            cells: cells
                .map(|_| CachePadded::new(Mutex::new(Counters::new(policy.max_batch))))
                .collect(),
            inline_counts: SizeCounts::new(policy.max_batch),
            state: Mutex::new(BatcherState {
                batcher: Batcher::new(policy, &options.engine.batch_sizes),
                busy: 0,
            }),
            max_batch: policy.max_batch,
            spin: Spin::new(options.engine.spin_us.saturating_mul(1_000)),
            sample_bytes,
            intake: Intake::new(engine, options, on_fatal),
        }
    }

    /// The engine's inline path.
    pub fn inline(&self) -> Option<&dyn Inline> {
        self.intake.engine.inline()
    }

    /// Hands samples from a NIC thread to the workers and wakes one worker.
    pub fn submit(&self, arrivals: &mut Vec<Arrival>) {
        if !self.intake.take(arrivals) {
            return;
        }
        self.events.notify();
        // `abandon` may have emptied the queue before these samples were pushed.
        if self.intake.mode() == ABANDONED {
            self.drop_pending();
        }
    }

    /// Reports the first error and ends the pipeline. Samples in flight are dropped unanswered.
    pub fn fail(&self, error: EngineError) {
        self.abandon();
        self.intake.report(error);
    }

    /// The body of a worker thread: runs batches until the pipeline ends.
    pub fn serve(&self, index: usize, worker: &mut dyn Worker, batch: Batch) {
        // A panic leaves only the batch and the worker in an undefined state, and both are dropped.
        let name = self.intake.engine.name();
        if let Err(error) = catch_panic(name, index, || self.serve_batches(index, worker, batch)) {
            self.fail(error);
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
                in_flight: &self.intake.in_flight,
            };
            let took = match self.run(index, worker, guard.batch, &mut finished) {
                Ok(took) => took,
                Err(error) => self.run_apart(index, worker, guard.batch, error, &mut finished)?,
            };
            ran = Some((samples, took));
        }
        Ok(())
    }

    /// Runs a batch and answers its samples; returns the nanoseconds in the engine.
    fn run(
        &self,
        index: usize,
        worker: &mut dyn Worker,
        batch: &mut Batch,
        finished: &mut Vec<Finished>,
    ) -> Result<u64, EngineError> {
        let started = clock::now_ns();
        worker.run(batch)?;
        let took = clock::now_ns().saturating_sub(started);
        let compute_us = clock::micros(took);
        lock(&self.cells[index]).add_batch(batch.len(), took, batch.counts());
        let answers = batch
            .take()
            .map(|answer| finish(answer, started, compute_us));
        respond_all(answers, finished);
        Ok(took)
    }

    /// Runs the samples of a failed batch one by one, and refuses those that fail alone.
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

    /// Waits for samples and moves them into `batch`; returns false at the end of the pipeline.
    /// `ran` is the size of this worker's last batch and its engine time in nanoseconds.
    fn next(&self, batch: &mut Batch, ran: Option<(usize, u64)>) -> bool {
        let mut ran = ran;
        loop {
            let seen = self.events.epoch();
            let mut state = lock(&self.state);
            if let Some((samples, ns)) = ran.take() {
                state.busy -= 1;
                state.batcher.observe(samples, ns);
            }
            // The batcher needs at most one full batch; younger samples may stay in the queue.
            while state.batcher.len() < self.max_batch {
                let Some(arrival) = self.intake.queue.pop() else {
                    break;
                };
                state.batcher.push(arrival.arrived_ns(), arrival);
            }
            let now = clock::now_ns();
            let step = match self.intake.mode() {
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
                    let more = !state.batcher.is_empty() || !self.intake.queue.is_empty();
                    drop(state);
                    if more {
                        // The woken worker runs the remaining samples, or waits for their deadline.
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

    /// The workers end once no sample is pending; the pipeline drops new samples.
    pub fn drain(&self) {
        self.intake.drain();
        self.events.notify_all();
    }

    /// The workers end after their current batch; the pipeline drops pending and new samples.
    pub fn abandon(&self) {
        self.intake.abandon();
        self.events.notify_all();
        self.drop_pending();
    }

    fn drop_pending(&self) {
        let mut state = lock(&self.state);
        let mut dropped = state.batcher.len();
        state.batcher.clear();
        while self.intake.queue.pop().is_some() {
            dropped += 1;
        }
        self.intake.in_flight.fetch_sub(dropped, SeqCst);
    }

    /// The sum of the inline counts and all workers' counts.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::inline(&self.inline_counts);
        for cell in &self.cells {
            sum.add(&lock(cell));
        }
        sum
    }
}

/// Pairs an arrival with its response of `len` bytes, whose batch began at `started` (ns).
pub(super) fn finish(
    (arrival, len): (Arrival, u32),
    started: u64,
    compute_us: u32,
) -> (Arrival, Finished) {
    let finished = Finished {
        ticket: arrival.ticket(),
        len,
        queue_us: clock::micros(started.saturating_sub(arrival.arrived_ns())),
        compute_us,
        sent: Sent::default(),
    };
    (arrival, finished)
}

/// Returns `error` if a sample is at fault. For [`Fault::Either`], a run of `batch` samples of
/// zeros decides; this run also clears the failed samples from the worker's buffers.
/// Error: `error`, if the engine is at fault.
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

/// Guard of a running batch. On drop, also after an error or a panic, the guard drops the remaining
/// samples first and then lowers the in-flight count.
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
