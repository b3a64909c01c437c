//! One connection of ZeroMQ: ZMTP 3.0 with the NULL mechanism, the accepting side with one peer.
//!
//! ```text
//! greeting (64 bytes) <--> greeting; READY command <--> READY command; then frames
//! frame: flags (1 more, 2 long, 4 command), length (1 or 8 bytes), body
//! ```
//!
//! Source: <https://rfc.zeromq.org/spec/23/>. libzmq and this side run on one machine, so a stream
//! that ends is an error, and no connection is opened again.

use std::{
    io::{self, ErrorKind, Read, Write},
    ops::Range,
};

use socket2::Socket;

use crate::error::shorten;

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const GREETING: usize = 64;
/// Capacity of the receive buffer, which holds the message of a step with 10,000 sequences.
const BUFFER: usize = 256 << 10;
/// Most bytes of a frame of outputs.
pub(super) const MAX_FRAME: usize = 16 << 20;
/// Most bytes of a frame of the handshake: READY, HELLO, a registration.
const MAX_SMALL: usize = 16 << 10;
/// Most bytes of a PING's context, as ZMTP says.
const MAX_CONTEXT: usize = 16;
/// Bytes to send from which on PING has no PONG: libzmq counts any frame as an answer.
const ENOUGH_OUT: usize = 4096;

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

/// Progress of the handshake.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Greeting,
    Ready,
    Open,
}

/// A stream that does not block, with the bytes that wait in either direction.
pub(super) struct Connection {
    pub stream: Socket,
    stage: Stage,
    /// Socket type that the peer must have.
    wanted: &'static str,
    /// Most bytes of a frame.
    pub most: usize,
    /// The peer's identity; empty if the peer has none.
    pub identity: Vec<u8>,
    /// Received bytes that are not read yet.
    buffer: Vec<u8>,
    unread: Range<usize>,
    /// Bytes to send, and the number of those that are sent.
    out: Vec<u8>,
    sent: usize,
}

impl Connection {
    /// Begins the handshake on a new stream: this side is a socket of the type `own`, the peer must
    /// be one of the type `wanted`.
    /// Error: the stream cannot be set to not block.
    pub fn begin(stream: Socket, own: &str, wanted: &'static str) -> io::Result<Self> {
        stream.set_nonblocking(true)?;
        let mut out = greeting();
        put_ready(&mut out, own);
        Ok(Connection {
            stream,
            stage: Stage::Greeting,
            wanted,
            most: MAX_SMALL,
            identity: Vec::new(),
            buffer: vec![0; BUFFER],
            unread: 0..0,
            out,
            sent: 0,
        })
    }

    /// Continues the handshake as far as bytes have come. Returns true once it is complete.
    /// Error: the peer speaks no ZMTP 3 with NULL, or is another socket; errors of the stream.
    pub fn shake(&mut self) -> io::Result<bool> {
        if self.stage == Stage::Open {
            return Ok(true);
        }
        self.flush()?;
        let ended = self.fill();
        // A peer that has sent all and left has an answer in its bytes.
        match self.read_handshake()? {
            true => Ok(true),
            false => ended.map(|_| false),
        }
    }

    fn read_handshake(&mut self) -> io::Result<bool> {
        if self.stage == Stage::Greeting {
            if self.unread.len() < GREETING {
                return Ok(false);
            }
            let greeting = &self.buffer[self.unread.start..][..GREETING];
            if greeting[0] != 0xff || greeting[9] & 1 == 0 || greeting[10] < 3 {
                return Err(invalid("the peer sent no greeting of ZMTP 3"));
            }
            if &greeting[12..17] != b"NULL\0" {
                return Err(invalid("the peer wants another mechanism than NULL"));
            }
            self.unread.start += GREETING;
            self.stage = Stage::Ready;
        }
        let Some((flags, body)) = self.frame()? else {
            return Ok(false);
        };
        let socket = match flags & COMMAND {
            0 => None,
            _ => read_ready(&self.buffer[body], &mut self.identity),
        };
        match socket {
            Some(socket) if socket == self.wanted.as_bytes() => {
                self.stage = Stage::Open;
                Ok(true)
            }
            Some(socket) => Err(invalid(format!(
                "the peer is a socket of type {}, not {}",
                shorten(&String::from_utf8_lossy(&socket)),
                self.wanted
            ))),
            None => Err(invalid("the peer sent no READY")),
        }
    }

    /// Reads once into the buffer. Returns false if no byte has arrived.
    /// Error: [`ErrorKind::UnexpectedEof`] at the end of the stream; errors of the stream.
    pub fn fill(&mut self) -> io::Result<bool> {
        if self.unread.is_empty() {
            self.unread = 0..0;
        } else if self.unread.end == self.buffer.len() {
            self.buffer.copy_within(self.unread.clone(), 0);
            self.unread = 0..self.unread.len();
            if self.unread.end == self.buffer.len() {
                self.buffer.resize(2 * self.buffer.len(), 0);
            }
        }
        match self.stream.read(&mut self.buffer[self.unread.end..]) {
            Ok(0) => Err(ErrorKind::UnexpectedEof.into()),
            Ok(read) => {
                self.unread.end += read;
                Ok(true)
            }
            Err(e) if matches!(e.kind(), ErrorKind::WouldBlock | ErrorKind::TimedOut) => Ok(false),
            Err(e) if e.kind() == ErrorKind::Interrupted => Ok(false),
            Err(e) => Err(e),
        }
    }

    /// The next frame of the buffer: flags and place of the body; `None` if it is incomplete.
    fn frame(&mut self) -> io::Result<Option<(u8, Range<usize>)>> {
        let bytes = &self.buffer[self.unread.clone()];
        let (head, len) = match *bytes {
            [flags, a, b, c, d, e, f, g, h, ..] if flags & LONG != 0 => {
                (9, u64::from_be_bytes([a, b, c, d, e, f, g, h]))
            }
            [flags, len, ..] if flags & LONG == 0 => (2, u64::from(len)),
            _ => return Ok(None),
        };
        let most = self.most;
        let len = usize::try_from(len).ok().filter(|len| *len <= most);
        let Some(len) = len else {
            return Err(invalid(format!("a frame has more than {most} bytes")));
        };
        if bytes.len() < head + len {
            return Ok(None);
        }
        let flags = bytes[0];
        let begin = self.unread.start + head;
        self.unread.start = begin + len;
        Ok(Some((flags, begin..begin + len)))
    }

    /// The next message, which must be one frame; `None` if it is incomplete. Answers PING, unless
    /// much is to be sent already.
    /// Error: the message has several frames, or a frame or a PING is too long.
    pub fn next(&mut self) -> io::Result<Option<&[u8]>> {
        while let Some((flags, body)) = self.frame()? {
            if flags & COMMAND == 0 {
                if flags & MORE != 0 {
                    return Err(invalid("a message has several frames"));
                }
                return Ok(Some(&self.buffer[body]));
            }
            // PING: a time to live of two bytes, then a context that PONG returns.
            if let Some([_, _, context @ ..]) = self.buffer[body].strip_prefix(b"\x04PING") {
                if context.len() > MAX_CONTEXT {
                    return Err(invalid("the context of a PING is too long"));
                }
                if self.out.len() - self.sent >= ENOUGH_OUT {
                    continue;
                }
                let pong = [b"\x04PONG", context].concat();
                put_frame(&mut self.out, COMMAND, &pong);
            }
        }
        Ok(None)
    }

    /// Queues a message of these frames.
    pub fn queue(&mut self, frames: &[&[u8]]) {
        for (i, frame) in frames.iter().enumerate() {
            let more = if i + 1 < frames.len() { MORE } else { 0 };
            put_frame(&mut self.out, more, frame);
        }
    }

    /// True if bytes wait for [`Self::flush`].
    pub fn is_unsent(&self) -> bool {
        !self.out.is_empty()
    }

    /// Sends the queued bytes, as far as the stream takes them.
    pub fn flush(&mut self) -> io::Result<()> {
        while self.sent < self.out.len() {
            match self.stream.write(&self.out[self.sent..]) {
                Ok(0) => return Err(ErrorKind::WriteZero.into()),
                Ok(written) => self.sent += written,
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) if e.kind() == ErrorKind::Interrupted => {}
                Err(e) => return Err(e),
            }
        }
        self.out.clear();
        self.sent = 0;
        Ok(())
    }
}

fn greeting() -> Vec<u8> {
    let mut greeting = vec![0; GREETING];
    greeting[0] = 0xff;
    greeting[8] = 1;
    greeting[9] = 0x7f;
    // Version 3.0.
    greeting[10] = 3;
    greeting[12..16].copy_from_slice(b"NULL");
    greeting
}

fn put_frame(out: &mut Vec<u8>, flags: u8, body: &[u8]) {
    match u8::try_from(body.len()) {
        Ok(len) => out.extend([flags, len]),
        Err(_) => {
            out.push(flags | LONG);
            out.extend((body.len() as u64).to_be_bytes());
        }
    }
    out.extend(body);
}

fn put_ready(out: &mut Vec<u8>, own: &str) {
    let mut body = b"\x05READY\x0bSocket-Type".to_vec();
    body.extend((own.len() as u32).to_be_bytes());
    body.extend(own.as_bytes());
    put_frame(out, COMMAND, &body);
}

/// The socket type in a READY command; stores the identity. `None` for another command.
fn read_ready(body: &[u8], identity: &mut Vec<u8>) -> Option<Vec<u8>> {
    let mut rest = body.strip_prefix(b"\x05READY")?;
    let mut socket = None;
    while !rest.is_empty() {
        let (len, after) = rest.split_first()?;
        let (name, after) = after.split_at_checked(usize::from(*len))?;
        let (len, after) = after.split_first_chunk::<4>()?;
        let (value, after) = after.split_at_checked(u32::from_be_bytes(*len) as usize)?;
        rest = after;
        match &name.to_ascii_lowercase()[..] {
            b"identity" => *identity = value.to_vec(),
            b"socket-type" => socket = Some(value.to_vec()),
            _ => {}
        }
    }
    socket
}

#[cfg(test)]
mod tests {
    use std::{
        os::unix::net::UnixStream,
        thread,
        time::{Duration, Instant},
    };

    use proptest::prelude::*;

    use super::*;

    /// The greeting (of version 3.1) and READY of a DEALER of libzmq 4.3.5 with the identity 0.
    fn libzmq() -> Vec<u8> {
        let mut bytes = greeting();
        bytes[11] = 1;
        bytes.extend(b"\x04\x2b\x05READY\x0bSocket-Type\0\0\0\x06DEALER");
        bytes.extend(b"\x08Identity\0\0\0\x02\0\0");
        bytes
    }

    fn pair() -> (Socket, Socket) {
        let (a, b) = UnixStream::pair().expect("a pair");
        for s in [&a, &b] {
            let timeout = Some(Duration::from_secs(5));
            s.set_read_timeout(timeout).expect("set");
        }
        (a.into(), b.into())
    }

    /// Repeats a step that does not block, until it returns a value.
    fn wait<T>(mut step: impl FnMut() -> io::Result<Option<T>>) -> io::Result<T> {
        let until = Instant::now() + Duration::from_secs(60);
        loop {
            if let Some(value) = step()? {
                return Ok(value);
            }
            assert!(Instant::now() < until, "nothing comes");
            thread::sleep(Duration::from_micros(100));
        }
    }

    fn shaken(stream: Socket, own: &str, wanted: &'static str) -> io::Result<Connection> {
        let mut c = Connection::begin(stream, own, wanted)?;
        wait(|| c.shake().map(|done| done.then_some(())))?;
        c.most = MAX_FRAME;
        Ok(c)
    }

    fn message(c: &mut Connection) -> io::Result<Vec<u8>> {
        wait(|| match c.next()?.map(<[u8]>::to_vec) {
            None => c.fill().map(|_| None),
            some => Ok(some),
        })
    }

    #[test]
    fn libzmq_is_understood_and_ping_answered() {
        let (a, mut b) = pair();
        b.write_all(&libzmq()).expect("sent");
        let mut c = shaken(a, "ROUTER", "DEALER").expect("a dealer");
        assert_eq!(c.identity, [0, 0]);
        b.write_all(b"\x04\x09\x04PING\0\x64ab\0\x02hi")
            .expect("sent");
        assert_eq!(message(&mut c).expect("a message"), b"hi");
        c.flush().expect("sent");
        let mut all = vec![0; 64 + 2 + 6 + 22 + 2 + 7];
        b.read_exact(&mut all).expect("greeting, READY, PONG");
        assert!(all.ends_with(b"\x04\x07\x04PONGab"), "{all:?}");
    }

    #[test]
    fn a_flood_of_pings_is_answered_within_bounds() {
        let (a, mut b) = pair();
        b.write_all(&libzmq()).expect("sent");
        let mut c = shaken(a, "PULL", "DEALER").expect("a dealer");
        let flood = b"\x04\x09\x04PING\0\x64ab".repeat(1_000);
        for _ in 0..100 {
            b.write_all(&flood).expect("sent");
            while !c.fill().is_ok_and(|came| !came) {
                assert!(c.next().expect("no message").is_none());
            }
        }
        assert!(c.out.len() <= ENOUGH_OUT + 32, "{} bytes", c.out.len());
        b.write_all(&[&b"\x04\x20\x04PING\0\x64"[..], &[7; 25]].concat())
            .expect("sent");
        let error = message(&mut c).expect_err("too long").to_string();
        assert!(error.contains("the context of a PING"), "{error}");
    }

    #[test]
    fn another_peer_is_refused() {
        let with = |at: usize, byte: u8| {
            let mut bytes = libzmq();
            bytes[at] = byte;
            bytes
        };
        let whole = libzmq();
        for (bytes, wanted, words) in [
            (
                &b"GET / HTTP/1.1\r\n".repeat(8)[..],
                "DEALER",
                "no greeting of ZMTP 3",
            ),
            (&with(10, 1), "DEALER", "no greeting of ZMTP 3"),
            (&with(12, b'P'), "DEALER", "another mechanism than NULL"),
            (&whole, "PUSH", "type DEALER, not PUSH"),
            (&with(64, 0), "DEALER", "no READY"),
            (&with(66, 4), "DEALER", "no READY"),
            (&libzmq()[..70], "DEALER", "unexpected end of file"),
            (
                &[greeting(), b"\x06\0\0\x01\0\0\0\0\0".to_vec()].concat(),
                "DEALER",
                "a frame has more than",
            ),
        ] {
            let (a, mut b) = pair();
            b.write_all(bytes).expect("sent");
            b.shutdown(std::net::Shutdown::Write).expect("shut");
            let shaken = shaken(a, "ROUTER", wanted);
            let error = shaken.map(|_| ()).expect_err(words);
            assert!(error.to_string().contains(words), "{error}");
        }
    }

    proptest! {
        #[test]
        fn messages_arrive_whole(
            sizes in prop::collection::vec(prop_oneof![0usize..300, 65_000usize..300_000], 1..6),
        ) {
            let (a, b) = pair();
            let sender = thread::spawn(move || {
                let mut c = shaken(b, "PUSH", "PULL").expect("shaken");
                for n in &sizes {
                    c.queue(&[&vec![*n as u8; *n]]);
                }
                let sent = wait(|| c.flush().map(|()| (!c.is_unsent()).then_some(())));
                sent.expect("sent");
                sizes
            });
            let mut c = shaken(a, "PULL", "PUSH").expect("shaken");
            let mut got = Vec::new();
            let end = loop {
                match message(&mut c) {
                    Ok(message) => got.push(message),
                    Err(e) => break e,
                }
            };
            prop_assert_eq!(end.kind(), ErrorKind::UnexpectedEof);
            let sizes = sender.join().expect("no panic");
            prop_assert_eq!(got.iter().map(Vec::len).collect::<Vec<_>>(), &sizes[..]);
            prop_assert!(got.iter().all(|m| m.iter().all(|b| *b == m.len() as u8)));
        }

        #[test]
        fn no_bytes_cause_a_panic(bytes in prop::collection::vec(any::<u8>(), 0..200)) {
            let (a, mut b) = pair();
            b.write_all(&libzmq()).expect("sent");
            b.write_all(&bytes).expect("sent");
            b.shutdown(std::net::Shutdown::Write).expect("shut");
            let mut c = shaken(a, "ROUTER", "DEALER").expect("shaken");
            while message(&mut c).is_ok() {}
        }
    }
}
