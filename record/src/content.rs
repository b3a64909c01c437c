//! Identity of an engine's content, besides its model's name.

use std::fmt;

use serde::{Deserialize, Serialize};

/// Maximum length of a content's name, in bytes.
pub const MAX_CONTENT_NAME: usize = 256;

/// Content that determines an engine's answers.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "snake_case", deny_unknown_fields)]
pub enum Content {
    /// A model file and the files it refers to.
    File {
        /// File name without the folder: at most [`MAX_CONTENT_NAME`] bytes.
        name: String,
        /// SHA-256 as 64 hexadecimal digits: of the file if the model is one file, otherwise of the
        /// names and hashes of all its files.
        sha256: String,
    },
    /// Settings that determine the answers, without a file.
    Settings {
        /// SHA-256 of the settings.
        sha256: String,
    },
    /// A model that a server holds.
    Server {
        /// Model name in requests to the server.
        name: String,
    },
}

impl Content {
    /// Whether both contents give the same answers, as far as known. File names do not matter.
    pub fn agrees(&self, other: &Content) -> bool {
        match (self, other) {
            (Content::File { sha256: a, .. }, Content::File { sha256: b, .. })
            | (Content::Settings { sha256: a }, Content::Settings { sha256: b })
            | (Content::Server { name: a }, Content::Server { name: b }) => a == b,
            _ => false,
        }
    }

    /// Returns the SHA-256, if there is one.
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
