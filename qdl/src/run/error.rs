//! The error of bringing a run up, at either end.

use std::fmt::Display;

use crate::{control::ControlError, dispatch::DispatchError};

/// A node, a run or a connection cannot begin. The line names the peer, the NIC or the key, and the
/// cause.
#[derive(Debug, thiserror::Error)]
#[error("{0}")]
pub struct RunError(String);

impl RunError {
    pub(super) fn new(line: impl Into<String>) -> Self {
        RunError(line.into())
    }

    /// The frontend's control thread cannot be started, or failed.
    pub(super) fn of_control_thread(cause: impl Display) -> Self {
        RunError(format!("control thread: {cause}"))
    }

    /// Makes errors of a configured NIC, or of connections on it.
    pub(super) fn of_nic<E: Display>(index: usize) -> impl Fn(E) -> Self {
        move |cause| RunError(format!("nics[{index}]: {cause}"))
    }
}

impl From<ControlError> for RunError {
    fn from(e: ControlError) -> Self {
        RunError(e.to_string())
    }
}

impl From<DispatchError> for RunError {
    fn from(e: DispatchError) -> Self {
        RunError(e.to_string())
    }
}
