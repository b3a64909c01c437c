//! From the first byte to a peer that is known: hello, proof, model. Both sides of it.

use std::{
    sync::{Arc, Mutex, PoisonError},
    time::Duration,
};

use tokio::time::Instant;

use crate::model::ModelSpec;

use super::{
    ControlError,
    auth::{Auth, Challenge},
    heartbeat::HeartbeatCfgs,
    message::{AuthKind, Hex, Message, Role, VERSION},
    wire::Wire,
};

/// This node's side of every session.
#[derive(Clone, Debug)]
pub(super) struct Local {
    pub role: Role,
    pub node: String,
    pub auth: Auth,
    pub model: ModelSpec,
    pub heartbeat: HeartbeatCfgs,
    /// For the whole handshake.
    pub deadline: Duration,
}

/// What the handshake has found out.
#[derive(Clone, Debug)]
pub(super) struct Known {
    pub node: String,
    pub model: ModelSpec,
}

/// Which frontend is served; at most one is.
#[derive(Clone, Debug, Default)]
pub(super) struct Served(Arc<Mutex<Option<String>>>);

/// The right to be the one; given back when dropped.
#[derive(Debug)]
pub(super) struct Claim(Served);

impl Served {
    /// Takes the place for `node`, or says who has it.
    fn claim(&self, node: &str) -> Result<Claim, String> {
        let mut served = self.0.lock().unwrap_or_else(PoisonError::into_inner);
        match &*served {
            Some(other) => Err(other.clone()),
            None => {
                *served = Some(node.to_owned());
                Ok(Claim(self.clone()))
            }
        }
    }
}

impl Drop for Claim {
    fn drop(&mut self) {
        *self.0.0.lock().unwrap_or_else(PoisonError::into_inner) = None;
    }
}

/// What is kept of a hello.
struct Hello {
    node: String,
    nonce: Hex<32>,
}

impl Local {
    fn hello(&self, nonce: Hex<32>) -> Message {
        Message::Hello {
            version: VERSION,
            role: self.role,
            node: self.node.clone(),
            auth: self.auth.kind(),
            nonce,
            heartbeat_ms: u32::try_from(self.heartbeat.every.as_millis())
                .unwrap_or(u32::MAX)
                .max(1),
        }
    }

    /// Checks the peer's hello; the order of the checks is the protocol's.
    fn check_hello(&self, wire: &mut Wire, message: Message) -> Result<Hello, ControlError> {
        let Message::Hello {
            version,
            role,
            node,
            auth,
            nonce,
            heartbeat_ms,
        } = message
        else {
            return Err(unexpected(wire, &message, "hello"));
        };
        if version != VERSION {
            return Err(ControlError::Version {
                peer: wire.peer(),
                theirs: version,
            });
        }
        wire.name_peer(&node);
        if role == self.role {
            return Err(ControlError::Role {
                peer: wire.peer(),
                theirs: role,
            });
        }
        if node == self.node {
            return Err(ControlError::NameTaken {
                node,
                first: "this node".to_owned(),
                second: wire.peer(),
            });
        }
        if Duration::from_millis(u64::from(heartbeat_ms)) >= self.heartbeat.suspect_after {
            return Err(ControlError::Field {
                peer: wire.peer(),
                kind: "hello",
                field: "heartbeat_ms",
                problem: format!(
                    "{heartbeat_ms}, but the {} suspects a peer that is silent for {:?}: give both nodes \
                     the same heartbeat settings",
                    self.role, self.heartbeat.suspect_after
                ),
            });
        }
        if auth != self.auth.kind() {
            return Err(ControlError::TokenMissing {
                peer: wire.peer(),
                here: auth == AuthKind::None,
            });
        }
        Ok(Hello { node, nonce })
    }

    /// Checks the peer's proof.
    fn check_answer(
        &self,
        wire: &mut Wire,
        message: &Message,
        challenge: &Challenge<'_>,
    ) -> Result<(), ControlError> {
        let Message::Answer { mac } = message else {
            return Err(unexpected(wire, message, "answer"));
        };
        if !self.auth.verify(challenge, mac.as_ref()) {
            return Err(ControlError::TokenWrong { peer: wire.peer() });
        }
        wire.authenticated();
        Ok(())
    }

    fn check_model(&self, wire: &Wire, message: Message) -> Result<ModelSpec, ControlError> {
        let Message::Model { spec } = message else {
            return Err(unexpected(wire, &message, "model"));
        };
        match self.model.check_against(&spec) {
            Ok(()) => Ok(spec),
            Err(mismatch) => Err(ControlError::Model {
                peer: wire.peer(),
                mismatch,
            }),
        }
    }

    fn own_model(&self) -> Message {
        Message::Model {
            spec: self.model.clone(),
        }
    }
}

/// A frame that does not belong here.
pub(super) fn unexpected(wire: &Wire, got: &Message, expected: &'static str) -> ControlError {
    ControlError::Unexpected {
        peer: wire.peer(),
        got: got.kind(),
        expected,
    }
}

/// The frontend's side.
pub(super) async fn join(wire: &mut Wire, local: &Local) -> Result<Known, ControlError> {
    let end = Instant::now() + local.deadline;
    let ours = Hex::random()?;
    wire.send(&local.hello(ours)).await?;
    let message = wire.recv_until("hello", end, local.deadline).await?;
    let hello = local.check_hello(wire, message)?;

    let challenge = |prover, node| Challenge {
        prover,
        node,
        frontend: &ours,
        accelerator: &hello.nonce,
    };
    let mac = local.auth.prove(&challenge(Role::Frontend, &local.node));
    wire.send(&Message::Answer { mac }).await?;
    let message = wire.recv_until("answer", end, local.deadline).await?;
    local.check_answer(wire, &message, &challenge(Role::Accelerator, &hello.node))?;

    wire.send(&local.own_model()).await?;
    let message = wire.recv_until("model", end, local.deadline).await?;
    let model = local.check_model(wire, message)?;
    Ok(Known {
        node: hello.node,
        model,
    })
}

/// The accelerator's side. Says nothing before the peer's hello, proves nothing before the peer's proof,
/// and takes the place of the one frontend last of all.
pub(super) async fn admit(
    wire: &mut Wire,
    local: &Local,
    served: &Served,
) -> Result<(Known, Claim), ControlError> {
    let end = Instant::now() + local.deadline;
    let message = wire.recv_until("hello", end, local.deadline).await?;
    let hello = local.check_hello(wire, message)?;
    let ours = Hex::random()?;
    wire.send(&local.hello(ours)).await?;

    let challenge = |prover, node| Challenge {
        prover,
        node,
        frontend: &hello.nonce,
        accelerator: &ours,
    };
    let message = wire.recv_until("answer", end, local.deadline).await?;
    local.check_answer(wire, &message, &challenge(Role::Frontend, &hello.node))?;
    let mac = local.auth.prove(&challenge(Role::Accelerator, &local.node));
    wire.send(&Message::Answer { mac }).await?;

    let message = wire.recv_until("model", end, local.deadline).await?;
    let model = local.check_model(wire, message)?;
    let claim = served
        .claim(&hello.node)
        .map_err(|served| ControlError::Busy {
            peer: wire.peer(),
            served,
        })?;
    wire.send(&local.own_model()).await?;
    Ok((
        Known {
            node: hello.node,
            model,
        },
        claim,
    ))
}
