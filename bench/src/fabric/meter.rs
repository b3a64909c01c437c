//! What one round measured, and how requests are timed: alike for every contender.

use fabric::clock::now_ns;
use hdrhistogram::Histogram;

/// Requests of one round: how many, how long they took.
#[derive(Debug)]
pub struct Meter {
    /// Requests answered.
    pub answered: u64,
    round_trips: Histogram<u64>,
    mask: u64,
}

impl Meter {
    /// An empty one. With many in flight every sixteenth request is timed: the clock would be a
    /// good part of what is measured.
    pub fn new(in_flight: usize) -> Self {
        let mut round_trips =
            Histogram::new_with_bounds(1, 60_000_000_000, 3).expect("valid bounds");
        round_trips.auto(false);
        Meter {
            answered: 0,
            round_trips,
            mask: if in_flight >= 16 { 15 } else { 0 },
        }
    }

    /// One more was answered; it was posted at `posted_ns` and its answer was seen at `now_ns`.
    #[inline]
    pub fn answer(&mut self, posted_ns: u64, now_ns: u64) {
        if self.answered & self.mask == 0 {
            self.round_trips
                .saturating_record(now_ns.saturating_sub(posted_ns));
        }
        self.answered += 1;
    }

    /// A quantile of the round trips, in microseconds.
    pub fn quantile_us(&self, quantile: f64) -> f64 {
        self.round_trips.value_at_quantile(quantile) as f64 / 1000.0
    }
}

/// What one contender did in one round.
#[derive(Clone, Copy, Debug, Default)]
pub struct Round {
    /// Requests per second.
    pub per_s: f64,
    /// Median round trip, us.
    pub p50_us: f64,
    /// 99th percentile of the round trips, us.
    pub p99_us: f64,
    /// CPU time of both sides per request, us.
    pub cpu_us: f64,
}

/// The end of a round: a time on the clock or so many answers, looked at by the client only.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// The time.
    pub at_ns: u64,
    /// The answers.
    pub samples: u64,
}

impl Deadline {
    /// `ms` milliseconds from now.
    pub fn after_ms(ms: u64) -> Self {
        Deadline {
            at_ns: now_ns() + ms * 1_000_000,
            samples: u64::MAX,
        }
    }

    /// After so many answers, within ten minutes.
    pub fn after_samples(samples: u64) -> Self {
        let most = Self::after_ms(600_000);
        Deadline { samples, ..most }
    }

    /// Whether the round goes on after so many answers.
    #[inline]
    pub fn goes_on(&self, now_ns: u64, answered: u64) -> bool {
        now_ns < self.at_ns && answered < self.samples
    }
}
