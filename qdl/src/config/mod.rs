//! A node's configuration: reads and checks one YAML file, and returns it as plain types.
//!
//! ```text
//! text --serde-saphyr--> FrontendConfig / AcceleratorConfig --garde--> ranges of single values
//! |         |                                             --check--> how keys go together
//! |         wrong YAML, unknown key, wrong type               |
//! Document: which keys are written, and where                 |
//! \_________|_________________________________________________|
//!           v
//! ConfigError: file, line, column, the line with a caret, what would be right
//! ```
//!
//! One struct represents each mapping of the file and names the defaults.
//! Unknown keys are errors. Loading resolves paths relative to the file's folder.
//!
//! Without YAML: fill the fields of a `default()`, then [`check`] applies the same checks, as
//! `qdl/examples/cluster.rs` shows.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`FrontendConfig`], [`AcceleratorConfig`] | the two programs' files |
//! | [`NicConfig`] | one NIC, with the keys of its fabric ([`NicFabric`], of the crate `fabric`) |
//! | [`SectionKeys`] | keys that a crate above this one reads: `engine`, `dataset`, `loadgen` |
//! | [`ConfigError`] | problems with their places |
//! | [`Written`] | the keys that a file sets, with their lines |
//!
//! A new key needs a field with its default in the struct of its mapping, and a line in
//! `docs/configuration.md`.

/// Defines methods that return a key of milliseconds or seconds as a [`std::time::Duration`].
#[macro_export]
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
mod deadlines;
mod document;
mod error;
mod frontend;
mod health;
mod load;
mod nic;
mod nic_keys;
mod root;
mod rules;
mod values;
mod words;
mod written;

#[cfg(test)]
mod tests;

pub use accelerator::{AcceleratorConfig, AcceleratorModel, ControlConfig};
pub use auth::{Auth, AuthWord};
pub use deadlines::{Deadlines, WarmUpConfig};
pub use error::{ConfigError, Problem};
pub use frontend::{AcceleratorAddress, FrontendConfig, ModelFiles};
pub use health::HealthConfig;
pub use load::{check, load, parse, parse_accelerator, parse_frontend};
pub use nic::{Completion, CompletionMode, Gpus, GroupBy, NicConfig};
#[cfg(test)]
pub(crate) use nic::{MAX_AUTO_SLOTS, MIN_AUTO_SLOTS};
pub use root::{ConfigFile, NoSection, SectionKeys};
pub use rules::{Findings, MAX_GPU, MAX_MS, check_gpu_list, core_list, resolve};
pub use words::nearest;
pub use written::Written;

pub use crate::wire::Policy;
pub use fabric::{
    ib::IbKeys,
    keys::Auto,
    kinds::{CONNECTIONS, NicFabric, NicFacts, NicPlace},
    ofi::OfiKeys,
    tcp::TcpKeys,
};
