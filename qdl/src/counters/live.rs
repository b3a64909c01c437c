//! Live figures of a run, for progress displays.

use std::sync::atomic::{AtomicBool, AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use record::{Figures, Stage, TokenTime, timeline::LATENCY_BUCKETS};

use super::Octaves;

/// The figures last published for one share. One thread writes them, without read-modify-write.
#[derive(Debug, Default)]
pub(super) struct Shown {
    pub completed: AtomicU64,
    pub bytes_out: AtomicU64,
    pub bytes_in: AtomicU64,
    pub p99_round_trip_ns: AtomicU64,
    /// Parts that show progress.
    pub parts: AtomicU64,
    pub tokens: AtomicU64,
    pub p99_ttft_ns: AtomicU64,
}

/// Latency counts of one share by bucket. The share's NIC thread adds the counts of a tick after
/// the tick's end, so a sample costs no additional store.
#[derive(Debug)]
struct Latencies([AtomicU64; LATENCY_BUCKETS]);

impl Default for Latencies {
    fn default() -> Self {
        Latencies([const { AtomicU64::new(0) }; LATENCY_BUCKETS])
    }
}

pub(super) const TIMES: usize = Stage::COUNT + TokenTime::COUNT;

/// Figures that NIC threads publish and other threads read without a lock: one cache line with one
/// writer for each share of a NIC's connections.
#[derive(Debug)]
pub struct Live {
    /// Clock at the run's begin; 0 before the run.
    first_ns: AtomicU64,
    rails: Box<[CachePadded<Shown>]>,
    latencies: Box<[CachePadded<Latencies>]>,
    /// The times of each share by octave, in the order of
    /// [`Histograms::all`](super::Histograms::all).
    times: Box<[[[AtomicU64; 32]; TIMES]]>,
    /// Set once a thread reads `times`.
    pub(super) times_wanted: AtomicBool,
}

impl Live {
    /// Creates figures of this many shares.
    pub fn new(shares: usize) -> Self {
        Live {
            first_ns: AtomicU64::new(0),
            rails: (0..shares).map(|_| CachePadded::default()).collect(),
            latencies: (0..shares).map(|_| CachePadded::default()).collect(),
            times: (0..shares).map(|_| Default::default()).collect(),
            times_wanted: AtomicBool::new(false),
        }
    }

    /// Begins the run at a sample's issue time, unless it has begun. Returns the run's begin.
    pub fn begin(&self, now_ns: u64) -> u64 {
        let now_ns = now_ns.max(1);
        let first = &self.first_ns;
        match first.compare_exchange(0, now_ns, Relaxed, Relaxed) {
            Ok(_) => now_ns,
            Err(first_ns) => first_ns,
        }
    }

    /// Returns the number of shares.
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// Returns the sum of all shares. The sum may lag behind the NIC threads, and its fields may be
    /// of slightly different moments.
    pub fn figures(&self) -> Figures {
        let mut all = Figures::default();
        for shown in &self.rails {
            all.completed += shown.completed.load(Relaxed);
            all.bytes_out += shown.bytes_out.load(Relaxed);
            all.bytes_in += shown.bytes_in.load(Relaxed);
            let p99 = shown.p99_round_trip_ns.load(Relaxed);
            all.p99_round_trip_ns = all.p99_round_trip_ns.max(p99);
            all.parts += shown.parts.load(Relaxed);
            all.tokens += shown.tokens.load(Relaxed);
            all.p99_ttft_ns = all.p99_ttft_ns.max(shown.p99_ttft_ns.load(Relaxed));
        }
        all
    }

    /// Returns the number of latencies in each bucket of
    /// [`latency_bucket`](record::timeline::latency_bucket) since the run began, in completed
    /// ticks.
    pub fn latencies(&self) -> Vec<u64> {
        let mut all = vec![0; LATENCY_BUCKETS];
        for one in &self.latencies {
            for (sum, n) in all.iter_mut().zip(&one.0) {
                *sum += n.load(Relaxed);
            }
        }
        all
    }

    /// Returns each time that occurred by octave, with its key, over all shares. Final after the
    /// run; during the run up to 4 s old, and published from the first call on.
    pub fn times(&self) -> Vec<(&'static str, Octaves)> {
        self.times_wanted.store(true, Relaxed);
        let sum = |index: usize| {
            let mut sum = Octaves::default();
            for one in &self.times {
                sum.add(&Octaves(one[index].each_ref().map(|n| n.load(Relaxed))));
            }
            sum
        };
        let stages = Stage::ALL.iter().map(|s| s.key());
        let keys = stages.chain(TokenTime::ALL.iter().map(|t| t.key()));
        let all = keys.enumerate().map(|(index, key)| (key, sum(index)));
        all.filter(|(_, sum)| sum.counts().any(|(_, n)| n > 0))
            .collect()
    }

    pub(super) fn show_time(&self, share: usize, index: usize, now: &Octaves) {
        if let Some(shown) = self.times.get(share) {
            let cells = shown[index].iter().zip(now.0);
            cells.for_each(|(cell, n)| cell.store(n, Relaxed));
        }
    }

    /// Publishes figures of one NIC thread's share.
    pub(super) fn show(&self, share: usize, publish: impl FnOnce(&Shown)) {
        if let Some(shown) = self.rails.get(share) {
            publish(shown);
        }
    }

    /// Adds the latencies of one NIC thread's completed tick.
    pub(super) fn show_latencies(&self, share: usize, counts: &[u64; LATENCY_BUCKETS]) {
        if let Some(shown) = self.latencies.get(share) {
            for (sum, n) in shown.0.iter().zip(counts).filter(|(_, n)| **n > 0) {
                sum.store(sum.load(Relaxed) + n, Relaxed);
            }
        }
    }
}
