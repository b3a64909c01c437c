//! The handshake: hello, Noise, model.

use std::{sync::Arc, time::Duration};

use fabric::wire::Stream;
use record::{EngineInfo, NodeFacts};

use super::heartbeat::HeartbeatCfgs;
use crate::{
    control::{
        auth::Auth,
        error::ControlError,
        frame::FrameError,
        limits::check_node_name,
        message::{AuthKind, ErrorCode, Hex, Message, Role, VERSION},
        noise::{NoiseHandshake, NoiseSession},
    },
    model::ModelSpec,
};

/// Time limits of a session, beside those of single requests.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Timing {
    /// Time limit for connecting, for the whole handshake, and for sending any one frame.
    pub step: Duration,
    /// Periods of the heartbeat.
    pub heartbeat: HeartbeatCfgs,
}

impl Default for Timing {
    fn default() -> Self {
        Timing {
            step: Duration::from_secs(5),
            heartbeat: HeartbeatCfgs::default(),
        }
    }
}

/// Role-specific part of a node's model frame. A frontend must send `stream` and an accelerator
/// must send `engine`, and neither may send the other field.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum RolePart {
    /// A frontend: moments at which tokens leave the accelerator.
    Stream(Stream),
    /// An accelerator: the engine that runs the model.
    Engine(EngineInfo),
    /// An accelerator whose engine is not ready: it refuses every frontend.
    Loading,
}

impl RolePart {
    /// Extracts the part from the model frame of a peer with this role.
    fn of(
        role: Role,
        stream: Option<Stream>,
        engine: Option<EngineInfo>,
    ) -> Result<RolePart, (&'static str, String)> {
        let missing = |field| Err((field, format!("is missing: the {role} has to say it")));
        let foreign = |field| Err((field, format!("comes from the {} alone", role.other())));
        match (role, stream, engine) {
            (Role::Frontend, Some(stream), None) => Ok(RolePart::Stream(stream)),
            (Role::Accelerator, None, Some(engine)) => Ok(RolePart::Engine(engine)),
            (Role::Frontend, None, _) => missing("stream"),
            (Role::Accelerator, _, None) => missing("engine"),
            (Role::Frontend, Some(_), Some(_)) => foreign("engine"),
            (Role::Accelerator, Some(_), Some(_)) => foreign("stream"),
        }
    }
}

/// Identity, policy and settings of this node for all its sessions.
#[derive(Clone, Debug)]
pub struct LocalNode {
    /// Name of the node.
    pub node: String,
    /// Authentication policy.
    pub auth: Auth,
    /// The model that the node runs.
    pub model: ModelSpec,
    /// Role-specific part of the model frame.
    pub own: RolePart,
    /// Facts about the node.
    pub facts: NodeFacts,
    /// Time limits, and periods of the heartbeat.
    pub timing: Timing,
}

impl LocalNode {
    /// Checks the settings.
    pub(crate) fn check(&self) -> Result<(), ControlError> {
        let name = check_node_name(&self.node);
        let name = name.map_err(|problem| format!("node: {:?}: {problem}", self.node));
        let heartbeat = || self.timing.heartbeat.check();
        name.and_then(|()| heartbeat().map_err(|problem| format!("heartbeat: {problem}")))
            .map_err(ControlError::Local)
    }
}

/// The frame that comes next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Phase {
    Hello,
    Answer,
    Model,
    /// The owner decides whether this frontend is served.
    Admission,
    Session,
}

/// State of one side of a handshake.
#[derive(Debug)]
pub struct Handshake {
    pub role: Role,
    pub local: Arc<LocalNode>,
    /// The peer, as errors print it.
    pub peer: String,
    /// The peer's node name, once its model has come.
    pub peer_node: String,
    /// The peer has authenticated.
    pub proved: bool,
    /// Role-specific part of the peer's model frame, once it has come.
    pub peer_own: Option<RolePart>,
    /// Facts about the peer's node.
    pub peer_facts: NodeFacts,
    address: String,
    nonce: Hex<32>,
    /// Set after the hellos.
    noise: Option<NoiseHandshake>,
    /// The keys for the shell, once they are agreed.
    session: Option<NoiseSession>,
    phase: Phase,
}

impl Handshake {
    pub(crate) fn new(role: Role, local: Arc<LocalNode>, address: String, nonce: Hex<32>) -> Self {
        Handshake {
            role,
            local,
            peer: address.clone(),
            peer_node: String::new(),
            proved: false,
            peer_own: None,
            peer_facts: NodeFacts::default(),
            address,
            nonce,
            noise: None,
            session: None,
            phase: Phase::Hello,
        }
    }

    pub(crate) fn is_done(&self) -> bool {
        self.phase == Phase::Session
    }

    pub(crate) fn asks_for_a_place(&self) -> bool {
        self.phase == Phase::Admission
    }

    /// Admits the frontend and returns the last frame of the handshake.
    pub(crate) fn admit(&mut self) -> Option<Message> {
        let asked = self.asks_for_a_place();
        asked.then(|| {
            self.phase = Phase::Session;
            self.own_model()
        })
    }

    /// Name of the expected frame.
    pub(crate) fn expected(&self) -> &'static str {
        match self.phase {
            Phase::Hello => "hello",
            Phase::Answer => "answer",
            Phase::Model => "model",
            Phase::Admission => "admission",
            Phase::Session => "a frame of the session",
        }
    }

    /// Handles a frame of the handshake and returns the reply. An accelerator sends no frame before
    /// the peer's hello and no proof before the peer's proof. The last step is admission.
    pub(crate) fn receive(&mut self, message: Message) -> Result<Option<Message>, ControlError> {
        let accelerator = self.role == Role::Accelerator;
        let reply = match (self.phase, message) {
            (
                Phase::Hello,
                Message::Hello {
                    role, auth, nonce, ..
                },
            ) => {
                self.check_hello(role, auth, &nonce)?;
                self.phase = Phase::Answer;
                if accelerator {
                    self.hello()
                } else {
                    self.own_answer()?
                }
            }
            (Phase::Answer, Message::Answer { noise }) => {
                let read = self.noise.as_mut().map(|own| own.read(&noise));
                if !matches!(read, Some(Ok(()))) {
                    return Err(self.unauthenticated());
                }
                self.phase = Phase::Model;
                let answer = accelerator.then(|| self.own_answer()).transpose()?;
                let session = self.noise.take().and_then(|own| own.finish().ok());
                self.session = Some(session.ok_or_else(|| self.unauthenticated())?);
                self.proved = true;
                answer.unwrap_or_else(|| self.own_model())
            }
            (
                Phase::Model,
                Message::Model {
                    node,
                    heartbeat_ms,
                    spec,
                    stream,
                    engine,
                    facts,
                },
            ) => {
                self.check_node(node, heartbeat_ms)?;
                if self.local.own == RolePart::Loading {
                    let peer_text = format!("the {} loads its model", self.role);
                    return Err(self.refusing(
                        ErrorCode::Loading,
                        "came while the model loads",
                        peer_text,
                    ));
                }
                if let Err(mismatch) = self.local.model.check_against(&spec) {
                    let both = "both nodes must name the same model";
                    let peer_text = format!(
                        "model {}: the {} has {}, the {} has {}: {both}",
                        mismatch.field,
                        self.role,
                        mismatch.ours,
                        self.role.other(),
                        mismatch.theirs
                    );
                    let text = format!("{}: {both}", mismatch.between("this node", "the peer"));
                    return Err(self.refusing(ErrorCode::Model, text, peer_text));
                }
                let own = RolePart::of(self.role.other(), stream, engine);
                let own = own.map_err(|(field, problem)| self.field("model", field, problem))?;
                self.peer_own = Some(own);
                self.peer_facts = *facts;
                self.phase = if accelerator {
                    Phase::Admission
                } else {
                    Phase::Session
                };
                return Ok(None);
            }
            (_, message) => return Err(self.unexpected(&message, self.expected())),
        };
        Ok(Some(reply))
    }

    /// Refuses the peer: `text` is for this node, `peer_text` for the peer.
    pub(crate) fn refusing(
        &self,
        code: ErrorCode,
        text: impl Into<String>,
        peer_text: impl Into<String>,
    ) -> ControlError {
        ControlError::refusing(self.peer.clone(), code, text, peer_text)
    }

    /// Makes the error of a frame that is out of order.
    pub(crate) fn unexpected(&self, got: &Message, expected: &'static str) -> ControlError {
        let got = got.kind();
        let text = format!("sent {got} where {expected} was expected");
        let peer_text = format!("{got} came where {expected} was expected");
        self.refusing(ErrorCode::Protocol, text, peer_text)
    }

    /// Makes the error of an invalid field.
    pub(crate) fn field(
        &self,
        kind: &'static str,
        field: &'static str,
        mut problem: String,
    ) -> ControlError {
        problem.insert_str(0, &format!("{kind}.{field}: "));
        ControlError::protocol(self.peer.clone(), problem)
    }

    pub(crate) fn hello(&self) -> Message {
        Message::Hello {
            version: VERSION,
            role: self.role,
            auth: self.local.auth.kind(),
            nonce: self.nonce,
        }
    }

    /// The keys of the session, once. The shell encrypts every frame after this side's answer.
    pub(in crate::control) fn take_session(&mut self) -> Option<NoiseSession> {
        self.session.take()
    }

    fn own_answer(&mut self) -> Result<Message, ControlError> {
        match self.noise.as_mut().map(NoiseHandshake::write) {
            Some(Ok(noise)) => Ok(Message::Answer { noise }),
            Some(Err(e @ snow::Error::Rng)) => Err(self.at_fault(&e)),
            _ => Err(self.unauthenticated()),
        }
    }

    /// Makes the error of a Noise message that does not fit.
    fn unauthenticated(&self) -> ControlError {
        match self.local.auth {
            Auth::Token(_) => self.refusing(
                ErrorCode::Auth,
                "its token is not this node's: token_file must hold the same on both",
                "the tokens differ: token_file must hold the same on both nodes",
            ),
            Auth::None | Auth::Unset => {
                ControlError::protocol(self.peer.clone(), FrameError::Forged.to_string())
            }
        }
    }

    fn at_fault(&self, e: &snow::Error) -> ControlError {
        ControlError::at_fault(self.peer.clone(), self.role, e.to_string())
    }

    fn own_model(&self) -> Message {
        let (stream, engine) = match &self.local.own {
            RolePart::Stream(stream) => (Some(*stream), None),
            RolePart::Engine(engine) => (None, Some(engine.clone())),
            // Such a node sends no model frame.
            RolePart::Loading => (None, None),
        };
        let every = self.local.timing.heartbeat.every.as_millis();
        Message::Model {
            node: self.local.node.clone(),
            heartbeat_ms: u32::try_from(every).unwrap_or(u32::MAX).max(1),
            spec: self.local.model.clone(),
            stream,
            engine,
            facts: Box::new(self.local.facts.clone()),
        }
    }

    /// Checks a hello in the protocol's order, and begins the Noise handshake. The codec has
    /// checked the version.
    fn check_hello(
        &mut self,
        role: Role,
        auth: AuthKind,
        nonce: &Hex<32>,
    ) -> Result<(), ControlError> {
        if role == self.role {
            let text =
                format!("is {role} too: a frontend talks to an accelerator; check the address");
            let peer_text = format!("both sides are {role}s: a frontend talks to an accelerator");
            return Err(self.refusing(ErrorCode::Role, text, peer_text));
        }
        if auth != self.local.auth.kind() {
            let (has, own) = match auth {
                AuthKind::None => ((self.role, role), ("has no", "wants one")),
                AuthKind::Token => ((role, self.role), ("wants a", "has none")),
            };
            let both = "set token_file on both nodes, to the same token";
            let text = format!("{} token and this node {}: {both}", own.0, own.1);
            let peer_text = format!(
                "the {} has a token and the {} has none: {both}",
                has.0, has.1
            );
            return Err(self.refusing(ErrorCode::Auth, text, peer_text));
        }
        let (frontend, accelerator) = match self.role {
            Role::Frontend => (&self.nonce, nonce),
            Role::Accelerator => (nonce, &self.nonce),
        };
        let noise = NoiseHandshake::new(self.role, &self.local.auth, frontend, accelerator);
        self.noise = Some(noise.map_err(|e| self.at_fault(&e))?);
        Ok(())
    }

    /// Checks the peer's identity.
    fn check_node(&mut self, node: String, heartbeat_ms: u32) -> Result<(), ControlError> {
        self.peer = format!("{node} ({})", self.address);
        if node == self.local.node {
            let text = "has this node's name: names must be unique";
            let peer_text = format!("node name {node:?} is taken: names must be unique");
            return Err(self.refusing(ErrorCode::NameTaken, text, peer_text));
        }
        let longest = self.local.timing.heartbeat.longest_period();
        if Duration::from_millis(u64::from(heartbeat_ms)) >= longest {
            let problem = format!(
                "{heartbeat_ms}, but the {} wants heartbeats more often than every {longest:?}: \
                 give both nodes the same heartbeat settings",
                self.role
            );
            return Err(self.field("model", "heartbeat_ms", problem));
        }
        self.peer_node = node;
        Ok(())
    }
}
