//! Use of a node, its engine and its connections during a run: the evidence for what limited it.
//! Counts only grow; a run's use is the difference of two readings. NUMA places of threads and
//! memory are the effect of `numa:` and `cpus:`.

use fabric::PathReading;
use serde::{Deserialize, Serialize};

use super::{
    BatchSizes,
    counts::{add_counts, counts_since},
};

/// All threads of one kind.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadGroup {
    /// Name of the threads without their numbers: `nic`, `engine`, `issue`.
    pub name: String,
    /// Number of threads.
    pub threads: u32,
    /// Microseconds on a core, summed over the threads.
    pub ran_us: u64,
    /// Microseconds runnable but without a free core, summed over the threads.
    pub waited_us: u64,
}

/// NIC threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicUse {
    /// Number of threads with work.
    pub threads: u32,
    /// Microseconds in turns that found work, summed over the threads. Includes waits for a core
    /// within a turn, not idle spinning.
    pub worked_us: u64,
    /// Times that the threads went to sleep.
    pub sleeps: u64,
}

/// Sleeps of a node's NIC threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicWaits {
    /// Times that NIC threads went to sleep.
    pub sleeps: u64,
    /// Times that another thread woke a NIC thread. [`ConnectionRecord::wakeups`] counts the
    /// wake-ups by a connection.
    ///
    /// [`ConnectionRecord::wakeups`]: super::ConnectionRecord::wakeups
    pub woken: u64,
}

impl NicWaits {
    /// Returns the counts since the earlier reading `before`.
    #[must_use]
    pub fn since(self, before: &NicWaits) -> Self {
        counts_since!(self, before: sleeps woken)
    }
}

fn is_zero(n: &u64) -> bool {
    *n == 0
}

/// An engine behind a batcher: all 0 if the NIC thread answers. An engine that batches by itself
/// has `events`, and `server_busy` and `nans` if a server is behind it.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineUse {
    /// Maximum number of samples in a batch.
    pub max_batch: u64,
    /// Worker threads: the maximum number of concurrent batches.
    pub workers: u32,
    /// Microseconds inside the engine, summed over the workers.
    pub busy_us: u64,
    /// Batches run.
    pub batches: u64,
    /// Samples in the batches.
    pub samples: u64,
    /// Requests that the engine's server refused for a while: too many (429), or unavailable (503).
    pub server_busy: u64,
    /// NaNs in the logits of the server's tokens, if the server counts them.
    pub nans: u64,
    /// Prompts with a handle, on a decode node, and those of their tokens whose KV cache came from
    /// a prefill node. The engine computed the rest.
    #[serde(skip_serializing_if = "is_zero")]
    pub handles: u64,
    /// See `handles`.
    #[serde(skip_serializing_if = "is_zero")]
    pub fetched_tokens: u64,
    /// Bytes of KV caches that the engine's connector moved, if the engine counts them.
    #[serde(skip_serializing_if = "is_zero")]
    pub transfer_bytes: u64,
    /// Microseconds of the transfers of `transfer_bytes`: their sum, though some overlap.
    #[serde(skip_serializing_if = "is_zero")]
    pub transfer_us: u64,
    /// Events that brought tokens of an answer to the node, by their number of tokens: steps of the
    /// engine, or messages of the server behind it.
    pub events: BatchSizes,
}

/// Use of a node.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeUse {
    /// Microseconds on the node's own clock; in a difference, the time between both readings.
    pub clock_us: u64,
    /// Cores that the process may run on.
    pub cores: u32,
    /// Time of all cores of the machine, in kernel ticks; 0 if the system does not report it.
    pub machine_ticks: u64,
    /// Of `machine_ticks`, the ticks in which a core was busy, with any process.
    pub machine_busy_ticks: u64,
    /// The process's threads by kind; empty if the system does not report them.
    pub threads: Vec<ThreadGroup>,
    /// The NIC threads.
    pub nics: NicUse,
    /// The engine.
    pub engine: EngineUse,
}

/// TCP's statistics of a connection's sending side while samples were in flight: sums over readings
/// a few times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathUse {
    /// Number of readings.
    pub looks: u64,
    /// Microseconds between the readings.
    pub looked_us: u64,
    /// Of `looked_us`, the time with data to send or unacknowledged.
    pub busy_us: u64,
    /// Of `busy_us`, the time with the peer's window full.
    pub rwnd_limited_us: u64,
    /// Round trip of packets in microseconds: the sum over the readings.
    pub rtt_us: u64,
    /// Minimum round trip of a packet, in microseconds; 0 before the first measurement.
    pub min_rtt_us: u64,
    /// Retransmitted packets.
    pub retransmits: u64,
}

impl NodeUse {
    /// Returns the use since an earlier reading of the same node.
    pub fn since(&self, before: &NodeUse) -> NodeUse {
        let group = |g: &ThreadGroup| match before.group(&g.name) {
            Some(b) => counts_since!(g, b: ran_us waited_us),
            None => g.clone(),
        };
        let (e, b, nics) = (&self.engine, &before.engine, &before.nics);
        let clocks = counts_since!(self, before: clock_us machine_ticks machine_busy_ticks);
        NodeUse {
            threads: self.threads.iter().map(group).collect(),
            nics: counts_since!(self.nics, nics: worked_us sleeps),
            engine: EngineUse {
                events: e.events.clone().since(&b.events),
                ..counts_since!(e, b: busy_us batches samples server_busy nans handles
                    fetched_tokens transfer_bytes transfer_us)
            },
            ..clocks
        }
    }

    /// Returns the threads of this name.
    pub fn group(&self, name: &str) -> Option<&ThreadGroup> {
        self.threads.iter().find(|g| g.name == name)
    }
}

impl PathUse {
    /// Adds the reading `now` of a path; `before` is the reading taken `span_us` microseconds
    /// earlier.
    pub fn look(&mut self, now: &PathReading, before: &PathReading, span_us: u64) {
        // The counts of a new socket begin at 0.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        let limited_us = since(now.rwnd_limited_us, before.rwnd_limited_us);
        self.add(&PathUse {
            looks: 1,
            looked_us: span_us,
            busy_us: since(now.busy_us, before.busy_us).min(span_us),
            rwnd_limited_us: limited_us.min(span_us),
            rtt_us: now.rtt_us,
            min_rtt_us: now.min_rtt_us,
            retransmits: since(now.retransmits, before.retransmits),
        });
    }

    /// Adds another connection's statistics.
    pub fn add(&mut self, o: &PathUse) {
        add_counts!(self += o: looks looked_us busy_us rwnd_limited_us retransmits rtt_us);
        let us = o.min_rtt_us;
        if us > 0 && (self.min_rtt_us == 0 || us < self.min_rtt_us) {
            self.min_rtt_us = us;
        }
    }

    /// Returns the mean round trip of a packet, in microseconds.
    pub fn mean_rtt_us(&self) -> f64 {
        self.rtt_us as f64 / self.looks.max(1) as f64
    }
}

/// Place of one NIC's thread and of its connections' memory.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicPlace {
    /// The NIC's key in the configuration, and its address or device: `nics[0] mlx5_0:1`.
    pub nic: String,
    /// NUMA node for the NIC's thread and memory; `None` if the system chooses.
    pub node: Option<u32>,
    /// Cores that the thread may run on, in the kernel's notation.
    pub cpus: String,
    /// NUMA nodes of the memory of slots and responses; empty if the system does not report them.
    pub slots: Vec<u32>,
}

/// Places on a node, as the system reports them.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Places {
    /// Number of NUMA nodes of the machine.
    pub nodes: usize,
    /// Each NIC.
    pub nics: Vec<NicPlace>,
    /// NUMA nodes of the loaded samples; empty on an accelerator, and if not reported.
    pub samples: Vec<u32>,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_difference_is_of_the_same_kinds_of_threads() {
        let group = |name: &str, ran_us, waited_us| ThreadGroup {
            name: name.to_owned(),
            threads: 1,
            ran_us,
            waited_us,
        };
        let reading = |clock_us, threads: &[ThreadGroup]| NodeUse {
            clock_us,
            threads: threads.to_vec(),
            ..NodeUse::default()
        };
        let before = reading(1_000, &[group("nic", 10, 5), group("gone", 3, 3)]);
        let after = reading(3_000, &[group("engine", 9, 1), group("nic", 30, 6)]);
        let used = [group("engine", 9, 1), group("nic", 20, 1)];
        assert_eq!(after.since(&before), reading(2_000, &used));
    }

    #[test]
    fn looks_add_up_and_a_new_socket_counts_from_nothing() {
        let reading = |busy_us, rtt_us, min_rtt_us| PathReading {
            busy_us,
            rtt_us,
            min_rtt_us,
            ..PathReading::default()
        };
        let mut path = PathUse::default();
        for (now, before) in [
            (reading(300, 50, 20), reading(100, 0, 0)),
            (reading(120, 70, 0), reading(300, 50, 20)),
            (reading(9_000, 90, 10), reading(120, 70, 20)),
        ] {
            path.look(&now, &before, 250);
        }
        assert_eq!((path.looks, path.looked_us), (3, 750));
        assert_eq!(
            path.busy_us,
            200 + 120 + 250,
            "no more than the time between two looks"
        );
        assert_eq!((path.rtt_us, path.min_rtt_us), (210, 10));
    }
}
