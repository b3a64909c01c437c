//! State that the caller of a [`Cluster`](super::Cluster), its control thread and its peer tasks
//! share.

use std::{
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
    time::{Duration, Instant},
};

use record::{BatchSizes, EngineInfo, GpuRecord, LostSession, NodeFacts, NodeUse};
use tokio::sync::mpsc;

use super::{
    api::ClusterListener,
    health::{ConnectionEnd, RailMap},
    outage::Outages,
    peer::LocalLoss,
    refusals::{OnRefusal, Refusals},
    settings,
    transport::ClientNic,
};
use crate::{
    config::FrontendConfig,
    control::{Auth, ClientHandle, ClientParams, Counters},
    dispatch::{DispatchEvent, Dispatcher, Owner, Sample},
    topology::LinkWatch,
};
use fabric::clock::now_ns;

/// Most losses of connections, and most sessions of one accelerator, that are recorded separately.
const MOST_KEPT: usize = 256;

/// State of one accelerator.
#[derive(Debug, Default)]
pub(super) struct PeerState {
    pub node: String,
    pub address: String,
    /// Engine of the accelerator.
    pub engine: EngineInfo,
    /// Facts about the accelerator's node.
    pub facts: NodeFacts,
    pub handle: Option<ClientHandle>,
    /// Last known part of the SUT's name.
    pub named: Option<String>,
    /// Totals of its session, from the answer to the drain.
    pub drained: Option<Counters>,
    pub batches: BatchSizes,
    pub gpus: Vec<GpuRecord>,
    /// Totals and time of the last heartbeat of its session.
    pub heartbeat: Option<(Counters, u64)>,
    /// Totals of earlier sessions, as of their last heartbeats.
    pub lost_sessions: Vec<LostSession>,
    /// Outages of the accelerator.
    pub outages: Outages,
    /// Refusals of the accelerator.
    pub refusals: Refusals,
    /// Work of its node at the start of LoadGen's clock, and at the end.
    pub used: [Option<NodeUse>; 2],
}

impl PeerState {
    /// Records the totals of an ended session from its last heartbeat, unless the drain was
    /// answered: a heartbeat may come between that answer and the end.
    pub fn session_over(&mut self, in_run: impl Fn(u64) -> Option<f64>) {
        let last = self.heartbeat.take().filter(|_| self.drained.is_none());
        let Some((c, at_ns)) = last else {
            return;
        };
        let over = LostSession {
            as_of_s: in_run(at_ns),
            arrived: c.arrived,
            samples: c.responded,
            dropped_late: c.dropped_late,
            batches: c.batches,
        };
        if self.lost_sessions.len() < MOST_KEPT {
            self.lost_sessions.push(over);
        } else if let Some(last) = self.lost_sessions.last_mut() {
            last.add(&over);
        }
    }
}

/// Peer, and index within the peer, of each connection.
pub type ConnectionOf = Vec<(usize, u16)>;

/// State that tasks and callers share.
pub(super) struct Common {
    pub dispatcher: OnceLock<Dispatcher>,
    pub config: FrontendConfig,
    pub auth: Auth,
    pub peers: Vec<Mutex<PeerState>>,
    /// Facts about this node.
    pub facts: NodeFacts,
    pub listener: Arc<dyn ClusterListener>,
    pub began: Instant,
    /// The run is ending, so nothing is reconnected.
    pub closing: AtomicBool,
    pub aborted: AtomicBool,
    /// The run is about to be aborted.
    pub ending: AtomicBool,
    pub losses: Vec<mpsc::UnboundedSender<LocalLoss>>,
    /// Connections lost so far, with the causes.
    pub lost: Mutex<Vec<(usize, String)>>,
    /// Some losses are not recorded.
    pub lost_more: AtomicBool,
    /// Peer and index within the peer of each connection.
    pub connection_of: ConnectionOf,
    pub nics: Vec<ClientNic>,
    /// Link state of each NIC.
    pub links: Vec<LinkWatch>,
    /// Accelerator's end of each connection, once granted.
    pub ends: Mutex<Vec<Option<ConnectionEnd>>>,
    /// Set under a policy by health, once every accelerator has granted its connections.
    pub rails: OnceLock<RailMap>,
}

impl Common {
    pub fn dispatcher(&self) -> &Dispatcher {
        self.dispatcher.get().expect("set before any task runs")
    }

    pub fn peer(&self, index: usize) -> MutexGuard<'_, PeerState> {
        super::lock(&self.peers[index])
    }

    /// Whether the link of a NIC is known to be down.
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

    /// Converts a clock time to seconds since the first query; `None` before it.
    pub fn in_run(&self, at_ns: u64) -> Option<f64> {
        let began = self.dispatcher().first_issued_ns()?;
        let ns = at_ns.checked_sub(began)?;
        Some((ns as f64 / 1e6).round() / 1e3)
    }

    /// Name of a connection for users: its accelerator's node, and the index there.
    pub fn connection_name(&self, connection: usize) -> String {
        let (peer, index) = self.connection_of[connection];
        format!("{}/{index}", self.peer(peer).node)
    }

    /// Parameters of a session with an accelerator.
    pub fn params(&self, index: usize) -> ClientParams {
        ClientParams {
            address: self.config.accelerators[index].control.to_string(),
            node: self.config.node.clone(),
            auth: self.auth.clone(),
            model: self.config.model.clone(),
            stream: self.config.stream.unwrap_or_default(),
            facts: self.facts.clone(),
            timing: settings::timing(&self.config.deadlines),
        }
    }
}

/// Time limit for an accelerator's reason of a loss or of the run's end.
pub(super) const REASON: Duration = Duration::from_secs(1);

/// Aborts the run after [`REASON`], so that an accelerator can send a reason first.
fn abort_soon(common: &Arc<Common>, words: impl Fn(&Common) -> String + Send + Sync + 'static) {
    if common.ending.swap(true, Ordering::SeqCst) {
        return;
    }
    let (weak, words) = (Arc::downgrade(common), Arc::new(words));
    let later = words.clone();
    let end = move || {
        std::thread::sleep(REASON);
        if let Some(common) = weak.upgrade() {
            common.abort(&later(&common));
        }
    };
    let thread = std::thread::Builder::new().name("qdl-reason".to_owned());
    if thread.spawn(end).is_err() {
        common.abort(&words(common));
    }
}

/// Routes the dispatcher's events to the peer's task. The reference is weak, because `Common` owns
/// the dispatcher. The dispatcher stops before the last strong reference is dropped.
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
                return abort_soon(&common, move |common| {
                    let (peer, number) = common.connection_of[connection];
                    let why = common.peer(peer).outages.last_cause(number);
                    format!(
                        "sample {index} was sent {losses} times, and each time the connection that \
                         carried it was lost, at last {}: {}",
                        common.connection_name(connection),
                        why.unwrap_or_else(|| cause.to_string())
                    )
                });
            }
            DispatchEvent::Refused(refused) => {
                let (peer, number) = common.connection_of[refused.connection];
                let todo = {
                    let mut peer = common.peer(peer);
                    let node = peer.node.clone();
                    peer.refusals.refused(&node, number, &refused)
                };
                return match todo {
                    OnRefusal::Count => {}
                    OnRefusal::Note(_) if common.is_closing() => {}
                    OnRefusal::Note(line) => common.listener.note(&line),
                    OnRefusal::End(words) => common.abort(&words),
                    OnRefusal::EndSoon(words) => abort_soon(&common, move |_| words.clone()),
                };
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
        // Connections that end with the run are not lost.
        if !common.is_closing() {
            let mut lost = super::lock(&common.lost);
            let is_known = lost.iter().any(|(of, _)| *of == connection);
            if lost.len() < MOST_KEPT || !is_known {
                lost.push((connection, cause.to_string()));
            } else if !common.lost_more.swap(true, Ordering::Relaxed) {
                let later = "later losses, of any connection, are counted in `losses` alone";
                lost.push((connection, later.to_owned()));
            }
        }
        // The receiver is dropped only when the cluster closes.
        let _ = common.losses[peer].send(LocalLoss {
            index,
            epoch,
            cause,
            again,
            at_ns: now_ns(),
        });
    }
}
