//! The accelerator's listener: any number of strangers may knock, one frontend at a time is served.

use std::{collections::VecDeque, io, net::SocketAddr, sync::Arc, time::Duration};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::mpsc,
    task::{AbortHandle, JoinSet},
    time::sleep,
};

use crate::{
    clock::now_ns,
    model::ModelSpec,
    wire::{EngineInfo, NodeFacts},
};

use super::{
    io::Wire,
    session::{Served, ServerSession},
};
use crate::control::{
    auth::Auth,
    core::{
        Local, Own, Timing,
        accelerator::{Accelerator, Event},
    },
    error::ControlError,
    message::Hex,
    quiet::Quiet,
};

/// What an accelerator brings to every session.
#[derive(Clone, Debug)]
pub struct ServerParams {
    /// This node's name.
    pub node: String,
    /// How frontends prove who they are.
    pub auth: Auth,
    /// The model that is run here.
    pub model: ModelSpec,
    /// What runs it.
    pub engine: EngineInfo,
    /// What this node says of itself.
    pub facts: NodeFacts,
    /// Deadlines and heartbeat.
    pub timing: Timing,
    /// Most handshakes under way; one more costs the oldest its place, so that those who knock and
    /// never speak cannot keep others out.
    pub pending: usize,
}

/// The listener. Handshakes go on in a task of their own until this is dropped, also while a
/// session is run, so that a second frontend is told at once that it has to wait.
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
    /// The address is in use, is not this node's or is open to strangers without a token, or the
    /// parameters make no sense.
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
        let listener = TcpListener::bind(address).await.map_err(|e| {
            let address = address.to_string();
            if e.kind() == io::ErrorKind::AddrInUse {
                ControlError::PortInUse { address }
            } else {
                ControlError::Listen {
                    address,
                    source: Arc::new(e),
                }
            }
        })?;
        let address = listener.local_addr().map_err(|e| ControlError::Listen {
            address: address.to_string(),
            source: Arc::new(e),
        })?;
        let (found, sessions) = mpsc::channel(1);
        let door = Door {
            listener,
            local: Arc::new(local),
            served: Served::default(),
            pending: params.pending,
            quiet: Quiet::new("control connections refused"),
        };
        let task = tokio::spawn(door.keep(found)).abort_handle();
        Ok(Server {
            address,
            sessions,
            task,
        })
    }

    /// The address listened on, with the port the system chose where the config said 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Waits, for as long as it takes, for a frontend that has proved who it is and runs the same
    /// model. Until the session it gives is over (or dropped), others are told that this node is
    /// busy. Peers that fail are logged.
    ///
    /// # Errors
    /// The runtime that drives the handshakes is gone.
    pub async fn accept_session(&mut self) -> Result<ServerSession, ControlError> {
        self.sessions
            .recv()
            .await
            .ok_or_else(|| ControlError::Listen {
                address: self.address.to_string(),
                source: Arc::new(io::Error::other("the task that listens has ended")),
            })
    }
}

/// The task that listens.
struct Door {
    listener: TcpListener,
    local: Arc<Local>,
    served: Served,
    pending: usize,
    quiet: Quiet,
}

impl Door {
    async fn keep(mut self, found: mpsc::Sender<ServerSession>) {
        let mut handshakes = JoinSet::new();
        let mut oldest_first: VecDeque<AbortHandle> = VecDeque::new();
        loop {
            tokio::select! {
                knock = self.listener.accept() => match knock {
                    Ok((stream, address)) => {
                        oldest_first.retain(|h| !h.is_finished());
                        if oldest_first.len() >= self.pending
                            && let Some(oldest) = oldest_first.pop_front()
                        {
                            let pending = self.pending;
                            self.quiet.warn(now_ns(), || format!(
                                "control: {pending} handshakes under way: the oldest gives way to \
                                 {address}"
                            ));
                            oldest.abort();
                        }
                        let (local, served) = (self.local.clone(), self.served.clone());
                        let greeted = greet(stream, address, local, served);
                        oldest_first.push_back(handshakes.spawn(greeted));
                    }
                    Err(e) => {
                        // Out of descriptors, most likely: wait until some are given back.
                        self.quiet.warn(now_ns(), || format!("control.listen: cannot accept: {e}"));
                        sleep(Duration::from_millis(50)).await;
                    }
                },
                Some(done) = handshakes.join_next() => match done {
                    Ok(Ok(session)) => {
                        // Only one session exists at a time, so there is room, or nothing asks any
                        // more.
                        if found.try_send(session).is_err() {
                            tracing::warn!("control: a frontend came while this node stops");
                        }
                    }
                    Ok(Err(e)) => self.quiet.warn(now_ns(), || format!("control: refused: {e}")),
                    Err(_) => {}
                },
                () = self.quiet.wait() => self.quiet.sum_up(now_ns()),
            }
        }
    }
}

/// One handshake, the goodbye included.
pub(in crate::control) async fn greet(
    stream: TcpStream,
    address: SocketAddr,
    local: Arc<Local>,
    served: Served,
) -> Result<ServerSession, ControlError> {
    // Only a socket that is no more has none.
    let reached = stream.local_addr().unwrap_or(address);
    let nonce = Hex::random().map_err(|e| ControlError::Random(Arc::new(e)))?;
    let from = address.to_string();
    let mut wire = Wire::new(stream, &from)?;
    let mut core = Accelerator::new(local, from, nonce, now_ns());
    let mut claim = None;
    loop {
        match wire.next(&mut core).await {
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
            // None comes before the session begins, and the cause before the end.
            Some(_) | None => {}
        }
    }
}
