//! What the caller of a [`Cluster`](super::Cluster), its control thread and its look-outs share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    api::ClusterListener,
    health::{ConnectionEnd, RailMap},
    peer::LocalLoss,
    settings,
    transport::ClientNic,
};
use crate::{
    config::FrontendConfig,
    control::{Auth, ClientHandle, ClientParams, Counters},
    dispatch::{DispatchEvent, Dispatcher, Owner, Sample},
    stats::{BatchSizes, GpuRecord},
    topology::LinkWatch,
    wire::EngineInfo,
};

/// What is known of one accelerator.
#[derive(Debug, Default)]
pub(super) struct PeerState {
    pub node: String,
    pub address: String,
    /// What runs the model there.
    pub engine: EngineInfo,
    pub handle: Option<ClientHandle>,
    /// Its part of the SUT's name, as it last said.
    pub named: Option<String>,
    pub counters: Option<Counters>,
    pub batches: BatchSizes,
    pub gpus: Vec<GpuRecord>,
    /// When and why its last connection was lost, and whether by silence.
    pub lost: Option<Loss>,
}

/// How an accelerator was lost.
#[derive(Clone, Debug)]
pub(super) struct Loss {
    pub at: Duration,
    pub cause: String,
    /// It was found out by waiting for a sign of life, which took its time.
    pub by_silence: bool,
}

/// Peer, and index within the peer, of each connection.
pub type ConnectionOf = Vec<(usize, u16)>;

/// What tasks and callers share.
pub(super) struct Common {
    pub dispatcher: OnceLock<Dispatcher>,
    pub config: FrontendConfig,
    pub auth: Auth,
    pub peers: Vec<Mutex<PeerState>>,
    pub listener: Arc<dyn ClusterListener>,
    pub began: Instant,
    /// No more repairs: the run is ending.
    pub closing: AtomicBool,
    pub aborted: AtomicBool,
    pub losses: Vec<mpsc::UnboundedSender<LocalLoss>>,
    /// Connections lost so far, and why.
    pub lost: Mutex<Vec<(usize, String)>>,
    /// Peer and index within the peer of each connection.
    pub connection_of: ConnectionOf,
    pub nics: Vec<ClientNic>,
    /// Whether the link of each NIC is down.
    pub links: Vec<LinkWatch>,
    /// Where each connection ends, once it was granted.
    pub ends: Mutex<Vec<Option<ConnectionEnd>>>,
    /// Under a policy by health, once every accelerator has granted its connections.
    pub rails: OnceLock<RailMap>,
}

impl Common {
    pub fn dispatcher(&self) -> &Dispatcher {
        self.dispatcher.get().expect("set before any task runs")
    }

    pub fn peer(&self, index: usize) -> MutexGuard<'_, PeerState> {
        super::lock(&self.peers[index])
    }

    /// Whether the link of a NIC is down, as far as it can be told.
    pub fn link_is_down(&self, nic: usize) -> bool {
        self.links.get(nic).and_then(LinkWatch::is_down) == Some(true)
    }

    pub fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub fn abort(&self, cause: &str) {
        if !self.aborted.swap(true, Ordering::SeqCst) {
            self.closing.store(true, Ordering::SeqCst);
            self.listener.aborted(cause);
            self.dispatcher().abort(cause);
        }
    }

    /// A connection as people know it: its accelerator's name, and its number there.
    pub fn connection_name(&self, connection: usize) -> String {
        let (peer, index) = self.connection_of[connection];
        format!("{}/{index}", self.peer(peer).node)
    }

    /// How a session with an accelerator is opened.
    pub fn params(&self, index: usize) -> ClientParams {
        ClientParams {
            address: self.config.accelerators[index].control.to_string(),
            node: self.config.node.clone(),
            auth: self.auth.clone(),
            model: self.config.model.clone(),
            stream: self.config.stream.unwrap_or_default(),
            timing: settings::timing(&self.config.deadlines),
        }
    }
}

/// What the dispatcher tells goes to the look-out of the peer it concerns.
/// Held weakly: the dispatcher is a part of what it tells. It is stopped before the last of that
/// goes.
pub(super) struct ClusterOwner(pub Weak<Common>);

impl Owner for ClusterOwner {
    fn complete_empty(&self, samples: &[Sample]) {
        if let Some(common) = self.0.upgrade() {
            common.listener.complete_empty(samples);
        }
    }

    fn event(&self, event: DispatchEvent) {
        let Some(common) = self.0.upgrade() else {
            return;
        };
        let (connection, epoch, cause, again) = match event {
            DispatchEvent::ConnectionLost {
                connection,
                epoch,
                cause,
                again,
            } => (connection, epoch, cause, again),
            DispatchEvent::WornOut {
                index,
                losses,
                connection,
                cause,
            } => {
                return common.abort(&format!(
                    "sample {index} was sent {losses} times, and each time the connection that carried it was \
                     lost, at last {}: {cause}; the accelerators' logs say what they refuse",
                    common.connection_name(connection)
                ));
            }
            DispatchEvent::Rail { peer, change } => {
                if let Some(rails) = common.rails.get() {
                    let line = rails.changed(peer, &common.peer(peer).node, change);
                    if !common.is_closing() {
                        common.listener.note(&line);
                    }
                }
                return;
            }
        };
        let (peer, index) = common.connection_of[connection];
        super::lock(&common.lost).push((connection, cause.to_string()));
        // The task is gone only once the cluster is closing.
        let _ = common.losses[peer].send(LocalLoss {
            index,
            epoch,
            cause,
            again,
        });
    }
}
