//! State shared by a [`Cluster`](super::Cluster)'s caller, control thread and peer tasks.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::sync::mpsc;

use super::{
    peer_state::PeerState,
    rail_map::{ConnectionEnd, RailMap},
    refusals::OnRefusal,
};
use crate::{
    config::FrontendConfig,
    control::{ClientSession, ControlError, LocalNode},
    dispatch::{DispatchEvent, Dispatcher, Owner, Sample},
    run::lock,
    topology::LinkWatch,
};
use fabric::{Broken, Nic, clock::now_ns};

const MOST_LOSSES: usize = 256;

/// Event of a cluster, for the program that runs it.
#[derive(Clone, Copy, Debug)]
pub enum ClusterEvent<'a> {
    /// The run is aborted: complete these samples without a response.
    CompleteEmpty(&'a [Sample]),
    /// The run is aborted: no connection was left for too long, or [`abort`](super::Cluster::abort)
    /// was called. Reported once; the cause names the peer, the time and the reason.
    Aborted(&'a str),
    /// A line for the log, such as a lost connection or a peer that is back.
    Note(&'a str),
    /// A wait for an accelerator, in [`Cluster::connect`](super::Cluster::connect).
    Waiting(&'a str),
}

/// Consumer of a cluster's events, called from any of its threads.
pub(crate) type OnClusterEvent = dyn Fn(ClusterEvent<'_>) + Send + Sync;

/// The dispatcher has destroyed the local side of a connection.
#[derive(Debug)]
pub(crate) struct LocalLoss {
    pub index: u16,
    pub epoch: u32,
    pub cause: Broken,
    pub again: usize,
    pub at_ns: u64,
}

/// Peer, and index within the peer, of each connection.
pub(crate) type ConnectionOf = Vec<(usize, u16)>;

pub(crate) struct ClusterState {
    pub dispatcher: OnceLock<Dispatcher>,
    pub config: FrontendConfig,
    pub local: LocalNode,
    pub peers: Vec<Mutex<PeerState>>,
    pub on_event: Arc<OnClusterEvent>,
    pub began: Instant,
    /// The run is ending, so nothing is reconnected.
    pub closing: AtomicBool,
    pub aborted: AtomicBool,
    pub ending: AtomicBool,
    pub losses: Vec<mpsc::UnboundedSender<LocalLoss>>,
    pub lost: Mutex<Vec<(usize, String)>>,
    /// Peer and index within the peer of each connection.
    pub connection_of: ConnectionOf,
    pub nics: Vec<Box<dyn Nic>>,
    pub links: Vec<LinkWatch>,
    /// Accelerator's end of each connection, once granted.
    pub ends: Mutex<Vec<Option<ConnectionEnd>>>,
    /// Set under a policy by health, once every accelerator has granted its connections.
    pub rails: OnceLock<RailMap>,
}

impl ClusterState {
    pub(crate) fn dispatcher(&self) -> &Dispatcher {
        self.dispatcher.get().expect("set before any task runs")
    }

    pub(crate) fn peer(&self, index: usize) -> MutexGuard<'_, PeerState> {
        lock(&self.peers[index])
    }

    /// Values from each accelerator's state, in the order of the configuration.
    pub(crate) fn each_peer<T>(&self, f: impl Fn(&PeerState) -> T) -> Vec<T> {
        self.peers.iter().map(|peer| f(&lock(peer))).collect()
    }

    pub(crate) fn note(&self, line: &str) {
        (self.on_event)(ClusterEvent::Note(line));
    }

    pub(crate) fn is_closing(&self) -> bool {
        self.closing.load(Ordering::SeqCst)
    }

    pub(crate) fn abort(&self, cause: &str) {
        if !self.aborted.swap(true, Ordering::SeqCst) {
            self.closing.store(true, Ordering::SeqCst);
            (self.on_event)(ClusterEvent::Aborted(cause));
            self.dispatcher().abort(cause);
        }
    }

    /// Converts a clock time to seconds since the first query; `None` before it.
    pub(crate) fn in_run(&self, at_ns: u64) -> Option<f64> {
        let began = self.dispatcher().first_issued_ns()?;
        let ns = at_ns.checked_sub(began)?;
        Some((ns as f64 / 1e6).round() / 1e3)
    }

    /// Name of a connection for users: its accelerator's node, and the index there.
    pub(crate) fn connection_name(&self, connection: usize) -> String {
        let (peer, index) = self.connection_of[connection];
        format!("{}/{index}", self.peer(peer).node)
    }

    pub(crate) async fn connect(&self, index: usize) -> Result<ClientSession, ControlError> {
        let address = self.config.accelerators[index].control.to_string();
        ClientSession::connect(address, self.local.clone()).await
    }
}

/// Time limit for an accelerator's reason of a loss or of the run's end.
pub(crate) const REASON: Duration = Duration::from_secs(1);

/// Aborts the run after [`REASON`], so that an accelerator can send a reason first.
fn abort_soon(
    state: &Arc<ClusterState>,
    words: impl Fn(&ClusterState) -> String + Send + Sync + 'static,
) {
    if state.ending.swap(true, Ordering::SeqCst) {
        return;
    }
    let (weak, words) = (Arc::downgrade(state), Arc::new(words));
    let later = words.clone();
    let end = move || {
        std::thread::sleep(REASON);
        if let Some(state) = weak.upgrade() {
            state.abort(&later(&state));
        }
    };
    let thread = std::thread::Builder::new().name("qdl-reason".to_owned());
    if thread.spawn(end).is_err() {
        state.abort(&words(state));
    }
}

/// Routes the dispatcher's events to the peers' tasks. The reference is weak, because the state
/// owns the dispatcher, which stops before the last strong reference is dropped.
pub(crate) struct EventRouter(pub Weak<ClusterState>);

impl Owner for EventRouter {
    fn complete_empty(&self, samples: &[Sample]) {
        if let Some(state) = self.0.upgrade() {
            (state.on_event)(ClusterEvent::CompleteEmpty(samples));
        }
    }

    fn event(&self, event: DispatchEvent) {
        let Some(state) = self.0.upgrade() else {
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
                return abort_soon(&state, move |state| {
                    let (peer, number) = state.connection_of[connection];
                    let why = state.peer(peer).outages.last_cause(number);
                    format!(
                        "sample {index} was sent {losses} times, and each time the connection that \
                         carried it was lost, at last {}: {}",
                        state.connection_name(connection),
                        why.unwrap_or_else(|| cause.to_string())
                    )
                });
            }
            DispatchEvent::Refused(refused) => {
                let (peer, number) = state.connection_of[refused.connection];
                let reaction = {
                    let mut peer = state.peer(peer);
                    let node = peer.node.clone();
                    if refused.is_away {
                        peer.outages.add_given_back();
                    }
                    peer.refusals.add(&node, number, &refused)
                };
                return match reaction {
                    OnRefusal::Count => {}
                    OnRefusal::Note(_) if state.is_closing() => {}
                    OnRefusal::Note(line) => state.note(&line),
                    OnRefusal::End(words) => state.abort(&words),
                    OnRefusal::EndSoon(words) => abort_soon(&state, move |_| words.clone()),
                };
            }
            DispatchEvent::Rail { peer, change } => {
                if let Some(rails) = state.rails.get() {
                    let line = rails.record(peer, &state.peer(peer).node, change);
                    if !state.is_closing() {
                        state.note(&line);
                    }
                }
                return;
            }
        };
        let (peer, index) = state.connection_of[connection];
        // Connections that end with the run are not lost.
        if !state.is_closing() {
            let mut lost = lock(&state.lost);
            let is_known = lost.iter().any(|(of, _)| *of == connection);
            let later = "later losses, of any connection, are counted in `losses` alone";
            if lost.len() < MOST_LOSSES || !is_known {
                lost.push((connection, cause.to_string()));
            } else if lost.iter().all(|(_, cause)| cause != later) {
                lost.push((connection, later.to_owned()));
            }
        }
        // The receiver is dropped only when the cluster closes.
        let _ = state.losses[peer].send(LocalLoss {
            index,
            epoch,
            cause,
            again,
            at_ns: now_ns(),
        });
    }
}
