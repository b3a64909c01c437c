//! The pipeline of an engine that batches by itself: each sample becomes a [`Sequence`].
//!
//! ```text
//! NIC threads -- arrived() --> queue --> below the limit? --> Streaming::submit
//!                                |              ^
//!                                \-- draw() ----+-- a sequence has ended
//! ```
//!
//! A thread that brings a sample or ends a sequence draws from the queue. One thread draws at a
//! time ([`SendToken`]): other threads leave their work to it, and it checks again before it
//! leaves. So the pipeline never misses a free place. An engine that ends a sequence inside
//! `submit` causes another turn of the loop, not a deeper call.

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::{
        Arc, Condvar, Mutex, PoisonError,
        atomic::{
            AtomicBool, AtomicU8, AtomicU64, AtomicUsize,
            Ordering::{Relaxed, SeqCst},
        },
        mpsc,
    },
    thread,
    time::{Duration, Instant},
};

use crossbeam_utils::CachePadded;
use qdl::{connection::token::SendToken, serve::Arrival};

use super::{
    Counters, Options, StopTimeout, THREAD_END,
    queue::Queue,
    shared::{ABANDONED, DRAINING, OnFatal, RUNNING},
};
use crate::engine::{
    Engine, EngineError, Lengths, Sequence, lengths, panic_message,
    streaming::{self, Outcome, Places},
};

/// The pipeline of an engine that batches by itself.
pub(super) struct Sequences {
    inner: Arc<Inner>,
    started_ms: u64,
    /// `stop` has stopped the engine.
    stopped: AtomicBool,
}

struct Inner {
    engine: Arc<dyn Engine>,
    queue: Queue<Arrival>,
    /// The thread that holds the token moves samples from the queue to the engine.
    drawing: SendToken<()>,
    /// Limit of concurrent sequences; 0 until the engine has started.
    most: AtomicUsize,
    /// Sequences in the engine. Only the drawing thread increments this counter.
    inside: CachePadded<AtomicUsize>,
    /// Sequences in the engine and samples in the queue.
    in_flight: CachePadded<AtomicUsize>,
    output_bytes: usize,
    /// `None` where the engine takes any bytes.
    lengths: Option<Lengths>,
    mode: AtomicU8,
    failed: AtomicBool,
    on_fatal: OnFatal,
    answered: CachePadded<Answered>,
    emptied_lock: Mutex<()>,
    emptied: Condvar,
}

#[derive(Default)]
struct Answered {
    samples: AtomicU64,
    tokens: AtomicU64,
    parts: AtomicU64,
}

impl Sequences {
    /// Starts the engine on a separate thread, so that the wait for it can time out.
    pub fn start(
        engine: Arc<dyn Engine>,
        options: &Options,
        on_fatal: OnFatal,
    ) -> Result<Self, EngineError> {
        let model = engine.model();
        let lengths = (!engine.takes_any_bytes()).then(|| Lengths::of_inputs(model).ok());
        let inner = Arc::new(Inner {
            queue: Queue::new(options.queue),
            drawing: SendToken::new(()),
            most: AtomicUsize::new(0),
            inside: CachePadded::default(),
            in_flight: CachePadded::default(),
            output_bytes: model.max_output_bytes().unwrap_or(0),
            lengths: lengths.flatten(),
            mode: AtomicU8::new(RUNNING),
            failed: AtomicBool::new(false),
            on_fatal,
            answered: CachePadded::default(),
            emptied_lock: Mutex::new(()),
            emptied: Condvar::new(),
            engine,
        });
        let begun = Instant::now();
        let mut sequences = Sequences {
            inner: Arc::clone(&inner),
            started_ms: 0,
            stopped: AtomicBool::new(false),
        };
        let (ready, readies) = mpsc::channel();
        thread::Builder::new()
            .name(format!("{}-start", options.name))
            .spawn(move || {
                // The send fails only if the start took too long.
                let _ = ready.send(inner.start());
            })
            .map_err(|source| EngineError::Thread { worker: 0, source })?;
        let not_ready = |_| EngineError::NotReady {
            engine: sequences.engine().name(),
            seconds: options.start_timeout.as_secs(),
        };
        let started = readies.recv_timeout(options.start_timeout);
        started.map_err(not_ready)??;
        sequences.started_ms = u64::try_from(begun.elapsed().as_millis()).unwrap_or(u64::MAX);
        Ok(sequences)
    }

    pub fn engine(&self) -> &Arc<dyn Engine> {
        &self.inner.engine
    }

    /// Start time of the engine in milliseconds, and its limit of concurrent sequences.
    pub fn started(&self) -> (u64, usize) {
        (self.started_ms, self.inner.most.load(SeqCst))
    }

    pub fn in_flight(&self) -> usize {
        self.inner.in_flight.load(SeqCst)
    }

    pub fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        self.inner.arrived(arrivals);
    }

    pub fn counters(&self) -> Counters {
        let answered = &self.inner.answered;
        Counters {
            samples: answered.samples.load(Relaxed),
            tokens: answered.tokens.load(Relaxed),
            parts: answered.parts.load(Relaxed),
            ..Counters::default()
        }
    }

    /// As [`Pipeline::stop`](super::Pipeline::stop); the engine has at least 1 s.
    pub fn stop(&self, timeout: Duration) -> Result<(), StopTimeout> {
        let inner = &self.inner;
        let begun = Instant::now();
        inner.drain(begun + timeout);
        inner.mode.store(ABANDONED, SeqCst);
        inner.draw();
        if !self.stopped.swap(true, SeqCst) {
            inner.stop(timeout.saturating_sub(begun.elapsed()).max(THREAD_END));
        }
        match inner.inside.load(SeqCst) {
            0 => Ok(()),
            sequences => Err(StopTimeout::Sequences {
                engine: inner.engine.name(),
                sequences,
                waited_ms: begun.elapsed().as_millis(),
            }),
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
    fn running(&self) -> bool {
        self.mode.load(SeqCst) == RUNNING
    }

    /// Starts the engine. The engine may keep the callback; the callback holds a weak reference, so
    /// that it does not keep the engine alive.
    fn start(self: &Arc<Self>) -> Result<(), EngineError> {
        let Some(engine) = self.engine.streaming() else {
            return Ok(());
        };
        let weak = Arc::downgrade(self);
        let fatal: streaming::OnFatal = Arc::new(move |error| {
            if let Some(inner) = weak.upgrade() {
                inner.fail(error);
            }
        });
        let started = catch_unwind(AssertUnwindSafe(|| engine.start(fatal)));
        self.most.store(engine.in_flight().max(1), SeqCst);
        started.unwrap_or_else(|panic| Err(self.panicked(panic.as_ref())))
    }

    fn stop(self: &Arc<Self>, timeout: Duration) {
        let stopped = catch_unwind(AssertUnwindSafe(|| {
            if let Some(engine) = self.engine.streaming() {
                engine.stop(timeout);
            }
        }));
        if let Err(panic) = stopped {
            self.fail(self.panicked(panic.as_ref()));
        }
    }

    fn panicked(&self, panic: &(dyn std::any::Any + Send)) -> EngineError {
        EngineError::Panicked {
            engine: self.engine.name(),
            worker: 0,
            message: panic_message(panic),
        }
    }

    /// Reports the first error and ends the pipeline. Drops the queued samples unanswered; the
    /// engine drops its own.
    fn fail(self: &Arc<Self>, error: EngineError) {
        self.mode.store(ABANDONED, SeqCst);
        self.draw();
        self.tell();
        if !self.failed.swap(true, SeqCst) {
            (self.on_fatal)(error);
        }
    }

    /// Takes samples on a NIC thread.
    fn arrived(self: &Arc<Self>, arrivals: &mut Vec<Arrival>) {
        if arrivals.is_empty() {
            return;
        }
        if !self.running() {
            arrivals.clear();
            return;
        }
        self.in_flight.fetch_add(arrivals.len(), SeqCst);
        let refused = lengths::sort(self.lengths.as_ref(), arrivals, |a| self.queue.push(a));
        self.left(refused);
        self.draw();
    }

    /// Gives queued samples to the engine up to its limit; drops them if the pipeline is abandoned.
    fn draw(self: &Arc<Self>) {
        let mut claim = self.drawing.claim();
        while let Some(_drawing) = claim.next() {
            loop {
                let over = self.mode.load(SeqCst) == ABANDONED;
                if !over && self.inside.load(SeqCst) >= self.most.load(SeqCst) {
                    break;
                }
                let Some(arrival) = self.queue.pop() else {
                    break;
                };
                if over || arrival.origin().is_gone() {
                    drop(arrival);
                    self.left(1);
                } else {
                    self.submit(arrival);
                }
            }
        }
    }

    fn submit(self: &Arc<Self>, arrival: Arrival) {
        self.inside.fetch_add(1, SeqCst);
        let places: Arc<dyn Places> = Arc::<Inner>::clone(self);
        let sequence = Sequence::placed(arrival, self.output_bytes, places);
        let submitted = catch_unwind(AssertUnwindSafe(|| {
            if let Some(engine) = self.engine.streaming() {
                engine.submit(sequence);
            }
        }));
        if let Err(panic) = submitted {
            self.fail(self.panicked(panic.as_ref()));
        }
    }

    /// Takes `samples` out of the in-flight count.
    fn left(&self, samples: usize) {
        let before = self.in_flight.fetch_sub(samples, SeqCst);
        // Either this thread sees the mode of a waiting `drain`, or `drain` sees the count.
        if before == samples && !self.running() {
            self.tell();
        }
    }

    /// Wakes a thread that waits in `drain`.
    fn tell(&self) {
        drop(self.lock());
        self.emptied.notify_all();
    }

    fn lock(&self) -> std::sync::MutexGuard<'_, ()> {
        self.emptied_lock
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }

    /// Refuses new samples and waits until all samples are answered, the engine fails, or
    /// `deadline` passes.
    fn drain(&self, deadline: Instant) {
        let _ = self
            .mode
            .compare_exchange(RUNNING, DRAINING, SeqCst, SeqCst);
        let mut guard = self.lock();
        while self.in_flight.load(SeqCst) > 0 && self.mode.load(SeqCst) == DRAINING {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                return;
            }
            guard = self
                .emptied
                .wait_timeout(guard, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
    }
}

impl Places for Inner {
    fn ended(self: Arc<Self>, outcome: Outcome) {
        if let Outcome::Answered { tokens, parts } = outcome {
            self.answered.samples.fetch_add(1, Relaxed);
            self.answered.tokens.fetch_add(tokens as u64, Relaxed);
            self.answered.parts.fetch_add(u64::from(parts), Relaxed);
        }
        self.inside.fetch_sub(1, SeqCst);
        self.left(1);
        self.draw();
    }
}
