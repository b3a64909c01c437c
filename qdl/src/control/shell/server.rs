//! The accelerator's server: many peers may connect, and one frontend at a time is served. The
//! listener is a lobby; a [`Reception`] greets each peer.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, Weak},
};

use fabric::os::lock;
use fabric::{clock::now_ns, os::listen};
use record::EngineInfo;
use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    blocking::Blocking,
    io::Wire,
    session::{Claim, ServerHandle, ServerSession},
    stream::{ControlStream, of_socket},
};
use crate::{
    control::{
        core::{
            HandshakeStep, LocalNode, RolePart,
            accelerator::{Accelerator, Event},
        },
        error::ControlError,
        lobby::{Guest, Lobby, Proof, canonical},
        message::Hex,
    },
    model::ModelSpec,
};

/// The listener. A task performs handshakes until this is dropped, also during a session, so that a
/// second frontend gets the error `busy` at once.
#[derive(Debug)]
pub struct Server {
    address: SocketAddr,
    local: Arc<Mutex<Arc<LocalNode>>>,
    sessions: mpsc::Receiver<ServerSession>,
    /// The task of the listener, if the server has one.
    task: Option<AbortHandle>,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.iter().for_each(AbortHandle::abort);
    }
}

impl Server {
    /// Listens on `address`. At most `pending` peers without a session have a place; one more
    /// evicts the oldest silent peer, so that silent peers keep no frontend out. Must be called on
    /// a tokio runtime, which drives the handshakes.
    ///
    /// # Errors
    /// The address is in use, is not local, or is not loopback although no token is set; or a
    /// setting of `local` is invalid.
    pub async fn bind(
        address: SocketAddr,
        pending: usize,
        local: LocalNode,
    ) -> Result<Self, ControlError> {
        local.auth.check(address.ip())?;
        let failed = |e: io::Error| ControlError::Local(format!("control.listen: {e}"));
        let listener = listen(address, None).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (mut server, reception) = Server::without_listener(address, local)?;
        let patience = lock(&server.local).timing.step;
        let greeter = reception.clone();
        let mut lobby = Lobby::new(
            "control",
            listener,
            move || pending,
            patience,
            move |guest| greet(guest, greeter.clone()),
        );
        let task = tokio::spawn(async move {
            loop {
                let greeted = lobby.next().await;
                let line = |e: &ControlError| format!("control: refused: {e}");
                if let Some(e) = reception.pass_on(greeted) {
                    lobby.quiet.warn(now_ns(), || line(&e));
                }
            }
        });
        server.task = Some(task.abort_handle());
        Ok(server)
    }

    /// A server at `address` whose peers come to the returned reception.
    ///
    /// # Errors
    /// A setting of `local` is invalid.
    pub fn without_listener(
        address: SocketAddr,
        local: LocalNode,
    ) -> Result<(Self, Reception), ControlError> {
        local.check()?;
        let (found, sessions) = mpsc::channel(1);
        let local = Arc::new(Mutex::new(Arc::new(local)));
        let reception = Reception {
            local: local.clone(),
            served: Served::default(),
            found,
            blocking: Blocking::default(),
        };
        let server = Server {
            address,
            local,
            sessions,
            task: None,
        };
        Ok((server, reception))
    }

    /// The address listened on, with the port that the system chose for port 0.
    pub fn address(&self) -> SocketAddr {
        self.address
    }

    /// Ends the loading: from now on frontends with `model` are admitted, and are told of `engine`.
    pub(crate) fn loaded(&self, model: ModelSpec, engine: EngineInfo) {
        let mut local = lock(&self.local);
        *local = Arc::new(LocalNode {
            model,
            own: RolePart::Engine(engine),
            ..LocalNode::clone(&local)
        });
    }

    /// Waits without a time limit for an authenticated frontend that runs the same model. Until the
    /// returned session ends or is dropped, others get the error `busy`. Failures are logged.
    ///
    /// # Errors
    /// The runtime that drives the handshakes is gone.
    pub async fn accept_session(&mut self) -> Result<ServerSession, ControlError> {
        let ended = || format!("the task that listens on {} has ended", self.address);
        let session = self.sessions.recv().await;
        session.ok_or_else(|| ControlError::Local(ended()))
    }
}

/// The claim of the frontend being served, if any.
type Served = Arc<Mutex<Weak<String>>>;

/// Claims the place for `node`; the error names the frontend being served.
fn claim_place(served: &Served, node: &str) -> Result<Claim, String> {
    let mut served = lock(served);
    if let Some(other) = served.upgrade() {
        return Err(other.to_string());
    }
    let claim = Arc::new(node.to_owned());
    *served = Arc::downgrade(&claim);
    Ok(claim)
}

/// A peer that has connected.
#[derive(Debug)]
pub struct Visitor {
    /// The connection.
    pub stream: Box<dyn ControlStream>,
    /// The peer's address.
    pub address: SocketAddr,
    /// This node's address that the peer reached.
    pub reached: SocketAddr,
    /// Time at which the peer connected.
    pub since_ns: u64,
}

/// Greets the peers of a [`Server`], and passes admitted frontends on to it.
#[derive(Clone, Debug)]
pub struct Reception {
    local: Arc<Mutex<Arc<LocalNode>>>,
    served: Served,
    found: mpsc::Sender<ServerSession>,
    /// Thread of the handlers' slow calls.
    pub blocking: Blocking,
}

impl Reception {
    /// Performs one handshake, and passes an admitted frontend on to the server. After a failure,
    /// also performs the orderly end.
    ///
    /// # Errors
    /// The cause of a refusal.
    pub async fn receive(&self, visitor: Visitor) -> Result<(), ControlError> {
        let greeted = self.greet(visitor, &Proof::default()).await;
        self.pass_on(greeted).map_or(Ok(()), Err)
    }

    /// Passes an admitted frontend on. Returns a refusal that is worth a line of the log.
    fn pass_on(&self, greeted: Result<ServerSession, ControlError>) -> Option<ControlError> {
        match greeted {
            // Only one session exists at a time, so the channel has room, unless the owner is gone.
            Ok(session) => {
                if self.found.try_send(session).is_err() {
                    tracing::warn!("control: a frontend came while this node stops");
                }
                None
            }
            Err(e) if e.is_early() => {
                tracing::debug!("control: {e}");
                None
            }
            Err(e) => Some(e),
        }
    }

    async fn greet(&self, visitor: Visitor, proof: &Proof) -> Result<ServerSession, ControlError> {
        let Visitor {
            stream,
            address,
            reached,
            since_ns,
        } = visitor;
        let nonce = Hex::random().map_err(|e| ControlError::no_random(&e))?;
        let from = address.to_string();
        let mut wire = Wire::new(stream);
        let local = lock(&self.local).clone();
        let mut core = Accelerator::new(local, from, nonce, since_ns);
        let mut claim = None;
        loop {
            match wire.next(&mut core).await {
                Some(Event::Handshake(HandshakeStep::Proved)) => proof.given(),
                Some(Event::Handshake(HandshakeStep::Admit(node))) => {
                    let place = claim_place(&self.served, &node).map(|place| claim = Some(place));
                    core.admit(place, now_ns());
                }
                Some(Event::Handshake(HandshakeStep::Connected(node))) => {
                    if let Some(claim) = claim.take() {
                        let (commands, inbox) = mpsc::unbounded_channel();
                        return Ok(ServerSession {
                            wire,
                            core,
                            peer_node: node,
                            peer_address: address,
                            local_address: reached,
                            claim,
                            inbox,
                            blocking: self.blocking,
                            handle: ServerHandle { commands },
                        });
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
}

/// Greets a guest of the lobby.
async fn greet(guest: Guest, reception: Reception) -> Result<ServerSession, ControlError> {
    let Guest {
        stream,
        address,
        since_ns,
        speaks: _,
        proof,
    } = guest;
    let visitor = Visitor {
        // `local_addr` fails only for a dead socket.
        reached: canonical(stream.local_addr().unwrap_or(address)),
        stream: of_socket(stream, &address.to_string())?,
        address,
        since_ns,
    };
    reception.greet(visitor, &proof).await
}
