//! How an answer that grows token by token is cut into writes.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Moments at which the tokens of an answer leave the accelerator.
///
/// An engine that produces its answers whole sends each in one piece, whatever this setting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// One write, with the last token.
    #[default]
    None,
    /// The first token at once, the rest with the last token: LoadGen measures these two times.
    First,
    /// One part per step of the engine.
    All,
}

impl Stream {
    /// Name of the setting in YAML.
    pub fn as_str(self) -> &'static str {
        match self {
            Stream::None => "none",
            Stream::First => "first",
            Stream::All => "all",
        }
    }

    /// Most writes of one answer, for receive buffers: 1, 2, or 0 for any number.
    pub fn writes(self) -> usize {
        match self {
            Stream::None => 1,
            Stream::First => 2,
            Stream::All => 0,
        }
    }
}

impl fmt::Display for Stream {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}
