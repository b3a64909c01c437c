//! What a [`Cluster`](super::Cluster) is handed and calls back, and how it fails.

use std::{error::Error, sync::Arc, time::Duration};

use crate::{
    control::{AuthError, ControlError},
    dispatch::{DispatchError, Sample, WarmUpError},
    rails::RailsError,
};
use fabric::{Region, tcp::TcpError};

/// Memory the samples lie in.
#[derive(Clone, Debug, Default)]
pub struct SampleMemory {
    /// Registered: sent from where it lies. A sample's `source` is an index into it.
    pub sources: Vec<Arc<Region>>,
    /// Not registered: copied on the way (`qsl: staged`).
    pub staged_from: Option<Arc<Region>>,
}

/// Hears what becomes of the cluster.
pub trait ClusterListener: Send + Sync {
    /// Completes these samples with no bytes: the run was aborted.
    fn complete_empty(&self, samples: &[Sample]);
    /// The run is over: no connection was left for too long, or [`abort`](super::Cluster::abort)
    /// was called. Called once; the cause names the peer, when and why.
    fn aborted(&self, cause: &str);
    /// Something worth a line: a connection lost, a peer back.
    fn note(&self, line: &str);
    /// An accelerator is waited for, before [`Cluster::connect`](super::Cluster::connect) returns.
    fn waiting(&self, line: &str) {
        self.note(line);
    }
}

/// A NIC that cannot be used as it is configured, or a connection on it that failed.
#[derive(Debug, thiserror::Error)]
#[error("nics[{index}]: {source}")]
pub struct NicError {
    /// Which entry of `nics`.
    index: usize,
    /// What failed.
    source: Box<dyn Error + Send + Sync>,
}

impl NicError {
    /// Says of an error that it is of entry `index`.
    pub(super) fn of<E: Into<Box<dyn Error + Send + Sync>>>(index: usize) -> impl Fn(E) -> Self {
        move |source| NicError {
            index,
            source: source.into(),
        }
    }
}

/// A cluster that could not be brought up.
#[derive(Debug, thiserror::Error)]
pub enum ClusterError {
    /// The control plane: a peer cannot be reached, or does not want us.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// This node's token.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// A data connection.
    #[error("{node}: {source}")]
    Data {
        /// The accelerator.
        node: String,
        /// What failed.
        source: TcpError,
    },
    /// A NIC, or a connection on it.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// Slots or threads.
    #[error(transparent)]
    Dispatch(#[from] DispatchError),
    /// A model or configuration whose slots make no sense.
    #[error("{0}")]
    Slots(String),
    /// Accelerators that run different models under one name.
    #[error(
        "the accelerators do not run the same model: {kinds}; give all of them the same, or set \
         `model_files: any`"
    )]
    Contents {
        /// Which has what.
        kinds: String,
    },
    /// Rails that cannot be chosen among.
    #[error("arbiter: {0}")]
    Rails(#[from] RailsError),
    /// A connection that failed its warm-up.
    #[error(
        "connection {connection} (nics[{nic}], accelerator at {address}) failed its warm-up: {source}"
    )]
    WarmUp {
        /// Its name in the summary: the accelerator's node and its index there.
        connection: String,
        /// The accelerator's control plane.
        address: String,
        /// Index into this node's `nics`.
        nic: usize,
        /// What failed.
        source: WarmUpError,
    },
    /// An accelerator that does not say its name.
    #[error("{node} ({address}) did not answer Name(): {problem}")]
    Name {
        /// Its node name.
        node: String,
        /// Its control plane.
        address: String,
        /// Why there is no answer.
        problem: String,
    },
    /// The control thread.
    #[error("control thread: {0}")]
    Thread(#[from] std::io::Error),
    /// Connections that are open on one side only.
    #[error("{up} of {connections} connections came up within {deadline:?}")]
    NotUp {
        /// Connections up.
        up: usize,
        /// Connections wanted.
        connections: usize,
        /// How long was waited.
        deadline: Duration,
    },
}
