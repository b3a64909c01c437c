//! Health scores of rails.
//!
//! ```text
//! H(x)  =  latency  *  occupancy                         in (0, 1]
//!
//! latency    EWMA of  (baseline(size class) + own queue / rate) / network time,  each at most 1
//! occupancy  W / (W + bytes assigned)
//! ```
//!
//! *Network time* is the round trip minus the accelerator's residence. The *baseline* of a size
//! class is the rail's own unloaded network time. The first (warm-up) sample sets it; each faster
//! sample lowers it by a quarter of the difference. No sample raises it, so a rail that stays slow
//! keeps a low score. Three baselines of network time give a latency factor of 1/3.
//!
//! *Own queue* is the bytes assigned to the same rail earlier. Their time at the rail's highest
//! observed *rate* counts as expected. So a busy rail compares with an idle rail, and a rail at a
//! tenth of its rate has a factor of 1/10 under any load.
//!
//! The EWMA has a time constant of 20 ms by default. No single sample weighs more than a quarter,
//! so one slow sample is no congestion. The published value moves in steps of 1/32, with
//! hysteresis, so that nearly equal rails have equal scores.
//!
//! *W* is the bytes in flight on a rail without queueing: the rail's highest observed rate times
//! its shortest baseline, and at least its longest sample. Assigned bytes count from the decision,
//! before the post, so a burst does not overload the rail that was best at the burst's begin.
//!
//! [`Interior`] is the score of a node's interior, from the times of copies across it.

use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};

use crossbeam_utils::CachePadded;

use super::{MS, Score};

/// Time constant of an interior's EWMA, in nanoseconds.
const EWMA_NS: u64 = 20 * MS;

/// Size classes: four per doubling of the length.
const CLASSES: usize = 4 * 32;

/// A ratio of 1 in [`Gauge::seen`].
const FULL: u64 = 1 << 16;
/// Bits of [`Gauge::seen`] for the sum of ratios; the upper bits hold the number of ratios.
const SUM_BITS: u32 = 40;

/// Returns the size class of a length in bytes: four per octave. Each class has its own baseline,
/// and the warm-up sends a sample of each class.
pub fn size_class(len: u32) -> usize {
    let len = len.max(4);
    let octave = len.ilog2();
    (octave as usize) << 2 | (len >> (octave - 2) & 3) as usize
}

/// Ratios of expected to measured network time. Observers never wait; a second thread folds.
#[derive(Debug)]
pub(crate) struct Gauge {
    /// Baseline of each size class in nanoseconds; 0 without a sample.
    baselines: Box<[AtomicU32]>,
    /// Count and sum of ratios since the last fold, in one word for an atomic swap.
    seen: AtomicU64,
    class: AtomicU32,
    /// Minimum of all baselines, in nanoseconds.
    shortest: AtomicU32,
}

impl Default for Gauge {
    fn default() -> Self {
        Gauge {
            baselines: (0..CLASSES).map(|_| AtomicU32::new(0)).collect(),
            seen: AtomicU64::new(0),
            class: AtomicU32::new(0),
            shortest: AtomicU32::new(u32::MAX),
        }
    }
}

impl Gauge {
    /// Records that a sample of `len` bytes had a network time of `ns` nanoseconds.
    pub(crate) fn observe(&self, len: u32, ns: u64) {
        self.observe_behind(len, ns, 0);
    }

    /// Like [`Self::observe`], with `queue_ns` expected in addition for bytes assigned earlier.
    fn observe_behind(&self, len: u32, ns: u64, queue_ns: u64) {
        let ns = u32::try_from(ns.max(1)).unwrap_or(u32::MAX);
        let class = size_class(len);
        let cell = &self.baselines[class];
        let base = match cell.load(Ordering::Relaxed) {
            0 => ns,
            // Round up, so that a difference below 4 ns still lowers the baseline.
            old if ns < old => old - (old - ns).div_ceil(4),
            old => old,
        };
        cell.store(base, Ordering::Relaxed);
        self.class.store(class as u32, Ordering::Relaxed);
        if base < self.shortest.load(Ordering::Relaxed) {
            self.shortest.store(base, Ordering::Relaxed);
        }
        let expected = u64::from(base) + queue_ns.min(u64::from(u32::MAX));
        let ratio = (expected * FULL / u64::from(ns)).min(FULL);
        self.seen
            .fetch_add(1 << SUM_BITS | ratio, Ordering::Relaxed);
    }

    /// Returns the baseline of a size class, in nanoseconds.
    pub(super) fn baseline_of(&self, class: usize) -> Option<u32> {
        let ns = self.baselines.get(class)?.load(Ordering::Relaxed);
        (ns > 0).then_some(ns)
    }

    pub(super) fn last_class(&self) -> usize {
        self.class.load(Ordering::Relaxed) as usize
    }

    /// Returns the mean and the number of the ratios since the last call; `None` without ratios.
    fn take(&self) -> Option<(f32, u32)> {
        if self.seen.load(Ordering::Relaxed) == 0 {
            return None;
        }
        let seen = self.seen.swap(0, Ordering::Relaxed);
        let (count, sum) = (seen >> SUM_BITS, seen & ((1 << SUM_BITS) - 1));
        (count > 0).then(|| (sum as f32 / count as f32 / FULL as f32, count as u32))
    }
}

#[derive(Clone, Copy, Debug)]
pub(super) struct Average {
    value: f32,
    steady: f32,
    folded_ns: u64,
}

/// Steps per unit of a published average.
const STEPS: f32 = 32.0;
/// Averages below this value are published exactly, because a step would be a large part of them.
const RAW_BELOW: f32 = 0.25;

impl Average {
    pub(crate) fn new(now: u64) -> Self {
        Average {
            value: 1.0,
            steady: 1.0,
            folded_ns: now,
        }
    }

    pub(crate) fn published(self) -> f32 {
        self.steady
    }

    /// Folds the ratios of `gauge` into the average, if there are any.
    pub(crate) fn fold(&mut self, now: u64, ewma_ns: u64, gauge: &Gauge) {
        let Some((mean, count)) = gauge.take() else {
            return;
        };
        let passed = now.saturating_sub(self.folded_ns) as f32;
        self.folded_ns = now;
        // passed / (tau + passed) is 1 - exp(-passed / tau) to first order, and at most 1.
        let weight = (passed / (ewma_ns as f32 + passed)).min(count as f32 / 4.0);
        self.value += weight * (mean - self.value);
        if self.value < RAW_BELOW {
            self.steady = self.value;
        } else if (self.value - self.steady).abs() * STEPS > 0.75 {
            self.steady = (self.value * STEPS).round() / STEPS;
        }
    }
}

/// Measurements of one rail, written by the threads that post and those that complete.
#[derive(Debug, Default)]
pub struct Meter {
    /// Ratios of expected to measured network times.
    pub gauge: Gauge,
    /// Bytes assigned to the rail and not yet retired.
    assigned: CachePadded<AtomicU64>,
    /// Bytes delivered by completed samples.
    delivered: AtomicU64,
    /// Length of the longest sample so far, in bytes.
    longest: AtomicU32,
    /// Highest observed rate in bytes per nanosecond, as bits of an `f32`; 0 before the first.
    rate: AtomicU32,
}

impl Meter {
    pub(super) fn assign(&self, len: u32) {
        self.assigned.fetch_add(u64::from(len), Ordering::Relaxed);
        if len > self.longest.load(Ordering::Relaxed) {
            self.longest.fetch_max(len, Ordering::Relaxed);
        }
    }

    /// Takes back a sample that was not posted or whose connection was lost.
    pub(super) fn retire(&self, len: u32) {
        self.assigned.fetch_sub(u64::from(len), Ordering::Relaxed);
    }

    /// Records a response over the rail: retires the sample's `len` bytes and records `network_ns`,
    /// the round trip minus the residence. Called on NIC threads.
    pub(super) fn complete(&self, len: u32, network_ns: u64) {
        self.gauge
            .observe_behind(len, network_ns, self.queue_ns(len));
        self.delivered.fetch_add(u64::from(len), Ordering::Relaxed);
        self.retire(len);
    }

    /// Returns the nanoseconds of the assigned bytes less `len`, at the highest observed rate.
    pub(super) fn queue_ns(&self, len: u32) -> u64 {
        let rate = f32::from_bits(self.rate.load(Ordering::Relaxed));
        let others = self.assigned().saturating_sub(u64::from(len));
        if rate > 0.0 {
            (others as f32 / rate) as u64
        } else {
            0
        }
    }

    /// Returns the bytes assigned to the rail and not retired.
    pub(crate) fn assigned(&self) -> u64 {
        // A thread may see a retirement before its assignment, and the count wrapped below 0.
        let bytes = self.assigned.load(Ordering::Relaxed);
        if bytes > i64::MAX as u64 { 0 } else { bytes }
    }

    /// Returns the bytes of samples whose responses arrived over this rail.
    pub(crate) fn delivered(&self) -> u64 {
        self.delivered.load(Ordering::Relaxed)
    }
}

/// The highest observed rate of a rail, and W (module documentation).
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct RateWindow {
    since_ns: u64,
    delivered: u64,
    /// Bytes per nanosecond.
    rate: f32,
    /// W, in bytes.
    bytes: f32,
}

/// Minimum time over which a rate is measured.
const RATE_NS: u64 = 10 * MS;

impl RateWindow {
    pub(crate) fn fold(&mut self, now: u64, meter: &Meter) {
        let delivered = meter.delivered();
        let passed = now.saturating_sub(self.since_ns);
        if passed >= RATE_NS {
            let rate = (delivered - self.delivered) as f32 / passed as f32;
            self.rate = self.rate.max(rate);
            meter.rate.store(self.rate.to_bits(), Ordering::Relaxed);
            (self.since_ns, self.delivered) = (now, delivered);
        }
        let longest = meter.longest.load(Ordering::Relaxed).max(1) as f32;
        let base = match meter.gauge.shortest.load(Ordering::Relaxed) {
            u32::MAX => 0,
            ns => ns,
        };
        self.bytes = longest.max(self.rate * base as f32);
    }

    /// Returns the occupancy factor, W / (W + assigned bytes).
    pub(crate) fn occupancy(&self, meter: &Meter) -> f32 {
        let w = self
            .bytes
            .max(meter.longest.load(Ordering::Relaxed).max(1) as f32);
        w / (w + meter.assigned() as f32)
    }
}

/// Health of a node's interior, from the times of copies across the node: on an accelerator, from
/// the NIC's side to GPU memory. An accelerator reports this score to its peers.
#[derive(Debug)]
pub struct Interior {
    gauge: Gauge,
    average: Average,
}

impl Interior {
    /// Creates an interior with a score of 1 until copies are observed.
    pub fn new(now: u64) -> Self {
        Interior {
            gauge: Gauge::default(),
            average: Average::new(now),
        }
    }

    /// Records a copy of `len` bytes that took `ns` nanoseconds. Any one thread may call it.
    pub fn observe(&self, len: u32, ns: u64) {
        self.gauge.observe(len, ns);
    }

    /// Folds the observed copies and returns the score.
    pub fn score(&mut self, now: u64) -> Score {
        self.average.fold(now, EWMA_NS, &self.gauge);
        Score::from_f32(self.average.published())
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn lengths_of_a_class_are_alike() {
        for len in [0u32, 1, 3, 4, 5, 8, 63, 64, 150_528, u32::MAX] {
            assert!(size_class(len) < CLASSES, "{len}");
        }
        assert_eq!(size_class(150_528), size_class(150_529));
        assert_ne!(size_class(128 << 10), size_class(160 << 10));
        for pair in (2..31)
            .flat_map(|o| (4u32..8).map(move |q| q << (o - 2)))
            .collect::<Vec<_>>()
            .windows(2)
        {
            assert_eq!(size_class(pair[0]) + 1, size_class(pair[1]), "{pair:?}");
        }
    }

    fn run(average: &mut Average, gauge: &Gauge, from: u64, n: u64, ns: u64) -> u64 {
        for i in 1..=n {
            gauge.observe(1000, ns);
            average.fold(from + i * MS, EWMA_NS, gauge);
        }
        from + n * MS
    }

    #[test]
    fn it_falls_with_the_excess_over_its_own_baseline_and_recovers() {
        let (gauge, mut average) = (Gauge::default(), Average::new(0));
        let now = run(&mut average, &gauge, 0, 50, 100_000);
        assert!(average.published() > 0.99);
        let now = run(&mut average, &gauge, now, 200, 400_000);
        assert!(
            (average.published() - 0.25).abs() < 0.01,
            "{}",
            average.published()
        );
        assert_eq!(
            gauge.baseline_of(size_class(1000)),
            Some(100_000),
            "nothing raises it"
        );
        run(&mut average, &gauge, now, 200, 100_000);
        assert!(average.published() > 0.99);
    }

    #[test]
    fn one_hiccup_is_no_congestion() {
        let (gauge, mut average) = (Gauge::default(), Average::new(0));
        let now = run(&mut average, &gauge, 0, 50, 100_000);
        gauge.observe(1000, 100_000_000);
        average.fold(now + 1000 * MS, EWMA_NS, &gauge);
        assert!(average.published() >= 0.74, "{}", average.published());
    }

    #[test]
    fn a_baseline_comes_down_to_what_the_rail_can_do() {
        let gauge = Gauge::default();
        gauge.observe(64, 1_000_000);
        for _ in 0..60 {
            gauge.observe(64, 10_000);
        }
        assert_eq!(gauge.baseline_of(size_class(64)), Some(10_000));
        assert_eq!(
            gauge.baseline_of(size_class(128)),
            None,
            "every class has its own"
        );
    }

    #[test]
    fn bytes_assigned_count_at_once() {
        let (meter, window) = (Meter::default(), RateWindow::default());
        let mut last = window.occupancy(&meter);
        assert_eq!(last, 1.0);
        for _ in 0..10 {
            meter.assign(1000);
            let now = window.occupancy(&meter);
            assert!(now < last && now > 0.0);
            last = now;
        }
        (0..10).for_each(|_| meter.retire(1000));
        assert_eq!(window.occupancy(&meter), 1.0);
        meter.retire(1000);
        assert_eq!(meter.assigned(), 0, "seen out of order");
    }

    proptest! {
        /// A score stays in its range, whatever is observed.
        #[test]
        fn scores_stay_in_range(
            seen in prop::collection::vec((any::<u32>(), any::<u64>(), 0u64..1 << 40), 0..200),
        ) {
            let mut interior = Interior::new(0);
            let mut now = 0;
            for (len, ns, passed) in seen {
                interior.observe(len, ns);
                now += passed;
                let score = interior.score(now);
                prop_assert!(Score::MIN <= score && score <= Score::ONE);
                prop_assert!((0.0..=1.0).contains(&interior.average.published()));
            }
        }
    }
}
