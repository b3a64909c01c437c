//! Messages of the control plane. The set is closed: an unknown type or field is an error.
//! `docs/protocol.md` is normative; a change here requires a change there and of [`VERSION`].

use std::{fmt, io};

use fabric::wire::{End, Stream};
use record::{BatchSizes, EngineInfo, GpuRecord, NodeFacts, NodeUse, is_unprintable};
use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use crate::{
    model::ModelSpec,
    wire::{Description, Score, Standing},
};

/// Version of the protocol, for both planes.
pub const VERSION: u64 = 13;

/// Role of a node in a session.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Role {
    /// LoadGen's node, which connects.
    Frontend,
    /// A node with engines, which listens.
    Accelerator,
}

impl Role {
    /// The peer's role.
    pub(crate) const fn other(self) -> Role {
        match self {
            Role::Frontend => Role::Accelerator,
            Role::Accelerator => Role::Frontend,
        }
    }
}

impl fmt::Display for Role {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// Authentication that a node wants; both sides must want the same kind.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum AuthKind {
    /// Both sides hold a shared token.
    Token,
    /// No authentication; the session is encrypted.
    None,
}

/// Reason of a refused session or request.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ErrorCode {
    /// The protocol versions differ.
    Version,
    /// Both nodes have the same role.
    Role,
    /// One side has no token, or the tokens differ.
    Auth,
    /// A different frontend is being served.
    Busy,
    /// The models differ.
    Model,
    /// Two nodes have the same name.
    NameTaken,
    /// The request exceeds the memory budget or a device's limits.
    Budget,
    /// A frame breaks the protocol, or a frame did not come in time.
    Protocol,
    /// The node is about to stop.
    ShuttingDown,
    /// The node loads its model: a later session may be served.
    Loading,
}

impl fmt::Display for ErrorCode {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        self.serialize(f)
    }
}

/// A fixed number of bytes, in JSON as lower-case hexadecimal digits. `Debug` does not print them,
/// since some are secret.
#[derive(Clone, Copy, PartialEq, Eq)]
pub struct Hex<const N: usize>(pub [u8; N]);

impl<const N: usize> Hex<N> {
    /// Fresh random bytes from the system.
    ///
    /// # Errors
    /// The system has no random bytes.
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

/// An accelerator's totals since the session began, sent with heartbeats and after a drain.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Counters {
    /// Samples that arrived.
    pub arrived: u64,
    /// Responses posted.
    pub responded: u64,
    /// Refusals posted in place of responses.
    pub refused: u64,
    /// Samples without a response: dropped, or too late for their connection.
    pub dropped_late: u64,
    /// Batches that the engines ran.
    pub batches: u64,
    /// Samples copied on this node.
    pub copies: u64,
    /// Parts of responses that further parts followed.
    pub parts: u64,
    /// Steps of the engines' work: batches, and tokens of all answers, sent or not.
    pub progress: u64,
}

/// Health that an accelerator measures.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Scores {
    /// Health of the accelerator's interior, measured by copies between its NICs and GPUs.
    pub interior: Score,
    /// Whether the engine takes samples.
    pub standing: Standing,
    /// Health of the rails between the two nodes, where measured; at most
    /// [`MAX_RAILS`](crate::wire::MAX_RAILS).
    pub rails: Vec<RailScore>,
}

/// Score of one rail in [`Scores`].
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct RailScore {
    /// Index of the accelerator's NIC.
    pub nic: u16,
    /// Health of the rail.
    pub score: Score,
}

/// One connection that the frontend requests.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionRequest {
    /// Number of the connection within the session; it is kept when the connection is opened again.
    pub connection: u16,
    /// Index of the accelerator's NIC, modulo the accelerator's number of NICs.
    pub nic: u16,
    /// How many GPUs behind the NIC's own, which is 0; counting wraps round at the accelerator's
    /// number of GPUs.
    pub gpu_turn: u16,
    /// Epoch, from 1; higher each time the connection is opened.
    pub epoch: u32,
    /// Slots in each direction, at most [`MAX_SLOTS`](fabric::MAX_SLOTS).
    pub slots: u32,
    /// Bytes of one request slot, on the accelerator.
    pub request_stride: u32,
    /// Bytes of one response slot, on the frontend, header included.
    pub response_stride: u32,
    /// The frontend's end.
    pub transport: End,
}

/// One connection that the accelerator grants.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ConnectionGrant {
    /// Number of the connection, as requested.
    pub connection: u16,
    /// Epoch, as requested.
    pub epoch: u32,
    /// Slots in each direction, as requested.
    pub slots: u32,
    /// Index of the accelerator's NIC.
    pub nic: u16,
    /// GPU whose engine runs the samples; `None` for any GPU.
    pub gpu: Option<u32>,
    /// The accelerator's end.
    pub transport: End,
}

/// A frame of the control plane.
#[allow(missing_docs, reason = "docs/protocol.md describes every field")]
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "type", rename_all = "snake_case", deny_unknown_fields)]
pub enum Message {
    /// First frame of each side, in clear.
    Hello {
        /// Protocol version, [`VERSION`].
        version: u64,
        role: Role,
        /// Authentication that the sender wants.
        auth: AuthKind,
        /// 32 fresh random bytes.
        nonce: Hex<32>,
    },
    /// Message of the Noise handshake, in clear; every later frame is encrypted.
    Answer {
        /// The message, in hexadecimal digits.
        noise: String,
    },
    /// Identity of the sender, and the model that it runs.
    Model {
        node: String,
        /// Interval of the sender's heartbeats, in milliseconds.
        heartbeat_ms: u32,
        spec: ModelSpec,
        /// Moments at which tokens leave the accelerator: from every frontend, from no accelerator.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        stream: Option<Stream>,
        /// Engine that runs the model. Every accelerator sends this field, no frontend does.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        engine: Option<EngineInfo>,
        /// Facts about the sender's node.
        facts: Box<NodeFacts>,
    },
    /// Requests connections; with higher epochs, opens lost connections again.
    Open {
        id: u64,
        connections: Vec<ConnectionRequest>,
    },
    /// Grants all connections of an [`Message::Open`].
    Opened {
        id: u64,
        /// One grant per request, in the same order.
        connections: Vec<ConnectionGrant>,
    },
    /// Announces that all data connections are up.
    Start { id: u64 },
    /// Answers a [`Message::Start`]: the accelerator accepts samples.
    Ready { id: u64 },
    /// Requests the node's part of the SUT's name.
    Name { id: u64 },
    /// Answers a [`Message::Name`].
    NameIs {
        id: u64,
        /// The node's part of the SUT's name.
        name: String,
    },
    /// Requests that all arrived samples be answered.
    Drain { id: u64 },
    /// Answers a [`Message::Drain`]: all arrived samples are answered.
    Drained {
        id: u64,
        counters: Counters,
        batches: BatchSizes,
        /// Record of each GPU for the session.
        #[serde(default, skip_serializing_if = "Vec::is_empty")]
        gpus: Vec<GpuRecord>,
        /// Work of the node's threads and engine since the node started. A run's work is the
        /// difference of two answers.
        #[serde(default)]
        used: NodeUse,
    },
    /// Requests the node's machine and configuration.
    Describe { id: u64 },
    /// Answers a [`Message::Describe`].
    Described {
        id: u64,
        description: Box<Description>,
    },
    /// Requests the accelerator's side of the run, from byte `at` on.
    Side {
        id: u64,
        /// Offset in bytes; with 0, the accelerator assembles its side anew.
        at: u64,
    },
    /// Answers a [`Message::Side`].
    SideIs {
        id: u64,
        /// Length of the whole side in bytes; 0 where the accelerator has none.
        of: u64,
        /// The piece: JSON, at most 128 KiB.
        text: String,
    },
    /// Refuses a request, which has no effect.
    Refused {
        id: u64,
        code: ErrorCode,
        text: String,
    },
    /// Shows that the sender is alive.
    Heartbeat {
        /// Sequence number, from 1 in steps of 1.
        seq: u64,
        /// Totals, from an accelerator only.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        counters: Option<Counters>,
        /// Scores, from an accelerator that measures scores.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        scores: Option<Scores>,
    },
    /// The sender has given up a connection.
    ConnectionLost {
        connection: u16,
        epoch: u32,
        cause: String,
    },
    /// The accelerator's full reason for a refusal, where the slot holds only a part of it.
    RefusedSample {
        connection: u16,
        epoch: u32,
        slot: u16,
        #[serde(rename = "use")]
        use_count: u16,
        /// Reason in words, at most 512 bytes.
        text: String,
    },
    /// The frontend wants the sample in this slot no more.
    Cancel {
        connection: u16,
        epoch: u32,
        slot: u16,
        #[serde(rename = "use")]
        use_count: u16,
    },
    /// The sender's end of a lost connection is destroyed, and none of its batches reads the slots.
    ConnectionReset { connection: u16, epoch: u32 },
    /// The sender ends the session in good order.
    Bye {},
    /// The sender ends the session with an error.
    Error { code: ErrorCode, text: String },
}

impl Message {
    /// Value of `type` of this message.
    pub(crate) const fn kind(&self) -> &'static str {
        match self {
            Message::Hello { .. } => "hello",
            Message::Answer { .. } => "answer",
            Message::Model { .. } => "model",
            Message::Open { .. } => "open",
            Message::Opened { .. } => "opened",
            Message::Start { .. } => "start",
            Message::Ready { .. } => "ready",
            Message::Name { .. } => "name",
            Message::NameIs { .. } => "name_is",
            Message::Drain { .. } => "drain",
            Message::Drained { .. } => "drained",
            Message::Describe { .. } => "describe",
            Message::Described { .. } => "described",
            Message::Side { .. } => "side",
            Message::SideIs { .. } => "side_is",
            Message::Refused { .. } => "refused",
            Message::Heartbeat { .. } => "heartbeat",
            Message::ConnectionLost { .. } => "connection_lost",
            Message::RefusedSample { .. } => "refused_sample",
            Message::Cancel { .. } => "cancel",
            Message::ConnectionReset { .. } => "connection_reset",
            Message::Bye {} => "bye",
            Message::Error { .. } => "error",
        }
    }
}

/// Longest reason of one refused sample, in bytes.
pub(crate) const MAX_REFUSAL: usize = 512;

/// Longest reason in words, in bytes.
pub(crate) const MAX_TEXT: usize = 2048;

/// Makes a text safe to send and print: at most [`MAX_TEXT`] bytes, control and
/// format characters replaced by spaces.
pub(crate) fn clip(text: &str) -> String {
    clip_to(text, MAX_TEXT)
}

/// As [`clip`], with the limit `bytes`.
pub(in crate::control) fn clip_to(text: &str, bytes: usize) -> String {
    let mut out = String::new();
    for c in text.chars() {
        if out.len() + c.len_utf8() + '…'.len_utf8() > bytes {
            out.push('…');
            break;
        }
        out.push(if is_unprintable(c) { ' ' } else { c });
    }
    out
}
