//! Figures of a run while it runs, for whoever shows progress.

use std::sync::atomic::{AtomicU64, Ordering::Relaxed};

use crossbeam_utils::CachePadded;

use record::{Figures, timeline::LATENCY_BUCKETS};

/// What has been shown last of one share. One writer, so a store
/// will do where a shared counter would need a read-modify-write.
#[derive(Debug, Default)]
struct Shown {
    completed: AtomicU64,
    bytes_out: AtomicU64,
    bytes_in: AtomicU64,
    p99_round_trip_ns: AtomicU64,
    parts: AtomicU64,
    tokens: AtomicU64,
    p99_ttft_ns: AtomicU64,
}

impl Shown {
    fn add_to(&self, all: &mut Figures) {
        all.completed += self.completed.load(Relaxed);
        all.bytes_out += self.bytes_out.load(Relaxed);
        all.bytes_in += self.bytes_in.load(Relaxed);
        let p99 = self.p99_round_trip_ns.load(Relaxed);
        all.p99_round_trip_ns = all.p99_round_trip_ns.max(p99);
        all.parts += self.parts.load(Relaxed);
        all.tokens += self.tokens.load(Relaxed);
        all.p99_ttft_ns = all.p99_ttft_ns.max(self.p99_ttft_ns.load(Relaxed));
    }
}

/// How many latencies of one NIC thread fell into each bucket: shown once a tick, and of ticks that
/// are over alone, so that a sample costs nothing more.
#[derive(Debug)]
struct Latencies([AtomicU64; LATENCY_BUCKETS]);

impl Default for Latencies {
    fn default() -> Self {
        Latencies([const { AtomicU64::new(0) }; LATENCY_BUCKETS])
    }
}

/// Figures that NIC threads show and others read, without a lock: one cache line for each share of
/// a NIC's connections, which has one writer.
#[derive(Debug)]
pub struct Live {
    /// The NIC of each share.
    nic_of: Box<[usize]>,
    /// When the run began; 0 before.
    first_ns: AtomicU64,
    rails: Box<[CachePadded<Shown>]>,
    latencies: Box<[CachePadded<Latencies>]>,
}

impl Live {
    /// For as many NICs.
    pub fn new(nics: usize) -> Self {
        Live::of_shares((0..nics).collect())
    }

    /// For shares of these NICs.
    pub fn of_shares(nic_of: Vec<usize>) -> Self {
        let rails = nic_of.len();
        Live {
            nic_of: nic_of.into(),
            first_ns: AtomicU64::new(0),
            rails: (0..rails).map(|_| CachePadded::default()).collect(),
            latencies: (0..rails).map(|_| CachePadded::default()).collect(),
        }
    }

    /// The run begins with what was issued at `now_ns`, unless it has begun. Returns when it did.
    pub fn begin(&self, now_ns: u64) -> u64 {
        let now_ns = now_ns.max(1);
        let first = &self.first_ns;
        match first.compare_exchange(0, now_ns, Relaxed, Relaxed) {
            Ok(_) => now_ns,
            Err(first_ns) => first_ns,
        }
    }

    /// How many shares it is for.
    pub fn rails(&self) -> usize {
        self.rails.len()
    }

    /// The figures now. They may lag behind by what a NIC thread
    /// has not shown yet, and the fields need not be of one moment.
    pub fn figures(&self) -> Figures {
        let mut all = Figures::default();
        self.rails.iter().for_each(|shown| shown.add_to(&mut all));
        all
    }

    /// The same of each NIC.
    pub fn each(&self) -> impl Iterator<Item = Figures> + '_ {
        let nics = self.nic_of.iter().map(|nic| nic + 1).max().unwrap_or(0);
        (0..nics).map(|nic| {
            let mut all = Figures::default();
            let shares = self.rails.iter().zip(&self.nic_of);
            let shares = shares.filter(|(_, of)| **of == nic);
            shares.for_each(|(shown, _)| shown.add_to(&mut all));
            all
        })
    }

    /// How many latencies fell into each bucket of
    /// [`latency_bucket`](record::timeline::latency_bucket) since the run began, in ticks that are
    /// over.
    pub fn latencies(&self) -> Vec<u64> {
        let mut all = vec![0; LATENCY_BUCKETS];
        for one in &self.latencies {
            for (sum, n) in all.iter_mut().zip(&one.0) {
                *sum += n.load(Relaxed);
            }
        }
        all
    }

    /// Shows one NIC thread's counts.
    pub(super) fn show(&self, share: usize, completed: u64, bytes_out: u64, bytes_in: u64) {
        if let Some(shown) = self.rails.get(share) {
            shown.completed.store(completed, Relaxed);
            shown.bytes_out.store(bytes_out, Relaxed);
            shown.bytes_in.store(bytes_in, Relaxed);
        }
    }

    /// Adds the latencies of one NIC thread's tick that is over.
    pub(super) fn show_latencies(&self, share: usize, counts: &[u64; LATENCY_BUCKETS]) {
        if let Some(shown) = self.latencies.get(share) {
            for (sum, n) in shown.0.iter().zip(counts).filter(|(_, n)| **n > 0) {
                sum.store(sum.load(Relaxed) + n, Relaxed);
            }
        }
    }

    /// Shows by how many parts something has moved on one NIC thread.
    pub(super) fn show_parts(&self, share: usize, parts: u64) {
        if let Some(shown) = self.rails.get(share) {
            shown.parts.store(parts, Relaxed);
        }
    }

    /// Shows how many tokens one NIC thread's answers had.
    pub(super) fn show_tokens(&self, share: usize, tokens: u64) {
        if let Some(shown) = self.rails.get(share) {
            shown.tokens.store(tokens, Relaxed);
        }
    }

    /// Shows one NIC thread's p99 of the time to the first token.
    pub(super) fn show_ttft(&self, share: usize, ns: u64) {
        if let Some(shown) = self.rails.get(share) {
            shown.p99_ttft_ns.store(ns, Relaxed);
        }
    }

    /// Shows one NIC thread's p99 of the round trip.
    pub(super) fn show_p99(&self, share: usize, ns: u64) {
        if let Some(shown) = self.rails.get(share) {
            shown.p99_round_trip_ns.store(ns, Relaxed);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_nic_shows_what_its_shares_did_together() {
        let live = Live::of_shares(vec![0, 1, 0]);
        for (share, completed) in [(0, 1), (1, 20), (2, 300)] {
            live.show(share, completed, 10 * completed, 100 * completed);
            live.show_p99(share, completed);
        }
        let each: Vec<_> = live.each().map(|f| (f.completed, f.bytes_in)).collect();
        assert_eq!(each, [(301, 30_100), (20, 2_000)]);
        assert_eq!(live.each().next().map(|f| f.p99_round_trip_ns), Some(300));
        let all = live.figures();
        assert_eq!(
            (all.completed, all.bytes_out, live.rails()),
            (321, 3_210, 3)
        );
    }
}
