//! The timeline of a run, `timeline.json`, from which the report's page is drawn. Times are seconds
//! from the first query on the frontend's clock. Counts of a tick cover that tick alone.

use serde::{Deserialize, Serialize};

/// The content of `timeline.json` in a run's folder.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Timeline {
    /// Length of a tick in milliseconds.
    pub tick_ms: u64,
    /// The ticks, in order and without gaps.
    pub ticks: Vec<Tick>,
    /// Events in order of time.
    pub events: Vec<Event>,
    /// The slowest samples of the run, slowest first: at most a thousandth, and at most 256.
    pub slowest: Vec<SlowSample>,
    /// Each node's own ticks: the frontend's first, then the accelerators' as reported at the end.
    pub nodes: Vec<NodeSide>,
}

/// Counts of one tick, seen from the frontend.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Tick {
    /// Samples issued.
    pub issued: u64,
    /// Samples completed.
    pub completed: u64,
    /// Samples in flight at the tick's end.
    pub in_flight: u64,
    /// Tokens of the completed samples' answers, if answers are tokens.
    #[serde(skip_serializing_if = "is_zero")]
    pub tokens: u64,
    /// Latencies of the samples completed in the tick: (bucket of [`latency_bucket`], samples),
    /// without empty buckets.
    pub latency: Vec<(u16, u64)>,
    /// Each connection, in the order of the summary's `connections`.
    pub connections: Vec<ConnectionTick>,
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// Counts of one connection in one tick, or since the connection was created.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ConnectionTick {
    /// Responses received.
    pub samples: u64,
    /// Payload bytes sent, of requests that were answered in the tick.
    pub bytes_out: u64,
    /// Payload bytes received.
    pub bytes_in: u64,
    /// Samples in flight at the tick's end.
    pub in_flight: u64,
    /// Score of the rail from 0 to 1, if the dispatcher chooses rails by health.
    pub score: Option<f64>,
    /// Retransmitted segments, if the fabric counts them (TCP: `tcpi_total_retrans`).
    pub retransmits: u64,
    /// Microseconds in which the peer's window limited sending (TCP: `tcpi_rwnd_limited`).
    pub window_limited_us: u64,
    /// Smoothed round trip in microseconds, if the fabric measures it.
    pub rtt_us: Option<u64>,
}

/// Figures of a run at one moment, of all NIC threads or of one NIC.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Figures {
    /// Samples completed.
    pub completed: u64,
    /// Payload bytes of the completed samples' requests.
    pub bytes_out: u64,
    /// Payload bytes of the completed samples' responses.
    pub bytes_in: u64,
    /// p99 of the round trip so far in nanoseconds: the maximum over the threads' shares, hence an
    /// upper bound of the p99 over all. 0 before the first reading.
    pub p99_round_trip_ns: u64,
    /// Parts received of incomplete answers, as a sign of progress.
    pub parts: u64,
    /// Tokens of completed answers.
    pub tokens: u64,
    /// p99 of the time to the first token in nanoseconds, computed like `p99_round_trip_ns`.
    pub p99_ttft_ns: u64,
}

/// An event of the run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct Event {
    /// Time of the event; negative before the first query.
    pub at_s: f64,
    /// Kind: `warm_up`, `lost`, `back`, `sent_again`, `rail`, `probe`, `watchdog`, `phase`.
    pub kind: String,
    /// Description with the names of the nodes, connections or rails concerned.
    pub text: String,
}

/// One slow sample and the duration of each of its stages.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct SlowSample {
    /// Time of the completion.
    pub at_s: f64,
    /// Nanoseconds from `issue_query` to the completion.
    pub total_ns: u64,
    /// Nanoseconds of the stage `failed_attempts`; the next fields are the other stages, by their
    /// keys. The aliases are keys of earlier releases.
    #[serde(alias = "failed_ns")]
    pub failed_attempts_ns: u64,
    /// Nanoseconds of the stage.
    #[serde(skip_serializing_if = "is_zero")]
    pub prefill_ns: u64,
    /// Nanoseconds of the stage.
    #[serde(alias = "post_ns")]
    pub issue_to_post_ns: u64,
    /// Nanoseconds of the stage.
    pub network_ns: u64,
    /// Nanoseconds of the stage.
    #[serde(alias = "wait_ns")]
    pub queue_ns: u64,
    /// Nanoseconds of the stage.
    #[serde(alias = "inference_ns")]
    pub compute_ns: u64,
    /// Nanoseconds of the stage.
    pub completion_ns: u64,
    /// Index of the sample's connection in the summary's `connections`.
    pub connection: u32,
}

/// One node's own ticks of a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct NodeSide {
    /// Name of the node.
    pub node: String,
    /// Seconds on the frontend's clock at which the node's ticks begin, to a control round trip.
    pub begins_s: f64,
    /// Length of the node's ticks in milliseconds; 0 if equal to the timeline's.
    pub tick_ms: u64,
    /// The node's threads, the busiest first.
    pub threads: Vec<ThreadSide>,
    /// Work of the node's engines, tick by tick; empty on a frontend.
    pub engines: Vec<EngineTick>,
}

/// One thread over the run, tick by tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct ThreadSide {
    /// Name of the thread.
    pub name: String,
    /// Permille of each tick that the thread ran on a core.
    pub on_core: Vec<u16>,
    /// Permille of each tick that the runnable thread waited for a core.
    pub waited: Vec<u16>,
}

/// Work of an accelerator's engines in one tick.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default, deny_unknown_fields)]
pub struct EngineTick {
    /// Samples that arrived.
    pub arrived: u64,
    /// Samples answered.
    pub answered: u64,
    /// Batches run, as (size, batches).
    pub batches: Vec<(u32, u64)>,
    /// Microseconds that engine threads computed, summed over threads.
    pub computed_us: u64,
    /// Of `computed_us`, the copies to and from GPUs, if the engine reports them.
    pub copied_us: u64,
}

/// Maximum number of batch sizes that [`EngineTick::batches`] distinguishes.
pub const MOST_SIZES: usize = 16;

impl EngineTick {
    /// Sums each `n` neighbouring ticks, with at most [`MOST_SIZES`] batch sizes in each sum.
    pub fn longer(ticks: &[EngineTick], n: usize) -> Vec<EngineTick> {
        ticks.chunks(n.max(1)).map(EngineTick::sum).collect()
    }

    /// Sums all `ticks`, with at most [`MOST_SIZES`] batch sizes.
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

/// Merges the rarest sizes until at most [`MOST_SIZES`] remain.
pub fn fold(all: &mut Vec<(u32, u64)>) {
    while all.len() > MOST_SIZES {
        // The rarest size is added to the next smaller one.
        let rarest = (1..all.len()).min_by_key(|i| all[*i].1).unwrap_or(1);
        let (_, n) = all.remove(rarest);
        all[rarest - 1].1 = all[rarest - 1].1.saturating_add(n);
    }
}

/// Number of buckets of [`latency_bucket`]. A power of two.
pub const LATENCY_BUCKETS: usize = 512;
/// Buckets per factor of two.
const PER_OCTAVE: u32 = 8;

/// Returns the bucket of a latency. Each factor of two has eight buckets of equal width, so the
/// middle of a bucket is within 6 % of every latency in it.
pub fn latency_bucket(ns: u64) -> u16 {
    let ns = ns.max(u64::from(PER_OCTAVE));
    let octave = ns.ilog2();
    let step = (ns >> (octave - PER_OCTAVE.ilog2())) as u32 - PER_OCTAVE;
    (octave * PER_OCTAVE + step) as u16
}

/// Returns the lowest latency in a bucket, in nanoseconds.
pub fn bucket_begins(bucket: u16) -> u64 {
    let octave = u32::from(bucket) / PER_OCTAVE;
    let step = u32::from(bucket) % PER_OCTAVE;
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
