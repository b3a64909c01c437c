//! Takes samples from NIC threads, for either kind of engine.

use std::sync::{
    Arc,
    atomic::{AtomicBool, AtomicU8, AtomicUsize, Ordering::SeqCst},
};

use crossbeam_utils::CachePadded;
use qdl::{model::Lengths, serve::Arrival};

use super::Options;
use crate::{
    engine::{Engine, EngineError},
    queue::Queue,
};

pub(super) const RUNNING: u8 = 0;
pub(super) const DRAINING: u8 = 1;
pub(super) const ABANDONED: u8 = 2;

/// The callback for the first error that ends the pipeline.
pub(super) type OnFatal = Box<dyn Fn(EngineError) + Send + Sync>;

/// The engine, and its samples from their arrival on.
pub(super) struct Intake {
    pub engine: Arc<dyn Engine>,
    pub queue: Queue<Arrival>,
    /// Samples in the queue and in the engine.
    pub in_flight: CachePadded<AtomicUsize>,
    /// `None` where the engine takes any bytes, or samples arrive compressed.
    lengths: Option<Lengths>,
    mode: AtomicU8,
    failed: AtomicBool,
    on_fatal: OnFatal,
}

impl Intake {
    pub fn new(engine: Arc<dyn Engine>, options: &Options, on_fatal: OnFatal) -> Self {
        // A model without lengths cannot be served: its workers return the reason.
        let as_they_are = !engine.takes_any_bytes() && options.compression.is_none();
        let lengths = as_they_are.then(|| Lengths::of_inputs(engine.model()).ok());
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

    /// Queues the arrivals of a valid length and refuses the others. Drops all if the pipeline no
    /// longer runs; false if nothing was there to take.
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

    /// Lets the pipeline drop all samples.
    pub fn abandon(&self) {
        self.mode.store(ABANDONED, SeqCst);
    }

    /// Reports the first error; the caller has abandoned the pipeline.
    pub fn report(&self, error: EngineError) {
        if !self.failed.swap(true, SeqCst) {
            (self.on_fatal)(error);
        }
    }
}
