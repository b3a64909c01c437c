//! The Noise session of a control connection, without I/O.
//!
//! With a token the pattern is `NNpsk0`: both sides authenticate by the token, and a session's keys
//! are independent of it (forward secrecy). With `auth: none` the pattern is `NN`: encrypted, and
//! not authenticated. The prologue binds the handshake to both hellos, whose nonces also prevent a
//! replay of the first message.
//!
//! After the handshake, frames travel in records: a length of 2 bytes, big endian, and that many
//! bytes of ciphertext. The cipher counts records, so a changed, lost, repeated or misplaced record
//! does not open.

use bytes::{Buf, BufMut, BytesMut};
use snow::{Builder, HandshakeState, TransportState};

use super::{
    auth::Auth,
    message::{Hex, Role, VERSION},
};

/// Most bytes of ciphertext in a record: the largest message of Noise.
const MAX_RECORD: usize = 65_535;
/// Bytes by which ciphertext exceeds its plain text.
const TAG: usize = 16;
/// Most bytes of one frame's plain text in a record.
const MAX_PLAIN: usize = MAX_RECORD - TAG;
/// Most bytes of a handshake message: a public key and a tag.
const MAX_HANDSHAKE: usize = 48;

/// A record that does not open: changed, lost, repeated, misplaced, or of another session.
#[derive(Debug)]
pub(super) struct Forged;

/// One side of a handshake.
#[derive(Debug)]
pub(super) struct NoiseHandshake(HandshakeState);

impl NoiseHandshake {
    /// Begins the handshake of this role after hellos with these nonces.
    ///
    /// # Errors
    /// The system has no random bytes.
    pub(super) fn new(
        role: Role,
        auth: &Auth,
        frontend: &Hex<32>,
        accelerator: &Hex<32>,
    ) -> Result<Self, snow::Error> {
        let (pattern, token) = match auth {
            Auth::Token(token) => ("NNpsk0", Some(token)),
            Auth::None | Auth::Unset => ("NN", None),
        };
        let label = format!("qdl control {VERSION}\0{pattern}\0");
        let prologue = [label.as_bytes(), &frontend.0, &accelerator.0].concat();
        let name = format!("Noise_{pattern}_25519_ChaChaPoly_BLAKE2s");
        let psk = token.map(|token| token.derive("qdl control psk"));
        let mut builder = Builder::new(name.parse()?).prologue(&prologue)?;
        if let Some(psk) = &psk {
            builder = builder.psk(0, psk)?;
        }
        match role {
            Role::Frontend => builder.build_initiator(),
            Role::Accelerator => builder.build_responder(),
        }
        .map(NoiseHandshake)
    }

    /// This side's message, in hexadecimal digits.
    pub(super) fn write(&mut self) -> Result<String, snow::Error> {
        let mut message = [0; MAX_HANDSHAKE];
        let length = self.0.write_message(&[], &mut message)?;
        Ok(hex::encode(&message[..length]))
    }

    /// Reads the peer's message.
    ///
    /// # Errors
    /// The peer's token or prologue differs, or the message was changed.
    pub(super) fn read(&mut self, digits: &str) -> Result<(), snow::Error> {
        let mut message = [0; MAX_HANDSHAKE];
        let message = message
            .get_mut(..digits.len() / 2)
            .ok_or(snow::Error::Input)?;
        hex::decode_to_slice(digits, message).map_err(|_| snow::Error::Input)?;
        self.0.read_message(message, &mut []).map(drop)
    }

    /// The session, once both messages have passed.
    pub(super) fn finish(self) -> Result<NoiseSession, snow::Error> {
        Ok(NoiseSession(Box::new(self.0.into_transport_mode()?)))
    }
}

/// The keys of a session.
#[derive(Debug)]
pub(super) struct NoiseSession(Box<TransportState>);

impl NoiseSession {
    /// Appends `plain` to `to`, in records.
    pub(super) fn seal(&mut self, plain: &[u8], to: &mut BytesMut) -> Result<(), Forged> {
        for part in plain.chunks(MAX_PLAIN) {
            let length = part.len() + TAG;
            to.put_u16(length as u16);
            let at = to.len();
            to.resize(at + length, 0);
            let sealed = self.0.write_message(part, &mut to[at..]);
            sealed.map_err(|_| Forged)?;
        }
        Ok(())
    }

    /// Moves the next record from `from` to `plain`. False where its end has not come yet.
    ///
    /// # Errors
    /// [`Forged`].
    pub(super) fn open(
        &mut self,
        from: &mut BytesMut,
        plain: &mut BytesMut,
    ) -> Result<bool, Forged> {
        let Some(length) = from
            .first_chunk()
            .map(|b| usize::from(u16::from_be_bytes(*b)))
        else {
            return Ok(false);
        };
        if length < TAG {
            return Err(Forged);
        }
        let Some(record) = from.get(2..2 + length) else {
            return Ok(false);
        };
        let at = plain.len();
        plain.resize(at + length - TAG, 0);
        let opened = self.0.read_message(record, &mut plain[at..]);
        opened.map_err(|_| Forged)?;
        from.advance(2 + length);
        Ok(true)
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use tokio_util::codec::Encoder;

    use super::*;
    use crate::{
        control::{
            frame::{Codec, FrameError},
            message::Message,
            tests::{codec::feed, token},
        },
        testkit::assert_has,
        wire::{Description, MAX_DESCRIPTION},
    };

    const NONCES: [Hex<32>; 2] = [Hex([1; 32]), Hex([2; 32])];

    /// The sessions of a frontend and an accelerator with these policies and nonces.
    fn agree(
        [f, a]: [&Auth; 2],
        [of_f, of_a]: [[Hex<32>; 2]; 2],
    ) -> Result<[NoiseSession; 2], snow::Error> {
        let mut front = NoiseHandshake::new(Role::Frontend, f, &of_f[0], &of_f[1])?;
        let mut node = NoiseHandshake::new(Role::Accelerator, a, &of_a[0], &of_a[1])?;
        node.read(&front.write()?)?;
        front.read(&node.write()?)?;
        Ok([front.finish()?, node.finish()?])
    }

    #[test]
    fn two_sides_agree_with_one_token_and_the_same_nonces_alone() {
        let (ours, other) = (token("0123456789abcdef"), token("fedcba9876543210"));
        let swapped = [NONCES[1], NONCES[0]];
        for (auth, nonces, agrees) in [
            ([&ours, &ours], [NONCES; 2], true),
            ([&Auth::None, &Auth::Unset], [NONCES; 2], true),
            ([&ours, &other], [NONCES; 2], false),
            ([&ours, &Auth::None], [NONCES; 2], false),
            ([&Auth::None, &ours], [NONCES; 2], false),
            ([&ours, &ours], [NONCES, swapped], false),
            ([&Auth::None, &Auth::None], [NONCES, swapped], false),
        ] {
            assert_eq!(agree(auth, nonces).is_ok(), agrees, "{auth:?} {nonces:?}");
        }
        let mut front = NoiseHandshake::new(Role::Frontend, &ours, &NONCES[0], &NONCES[1])
            .expect("random bytes");
        let own = front.write().expect("its turn");
        assert!(front.read(&own).is_err(), "its own message, reflected");
    }

    #[test]
    fn a_record_is_no_shorter_than_its_tag() {
        let sessions = agree([&Auth::None; 2], [NONCES; 2]).expect("the same nonces");
        let ([mut front, mut node], mut plain) = (sessions, BytesMut::new());
        let mut tag = [0; TAG];
        front.0.write_message(&[], &mut tag).expect("room");
        let mut empty = BytesMut::from(&[&[0, TAG as u8][..], &tag].concat()[..]);
        assert!(node.open(&mut empty, &mut plain).expect("its own") && plain.is_empty());
        let mut short = BytesMut::from(&[0, TAG as u8 - 1][..]);
        assert!(node.open(&mut short, &mut plain).is_err());
    }

    /// A frame of several records, its bytes, and the codec that reads them.
    fn several() -> (Message, BytesMut, Codec) {
        let auth = token("0123456789abcdef");
        let frame = Message::Described {
            id: 1,
            description: Box::new(Description {
                machine: "\"".repeat(MAX_DESCRIPTION),
                ..Description::default()
            }),
        };
        let sessions = agree([&auth, &auth], [NONCES; 2]).expect("one token");
        let [front, mut node] = sessions.map(|session| {
            let mut codec = Codec::before_auth();
            codec.secure(session);
            codec
        });
        let mut sent = BytesMut::new();
        node.encode(&frame, &mut sent).expect("it fits");
        assert!(sent.starts_with(&[0xff, 0xff]), "the longest record");
        (frame, sent, front)
    }

    #[test]
    fn a_frame_of_several_records_passes_in_pieces_and_not_without_its_second() {
        let (frame, sent, mut front) = several();
        let (read, e) = feed(&mut front, &sent, 1000);
        assert!(e.is_none() && read == [frame], "{e:?}");

        let (_, sent, mut front) = several();
        let dropped = [&sent[..MAX_RECORD + 2], &sent[2 * (MAX_RECORD + 2)..]].concat();
        let (read, e) = feed(&mut front, &dropped, 1000);
        assert!(
            read.is_empty() && matches!(e, Some(FrameError::Forged)),
            "{e:?}"
        );

        let (_, sent, mut front) = several();
        let (_, e) = feed(&mut front, &sent[..MAX_RECORD + 2 + 10], 1000);
        let all = format!("ended inside a frame, {} bytes into it", MAX_PLAIN + 10);
        assert_has(&e.expect("cut").to_string(), &[&all]);
    }
}
