//! What an engine really runs, beside the name that its model goes by.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Longest name of what is run, in bytes.
pub const MAX_CONTENT_NAME: usize = 256;

/// What makes an engine's answers what they are.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    /// A model file, and what it names beside it.
    File {
        /// Its name, without the folder: at most [`MAX_CONTENT_NAME`] bytes.
        name: String,
        /// Its SHA-256, 64 hexadecimal digits: of the file as it is where the model lies in one,
        /// else of the names and hashes of all.
        sha256: String,
    },
    /// Settings that the answers follow from; no file.
    Settings {
        /// Their SHA-256.
        sha256: String,
    },
    /// A server's model, which the server has.
    Server {
        /// As the server is asked for it.
        name: String,
    },
}

impl Content {
    /// Whether both give the same answers, as far as this can tell: what a file is called is no
    /// difference.
    pub fn agrees(&self, other: &Content) -> bool {
        match (self, other) {
            (Content::File { sha256: a, .. }, Content::File { sha256: b, .. })
            | (Content::Settings { sha256: a }, Content::Settings { sha256: b })
            | (Content::Server { name: a }, Content::Server { name: b }) => a == b,
            _ => false,
        }
    }

    /// Its hash, where it has one.
    pub fn sha256(&self) -> Option<&str> {
        match self {
            Content::File { sha256, .. } | Content::Settings { sha256 } => Some(sha256),
            Content::Server { .. } => None,
        }
    }
}

impl fmt::Display for Content {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Content::File { name, sha256 } => write!(f, "{name}, SHA-256 {sha256}"),
            Content::Settings { sha256 } => write!(f, "settings, SHA-256 {sha256}"),
            Content::Server { name } => write!(f, "{name} of a server"),
        }
    }
}
