//! Every message of the control plane, closed: an unknown type or field is an error.
//! `docs/protocol.md` is normative; a change here is a change there and of [`VERSION`].

use std::{fmt, io, net::SocketAddr};

use record::{BatchSizes, EngineInfo, GpuRecord, NodeFacts, NodeUse};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    model::ModelSpec,
    wire::{Description, IbEnd, OfiEnd, Score, Stream},
};

/// Version of the protocol, both planes.
pub const VERSION: u64 = 8;

/// Which side of a session a node is.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// LoadGen's node: it connects.
    Frontend,
    /// A node with engines: it listens.
    Accelerator,
}

impl Role {
    /// The role of whoever is on the other side.
    pub const fn other(self) -> Role {
        match self {
            Role::Frontend => Role::Accelerator,
            Role::Accelerator => Role::Frontend,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            Role::Frontend => "frontend",
            Role::Accelerator => "accelerator",
        })
    }
}

/// How a node wants the session authenticated; both sides must want the same.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthKind {
    /// By proof of a shared token.
    Token,
    /// Not at all.
    None,
}

/// Why a session or a request was refused.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// Protocol versions differ.
    Version,
    /// Two nodes of the same role.
    Role,
    /// Token missing on one side, or not the same.
    Auth,
    /// Another frontend is served.
    Busy,
    /// Models differ.
    Model,
    /// Two nodes of one name.
    NameTaken,
    /// What was asked for exceeds the memory budget or a device's limits.
    Budget,
    /// A frame that breaks the protocol, or none in time.
    Protocol,
    /// The node is leaving.
    ShuttingDown,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(match self {
            ErrorCode::Version => "version",
            ErrorCode::Role => "role",
            ErrorCode::Auth => "auth",
            ErrorCode::Busy => "busy",
            ErrorCode::Model => "model",
            ErrorCode::NameTaken => "name_taken",
            ErrorCode::Budget => "budget",
            ErrorCode::Protocol => "protocol",
            ErrorCode::ShuttingDown => "shutting_down",
        })
    }
}

/// A fixed number of bytes, in JSON as lower-case hexadecimal digits. Never printed: some are
/// secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex<const N: usize>(pub [u8; N]);

/// What a data connection must show to be let in: random, fresh for each connection and epoch.
pub type Key = Hex<16>;

impl<const N: usize> Hex<N> {
    /// Fresh random bytes from the system.
    ///
    /// # Errors
    /// The system gave none.
    pub fn random() -> io::Result<Self> {
        let mut bytes = [0; N];
        getrandom::fill(&mut bytes).map_err(io::Error::other)?;
        Ok(Hex(bytes))
    }
}

impl<const N: usize> fmt::Debug for Hex<N> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Hex({N} bytes)")
    }
}

impl<const N: usize> Serialize for Hex<N> {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(&hex::encode(self.0))
    }
}

impl<'de, const N: usize> Deserialize<'de> for Hex<N> {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Self, D::Error> {
        let text = String::deserialize(d)?;
        let mut bytes = [0; N];
        hex::decode_to_slice(&text, &mut bytes)
            .map_err(|_| de::Error::custom(format_args!("not {} hexadecimal digits", 2 * N)))?;
        Ok(Hex(bytes))
    }
}

/// An accelerator's totals since the session began, carried by its heartbeats.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Samples that arrived.
    pub arrived: u64,
    /// Responses posted.
    pub responded: u64,
    /// Refusals posted in the place of responses.
    pub refused: u64,
    /// Samples that got no response: dropped, or too late for their connection.
    pub dropped_late: u64,
    /// Batches the engines ran.
    pub batches: u64,
    /// Samples that were copied on this node on their way.
    pub copies: u64,
    /// Parts of responses that others followed.
    pub parts: u64,
}

/// How well an accelerator finds what lies between the two nodes, and its own inside.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scores {
    /// Health of the sender's interior, as copies between its NICs and GPUs see it.
    pub interior: Score,
    /// Health of the rails between the two nodes, as far as the sender has something to say; at
    /// most [`MAX_RAILS`](crate::wire::MAX_RAILS).
    pub rails: Vec<RailScore>,
}

/// One rail in [`Scores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RailScore {
    /// Number of the accelerator's NIC.
    pub nic: u16,
    /// Its health.
    pub score: Score,
}

/// How a connection's bytes will cross, as the frontend asks for it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fabric", rename_all = "snake_case", deny_unknown_fields)]
pub enum RequestTransport {
    /// Over a socket, which the frontend opens.
    Tcp {},
    /// Over a queue pair.
    Ib {
        /// The frontend's end of it.
        end: IbEnd,
    },
    /// Over libfabric.
    Ofi {
        /// The frontend's end of it.
        end: OfiEnd,
    },
}

impl RequestTransport {
    /// `tcp`, `ib` or `ofi`.
    pub const fn fabric(&self) -> &'static str {
        match self {
            RequestTransport::Tcp {} => "tcp",
            RequestTransport::Ib { .. } => "ib",
            RequestTransport::Ofi { .. } => "ofi",
        }
    }
}

/// How a connection's bytes will cross, as the accelerator grants it.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "fabric", rename_all = "snake_case", deny_unknown_fields)]
pub enum GrantTransport {
    /// Over a socket.
    Tcp {
        /// Where the frontend connects to.
        address: SocketAddr,
    },
    /// Over a queue pair.
    Ib {
        /// The accelerator's end of it, which knows the frontend's already.
        end: IbEnd,
    },
    /// Over libfabric.
    Ofi {
        /// The accelerator's end of it, which knows the frontend's already.
        end: OfiEnd,
    },
}

impl GrantTransport {
    /// `tcp`, `ib` or `ofi`.
    pub const fn fabric(&self) -> &'static str {
        match self {
            GrantTransport::Tcp { .. } => "tcp",
            GrantTransport::Ib { .. } => "ib",
            GrantTransport::Ofi { .. } => "ofi",
        }
    }
}

/// One connection the frontend asks for.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionRequest {
    /// Number of the connection within the session; it stays when the connection is rebuilt.
    pub connection: u16,
    /// Which of the accelerator's NICs, modulo their number.
    pub nic: u16,
    /// Which of the accelerator's GPUs, counted from the NIC's own, modulo their number: 0 is its
    /// own.
    pub gpu_turn: u16,
    /// From 1; higher each time the connection is opened.
    pub epoch: u32,
    /// Slots in each direction, at most [`MAX_SLOTS`](crate::fabric::MAX_SLOTS).
    pub slots: u32,
    /// Bytes of one slot on the accelerator.
    pub request_stride: u32,
    /// Bytes of one slot on the frontend, the response's header included.
    pub response_stride: u32,
    /// The fabric and what it needs of the frontend.
    pub transport: RequestTransport,
}

/// One connection the accelerator grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionGrant {
    /// As asked for.
    pub connection: u16,
    /// As asked for.
    pub epoch: u32,
    /// As asked for.
    pub slots: u32,
    /// The accelerator's NIC that it ends at.
    pub nic: u16,
    /// The GPU whose engine its samples go to; `None` where the accelerator makes no difference.
    pub gpu: Option<u32>,
    /// What the data connection must show.
    pub key: Key,
    /// The fabric and what it needs of the accelerator.
    pub transport: GrantTransport,
}

/// A frame.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    /// Who is speaking. First frame of each side.
    Hello {
        /// [`VERSION`].
        version: u64,
        /// The sender's.
        role: Role,
        /// The sender's node name.
        node: String,
        /// What the sender wants.
        auth: AuthKind,
        /// 32 fresh random bytes.
        nonce: Hex<32>,
        /// How often the sender will send heartbeats, in milliseconds.
        heartbeat_ms: u32,
    },
    /// Proof of the token; see [`auth`](super::auth).
    Answer {
        /// The proof, absent where `auth` is `none`.
        mac: Option<Hex<32>>,
    },
    /// The model the sender runs.
    Model {
        /// All of it.
        spec: ModelSpec,
        /// When tokens are to leave the accelerator: the frontend's to say, and it must.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stream: Option<Stream>,
        /// What runs the model: the accelerator's to say, and it must.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<EngineInfo>,
        /// What the sender says of itself and its machine.
        facts: Box<NodeFacts>,
    },
    /// Asks for connections; again, with higher epochs, to rebuild lost ones.
    Open {
        /// Of the request.
        id: u64,
        /// Those wanted.
        connections: Vec<ConnectionRequest>,
    },
    /// Grants all of an [`Message::Open`].
    Opened {
        /// Of the request.
        id: u64,
        /// One for each asked for, in the same order.
        connections: Vec<ConnectionGrant>,
    },
    /// All data connections are up.
    Start {
        /// Of the request.
        id: u64,
    },
    /// The accelerator takes samples.
    Ready {
        /// Of the request.
        id: u64,
    },
    /// Asks for the node's part of the SUT's name.
    Name {
        /// Of the request.
        id: u64,
    },
    /// Answers a [`Message::Name`].
    NameIs {
        /// Of the request.
        id: u64,
        /// The node's part.
        name: String,
    },
    /// Asks to answer everything that has arrived.
    Drain {
        /// Of the request.
        id: u64,
    },
    /// Everything is answered.
    Drained {
        /// Of the request.
        id: u64,
        /// Totals.
        counters: Counters,
        /// Batches of the session by their size.
        batches: BatchSizes,
        /// What each GPU did in the session.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gpus: Vec<GpuRecord>,
        /// What the node's threads and engine were used for since it started: what a run used is
        /// the difference of two answers.
        #[serde(default)]
        used: NodeUse,
    },
    /// Asks for the node's machine and configuration.
    Describe {
        /// Of the request.
        id: u64,
    },
    /// Answers a [`Message::Describe`].
    Described {
        /// Of the request.
        id: u64,
        /// Both.
        description: Box<Description>,
    },
    /// Asks for the accelerator's own side of the run, from a byte of it on.
    Side {
        /// Of the request.
        id: u64,
        /// Bytes that were told already; from 0 on it is put together anew.
        at: u64,
    },
    /// Answers a [`Message::Side`].
    SideIs {
        /// Of the request.
        id: u64,
        /// Bytes of all of it; 0 where nothing is known.
        of: u64,
        /// A piece of it: JSON, at most [`MAX_SIDE_PART`](super::limits::MAX_SIDE_PART) bytes.
        text: String,
    },
    /// A request is not granted, and nothing has changed.
    Refused {
        /// Of the request.
        id: u64,
        /// Reason.
        code: ErrorCode,
        /// Reason in words.
        text: String,
    },
    /// The sender is alive.
    Heartbeat {
        /// From 1, by 1.
        seq: u64,
        /// Totals, from an accelerator alone.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counters: Option<Counters>,
        /// Scores, from an accelerator that keeps some.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scores: Option<Scores>,
    },
    /// The sender has given up a connection.
    ConnectionLost {
        /// Which.
        connection: u16,
        /// Which life of it.
        epoch: u32,
        /// In words.
        cause: String,
    },
    /// The accelerator's whole reason for a refusal whose slot held only a part of it.
    RefusedSample {
        /// Number of the connection.
        connection: u16,
        /// Its epoch.
        epoch: u32,
        /// The slot.
        slot: u16,
        /// The use of the slot that was refused.
        #[serde(rename = "use")]
        use_count: u16,
        /// In words, at most [`MAX_REFUSAL`] bytes.
        text: String,
    },
    /// The sender's end of a lost connection is torn down
    /// and no batch of its reads the connection's slots.
    ConnectionReset {
        /// Which.
        connection: u16,
        /// Which life of it.
        epoch: u32,
    },
    /// The sender is done; the session ends.
    Bye {},
    /// The sender cannot go on; the session ends.
    Error {
        /// Reason.
        code: ErrorCode,
        /// Reason in words.
        text: String,
    },
}

impl Message {
    /// The value of `type` of every message, in the order of the enum.
    pub const TYPES: [&'static str; 22] = [
        "hello",
        "answer",
        "model",
        "open",
        "opened",
        "start",
        "ready",
        "name",
        "name_is",
        "drain",
        "drained",
        "describe",
        "described",
        "side",
        "side_is",
        "refused",
        "heartbeat",
        "connection_lost",
        "refused_sample",
        "connection_reset",
        "bye",
        "error",
    ];

    /// The value of `type`.
    pub const fn kind(&self) -> &'static str {
        Self::TYPES[match self {
            Message::Hello { .. } => 0,
            Message::Answer { .. } => 1,
            Message::Model { .. } => 2,
            Message::Open { .. } => 3,
            Message::Opened { .. } => 4,
            Message::Start { .. } => 5,
            Message::Ready { .. } => 6,
            Message::Name { .. } => 7,
            Message::NameIs { .. } => 8,
            Message::Drain { .. } => 9,
            Message::Drained { .. } => 10,
            Message::Describe { .. } => 11,
            Message::Described { .. } => 12,
            Message::Side { .. } => 13,
            Message::SideIs { .. } => 14,
            Message::Refused { .. } => 15,
            Message::Heartbeat { .. } => 16,
            Message::ConnectionLost { .. } => 17,
            Message::RefusedSample { .. } => 18,
            Message::ConnectionReset { .. } => 19,
            Message::Bye {} => 20,
            Message::Error { .. } => 21,
        }]
    }
}

/// Longest reason of one refused sample, in bytes.
pub const MAX_REFUSAL: usize = 512;

/// Longest reason in words, in bytes.
pub const MAX_TEXT: usize = 2048;

/// A reason in words, fit to be sent or printed: at most [`MAX_TEXT`] bytes, nothing that moves a
/// terminal's cursor.
pub fn clip(text: &str) -> String {
    clip_to(text, MAX_TEXT)
}

/// As [`clip`], with a limit of its own.
pub(in crate::control) fn clip_to(text: &str, bytes: usize) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if out.len() + c.len_utf8() + '…'.len_utf8() > bytes {
            out.push('…');
            break;
        }
        out.push(if c.is_control() { ' ' } else { c });
    }
    out
}
