//! Figures of a run while it runs, for whoever shows progress.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

/// What one rail thread has shown last. One writer, so a store will do where a shared counter would need
/// a read-modify-write.
#[derive(Debug, Default)]
struct Shown {
    completed: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    p99_round_trip_ns: AtomicU64,
}

/// Figures that rail threads show and others read, without a lock: one cache line per rail thread.
#[derive(Debug)]
pub struct Live {
    rails: Box<[CachePadded<Shown>]>,
}

/// What [`Live::figures`] reads, over all rail threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Samples completed.
    pub completed: u64,
    /// Payload bytes of their requests.
    pub bytes_out: u64,
    /// Payload bytes of their responses.
    pub bytes_in: u64,
    /// p99 of the round trip so far, in nanoseconds, of the rail thread where it is highest: the p99 over
    /// all is no more than this. 0 before the first was shown.
    pub p99_round_trip_ns: u64,
}

impl Live {
    /// For as many rail threads.
    pub fn new(rails: usize) -> Self {
        Live {
            rails: (0..rails).map(|_| CachePadded::default()).collect(),
        }
    }

    /// How many rail threads it is for.
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// The figures now. They may lag behind by what a rail thread has not shown yet, and the fields need
    /// not be of one moment.
    pub fn figures(&self) -> Figures {
        let mut all = Figures::default();
        for rail in &self.rails {
            all.completed += rail.completed.load(Relaxed);
            all.bytes_out += rail.bytes_out.load(Relaxed);
            all.bytes_in += rail.bytes_in.load(Relaxed);
            let p99 = rail.p99_round_trip_ns.load(Relaxed);
            all.p99_round_trip_ns = all.p99_round_trip_ns.max(p99);
        }
        all
    }

    /// Shows one rail thread's counts.
    pub(super) fn show(&self, rail: usize, completed: u64, bytes_out: u64, bytes_in: u64) {
        if let Some(shown) = self.rails.get(rail) {
            shown.completed.store(completed, Relaxed);
            shown.bytes_out.store(bytes_out, Relaxed);
            shown.bytes_in.store(bytes_in, Relaxed);
        }
    }

    /// Shows one rail thread's p99 of the round trip.
    pub(super) fn show_p99(&self, rail: usize, ns: u64) {
        if let Some(shown) = self.rails.get(rail) {
            shown.p99_round_trip_ns.store(ns, Relaxed);
        }
    }
}
