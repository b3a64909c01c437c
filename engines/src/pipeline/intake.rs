//! Takes samples from NIC threads, for engines with workers and engines that batch by themselves.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst},
};

use crossbeam_utils::CachePadded;
use qdl::{model::Lengths, serve::Arrival};

use super::Options;
use crate::{Engine, EngineError, queue::Queue};

pub(super) const RUNNING: u8 = 0;
pub(super) const DRAINING: u8 = 1;
pub(super) const ABANDONED: u8 = 2;

/// The callback for the first error that ends the pipeline.
pub(super) type OnFatal = Box<dyn Fn(EngineError) + Send + Sync>;

/// The engine, the queue of its samples, and the state of the pipeline.
pub(super) struct Intake {
    pub engine: Arc<dyn Engine>,
    pub queue: Queue<Arrival>,
    /// Number of samples in the queue and in the engine.
    pub in_flight: CachePadded<AtomicUsize>,
    /// Valid lengths of a sample; `None` if the engine takes any bytes.
    lengths: Option<Lengths>,
    mode: AtomicU8,
    failed: AtomicBool,
    on_fatal: OnFatal,
}

impl Intake {
    pub fn new(engine: Arc<dyn Engine>, options: &Options, on_fatal: OnFatal) -> Self {
        // A model whose lengths are unknown cannot be served: its workers return the reason.
        let lengths = (!engine.takes_any_bytes()).then(|| Lengths::of_inputs(engine.model()).ok());
        Intake {
            engine,
            queue: Queue::new(options.queue),
            in_flight: CachePadded::default(),
            lengths: lengths.flatten(),
            mode: AtomicU8::new(RUNNING),
            failed: AtomicBool::new(false),
            on_fatal,
        }
    }

    pub fn mode(&self) -> u8 {
        self.mode.load(SeqCst)
    }

    /// Queues the arrivals of a valid length and refuses the others. A pipeline that is stopping
    /// drops all arrivals. Returns false if there was no arrival, or all were dropped.
    pub fn take(&self, arrivals: &mut Vec<Arrival>) -> bool {
        if self.mode() != RUNNING {
            arrivals.clear();
        }
        if arrivals.is_empty() {
            return false;
        }
        self.in_flight.fetch_add(arrivals.len(), SeqCst);
        let mut refused = 0;
        for arrival in arrivals.drain(..) {
            let got = arrival.input_len();
            match &self.lengths {
                Some(lengths) if lengths.rows(got).is_none() => {
                    arrival.refuse(&EngineError::sample_size(lengths, got));
                    refused += 1;
                }
                _ => self.queue.push(arrival),
            }
        }
        if refused > 0 {
            self.in_flight.fetch_sub(refused, SeqCst);
        }
        true
    }

    /// Drops new samples from now on.
    pub fn drain(&self) {
        let _ = self
            .mode
            .compare_exchange(RUNNING, DRAINING, SeqCst, SeqCst);
    }

    /// From now on the pipeline drops all samples, also queued ones.
    pub fn abandon(&self) {
        self.mode.store(ABANDONED, SeqCst);
    }

    /// Calls `on_fatal` for the first error only. The caller has abandoned the pipeline before.
    pub fn report(&self, error: EngineError) {
        if !self.failed.swap(true, SeqCst) {
            (self.on_fatal)(error);
        }
    }
}
