//! The accelerator's listener: many peers may connect, and one frontend at a time is served.

use std::{
    io,
    net::SocketAddr,
    sync::{Arc, Mutex, MutexGuard, PoisonError, Weak},
};

use fabric::{clock::now_ns, os::listen};
use record::EngineInfo;
use tokio::{sync::mpsc, task::AbortHandle};

use super::{
    io::Wire,
    session::{Claim, ServerHandle, ServerSession},
};
use crate::{
    control::{
        core::{
            HandshakeStep, LocalNode, RolePart,
            accelerator::{Accelerator, Event},
        },
        error::ControlError,
        lobby::{Guest, Lobby, canonical},
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
    task: AbortHandle,
}

impl Drop for Server {
    fn drop(&mut self) {
        self.task.abort();
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
        local.check()?;
        local.auth.check(address.ip())?;
        if pending == 0 {
            return Err(ControlError::Setting {
                key: "pending",
                problem: "0 handshakes, must be at least 1".to_owned(),
            });
        }
        let failed = |e: io::Error| ControlError::Setting {
            key: "control.listen",
            problem: e.to_string(),
        };
        let listener = listen(address, None).map_err(failed)?;
        let address = listener.local_addr().map_err(failed)?;
        let (found, sessions) = mpsc::channel(1);
        let patience = local.timing.step;
        let (served, local) = (Served::default(), Arc::new(Mutex::new(Arc::new(local))));
        let current = local.clone();
        let mut lobby = Lobby::new(
            "control",
            listener,
            move || pending,
            patience,
            move |guest| greet(guest, lock(&current).clone(), served.clone()),
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
                    Err(e @ ControlError::Loading { .. }) => tracing::debug!("control: {e}"),
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
            local,
            sessions,
            task,
        })
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
        self.sessions
            .recv()
            .await
            .ok_or_else(|| ControlError::Setting {
                key: "control.listen",
                problem: format!("the task that listens on {} has ended", self.address),
            })
    }
}

fn lock<T>(mutex: &Mutex<T>) -> MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
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

/// Performs one handshake; after a failure, also the orderly end.
async fn greet(
    guest: Guest,
    local: Arc<LocalNode>,
    served: Served,
) -> Result<ServerSession, ControlError> {
    let Guest {
        stream,
        address,
        since_ns,
        speaks: _,
        proof,
    } = guest;
    // `local_addr` fails only for a dead socket.
    let local_address = canonical(stream.local_addr().unwrap_or(address));
    let nonce = Hex::random().map_err(|e| ControlError::Random(Arc::new(e)))?;
    let from = address.to_string();
    let mut wire = Wire::new(stream, &from)?;
    let mut core = Accelerator::new(local, from, nonce, since_ns);
    let mut claim = None;
    loop {
        match wire.next(&mut core).await {
            Some(Event::Handshake(HandshakeStep::Proved)) => proof.given(),
            Some(Event::Handshake(HandshakeStep::Admit(node))) => {
                let place = claim_place(&served, &node).map(|place| claim = Some(place));
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
                        local_address,
                        claim,
                        inbox,
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
