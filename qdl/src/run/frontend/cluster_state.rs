//! State shared by a [`Cluster`](super::Cluster)'s caller, control thread and peer tasks.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use tokio::{sync::mpsc, time::Instant};

use super::{
    peer_state::PeerState,
    rail_map::{ConnectionEnd, RailMap},
    refusals::OnRefusal,
};
use crate::{
    config::{Auto, FrontendConfig},
    control::{Blocking, ClientSession, Connector, ControlError, LocalNode},
    dispatch::{DispatchEvent, Dispatcher, Owner, Sample},
    run::{error::RunError, life::frontend_end::RetryPauses, lock},
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
    pub dispatcher: OnceLock<Arc<Dispatcher>>,
    /// Opens the streams of the sessions.
    pub connector: Arc<dyn Connector>,
    /// Thread that makes the local halves of connections.
    pub blocking: Blocking,
    /// Pauses before a connection or a session is made again.
    pub retry: RetryPauses,
    pub config: FrontendConfig,
    pub local: LocalNode,
    pub peers: Vec<Mutex<PeerState>>,
    pub on_event: Arc<OnClusterEvent>,
    pub began: Instant,
    /// The run is ending, so nothing is reconnected.
    pub closing: AtomicBool,
    pub aborted: AtomicBool,
    /// Reasons to abort the run soon.
    pub reasons: mpsc::UnboundedSender<AbortReason>,
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

    /// Aborts the run after [`REASON`].
    fn abort_after_reason(&self, reason: impl FnOnce(&ClusterState) -> String + Send + 'static) {
        // The receiver is gone only when the run has ended.
        let _ = self.reasons.send(Box::new(reason));
    }

    /// Converts a clock time to seconds since the first query; `None` before it.
    pub(crate) fn in_run(&self, at_ns: u64) -> Option<f64> {
        let began = self.dispatcher().first_issued_ns()?;
        let ns = at_ns.checked_sub(began)?;
        Some((ns as f64 / 1e6).round() / 1e3)
    }

    /// Under a policy by health, makes the arbiter once every connection is granted.
    pub(crate) fn choose_by_health(&self) -> Result<(), RunError> {
        let policy = self.config.arbiter;
        if !policy.is_by_health() {
            return Ok(());
        }
        let ends = lock(&self.ends).clone();
        let connections: Vec<_> = ends
            .iter()
            .enumerate()
            .filter_map(|(connection, end)| {
                let (peer, _) = self.connection_of[connection];
                Some((
                    peer,
                    self.dispatcher().connection(connection).nic_index,
                    (*end)?,
                ))
            })
            .collect();
        let health = self.config.health;
        let (map, arbiter) = RailMap::new(&connections, self.peers.len(), policy, health)
            .map_err(|e| RunError::new(format!("arbiter: {e}")))?;
        // Set the names before the first change.
        let _ = self.rails.set(map);
        let links = self.links.clone();
        let nic_down = Box::new(move |nic: usize| links.get(nic).and_then(LinkWatch::is_down));
        self.dispatcher()
            .choose_by_health(arbiter, health.tick_ms * 1_000_000, nic_down);
        Ok(())
    }

    /// Limits the slots in use with `slots: auto`, once every engine has stated the number of
    /// samples that it works on at once.
    pub(crate) fn limit_slots(&self) {
        let dispatcher = self.dispatcher();
        let auto = |i| {
            let nic = dispatcher.connection(i).nic_index;
            self.config.nics[nic].slots == Auto::Auto
        };
        let auto: Vec<_> = (0..dispatcher.connections()).map(auto).collect();
        dispatcher.limit_slots(&auto);
        for peer in 0..self.peers.len() {
            let at_once = self.peer(peer).engine.at_once;
            dispatcher.engine_works_on(peer, at_once);
        }
    }

    /// Name of a connection for users: its accelerator's node, and the index there.
    pub(crate) fn connection_name(&self, connection: usize) -> String {
        let (peer, index) = self.connection_of[connection];
        format!("{}/{index}", self.peer(peer).node)
    }

    pub(crate) async fn connect(&self, index: usize) -> Result<ClientSession, ControlError> {
        let address = self.config.accelerators[index].control.to_string();
        ClientSession::connect_by(&*self.connector, address, self.local.clone()).await
    }
}

/// Time limit for an accelerator's reason of a loss or of the run's end.
pub(crate) const REASON: Duration = Duration::from_secs(1);

/// Makes the reason of an abort, from the state at its time.
pub(crate) type AbortReason = Box<dyn FnOnce(&ClusterState) -> String + Send>;

/// Aborts the run [`REASON`] after the first reason: meanwhile an accelerator may send a better
/// cause.
pub(crate) async fn abort_soon(
    state: Arc<ClusterState>,
    mut reasons: mpsc::UnboundedReceiver<AbortReason>,
) {
    if let Some(reason) = reasons.recv().await {
        tokio::time::sleep(REASON).await;
        state.abort(&reason(&state));
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
                retries: again,
            } => (connection, epoch, cause, again),
            DispatchEvent::TooManyLosses {
                index,
                losses,
                connection,
                cause,
            } => {
                return state.abort_after_reason(move |state| {
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
                    OnRefusal::EndSoon(words) => state.abort_after_reason(move |_| words),
                };
            }
            DispatchEvent::Cancelled {
                connection,
                epoch,
                imm,
            } => {
                let (peer, number) = state.connection_of[connection];
                if let Some(handle) = &state.peer(peer).handle {
                    handle.cancel(number, epoch, imm);
                }
                return;
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
