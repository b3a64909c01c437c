//! An accelerator's node without ports, threads and a runtime of its own.

use std::{
    io,
    sync::{Arc, Mutex},
    time::Duration,
};

use fabric::{
    Link, Nic,
    os::{Near, ThreadTime},
};
use record::ServedReport;
use tokio::sync::watch;

use super::{
    budget::Budget,
    node_state::{NodeFigures, NodeParams, NodeState},
    session::{CurrentSession, Session},
};
use crate::{
    config::AcceleratorConfig,
    control::{self, ErrorCode},
    run::{error::RunError, lock, request_stride, response_stride},
    serve::{Arrival, ConnectionLost, OnConnectionLost, Server, Service},
    topology::LinkWatch,
};

/// Time limit for the frontend to take the reason of the stop.
const STOPPING: Duration = Duration::from_secs(1);

/// The error of a start for which the system has no thread or descriptor left.
pub(super) fn starting(e: &io::Error) -> RunError {
    RunError::new(format!("starting: {e}"))
}

/// Handle that stops a node from any thread.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<Option<String>>);

impl Stop {
    /// Stops the node, which sends the reason `why` to its frontend. Later calls have no effect.
    pub fn stop(&self, why: &str) {
        self.0.send_if_modified(|w| {
            let first = w.is_none();
            if first {
                *w = Some(why.to_owned());
            }
            first
        });
    }
}

/// The parts of a node around its server.
pub struct NodeParts {
    /// The open NICs, in the order of the configuration.
    pub nics: Vec<Box<dyn Nic>>,
    /// State of each NIC's link.
    pub links: Vec<LinkWatch>,
    /// Placement of each NIC.
    pub near: Vec<Near>,
    /// Consumer of arrivals.
    pub service: Arc<dyn Service>,
    /// Reads the work of this process's threads.
    pub thread_times: fn() -> Vec<ThreadTime>,
}

/// A node that serves frontends on the caller's runtime.
pub struct NodeCore {
    pub(super) state: Arc<NodeState>,
    pub(super) current: Arc<CurrentSession>,
    pub(super) control: control::Server,
    stop: watch::Sender<Option<String>>,
}

/// Handle of a node's server, memory and figures, for any thread.
#[derive(Clone)]
pub struct NodeHandle {
    state: Arc<NodeState>,
    current: Arc<CurrentSession>,
}

impl NodeHandle {
    /// The node's server.
    pub fn server(&self) -> &Server {
        &self.state.server
    }

    /// The node's figures.
    pub fn figures(&self) -> NodeFigures {
        let session = lock(&self.current).clone();
        session.map_or_else(|| (*lock(&self.state.ended), [0; 2]), |s| s.figures())
    }

    /// Bytes of the memory budget in use.
    pub fn memory_in_use(&self) -> usize {
        self.state.budget.in_use()
    }

    /// Admits a connection (number and epoch) of the current session that came over a data port
    /// with this key.
    pub fn admit(&self, which: (u16, u32), key: [u8; 32], linked: Result<Link, String>) {
        let Some(session) = lock(&self.current).clone() else {
            return;
        };
        let proved = {
            let mut connections = lock(&session.connections);
            let secret = connections.secret(which.0, which.1);
            let is_its_own = secret.is_some_and(|secret| secret.key == key);
            is_its_own.then(|| connections.take_proved(which.0, which.1))
        };
        if let Some(Some((connection, nic_index))) = proved {
            // The error is the frontend's loss of the connection.
            let _ = session.admit(nic_index, connection, linked);
        }
    }

    /// Sends the frontend a frame that a sound node does not send, by its number.
    #[cfg(feature = "testkit")]
    pub fn lie(&self, n: u64) {
        if let Some(session) = lock(&self.current).clone() {
            session.handle.lie(n);
        }
    }

    /// Number and epoch of the current session's connection that an arrival came by.
    pub fn connection_of(&self, arrival: &Arrival) -> Option<(u16, u32)> {
        let at = Arc::as_ptr(arrival.origin()).cast::<()>();
        let session = lock(&self.current).clone()?;
        let connections = lock(&session.connections);
        let found = connections.slots().find(|c| Arc::as_ptr(c).cast() == at)?;
        let cfgs = found.cfgs();
        Some((cfgs.connection, cfgs.epoch))
    }
}

impl NodeCore {
    /// Makes a node whose engine is ready. `server` makes the server for the consumer of its
    /// losses.
    ///
    /// # Errors
    /// [`RunError`]: the model's sizes overflow, or the server cannot be made.
    pub fn new(
        config: AcceleratorConfig,
        params: NodeParams,
        parts: NodeParts,
        control: control::Server,
        server: impl FnOnce(&Arc<OnConnectionLost>) -> io::Result<Server>,
    ) -> Result<Self, RunError> {
        let name = &params.model.name;
        let overflow = || RunError::new(format!("model {name}: its sizes overflow"));
        request_stride(&params.model).ok_or_else(overflow)?;
        response_stride(&params.model).ok_or_else(overflow)?;
        let current: Arc<CurrentSession> = Arc::new(Mutex::default());
        // Weak, since the session holds the server, which holds this callback.
        let weak = Arc::downgrade(&current);
        let lost: Arc<OnConnectionLost> = Arc::new(move |l: ConnectionLost| {
            let session = weak.upgrade().and_then(|current| lock(&current).clone());
            if let Some(session) = session.filter(|s| s.id == l.session) {
                session.lost_here(&l);
            }
        });
        let server = server(&lost).map_err(|e| starting(&e))?;
        control.loaded(params.model.clone(), params.engine_info.clone());
        let state = Arc::new(NodeState {
            config,
            params,
            nics: parts.nics,
            links: parts.links,
            near: parts.near,
            server,
            service: parts.service,
            thread_times: parts.thread_times,
            budget: Budget::new(),
            ended: Mutex::default(),
        });
        let (stop, _) = watch::channel(None);
        Ok(NodeCore {
            state,
            current,
            control,
            stop,
        })
    }

    /// What other parts of the program reach of the node while it serves.
    pub fn handle(&self) -> NodeHandle {
        NodeHandle {
            state: self.state.clone(),
            current: self.current.clone(),
        }
    }

    /// Handle that stops the node.
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Returns a reader of the node's figures for any thread, also while no frontend is served.
    pub fn figures(&self) -> impl Fn() -> NodeFigures + Send + Sync + 'static {
        let handle = self.handle();
        move || handle.figures()
    }

    /// Serves frontends as [`Node::run_with`](super::Node::run_with) does. The caller stops the
    /// server afterwards.
    pub async fn serve(mut self, mut served: impl FnMut(&ServedReport)) -> Option<String> {
        let mut stopped = self.stop.subscribe();
        let mut sessions = 0;
        loop {
            let session = tokio::select! { biased;
                why = stop_reason(&mut stopped) => return Some(why),
                s = self.control.accept_session() => s,
            };
            let session = match session {
                Ok(s) => s,
                Err(e) => return Some(e.to_string()),
            };
            let peer = session.peer_node.clone();
            tracing::info!("serving {peer} ({})", session.peer_address);
            sessions += 1;
            let own = Arc::new(Session::new(sessions, self.state.clone(), &session));
            *lock(&self.current) = Some(own.clone());
            let handle = session.handle.clone();
            let watching = tokio::spawn(own.clone().watch());
            let reading = tokio::spawn(own.clone().take_readings());
            let mut running = tokio::spawn(session.run(own.clone()));
            let ended = tokio::select! { biased;
                why = stop_reason(&mut stopped) => {
                    handle.close(ErrorCode::ShuttingDown, &why);
                    let _ = tokio::time::timeout(STOPPING, &mut running).await;
                    Err(why)
                }
                cause = &mut running => Ok(cause),
            };
            watching.abort();
            reading.abort();
            // NIC threads report what they take down, so the session stays current until then.
            own.release(self.state.config.deadlines.drain()).await;
            *lock(&self.current) = None;
            let clean = matches!(&ended, Ok(Ok(cause)) if cause.is_clean());
            served(&own.report(&peer, clean));
            match ended {
                Ok(Ok(cause)) if cause.is_clean() => tracing::info!("{peer} is done"),
                Ok(Ok(cause)) => tracing::warn!("the session with {peer} ended: {cause}"),
                Ok(Err(e)) => tracing::warn!("the session with {peer} failed: {e}"),
                Err(why) => return Some(why),
            }
            if self.state.params.once {
                return None;
            }
        }
    }
}

async fn stop_reason(stopped: &mut watch::Receiver<Option<String>>) -> String {
    let why = stopped.wait_for(Option::is_some).await;
    match why.map(|why| why.clone().unwrap_or_default()) {
        Ok(why) => why,
        // Impossible: the node holds the sender.
        Err(_) => std::future::pending().await,
    }
}
