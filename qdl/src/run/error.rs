//! Errors of bringing a run up, at either end.

use std::{error::Error, time::Duration};

use crate::{
    control::{AuthError, ControlError},
    dispatch::{DispatchError, WarmUpError},
    rails::RailsError,
};
use fabric::tcp::TcpError;

/// Error of a configured NIC, or of a connection on it.
#[derive(Debug, thiserror::Error)]
#[error("nics[{index}]: {source}")]
pub struct NicError {
    /// Index of the entry in `nics`.
    index: usize,
    /// The underlying error.
    source: Box<dyn Error + Send + Sync>,
}

impl NicError {
    /// Makes errors of `nics[index]`.
    pub(super) fn of<E: Into<Box<dyn Error + Send + Sync>>>(index: usize) -> impl Fn(E) -> Self {
        move |source| NicError {
            index,
            source: source.into(),
        }
    }
}

/// Error of bringing a cluster up.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The control plane failed: a peer is unreachable, or refuses this node.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// This node's token is invalid.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// A data connection failed.
    #[error("{node}: {source}")]
    Data {
        /// Node name of the accelerator.
        node: String,
        /// The underlying error.
        source: TcpError,
    },
    /// A NIC, or a connection on it, failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The slots cannot be mapped, or the threads cannot be started.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// The sizes of the model or the configuration are invalid for slots.
    #[error("{0}")]
    Slots(String),
    /// Accelerators run different models under one name.
    #[error(
        "the accelerators do not run the same model: {kinds}; give all of them the same, or set \
         `model_files: any`"
    )]
    Contents {
        /// The models, with the nodes of each.
        kinds: String,
    },
    /// The rails are invalid for the arbiter.
    #[error("arbiter: {0}")]
    Rails(#[from] RailsError),
    /// A connection failed its warm-up.
    #[error(
        "connection {connection} (nics[{nic}], accelerator at {address}) failed its warm-up: {source}"
    )]
    WarmUp {
        /// Name of the connection in the summary: the accelerator's node and the index there.
        connection: String,
        /// Control address of the accelerator.
        address: String,
        /// Index into this node's `nics`.
        nic: usize,
        /// The underlying error.
        source: WarmUpError,
    },
    /// An accelerator did not return its name.
    #[error("{node} ({address}) did not answer Name(): {problem}")]
    Name {
        /// Node name of the accelerator.
        node: String,
        /// Control address of the accelerator.
        address: String,
        /// Cause of the missing answer.
        problem: String,
    },
    /// The control thread cannot be started, or failed.
    #[error("control thread: {0}")]
    Thread(#[from] std::io::Error),
    /// Some connections did not come up in time.
    #[error("{up} of {connections} connections came up within {deadline:?}")]
    NotUp {
        /// Number of connections that are up.
        up: usize,
        /// Number of connections configured.
        connections: usize,
        /// Time waited.
        deadline: Duration,
    },
}

/// Error of starting a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The control plane failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A data port failed.
    #[error(transparent)]
    Data(#[from] TcpError),
    /// An RDMA or libfabric NIC failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The token is invalid.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// No thread or descriptor is left.
    #[error("starting: {0}")]
    Io(#[from] std::io::Error),
    /// The model's sizes overflow.
    #[error("model {0}: its sizes overflow")]
    Model(String),
}
