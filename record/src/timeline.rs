//! A run along its own clock, beside its totals: `timeline.json`, which the page of a run is drawn
//! from. Times are seconds from the first query on the frontend's clock; figures of a tick are of
//! that tick alone.

use serde::{Deserialize, Serialize};

/// `timeline.json` in a run's folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeline {
    /// Length of a tick in milliseconds.
    pub tick_ms: u64,
    /// The ticks, in order and without gaps.
    pub ticks: Vec<Tick>,
    /// What happened when, in order.
    pub events: Vec<Event>,
    /// The slowest samples of the run, slowest first: at most a thousandth, and at most 256.
    pub slowest: Vec<SlowSample>,
    /// Each node's own side: this one first, then the accelerators as they told it at the end.
    pub nodes: Vec<NodeSide>,
}

/// What happened in one tick, seen from the frontend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tick {
    /// Samples issued.
    pub issued: u64,
    /// Samples completed.
    pub completed: u64,
    /// Samples outstanding at its end.
    pub in_flight: u64,
    /// Latencies of the samples that it completed: how many fell into each bucket of
    /// [`latency_bucket`], those with none left out.
    pub latency: Vec<(u16, u64)>,
    /// Each connection, in the order of the summary's `connections`.
    pub connections: Vec<ConnectionTick>,
}

/// One connection in one tick, or since it was made.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionTick {
    /// Responses taken.
    pub samples: u64,
    /// Payload bytes sent: of the requests that were answered in it.
    pub bytes_out: u64,
    /// Payload bytes received.
    pub bytes_in: u64,
    /// In flight at its end.
    pub in_flight: u64,
    /// The score of its rail from 0 to 1, where rails are chosen by health.
    pub score: Option<f64>,
    /// Segments sent again, where the fabric counts them (TCP: `tcpi_total_retrans`).
    pub retransmits: u64,
    /// Microseconds in which the peer's window held sending up (TCP: `tcpi_rwnd_limited`).
    pub window_limited_us: u64,
    /// Smoothed round trip in microseconds as the fabric sees it, where it does.
    pub rtt_us: Option<u64>,
}

/// Figures of a run at one moment, over all NIC threads or of one NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Samples completed.
    pub completed: u64,
    /// Payload bytes of their requests.
    pub bytes_out: u64,
    /// Payload bytes of their responses.
    pub bytes_in: u64,
    /// p99 of the round trip so far, in nanoseconds, of the share where it is highest: the p99
    /// over all is no more than this. 0 before the first was shown.
    pub p99_round_trip_ns: u64,
    /// Parts of answers that go on, by which something moves.
    pub parts: u64,
    /// Tokens of completed answers.
    pub tokens: u64,
    /// p99 of the time to the first token, likewise.
    pub p99_ttft_ns: u64,
}

/// Something that happened.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Event {
    /// When; before the first query it is negative.
    pub at_s: f64,
    /// What: `warm_up`, `lost`, `back`, `sent_again`, `rail`, `probe`, `watchdog`, `phase`.
    pub kind: String,
    /// In words, with the names of what it befell.
    pub text: String,
}

/// One sample whole: where its time went.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlowSample {
    /// When it was completed.
    pub at_s: f64,
    /// From `issue_query` to the completion.
    pub total_ns: u64,
    /// `failed attempts`.
    pub failed_ns: u64,
    /// `issue -> post`.
    pub post_ns: u64,
    /// `network, out and back`.
    pub network_ns: u64,
    /// `batch wait`.
    pub wait_ns: u64,
    /// `inference`.
    pub inference_ns: u64,
    /// `completion`.
    pub completion_ns: u64,
    /// Its connection's place in the summary's `connections`.
    pub connection: u32,
}

/// One node's own side of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSide {
    /// Its name.
    pub node: String,
    /// Seconds on the frontend's clock at which its ticks begin, as near as a control round trip
    /// tells.
    pub begins_s: f64,
    /// Length of its ticks in milliseconds; 0: that of the timeline's.
    pub tick_ms: u64,
    /// Its threads, the busiest first.
    pub threads: Vec<ThreadSide>,
    /// Its engines' work, tick by tick; empty on a frontend.
    pub engines: Vec<EngineTick>,
}

/// One thread over the run, tick by tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadSide {
    /// Its name.
    pub name: String,
    /// Permille of the tick that it was on a core.
    pub on_core: Vec<u16>,
    /// Permille of the tick that it waited for one.
    pub waited: Vec<u16>,
}

/// What an accelerator's engines did in one tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineTick {
    /// Samples that arrived.
    pub arrived: u64,
    /// Samples answered.
    pub answered: u64,
    /// Batches run, by size: (size, how many).
    pub batches: Vec<(u32, u64)>,
    /// Microseconds that engine threads computed, all together.
    pub computed_us: u64,
    /// Microseconds of those that copied to and from GPUs, where the engine tells.
    pub copied_us: u64,
}

/// Sizes of batches that are told apart in one tick.
pub const MOST_SIZES: usize = 16;

impl EngineTick {
    /// The sums of each `n` neighbours, with 16 sizes of batches at most.
    pub fn longer(ticks: &[EngineTick], n: usize) -> Vec<EngineTick> {
        ticks.chunks(n.max(1)).map(EngineTick::sum).collect()
    }

    /// All of these as one, with [`MOST_SIZES`] sizes of batches at most.
    pub fn sum(ticks: &[EngineTick]) -> EngineTick {
        let mut all = EngineTick::default();
        let mut batches = std::collections::BTreeMap::<u32, u64>::new();
        for t in ticks {
            all.arrived = all.arrived.saturating_add(t.arrived);
            all.answered = all.answered.saturating_add(t.answered);
            all.computed_us = all.computed_us.saturating_add(t.computed_us);
            all.copied_us = all.copied_us.saturating_add(t.copied_us);
            for (size, n) in &t.batches {
                let sum = batches.entry(*size).or_default();
                *sum = sum.saturating_add(*n);
            }
        }
        all.batches = batches.into_iter().collect();
        fold(&mut all.batches);
        all
    }
}

/// Keeps the [`MOST_SIZES`] most frequent sizes apart.
pub fn fold(all: &mut Vec<(u32, u64)>) {
    while all.len() > MOST_SIZES {
        // The rarest goes to its neighbour.
        let rarest = (1..all.len()).min_by_key(|i| all[*i].1).unwrap_or(1);
        let (_, n) = all.remove(rarest);
        all[rarest - 1].1 = all[rarest - 1].1.saturating_add(n);
    }
}

/// Buckets that [`latency_bucket`] may give. A power of two.
pub const LATENCY_BUCKETS: usize = 512;
/// Buckets of a factor of two.
const PER_OCTAVE: u32 = 8;

/// The bucket of a latency: eight of the same width to each factor of two, so that the middle of
/// one is within 6 % of all in it.
pub fn latency_bucket(ns: u64) -> u16 {
    let ns = ns.max(u64::from(PER_OCTAVE));
    let octave = ns.ilog2();
    let step = (ns >> (octave - PER_OCTAVE.ilog2())) as u32 - PER_OCTAVE;
    (octave * PER_OCTAVE + step) as u16
}

/// The least latency in nanoseconds of a bucket.
pub fn bucket_begins(bucket: u16) -> u64 {
    let (octave, step) = (
        u32::from(bucket) / PER_OCTAVE,
        u32::from(bucket) % PER_OCTAVE,
    );
    let shift = octave.saturating_sub(PER_OCTAVE.ilog2()).min(60);
    u64::from(PER_OCTAVE + step) << shift
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_latency_lies_in_its_bucket() {
        for ns in (8..100_000).chain([1 << 40, (1 << 40) + 12_345, u64::MAX]) {
            let bucket = latency_bucket(ns);
            assert!(bucket_begins(bucket) <= ns, "{ns}");
            assert!(ns == u64::MAX || bucket_begins(bucket + 1) > ns, "{ns}");
        }
        assert_eq!(latency_bucket(0), latency_bucket(8));
        assert_eq!(usize::from(latency_bucket(u64::MAX)), LATENCY_BUCKETS - 1);
    }
}
