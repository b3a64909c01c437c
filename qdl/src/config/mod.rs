//! A node's configuration: one YAML file, checked, as plain types.
//!
//! ```text
//!   text --serde-saphyr--> the file as written --convert--> FrontendConfig / AcceleratorConfig
//!             |                                    |                     |
//!             wrong YAML, unknown key,             keys that do not      garde (ranges) and
//!             wrong type                           belong together       relations between keys
//!             \____________________________________|_____________________/
//!                                                  v
//!                     ConfigError: file, line, column, the line with a caret, what would be right
//! ```
//!
//! Unknown keys are errors. Every default is a named constant beside the field it belongs to. Paths in
//! a file are relative to that file's own folder and come out resolved.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`FrontendConfig`], [`AcceleratorConfig`] | what the two programs are told |
//! | [`NicConfig`] | one NIC: [`TcpNicConfig`] or [`IbNicConfig`], told apart by `device:` |
//! | [`EngineConfig`] | engine and batcher, the same for an accelerator and for `--local` |
//! | [`ConfigError`] | what is wrong, and where |

mod accelerator;
mod auth;
mod dataset;
mod deadlines;
mod engine;
mod error;
mod frontend;
mod health;
mod ib;
mod load;
mod loadgen;
mod locate;
mod nic;
mod nic_file;
mod rules;
mod values;
mod warm_up;

#[cfg(test)]
mod tests;

pub use accelerator::{
    AcceleratorConfig, AcceleratorModel, ControlConfig, DEFAULT_MEMORY_MIB, DEFAULT_OUTPUT_BYTES,
};
pub use auth::Auth;
pub use dataset::{
    DEFAULT_RANDOM_COUNT, DEFAULT_RANDOM_MIN_BYTES, DEFAULT_RANDOM_SEED, DEFAULT_VOCAB,
    DatasetConfig, SizeDistribution,
};
pub use deadlines::{
    AcceleratorDeadlines, DEFAULT_CONNECT_MS, DEFAULT_DRAIN_MS, DEFAULT_ECHO_INTERVAL_MS,
    DEFAULT_ECHO_TIMEOUT_MS, DEFAULT_HEARTBEAT_INTERVAL_MS, DEFAULT_HEARTBEAT_TIMEOUT_MS,
    DEFAULT_LOST_MS, DEFAULT_NAME_MS, DEFAULT_WATCHDOG_S, Deadlines,
};
pub use engine::{
    DEFAULT_DELAY_US, DEFAULT_ENGINE_SPIN_US, DEFAULT_INTRA_THREADS, DEFAULT_MAX_BATCH,
    DEFAULT_MAX_DELAY_US, DEFAULT_THREADS, EngineConfig, EngineKind, Gather, Precision, Provider,
};
pub use error::{ConfigError, Problem};
pub use frontend::{AcceleratorAddress, DEFAULT_DOORBELL_WAIT_US, FrontendConfig, QslMode, Verify};
pub use health::HealthConfig;
pub use ib::{
    AdaptiveRouting, DEFAULT_GID_INDEX, DEFAULT_IB_INLINE_BYTES, DEFAULT_IB_PORT,
    DEFAULT_MIN_RNR_TIMER, DEFAULT_MTU, DEFAULT_QUEUE_PAIRS, DEFAULT_RECEIVE_DEPTH,
    DEFAULT_RETRY_COUNT, DEFAULT_RNR_RETRY, DEFAULT_SEND_DEPTH, DEFAULT_SERVICE_LEVEL,
    DEFAULT_SIGNAL_EVERY, DEFAULT_SOLICITED, DEFAULT_SPLIT_ABOVE, DEFAULT_TIMEOUT,
    DEFAULT_TRAFFIC_CLASS, IbNicConfig,
};
pub use load::{load_accelerator, load_frontend, parse_accelerator, parse_frontend};
pub use loadgen::{DEFAULT_OUTPUT_DIR, LoadgenConfig, Scenario};
pub use nic::{
    Completion, CompletionMode, DEFAULT_BYTES_PER_CONNECTION, DEFAULT_CONNECTIONS,
    DEFAULT_POST_FROM_ISSUE_THREAD_UP_TO, DEFAULT_SEND_BUFFER_BYTES, DEFAULT_SPIN_US,
    DEFAULT_TCP_INLINE_BYTES, DEFAULT_YIELD_AFTER_US, Gpus, MAX_AUTO_SLOTS, MIN_AUTO_SLOTS,
    NicConfig, TcpNicConfig, pinning_warnings, resolve_slots,
};
pub use values::{Auto, Scalar};
pub use warm_up::{DEFAULT_WARM_UP_BUDGET_MS, DEFAULT_WARM_UP_DEADLINE_MS, WarmUpConfig};

pub use crate::wire::Policy;
