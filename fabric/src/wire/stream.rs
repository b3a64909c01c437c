//! When the tokens of an answer leave the accelerator.

use std::fmt;

use serde::{Deserialize, Serialize};

/// How an answer that grows token by token is sent.
///
/// An engine whose answers are there at once sends each in one piece, whatever this says.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Stream {
    /// Whole, with its last token.
    #[default]
    None,
    /// The first token as soon as it is there, the rest with the last: what LoadGen measures.
    First,
    /// Every step of the engine as a part of its own.
    All,
}

impl Stream {
    /// As YAML spells it.
    pub fn as_str(self) -> &'static str {
        match self {
            Stream::None => "none",
            Stream::First => "first",
            Stream::All => "all",
        }
    }

    /// Writes that one answer may take, for whoever has to be ready for them: one, two, or any
    /// number (0).
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
