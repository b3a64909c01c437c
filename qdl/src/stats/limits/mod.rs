//! What limited a run: the causes ([`Cause`]), and the evidence that tells them apart ([`NodeUse`],
//! [`PathUse`]). The judge is `stats::judge`.

mod causes;
mod usage;

use serde::{Deserialize, Serialize};

pub use causes::Cause;
pub use usage::{DecompressedUse, EngineUse, NicUse, NodeUse, PathUse, ThreadGroup};

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

impl Finding {
    /// One line for people.
    pub fn line(&self) -> String {
        format!("{}: {}; {}", self.cause.name(), self.figure, self.turn)
    }
}
