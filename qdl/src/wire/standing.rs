//! Whether a node's engine takes samples.

use serde::{Deserialize, Serialize};

/// Whether an engine takes samples: its server may be busy, or gone for a while.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Standing {
    /// It takes samples.
    #[default]
    Takes,
    /// Samples wait for its server, so they are better off at a node that takes them.
    Busy,
    /// It gives samples back until its server answers again. The text is the reason.
    Away(String),
    /// As `Away`, for longer than the engine grants its server: other nodes keep the run going.
    Overdue(String),
}

impl Standing {
    /// The reason why the engine takes no samples.
    pub fn absence(&self) -> Option<&str> {
        match self {
            Standing::Away(why) | Standing::Overdue(why) => Some(why),
            Standing::Takes | Standing::Busy => None,
        }
    }
}
