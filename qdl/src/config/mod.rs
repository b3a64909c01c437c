//! A node's configuration: one YAML file, checked, as plain types.
//!
//! ```text
//!   text --serde-saphyr--> FrontendConfig / AcceleratorConfig --garde--> ranges of single values
//!     |         |                                             --check--> how keys go together
//!     |         wrong YAML, unknown key, wrong type               |
//!     Document: which keys are written, and where                 |
//!      \_________|________________________________________________|
//!                v
//!     ConfigError: file, line, column, the line with a caret, what would be right
//! ```
//!
//! Each mapping of the file is one struct, whose serde attributes name the defaults. Unknown keys
//! are errors. Paths in a file are relative to that file's own folder and come out resolved.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`FrontendConfig`], [`AcceleratorConfig`] | the two programs' files |
//! | [`NicConfig`] | one NIC, and what its fabric adds ([`NicFabric`]) |
//! | [`EngineConfig`] | engine and batcher, the same for an accelerator and for `--local` |
//! | [`HttpConfig`] | the server that the engine `http` asks |
//! | [`ConfigError`] | what is wrong, and where |
//! | [`Written`] | which keys a file writes, and in which lines |
//! | `moved` | keys and flags of earlier versions, each with what to use instead |
//!
//! A new key: a field with its default in the struct of its mapping, a line in
//! `docs/configuration.md`, an entry in the tests of `run::settings`.

/// Methods that give a key of milliseconds or seconds as a [`std::time::Duration`].
macro_rules! durations {
    ($($name:ident $from:ident $key:ident;)*) => {$(
        #[doc = concat!("[`Self::", stringify!($key), "`].")]
        pub fn $name(&self) -> std::time::Duration {
            std::time::Duration::$from(self.$key)
        }
    )*};
}

mod accelerator;
mod auth;
mod dataset;
mod deadlines;
mod document;
mod engine;
mod error;
mod frontend;
mod health;
mod http;
mod labels;
mod llm;
mod load;
mod loadgen;
mod moved;
mod nic;
mod nic_keys;
mod root;
mod rules;
mod tokens;
mod values;
mod warm_up;
mod words;
mod written;

#[cfg(test)]
mod tests;

pub use accelerator::{AcceleratorConfig, AcceleratorModel, ControlConfig};
pub use auth::{Auth, AuthWord};
pub use dataset::{DatasetConfig, DatasetKind, Dimension, SizeDistribution};
pub use deadlines::Deadlines;
pub use engine::{EngineConfig, EngineKind, Precision, Provider};
pub use error::{ConfigError, Problem};
pub use frontend::{AcceleratorAddress, FrontendConfig, ModelFiles, QslMode, Verify};
pub use health::HealthConfig;
pub use http::{Dialect, HttpConfig, MAX_IN_FLIGHT};
pub use labels::LabelsConfig;
pub use llm::LlmConfig;
pub use load::{
    load_accelerator, load_frontend, load_frontend_from, parse_accelerator, parse_frontend,
};
pub use loadgen::{LoadgenConfig, Scenario};
pub use moved::moved_flag;
pub use nic::{
    AdaptiveRouting, CONNECTIONS, Completion, CompletionMode, Gpus, GroupBy, IbKeys,
    MAX_AUTO_SLOTS, MIN_AUTO_SLOTS, NicConfig, NicFabric, OfiKeys, TcpKeys,
};
pub use tokens::TokensConfig;
pub use values::{Auto, Scalar};
pub use warm_up::WarmUpConfig;
pub use words::nearest;
pub use written::Written;

pub use crate::wire::Policy;
