//! Frames: a length of four bytes, big endian, and as many bytes of JSON.

use std::{io, sync::Arc};

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

use fabric::wire::DATA_MAGIC;

use super::{
    limits::check,
    message::{ErrorCode, Message, VERSION, clip, clip_to},
};

/// Most bytes of JSON in a frame.
pub const MAX_FRAME: usize = 1 << 20;

/// Most bytes of JSON in a frame of a peer that has not proved who it is.
pub const MAX_FRAME_BEFORE_AUTH: usize = 4096;

/// Longest part of a peer's bytes that an error repeats.
const QUOTED: usize = 160;

/// A frame that cannot be read or written.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FrameError {
    /// The length says more than is allowed.
    #[error(
        "a frame of {bytes} bytes, {limit} are allowed; is that a control connection of this \
         protocol?"
    )]
    TooLong {
        /// Bytes it says.
        bytes: u64,
        /// Bytes allowed.
        limit: usize,
    },
    /// What opens a data connection.
    #[error(
        "a data connection at a control port: control.listen and nics[].listen are two ports, and \
         what forwards to them must not mix them up"
    )]
    DataConnection,
    /// The connection ended inside a frame.
    #[error("the connection ended inside a frame, {got} bytes into it")]
    Truncated {
        /// Bytes of it that came, the length included where it was whole.
        got: usize,
    },
    /// The bytes are no JSON object.
    #[error("a frame that is no JSON object: {detail}")]
    NotJson {
        /// Where and why.
        detail: String,
    },
    /// No `type`.
    #[error("a frame without a field `type` that is a string")]
    NoType,
    /// A `type` that this version does not have.
    #[error("a frame of unknown type {name:?}; version {VERSION} of the protocol has no such type")]
    UnknownType {
        /// The type.
        name: String,
    },
    /// A field is missing, unknown, of the wrong type or outside its limits.
    #[error("frame {kind}: {detail}")]
    BadField {
        /// Type of the frame.
        kind: String,
        /// Which field, and what is wrong with it.
        detail: String,
    },
    /// A hello of another version, whatever else it holds.
    #[error("a hello of protocol version {theirs}, this node speaks {VERSION}")]
    Version {
        /// Version it says.
        theirs: u64,
    },
    /// The socket failed.
    #[error("control connection: {0}")]
    Io(Arc<io::Error>),
}

impl From<io::Error> for FrameError {
    fn from(e: io::Error) -> Self {
        FrameError::Io(Arc::new(e))
    }
}

/// Turns bytes into messages and back. Every message that comes out is within its limits.
#[derive(Debug)]
pub struct Codec {
    lengths: LengthDelimitedCodec,
    /// The length has been read and the bytes it speaks of have not.
    inside: bool,
}

impl Codec {
    /// For a peer that has not proved who it is.
    pub fn before_auth() -> Self {
        let mut lengths = LengthDelimitedCodec::new();
        lengths.set_max_frame_length(MAX_FRAME_BEFORE_AUTH);
        Codec {
            lengths,
            inside: false,
        }
    }

    /// The peer has proved who it is: frames may have their full length.
    pub fn authenticated(&mut self) {
        self.lengths.set_max_frame_length(MAX_FRAME);
    }
}

impl Decoder for Codec {
    type Item = Message;
    type Error = FrameError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Message>, FrameError> {
        let before = src.len();
        match self.lengths.decode(src) {
            Ok(Some(json)) => {
                self.inside = false;
                parse(&json).map(Some)
            }
            Ok(None) => {
                // Nothing but the length is ever taken without giving a frame.
                self.inside |= src.len() < before;
                Ok(None)
            }
            Err(_) if src.starts_with(&DATA_MAGIC[..4]) => Err(FrameError::DataConnection),
            Err(_) => Err(FrameError::TooLong {
                // The length is left where it was when it is refused.
                bytes: src
                    .first_chunk()
                    .map_or(0, |b| u64::from(u32::from_be_bytes(*b))),
                limit: self.lengths.max_frame_length(),
            }),
        }
    }

    fn decode_eof(&mut self, src: &mut BytesMut) -> Result<Option<Message>, FrameError> {
        match self.decode(src)? {
            Some(message) => Ok(Some(message)),
            None if src.is_empty() && !self.inside => Ok(None),
            None => Err(FrameError::Truncated {
                got: src.len() + if self.inside { 4 } else { 0 },
            }),
        }
    }
}

impl Encoder<&Message> for Codec {
    type Error = FrameError;

    fn encode(&mut self, message: &Message, dst: &mut BytesMut) -> Result<(), FrameError> {
        let json = serde_json::to_vec(message).map_err(|e| FrameError::BadField {
            kind: message.kind().to_owned(),
            detail: e.to_string(),
        })?;
        let bytes = json.len();
        // The limit is the receiver's to check, but what it would refuse is not sent either.
        if bytes > MAX_FRAME {
            return Err(FrameError::TooLong {
                bytes: bytes as u64,
                limit: MAX_FRAME,
            });
        }
        let mut writer = LengthDelimitedCodec::new();
        writer.set_max_frame_length(MAX_FRAME);
        Ok(writer.encode(Bytes::from(json), dst)?)
    }
}

/// The bytes of a frame that sends a peer away with these words.
pub(crate) fn refusal(text: &str) -> Bytes {
    let mut bytes = BytesMut::new();
    let refusal = Message::Error {
        code: ErrorCode::Protocol,
        text: clip(text),
    };
    // A clipped text fits.
    let _ = Codec::before_auth().encode(&refusal, &mut bytes);
    bytes.freeze()
}

/// Reads one frame's JSON.
fn parse(json: &[u8]) -> Result<Message, FrameError> {
    let message = serde_json::from_slice(json).map_err(|e| explain(json, &e))?;
    check(&message).map_err(|o| FrameError::BadField {
        kind: message.kind().to_owned(),
        detail: format!("{}: {}", o.field, o.problem),
    })?;
    Ok(message)
}

/// Says which of the many ways of not being a message this is.
fn explain(json: &[u8], e: &serde_json::Error) -> FrameError {
    let fields = match serde_json::from_slice(json) {
        Ok(Value::Object(fields)) => fields,
        Ok(_) => {
            return FrameError::NotJson {
                detail: "a JSON value of another kind".to_owned(),
            };
        }
        Err(e) => {
            return FrameError::NotJson {
                detail: clip_to(&e.to_string(), QUOTED),
            };
        }
    };
    let Some(Value::String(kind)) = fields.get("type") else {
        return FrameError::NoType;
    };
    match fields.get("version").and_then(Value::as_u64) {
        Some(theirs) if kind == "hello" && theirs != VERSION => {
            return FrameError::Version { theirs };
        }
        _ => {}
    }
    if Message::TYPES.contains(&kind.as_str()) {
        FrameError::BadField {
            kind: kind.clone(),
            detail: clip_to(&e.to_string(), QUOTED),
        }
    } else {
        FrameError::UnknownType {
            name: clip_to(kind, QUOTED),
        }
    }
}
