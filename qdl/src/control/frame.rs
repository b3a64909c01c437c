//! Framing: a big-endian length of 4 bytes, then a JSON object of that length. After the handshake
//! these bytes travel in the records of a Noise session.

use std::{io, sync::Arc};

use bytes::{Bytes, BytesMut};
use serde_json::Value;
use tokio_util::codec::{Decoder, Encoder, LengthDelimitedCodec};

use fabric::wire::DATA_MAGIC;

use super::{
    limits::check,
    message::{ErrorCode, Message, VERSION, clip, clip_to},
    noise::{Forged, NoiseSession},
};

/// Most bytes of JSON in a frame.
pub(crate) const MAX_FRAME: usize = 1 << 20;

/// Most bytes of JSON in a frame from an unauthenticated peer.
pub(crate) const MAX_FRAME_BEFORE_AUTH: usize = 4096;

/// Most bytes of the peer's text that an error quotes.
const QUOTED: usize = 160;

/// Error of reading or writing a frame.
#[derive(Clone, Debug, thiserror::Error)]
pub enum FrameError {
    /// The bytes are no frame, or the frame is outside its limits.
    #[error("{0}")]
    Invalid(String),
    /// A hello of a different version, whatever its other fields.
    #[error("a hello of protocol version {0}, this node speaks {VERSION}")]
    Version(u64),
    /// A record that the session's key does not open.
    #[error(
        "bytes that the session's key does not open, so the session ends: they were changed, \
         dropped, repeated or reordered on the way"
    )]
    Forged,
    /// The socket failed.
    #[error("control connection: {0}")]
    Io(Arc<io::Error>),
}

/// First bytes of other protocols: requests, answers (also without a status line), handshakes.
const OTHER_PROTOCOLS: [(&[u8], &str); 14] = [
    (b"HTTP", "HTTP"),
    (b"<!DO", "HTTP"),
    (b"<htm", "HTTP"),
    (b"GET ", "HTTP"),
    (b"HEAD", "HTTP"),
    (b"POST", "HTTP"),
    (b"PUT ", "HTTP"),
    (b"DELE", "HTTP"),
    (b"OPTI", "HTTP"),
    (b"CONN", "HTTP"),
    (b"PRI ", "HTTP"),
    (b"\x16\x03", "TLS"),
    (b"\x15\x03", "TLS"),
    (b"SSH-", "SSH"),
];

impl From<io::Error> for FrameError {
    fn from(e: io::Error) -> Self {
        FrameError::Io(Arc::new(e))
    }
}

/// Decodes and encodes messages. Every decoded message is within its limits.
#[derive(Debug)]
pub struct Codec {
    lengths: LengthDelimitedCodec,
    /// The length field has been read, and its frame has not.
    inside: bool,
    session: Option<NoiseSession>,
    /// Plain text of opened records whose frame is not complete.
    plain: BytesMut,
}

impl Codec {
    /// Makes a codec for an unauthenticated peer.
    pub(crate) fn before_auth() -> Self {
        let mut lengths = LengthDelimitedCodec::new();
        lengths.set_max_frame_length(MAX_FRAME_BEFORE_AUTH);
        Codec {
            lengths,
            inside: false,
            session: None,
            plain: BytesMut::new(),
        }
    }

    /// Raises the limit of the frame length once the peer is authenticated.
    pub(crate) fn authenticated(&mut self) {
        self.lengths.set_max_frame_length(MAX_FRAME);
    }

    /// Encrypts and decrypts every later frame, but frames of the handshake. The peer is
    /// authenticated as far as its policy asks for.
    pub(super) fn secure(&mut self, session: NoiseSession) {
        self.authenticated();
        self.session = Some(session);
    }

    /// Decodes the next frame in clear.
    fn decode_plain(&mut self, src: &mut BytesMut) -> Result<Option<Message>, FrameError> {
        let before = src.len();
        match self.lengths.decode(src) {
            Ok(Some(json)) => {
                self.inside = false;
                parse(&json).map(Some)
            }
            Ok(None) => {
                // The decoder consumes bytes without a frame only for the length field.
                self.inside |= src.len() < before;
                Ok(None)
            }
            // A refused length field stays in the buffer.
            Err(_) => Err(FrameError::Invalid(self.no_length(src))),
        }
    }

    /// The problem of bytes whose length field exceeds the limit.
    fn no_length(&self, src: &[u8]) -> String {
        if src.starts_with(&DATA_MAGIC[..4]) {
            return "a data connection at a control port: control.listen and nics[].listen are two \
                    ports, and what forwards to them must not mix them up"
                .to_owned();
        }
        let other = OTHER_PROTOCOLS
            .iter()
            .find(|(begin, _)| src.starts_with(begin));
        if let Some((_, protocol)) = other {
            return format!(
                "{protocol} on a control connection: `accelerators[].control` names the \
                 `control.listen` of an accelerator, and no other port"
            );
        }
        let bytes = src.first_chunk().map_or(0, |b| u32::from_be_bytes(*b));
        too_long(bytes as usize, self.lengths.max_frame_length())
    }
}

impl Decoder for Codec {
    type Item = Message;
    type Error = FrameError;

    fn decode(&mut self, src: &mut BytesMut) -> Result<Option<Message>, FrameError> {
        let Some(mut session) = self.session.take() else {
            return self.decode_plain(src);
        };
        let mut plain = std::mem::take(&mut self.plain);
        let decoded = loop {
            match self.decode_plain(&mut plain) {
                Ok(None) => {}
                decoded => break decoded,
            }
            match session.open(src, &mut plain) {
                Ok(true) => {}
                Ok(false) => break Ok(None),
                Err(Forged) => break Err(FrameError::Forged),
            }
        };
        (self.session, self.plain) = (Some(session), plain);
        decoded
    }

    fn decode_eof(&mut self, src: &mut BytesMut) -> Result<Option<Message>, FrameError> {
        match self.decode(src)? {
            Some(message) => Ok(Some(message)),
            None if src.is_empty() && self.plain.is_empty() && !self.inside => Ok(None),
            None => {
                let bytes = src.len() + self.plain.len() + if self.inside { 4 } else { 0 };
                Err(FrameError::Invalid(format!(
                    "the connection ended inside a frame, {bytes} bytes into it"
                )))
            }
        }
    }
}

impl Encoder<&Message> for Codec {
    type Error = FrameError;

    fn encode(&mut self, message: &Message, dst: &mut BytesMut) -> Result<(), FrameError> {
        let json = serde_json::to_vec(message);
        let json = json.map_err(|e| invalid(message.kind(), &e.to_string()))?;
        // The receiver checks the limit; the sender must not exceed it either.
        if json.len() > MAX_FRAME {
            return Err(FrameError::Invalid(too_long(json.len(), MAX_FRAME)));
        }
        let mut writer = LengthDelimitedCodec::new();
        writer.set_max_frame_length(MAX_FRAME);
        match &mut self.session {
            // The peer opens records only after this side's answer.
            Some(session) if !matches!(message, Message::Answer { .. }) => {
                let mut plain = BytesMut::new();
                writer.encode(Bytes::from(json), &mut plain)?;
                session
                    .seal(&plain, dst)
                    .map_err(|Forged| FrameError::Forged)
            }
            _ => Ok(writer.encode(Bytes::from(json), dst)?),
        }
    }
}

/// Bytes of an error frame that refuses a peer with this text.
pub(crate) fn refusal(text: &str) -> Bytes {
    let mut bytes = BytesMut::new();
    let refusal = Message::Error {
        code: ErrorCode::Protocol,
        text: clip(text),
    };
    // A clipped text always fits.
    let _ = Codec::before_auth().encode(&refusal, &mut bytes);
    bytes.freeze()
}

fn too_long(bytes: usize, limit: usize) -> String {
    format!(
        "a frame of {bytes} bytes, {limit} are allowed; is that a control connection of this \
         protocol?"
    )
}

fn invalid(kind: &str, problem: &str) -> FrameError {
    FrameError::Invalid(format!("frame {kind}: {problem}"))
}

/// Decodes and checks the JSON of one frame.
fn parse(json: &[u8]) -> Result<Message, FrameError> {
    let message = serde_json::from_slice(json).map_err(|e| explain(json, &e))?;
    match message {
        Message::Hello { version, .. } if version != VERSION => Err(FrameError::Version(version)),
        message => match check(&message) {
            Ok(()) => Ok(message),
            Err((field, problem)) => Err(invalid(message.kind(), &format!("{field}: {problem}"))),
        },
    }
}

/// Finds the reason why the JSON is no valid message.
fn explain(json: &[u8], e: &serde_json::Error) -> FrameError {
    let detail = clip_to(&e.to_string(), QUOTED);
    let Ok(frame) = serde_json::from_slice::<Value>(json) else {
        return FrameError::Invalid(format!("a frame that is no JSON: {detail}"));
    };
    let Some(kind) = frame["type"].as_str() else {
        return FrameError::Invalid("a frame without a field `type` that is a string".to_owned());
    };
    match frame["version"].as_u64() {
        Some(theirs) if kind == "hello" && theirs != VERSION => FrameError::Version(theirs),
        _ => invalid(&clip_to(kind, QUOTED), &detail),
    }
}
