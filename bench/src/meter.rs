//! One round of an exchange, for every contender: shape, deadline, and measured round trips.

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

/// Number of samples in the client's memory. Images of this number exceed the cache, as in a QSL.
pub const SAMPLES: usize = 128;

impl Shape {
    pub fn slots(&self) -> usize {
        self.in_flight.div_ceil(self.connections)
    }

    /// Index of the sample of request `n`. Successive requests read distant memory, as in a real
    /// run, where LoadGen draws the samples.
    pub fn sample(n: u64) -> usize {
        (n.wrapping_mul(37) % SAMPLES as u64) as usize
    }

    /// The connection of the next request after an answer on `connection`: the same connection, or
    /// the next one if fewer requests are in flight than there are connections.
    pub fn next(&self, connection: usize) -> usize {
        if self.in_flight < self.connections {
            (connection + 1) % self.connections
        } else {
            connection
        }
    }
}

/// Counts the answers of a round and records the round trips.
#[derive(Debug)]
pub struct Meter {
    pub answered: u64,
    round_trips: Histogram<u64>,
    mask: u64,
}

impl Meter {
    /// An empty meter. With 16 or more requests in flight, the meter records only every sixteenth
    /// round trip, to limit the cost.
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

    /// Counts an answer that arrived at `now_ns` to a request posted at `posted_ns`.
    #[inline]
    pub fn answer(&mut self, posted_ns: u64, now_ns: u64) {
        if self.answered & self.mask == 0 {
            self.round_trips
                .saturating_record(now_ns.saturating_sub(posted_ns));
        }
        self.answered += 1;
    }

    /// A quantile (0 to 1) of the recorded round trips, in microseconds.
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
    /// CPU time of client and server together, per request, in us.
    pub cpu_us: f64,
}

/// The end of a round: a time or a number of answers, whichever comes first.
#[derive(Clone, Copy, Debug)]
pub struct Deadline {
    /// Latest end of the round, in ns on the clock of [`now_ns`].
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

    /// The round ends after `samples` answers, or after ten minutes.
    pub fn after_samples(samples: u64) -> Self {
        let most = Self::after_ms(600_000);
        Deadline { samples, ..most }
    }

    /// True if the round continues at `now_ns`, after `answered` answers.
    #[inline]
    pub fn goes_on(&self, now_ns: u64, answered: u64) -> bool {
        now_ns < self.at_ns && answered < self.samples
    }
}
