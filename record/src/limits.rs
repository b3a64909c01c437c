//! What limited a run: the causes, and the evidence that tells them apart. `report` judges.

use serde::{Deserialize, Serialize};

use super::NodeUse;

/// The name of the group of threads that LoadGen issues queries on.
pub const ISSUE: &str = "issue";
/// That of NIC threads.
pub const NIC: &str = "nic";

/// What is known beside the counts of samples, for the judge.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Evidence {
    /// What this node was used for, from LoadGen's first query to the last answer or nearly so.
    pub node: NodeUse,
    /// How LoadGen saw it; `None` where it came to no result.
    pub loadgen: Option<LoadgenView>,
}

/// LoadGen's own times, which count from the scheduled time in Server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct LoadgenView {
    /// Samples per second that it scheduled, in Server.
    pub scheduled_per_s: Option<f64>,
    /// The percentile that it bounds, in microseconds, or the one next to it that it reports.
    pub bounded_us: f64,
    /// Its bound on that; `None` where the scenario has none, or bounds tokens.
    pub bound_us: Option<f64>,
}

/// What limited a run.
#[derive(Clone, Copy, Debug, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Cause {
    /// An accelerator was lost, or silent for a while.
    Accelerator,
    /// Threads wait for cores.
    Cores,
    /// The link between the nodes is full.
    Link,
    /// Too few slots to keep the engines at work.
    Slots,
    /// Batches are full and small.
    MaxBatch,
    /// One engine thread, always at work, on a node that has cores left.
    EngineThreads,
    /// The engine, or the server that it asks, computes all the time.
    Engine,
    /// A NIC thread sleeps and wakes for nearly each sample.
    WakeUps,
    /// A cause in the summary of an older version that this one does not judge.
    #[serde(other)]
    Other,
}

/// One thing that limited a run.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize)]
pub struct Finding {
    /// Which.
    pub cause: Cause,
    /// By what figures, in words.
    pub figure: String,
    /// What to turn.
    pub turn: String,
}

/// What limited a run.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Limits {
    /// The strongest finding in one line, or that there is none. Empty before the run is judged.
    pub line: String,
    /// All of them, the strongest first.
    pub findings: Vec<Finding>,
}
