//! The pipeline of an engine that batches by itself: each sample becomes a [`Sequence`].
//!
//! ```text
//! NIC threads -- arrived() --> queue --> next(), below the limit --> the engine
//!                  \-- wake() -----------> ^
//!                                          \-- wake(): a sequence has ended
//! ```
//!
//! A thread that queues a sample, or ends a sequence while samples wait, wakes the engine. The
//! engine then takes sequences until none waits or it is at its limit, so no sample waits while the
//! engine is below its limit.

use std::{
    sync::{
        Arc, Weak,
        atomic::{
            AtomicBool, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use fabric::clock;
use qdl::{
    request::{OptionSet, OptionsError, RequestOptions},
    serve::Arrival,
};
use record::EngineUse;

use super::{
    Counters, ENGINE_END, LOOK, Options,
    intake::{ABANDONED, DRAINING, Intake, OnFatal},
};
use crate::SizeCounts;
use crate::{
    Engine, EngineError, Sequence, Streaming, catch_panic,
    streaming::{self, OnEnd, SequenceOutcome, SequenceSource, TOKEN_BYTES},
};

/// Longest wait of a sample with a handle, whose age the frontend bounds by 20 s: vLLM's prefill
/// core keeps a KV cache for 30 s, and does not say that it is gone.
const HANDLE_WAIT_NS: u64 = 8_000_000_000;
const LATE: &str = "it waited over 8 s for the engine, and the KV cache of its prompt may be gone: \
                    use `slots: auto`, or fewer slots";

/// The pipeline of an engine that batches by itself.
pub(super) struct Sequences {
    pub inner: Arc<Inner>,
    started_ms: u64,
    stopped: AtomicBool,
}

pub(super) struct Inner {
    pub intake: Intake,
    /// Limit of concurrent sequences; 0 until the engine has started.
    most: AtomicUsize,
    /// Number of sequences in the engine.
    inside: CachePadded<AtomicUsize>,
    output_bytes: usize,
    /// Samples answered; `tokens` is the number of tokens of their answers.
    answered: AtomicU64,
    tokens: AtomicU64,
    events: Arc<SizeCounts>,
    on_end: OnEnd,
}

impl Sequences {
    /// Starts the engine on a separate thread, so that the wait for the start can time out.
    pub fn start(
        engine: Arc<dyn Engine>,
        options: &Options,
        on_fatal: OnFatal,
    ) -> Result<Self, EngineError> {
        let output_bytes = engine.model().max_output_bytes().unwrap_or(0);
        let inner = Arc::new_cyclic(|weak: &Weak<Inner>| Inner {
            output_bytes,
            intake: Intake::new(engine, options, on_fatal),
            most: AtomicUsize::new(0),
            inside: CachePadded::default(),
            answered: AtomicU64::new(0),
            tokens: AtomicU64::new(0),
            events: Arc::new(SizeCounts::new(output_bytes / TOKEN_BYTES)),
            on_end: {
                let weak = weak.clone();
                Arc::new(move |outcome| {
                    if let Some(inner) = weak.upgrade() {
                        inner.handle_end(outcome);
                    }
                })
            },
        });
        let begun = Instant::now();
        let mut sequences = Sequences {
            inner: Arc::clone(&inner),
            started_ms: 0,
            stopped: AtomicBool::new(false),
        };
        let (ready, readies) = mpsc::channel();
        let starting = inner.clone();
        thread::Builder::new()
            .name(format!("{}-start", options.name))
            .spawn(move || {
                // The send fails only if the start has timed out.
                let _ = ready.send(starting.start());
            })
            .map_err(|e| EngineError::thread(0, &e))?;
        let not_ready = |_| {
            let (name, s) = (inner.intake.engine.name(), options.start_timeout.as_secs());
            EngineError::engine(format!(
                "engine {name} was not ready after {s} s: its log says how far it came"
            ))
        };
        let started = readies.recv_timeout(options.start_timeout);
        started.map_err(not_ready)??;
        sequences.started_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(sequences)
    }

    /// Start time of the engine in milliseconds, and its limit of concurrent sequences.
    pub fn started(&self) -> (u64, usize) {
        (self.started_ms, self.inner.most.load(SeqCst))
    }

    pub fn counters(&self) -> Counters {
        Counters {
            samples: self.inner.answered.load(Relaxed),
            tokens: self.inner.tokens.load(Relaxed),
            made: self.inner.events.sum(),
            ..Counters::default()
        }
    }

    pub fn used(&self) -> EngineUse {
        let engine = self.inner.intake.engine.streaming();
        let server = engine.map(Streaming::server_counts).unwrap_or_default();
        EngineUse {
            events: self.inner.events.sizes(),
            server_busy: server.busy,
            nans: server.nans,
            handles: server.handles,
            fetched_tokens: server.fetched_tokens,
            transfer_bytes: server.transfer_bytes,
            transfer_us: server.transfer_us,
            ..EngineUse::default()
        }
    }

    /// See [`Pipeline::stop`](super::Pipeline::stop). The engine gets at least 1 s for its stop.
    pub fn stop(&self, timeout: Duration) -> Result<(), String> {
        let inner = &self.inner;
        let begun = Instant::now();
        inner.drain(begun + timeout);
        inner.abandon();
        if !self.stopped.swap(true, SeqCst) {
            inner.stop(timeout.saturating_sub(begun.elapsed()).max(ENGINE_END));
        }
        match inner.inside.load(SeqCst) {
            0 => Ok(()),
            sequences => Err(format!(
                "engine {} still holds {sequences} sequence(s) after {} ms",
                inner.intake.engine.name(),
                begun.elapsed().as_millis()
            )),
        }
    }
}

impl Drop for Sequences {
    fn drop(&mut self) {
        // A caller that needs a longer timeout has called `stop` before.
        let _ = self.stop(Duration::from_secs(1));
    }
}

impl Inner {
    /// Calls `body` with the engine. A panic becomes an error.
    fn call<'e>(
        &'e self,
        body: impl FnOnce(&'e dyn Streaming) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        let engine = &self.intake.engine;
        catch_panic(engine.name(), 0, || engine.streaming().map_or(Ok(()), body))
    }

    /// Starts the engine. The callback that the engine gets has only a weak reference to `self`:
    /// an engine that keeps the callback must not keep itself alive.
    fn start(self: &Arc<Self>) -> Result<(), EngineError> {
        let weak = Arc::downgrade(self);
        let fatal: streaming::OnFatal = Arc::new(move |error| {
            if let Some(inner) = weak.upgrade() {
                inner.fail(error);
            }
        });
        self.call(|engine| {
            engine.start(self.clone(), fatal)?;
            self.most.store(engine.in_flight().max(1), SeqCst);
            Ok(())
        })
    }

    fn stop(&self, timeout: Duration) {
        let stopped = self.call(|engine| {
            engine.stop(timeout);
            Ok(())
        });
        if let Err(error) = stopped {
            self.fail(error);
        }
    }

    /// Reports the first error and ends the pipeline. Drops the queued samples unanswered; the
    /// engine drops the sequences that it holds.
    fn fail(&self, error: EngineError) {
        self.abandon();
        self.intake.report(error);
    }

    /// From now on the pipeline drops all samples, also queued ones.
    fn abandon(&self) {
        self.intake.abandon();
        while let Some(arrival) = self.intake.queue.pop() {
            drop(arrival);
            self.intake.in_flight.fetch_sub(1, SeqCst);
        }
    }

    pub fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        if !self.intake.take(arrivals) {
            return;
        }
        self.wake();
        // `abandon` may have emptied the queue before these samples were pushed.
        if self.intake.mode() == ABANDONED {
            self.abandon();
        }
    }

    fn wake(&self) {
        let woken = self.call(|engine| {
            engine.wake(self);
            Ok(())
        });
        if let Err(error) = woken {
            self.fail(error);
        }
    }

    /// Refuses options that the engine lacks.
    fn check_options(&self, options: RequestOptions) -> Result<RequestOptions, OptionsError> {
        let engine = &self.intake.engine;
        let has = engine
            .streaming()
            .map_or(OptionSet::NONE, Streaming::options);
        match options.needs().without(has) {
            lacks if lacks.is_empty() => Ok(options),
            lacks => Err(OptionsError::Lacks(engine.name(), lacks)),
        }
    }

    /// The oldest sample that is wanted and whose options are known.
    fn pop(&self) -> Option<Sequence> {
        while let Some(arrival) = self.intake.queue.pop() {
            match arrival.options().and_then(|o| self.check_options(o)) {
                _ if !arrival.is_wanted() => drop(arrival),
                Ok(options) if is_late(&arrival, &options) => arrival.refuse(&LATE),
                Ok(options) => {
                    let sequence = Sequence::new(arrival, self.output_bytes, self.on_end.clone());
                    let sequence = sequence.with_options(options);
                    return Some(sequence.counted(self.events.clone()));
                }
                Err(why) => arrival.refuse(&why),
            }
            self.intake.in_flight.fetch_sub(1, SeqCst);
        }
        None
    }

    /// Lets the pipeline drop new samples. Waits until no sample is in flight, the engine fails, or
    /// `deadline` passes.
    fn drain(&self, deadline: Instant) {
        self.intake.drain();
        while self.intake.in_flight.load(SeqCst) > 0
            && self.intake.mode() == DRAINING
            && Instant::now() < deadline
        {
            thread::sleep(LOOK);
        }
    }

    fn handle_end(&self, outcome: SequenceOutcome) {
        if let SequenceOutcome::Answered { tokens } = outcome {
            self.answered.fetch_add(1, Relaxed);
            self.tokens.fetch_add(tokens as u64, Relaxed);
        }
        self.inside.fetch_sub(1, SeqCst);
        self.intake.in_flight.fetch_sub(1, SeqCst);
        // An engine whose thread panics ends.
        if !self.intake.queue.is_empty() && !thread::panicking() {
            self.wake();
        }
    }
}

fn is_late(arrival: &Arrival, options: &RequestOptions) -> bool {
    !options.handle.is_empty()
        && clock::now_ns().saturating_sub(arrival.arrived_ns()) > HANDLE_WAIT_NS
}

impl SequenceSource for Inner {
    fn next(&self) -> Option<Sequence> {
        loop {
            let most = self.most.load(SeqCst);
            let below = |n| (n < most).then_some(n + 1);
            self.inside.fetch_update(SeqCst, SeqCst, below).ok()?;
            let next = self.pop();
            if next.is_some() {
                return next;
            }
            self.inside.fetch_sub(1, SeqCst);
            // Another thread may have queued a sample and found no place.
            if self.intake.queue.is_empty() {
                return None;
            }
        }
    }

    fn has_next(&self) -> bool {
        self.inside.load(SeqCst) < self.most.load(SeqCst) && !self.intake.queue.is_empty()
    }
}
