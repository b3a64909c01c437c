//! The accelerator's listener: many peers may connect, and one frontend at a time is served.

use std::{io, net::SocketAddr, sync::Arc};

use fabric::{clock::now_ns, os::listen};
use record::{EngineInfo, NodeFacts};
use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    io::Wire,
    session::{Served, ServerSession},
};
use crate::{
    control::{
        auth::Auth,
        core::{
            Local, Own, Timing,
            accelerator::{Accelerator, Event},
        },
        error::ControlError,
        lobby::{Guest, Lobby, canonical},
        message::Hex,
    },
    model::ModelSpec,
};

/// Parameters of an accelerator's sessions.
#[derive(Clone, Debug)]
pub struct ServerParams {
    /// This node's name.
    pub node: String,
    /// Authentication policy of this node.
    pub auth: Auth,
    /// The model that this node runs.
    pub model: ModelSpec,
    /// Engine that runs the model.
    pub engine: EngineInfo,
    /// Facts about this node.
    pub facts: NodeFacts,
    /// Time limits and heartbeat.
    pub timing: Timing,
    /// Most peers without a session. One more evicts the oldest silent peer, so that silent peers
    /// keep no frontend out.
    pub pending: usize,
}

/// The listener. A task performs handshakes until this is dropped, also during a session, so that a
/// second frontend learns at once that it has to wait.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    sessions: mpsc::Receiver<ServerSession>,
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
    }
}

impl Server {
    /// Listens on `address`. Must be called on a tokio runtime, which drives the handshakes.
    ///
    /// # Errors
    /// The address is in use, is not local, or is not loopback although no token is set; or a
    /// parameter is invalid.
    pub async fn bind(address: SocketAddr, params: ServerParams) -> Result<Self, ControlError> {
        let own = Own::Engine(params.engine);
        let (node, facts) = (params.node, params.facts);
        let local = Local::new(node, params.auth, params.model, own, facts, &params.timing)?;
        local.auth.check(address.ip())?;
        if params.pending == 0 {
            return Err(ControlError::Setting {
                key: "pending",
                problem: "0 handshakes, must be at least 1".to_owned(),
            });
        }
        let failed = |e: io::Error| {
            let problem = match e.kind() {
                io::ErrorKind::AddrInUse => format!(
                    "{address} is in use by another program: stop it or choose another port"
                ),
                _ => format!("cannot listen on {address}: {e}; it must be an address of this node"),
            };
            let key = "control.listen";
            ControlError::Setting { key, problem }
        };
        let listener = listen(address, None).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (found, sessions) = mpsc::channel(1);
        let (served, local) = (Served::default(), Arc::new(local));
        let (pending, patience) = (params.pending, local.deadline);
        let mut lobby = Lobby::new(
            ("control", "control connections refused"),
            listener,
            move || pending,
            patience,
            move |guest| greet(guest, local.clone(), served.clone()),
        );
        let task = tokio::spawn(async move {
            loop {
                match lobby.next().await {
                    // Only one session exists at a time, so the channel has room, unless the owner
                    // is gone.
                    Ok(session) => {
                        if found.try_send(session).is_err() {
                            tracing::warn!("control: a frontend came while this node stops");
                        }
                    }
                    Err(e) => {
                        let line = || format!("control: refused: {e}");
                        lobby.quiet.warn(now_ns(), line);
                    }
                }
            }
        });
        let task = task.abort_handle();
        Ok(Server {
            address,
            sessions,
            task,
        })
    }

    /// The address listened on, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits without a time limit for an authenticated frontend that runs the same model. Until the
    /// returned session ends or is dropped, others get the error `busy`. Failures are logged.
    ///
    /// # Errors
    /// The runtime that drives the handshakes is gone.
    pub async fn accept_session(&mut self) -> Result<ServerSession, ControlError> {
        self.sessions
            .recv()
            .await
            .ok_or_else(|| ControlError::Setting {
                key: "control.listen",
                problem: format!("the task that listens on {} has ended", self.address),
            })
    }
}

/// Performs one handshake; after a failure, also the orderly end.
async fn greet(
    guest: Guest,
    local: Arc<Local>,
    served: Served,
) -> Result<ServerSession, ControlError> {
    let Guest {
        stream,
        address,
        since_ns,
        speaks: _,
        proof,
    } = guest;
    // Fails only for a dead socket.
    let reached = canonical(stream.local_addr().unwrap_or(address));
    let nonce = Hex::random().map_err(|e| ControlError::Random(Arc::new(e)))?;
    let from = address.to_string();
    let mut wire = Wire::new(stream, &from)?;
    let mut core = Accelerator::new(local, from, nonce, since_ns);
    let mut claim = None;
    loop {
        match wire.next(&mut core).await {
            Some(Event::Proved) => proof.given(),
            Some(Event::Admit(node)) => {
                let place = served.claim(&node).map(|place| claim = Some(place));
                core.admit(place, now_ns());
            }
            Some(Event::Connected(node)) => {
                if let Some(claim) = claim.take() {
                    let addresses = (address, reached);
                    return Ok(ServerSession::new((wire, core), addresses, node, claim));
                }
            }
            Some(Event::Gone(cause)) => {
                wire.close(core).await;
                return Err(cause);
            }
            // Impossible before the session begins, and `None` comes after the cause.
            Some(_) | None => {}
        }
    }
}
