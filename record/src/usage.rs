//! What a node, its engine and its connections were used for during a run: what the judge goes by.
//! Counts only grow; what a run used is the difference of two readings.

use serde::{Deserialize, Serialize};

/// Threads of one kind, together.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct ThreadGroup {
    /// What they are called, without their numbers: `nic`, `engine`, `issue`.
    pub name: String,
    /// How many.
    pub threads: u32,
    /// Microseconds on a core, of all of them.
    pub ran_us: u64,
    /// Microseconds that they could have run and no core was free, of all of them.
    pub waited_us: u64,
}

/// The threads of NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NicUse {
    /// How many had something to do.
    pub threads: u32,
    /// Microseconds in turns that found something to do, of all of them: what they spin for nothing
    /// is not in it, what they waited for a core in the middle of a turn is.
    pub worked_us: u64,
    /// Times that they went to sleep.
    pub sleeps: u64,
}

/// An engine behind a batcher; all 0 where samples are answered on the NIC's thread, or the engine
/// batches by itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct EngineUse {
    /// Most samples in a batch.
    pub max_batch: u64,
    /// Worker threads, which is how many batches may run at once.
    pub workers: u32,
    /// Microseconds that they were inside the engine, of all of them.
    pub busy_us: u64,
    /// Batches run.
    pub batches: u64,
    /// Samples in them.
    pub samples: u64,
    /// Those that were compressed.
    pub decompressed: DecompressedUse,
}

/// What decompressing samples took, in front of the engine and as a part of their batches' time.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct DecompressedUse {
    /// Samples.
    pub samples: u64,
    /// Bytes of them as they were carried.
    pub from_bytes: u64,
    /// Bytes of them as the engine read them.
    pub to_bytes: u64,
    /// Microseconds of worker threads, of all of them.
    pub took_us: u64,
}

impl DecompressedUse {
    /// Adds another pipeline's.
    pub fn add(&mut self, o: &DecompressedUse) {
        self.samples += o.samples;
        self.from_bytes += o.from_bytes;
        self.to_bytes += o.to_bytes;
        self.took_us += o.took_us;
    }

    /// What was done since an earlier reading.
    #[must_use]
    pub fn since(&self, before: &DecompressedUse) -> DecompressedUse {
        DecompressedUse {
            samples: self.samples.saturating_sub(before.samples),
            from_bytes: self.from_bytes.saturating_sub(before.from_bytes),
            to_bytes: self.to_bytes.saturating_sub(before.to_bytes),
            took_us: self.took_us.saturating_sub(before.took_us),
        }
    }
}

/// What a node was used for.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeUse {
    /// Microseconds on the node's own clock; of a difference: over which it was taken.
    pub clock_us: u64,
    /// Cores that its process may run on.
    pub cores: u32,
    /// Time of all cores of its machine, in ticks of the kernel's; 0 where that is not said.
    pub machine_ticks: u64,
    /// Of those, the ones with something to do, whoever's it was.
    pub machine_busy_ticks: u64,
    /// Its threads, by kind; none where the system does not say.
    pub threads: Vec<ThreadGroup>,
    /// Its NICs' threads.
    pub nics: NicUse,
    /// Its engine.
    pub engine: EngineUse,
}

/// What TCP says of a connection's sending side while samples were in flight on it: sums of what
/// was seen when it was looked at, some times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathUse {
    /// Looks.
    pub looks: u64,
    /// Microseconds between those looks.
    pub looked_us: u64,
    /// Of those, the ones in which there was something to send or to be acknowledged.
    pub busy_us: u64,
    /// Of the busy ones, those in which the peer's window was full.
    pub rwnd_limited_us: u64,
    /// Round trips of packets, in microseconds: the sum over the looks.
    pub rtt_us: u64,
    /// The shortest round trip of a packet, in microseconds; 0 before any was seen.
    pub min_rtt_us: u64,
    /// Packets sent again.
    pub retransmits: u64,
}

impl ThreadGroup {
    fn since(&self, before: Option<&ThreadGroup>) -> ThreadGroup {
        let (ran, waited) = before.map_or((0, 0), |b| (b.ran_us, b.waited_us));
        ThreadGroup {
            ran_us: self.ran_us.saturating_sub(ran),
            waited_us: self.waited_us.saturating_sub(waited),
            ..self.clone()
        }
    }
}

impl NodeUse {
    /// What was used since an earlier reading of the same node.
    pub fn since(&self, before: &NodeUse) -> NodeUse {
        let group = |g: &ThreadGroup| g.since(before.threads.iter().find(|b| b.name == g.name));
        let (e, b) = (&self.engine, &before.engine);
        NodeUse {
            clock_us: self.clock_us.saturating_sub(before.clock_us),
            machine_ticks: self.machine_ticks.saturating_sub(before.machine_ticks),
            machine_busy_ticks: self
                .machine_busy_ticks
                .saturating_sub(before.machine_busy_ticks),
            threads: self.threads.iter().map(group).collect(),
            nics: NicUse {
                threads: self.nics.threads,
                worked_us: self.nics.worked_us.saturating_sub(before.nics.worked_us),
                sleeps: self.nics.sleeps.saturating_sub(before.nics.sleeps),
            },
            engine: EngineUse {
                busy_us: e.busy_us.saturating_sub(b.busy_us),
                batches: e.batches.saturating_sub(b.batches),
                samples: e.samples.saturating_sub(b.samples),
                decompressed: e.decompressed.since(&b.decompressed),
                ..*e
            },
            ..*self
        }
    }

    /// Threads of this name.
    pub fn group(&self, name: &str) -> Option<&ThreadGroup> {
        self.threads.iter().find(|g| g.name == name)
    }
}

impl PathUse {
    /// Adds another connection's.
    pub fn add(&mut self, o: &PathUse) {
        self.looks = self.looks.saturating_add(o.looks);
        self.looked_us = self.looked_us.saturating_add(o.looked_us);
        self.busy_us = self.busy_us.saturating_add(o.busy_us);
        self.rwnd_limited_us = self.rwnd_limited_us.saturating_add(o.rwnd_limited_us);
        self.retransmits = self.retransmits.saturating_add(o.retransmits);
        self.rtt_us = self.rtt_us.saturating_add(o.rtt_us);
        self.least_rtt(o.min_rtt_us);
    }

    fn least_rtt(&mut self, us: u64) {
        if us > 0 && (self.min_rtt_us == 0 || us < self.min_rtt_us) {
            self.min_rtt_us = us;
        }
    }

    /// The mean round trip of a packet, in microseconds.
    pub fn mean_rtt_us(&self) -> f64 {
        self.rtt_us as f64 / self.looks.max(1) as f64
    }
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
}
