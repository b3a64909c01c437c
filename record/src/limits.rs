//! Causes that limit a run, and the evidence that distinguishes them. `report` judges them.

use serde::{Deserialize, Serialize};

use super::NodeUse;

/// Name of the group of threads on which LoadGen issues queries.
pub const ISSUE: &str = "issue";
/// Name of the group of NIC threads.
pub const NIC: &str = "nic";

/// Evidence for what limited a run, besides the counts of samples.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// Use of the frontend's node, from LoadGen's first query to the last answer or shortly before.
    pub node: NodeUse,
    /// Seconds in which the frontend stood still, as its own looks at the run show.
    pub stood_still_s: f64,
}

/// A cause that limited a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// The frontend stood still.
    Standstill,
    /// An accelerator was lost or temporarily silent.
    Accelerator,
    /// Threads wait for cores.
    Cores,
    /// The link between the nodes is saturated.
    Link,
    /// There are too few slots to keep the engines busy.
    Slots,
    /// Batches reach `max_batch` and are small.
    MaxBatch,
    /// The only engine thread is always busy on a node with idle cores.
    EngineThreads,
    /// KV caches take most of a decode node's time to come from the prefill node.
    Transfer,
    /// The engine, or the server behind it, computes all the time.
    Engine,
    /// A NIC thread sleeps and wakes for nearly each sample.
    WakeUps,
    /// A cause from another version's summary that this version does not judge.
    #[serde(other)]
    Other,
}

/// One cause that limited a run, with its evidence.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// The cause.
    pub cause: Cause,
    /// Figures that show the cause, as text.
    pub figure: String,
    /// The remedy as text: the setting to change.
    pub turn: String,
}

/// All causes that limited a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// The strongest finding in one line, or that there is none. Empty before the judgement.
    pub line: String,
    /// All findings, the strongest first.
    pub findings: Vec<Finding>,
}
