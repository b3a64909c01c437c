//! An accelerator's engine, and its content: the model or settings that determine its answers.

use std::fmt;

use serde::{Deserialize, Serialize};

use crate::{OptionSet, RequestOption};

/// An accelerator's engine, as reported to the frontend at the start.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct EngineInfo {
    /// Name of the engine: 1 to [`MAX_ENGINE_NAME`] bytes.
    pub name: String,
    /// True if answers are token ids of exact length, so that the engine counts them.
    pub tokens: bool,
    /// Number of samples (over all batches) or sequences that the engine processes at once; 0 if
    /// unknown. A full engine needs more samples in flight than this.
    #[serde(default)]
    pub at_once: u64,
    /// Model or settings; `None` if the engine's kind alone determines the answers.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub content: Option<Content>,
    /// State of the engine's prefix cache; `None` if the engine cannot have one.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub prefix_cache: Option<PrefixCache>,
    /// Options of a request that the engine acts on.
    #[serde(default, skip_serializing_if = "OptionSet::is_empty")]
    pub options: OptionSet,
    /// Phase of an answer that the node computes.
    #[serde(default, skip_serializing_if = "NodeRole::is_both")]
    pub role: NodeRole,
    /// Version of the server behind the engine; `None` if the engine knows of none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub server: Option<ServerVersion>,
}

/// Phase of a language model's answer that a node computes.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum NodeRole {
    /// Whole answers.
    #[default]
    Both,
    /// The first token, and a handle of the prompt's KV cache.
    Prefill,
    /// Answers to prompts whose KV cache a prefill node has computed.
    Decode,
}

impl EngineInfo {
    /// The engine's name, with the node's role if it computes one phase.
    pub fn titled(&self) -> String {
        match self.role {
            NodeRole::Both => self.name.clone(),
            role => format!("{}, {role}", self.name),
        }
    }
}

impl NodeRole {
    /// Whether the node computes whole answers.
    pub fn is_both(&self) -> bool {
        *self == NodeRole::Both
    }

    /// Options of a node with this role, whose engine acts on `own`.
    #[must_use]
    pub fn options(self, own: OptionSet) -> OptionSet {
        match self {
            NodeRole::Decode => own.or(OptionSet::of(&[RequestOption::Handle])),
            NodeRole::Both | NodeRole::Prefill => own,
        }
    }

    /// The role's name in YAML.
    pub fn as_str(self) -> &'static str {
        match self {
            NodeRole::Both => "both",
            NodeRole::Prefill => "prefill",
            NodeRole::Decode => "decode",
        }
    }
}

impl fmt::Display for NodeRole {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.as_str())
    }
}

/// Version of the server behind an engine.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ServerVersion {
    /// Server and version, as in `vLLM 0.32`: at most [`MAX_ENGINE_NAME`] bytes.
    pub version: String,
    /// True if the engine's developers have run the engine with this version.
    pub has_run: bool,
}

/// Whether an engine reuses computed prefixes for later prompts. The Network division forbids it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct PrefixCache {
    /// State of the cache.
    pub state: CacheState,
    /// Evidence for the state, or advice: at most [`MAX_CACHE_WORDS`] bytes.
    pub how: String,
}

/// State of a [`PrefixCache`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CacheState {
    /// The engine reuses nothing.
    Off,
    /// The engine reuses prefixes.
    On,
    /// The state is unknown.
    Unknown,
}

/// Maximum length of [`PrefixCache::how`], in bytes.
pub const MAX_CACHE_WORDS: usize = 512;

/// Maximum length of an engine's name, in bytes.
pub const MAX_ENGINE_NAME: usize = 64;

/// Maximum length of a model's name in [`Content`], in bytes.
pub const MAX_CONTENT_NAME: usize = 256;

/// The model or settings that determine an engine's answers.
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
    /// Whether engines with these contents give the same answers. Ignores file names.
    pub fn agrees(&self, other: &Content) -> bool {
        match (self, other) {
            (Content::File { sha256: a, .. }, Content::File { sha256: b, .. })
            | (Content::Settings { sha256: a }, Content::Settings { sha256: b })
            | (Content::Server { name: a }, Content::Server { name: b }) => a == b,
            _ => false,
        }
    }

    /// Returns the SHA-256 of the model file or settings; `None` for a server's model.
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
