//! One round of an exchange: its shape, its end, and the times of its requests, in the same way for
//! every contender.

use fabric::clock::now_ns;
use hdrhistogram::Histogram;
use serde::Serialize;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Shape {
    pub request: usize,
    pub response: usize,
    /// Requests in flight, over all connections.
    pub in_flight: usize,
    pub connections: usize,
}

/// Number of samples that requests are sent from: as images, they exceed the cache, as in a QSL.
pub const SAMPLES: usize = 128;

impl Shape {
    pub fn slots(&self) -> usize {
        self.in_flight.div_ceil(self.connections)
    }

    /// Index of request `n`'s sample among `of` samples. Successive requests read distant memory,
    /// as in a real run, where LoadGen chooses samples.
    pub fn sample(n: u64, of: usize) -> usize {
        (n.wrapping_mul(37) % of.max(1) as u64) as usize
    }

    /// The connection of the next request after an answer on `connection`: the same one. With fewer
    /// requests than connections, the connections take turns.
    pub fn next(&self, connection: usize) -> usize {
        if self.in_flight < self.connections {
            (connection + 1) % self.connections
        } else {
            connection
        }
    }
}

/// Number and round trips of a round's requests.
#[derive(Debug)]
pub struct Meter {
    pub answered: u64,
    round_trips: Histogram<u64>,
    mask: u64,
}

impl Meter {
    /// An empty meter. With 16 or more requests in flight it times every sixteenth request, to
    /// limit the cost of reading the clock.
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

    /// Counts an answer to a request posted at `posted_ns` and seen at `now_ns`.
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

#[derive(Clone, Copy, Debug, Serialize)]
pub struct Round {
    pub per_s: f64,
    /// Median of the round trips, in us.
    pub p50_us: f64,
    /// 99th percentile of the round trips, in us.
    pub p99_us: f64,
    /// CPU time of both sides per request, in us.
    pub cpu_us: f64,
}

/// The end of a round, at a time or after a number of answers. Only the client checks it.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// Latest end, on the clock of [`now_ns`].
    pub at_ns: u64,
    /// Number of answers that end the round.
    pub samples: u64,
}

impl Deadline {
    pub fn after_ms(ms: u64) -> Self {
        Deadline {
            at_ns: now_ns() + ms * 1_000_000,
            samples: u64::MAX,
        }
    }

    /// Ends after `samples` answers, or after ten minutes.
    pub fn after_samples(samples: u64) -> Self {
        let most = Self::after_ms(600_000);
        Deadline { samples, ..most }
    }

    /// Whether the round continues after `answered` answers.
    #[inline]
    pub fn goes_on(&self, now_ns: u64, answered: u64) -> bool {
        now_ns < self.at_ns && answered < self.samples
    }
}
