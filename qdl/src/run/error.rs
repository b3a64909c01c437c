//! Errors of bringing a run up, at either end.

use std::error::Error;

use crate::{control::ControlError, dispatch::DispatchError, rails::RailsError};

/// Error of a configured NIC, or of a connection on it.
#[derive(Debug, thiserror::Error)]
#[error("nics[{index}]: {source}")]
pub struct NicError {
    index: usize,
    source: Box<dyn Error + Send + Sync>,
}

impl NicError {
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
    /// The control plane failed: a peer is unreachable or refuses, or the token is invalid.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A NIC, or a connection on it, failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The slots cannot be mapped, or the threads cannot be started.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// The rails are invalid for the arbiter.
    #[error("arbiter: {0}")]
    Rails(#[from] RailsError),
    /// The control thread cannot be started, or failed.
    #[error("control thread: {0}")]
    Thread(#[from] std::io::Error),
    /// A check or a step failed: the text names the peer or the key, and the cause.
    #[error("{0}")]
    Failed(String),
}

/// Error of starting a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The control plane failed, or the token is invalid.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A NIC or its data port failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// No thread or descriptor is left.
    #[error("starting: {0}")]
    Io(#[from] std::io::Error),
    /// The model's sizes overflow.
    #[error("model {0}: its sizes overflow")]
    Model(String),
}
