//! Entry function of the fuzz target `handshake`, which reaches the private Noise session.

use bytes::BytesMut;
use tokio_util::codec::{Decoder, Encoder};

use super::{
    auth::{Auth, Token},
    frame::Codec,
    message::{Hex, Message, Role},
    noise::NoiseHandshake,
};

const NONCES: [Hex<32>; 2] = [Hex([1; 32]), Hex([2; 32])];

/// An attacker on the path of a control connection. Without the token no message completes a
/// handshake; of a session, the receiver decodes only the frames that were sent, in their order.
///
/// Bit 0 of the first byte: the nodes have a token. Bit 1: the input is a message of the handshake.
/// Bit 2: it replaces the session's bytes. Otherwise each four bytes of it change the session's
/// bytes: a position (two bytes), a value, and the kind of the change.
pub fn handshake(data: &[u8]) {
    let Some((&how, data)) = data.split_first() else {
        return;
    };
    let auth = match how & 1 {
        0 => Auth::None,
        _ => Auth::Token(Token::parse(&[b'7'; 64]).expect("64 digits")),
    };
    let side = |role| {
        let made = NoiseHandshake::new(role, &auth, &NONCES[0], &NONCES[1]);
        made.expect("random bytes")
    };
    let (mut front, mut node) = (side(Role::Frontend), side(Role::Accelerator));
    if how & 2 != 0 {
        let digits = String::from_utf8_lossy(data);
        let read = [node.read(&digits), {
            front.write().expect("the first message");
            front.read(&digits)
        }];
        let is_agreed = read.iter().any(Result::is_ok);
        assert!(!is_agreed || how & 1 == 0, "a handshake without the token");
        return;
    }
    node.read(&front.write().expect("written")).expect("sound");
    front.read(&node.write().expect("written")).expect("sound");
    let codec = |side: NoiseHandshake| {
        let mut codec = Codec::before_auth();
        codec.secure(side.finish().expect("both messages have passed"));
        codec
    };
    let (mut front, mut node) = (codec(front), codec(node));
    let (mut sound, sent) = (BytesMut::new(), [1, 2, 3].map(|id| Message::Start { id }));
    for message in &sent {
        front.encode(message, &mut sound).expect("it fits");
    }
    let mut bytes = sound.to_vec();
    match how & 4 {
        0 => data
            .chunks_exact(4)
            .take(64)
            .for_each(|c| change(&mut bytes, c)),
        _ => bytes = data.to_vec(),
    }
    let is_sound = bytes == sound;
    let (mut buffer, mut decoded) = (BytesMut::new(), Vec::new());
    let mut is_error = false;
    for piece in bytes.chunks(usize::from(how >> 3).max(1)) {
        buffer.extend_from_slice(piece);
        while !is_error {
            match node.decode(&mut buffer) {
                Ok(Some(message)) => decoded.push(message),
                Ok(None) => break,
                Err(_) => is_error = true,
            }
        }
    }
    is_error |= node.decode_eof(&mut buffer).is_err();
    assert!(sent.starts_with(&decoded), "{decoded:?} was never sent");
    assert_eq!(is_sound, !is_error && decoded.len() == sent.len());
}

/// Changes a byte, repeats bytes or drops bytes at a position.
fn change(bytes: &mut Vec<u8>, how: &[u8]) {
    let at = usize::from(u16::from_be_bytes([how[0], how[1]])) % bytes.len().max(1);
    let end = (at + 1 + usize::from(how[2])).min(bytes.len());
    match how[3] % 3 {
        _ if bytes.is_empty() => {}
        0 => bytes[at] ^= how[2],
        1 => drop(bytes.drain(at..end)),
        _ => {
            let again = bytes[at..end].to_vec();
            bytes.splice(at..at, again);
        }
    }
}
