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

const MORE: u8 = 1;
const LONG: u8 = 2;
const COMMAND: u8 = 4;
const GREETING: usize = 64;
/// Capacity of the receive buffer, which holds the message of a step with 10,000 sequences.
const BUFFER: usize = 256 << 10;
/// Most bytes of a frame.
const MAX_FRAME: usize = 16 << 20;
const MAX_READY: usize = 4096;

fn invalid(what: impl Into<String>) -> io::Error {
    io::Error::new(ErrorKind::InvalidData, what.into())
}

/// A stream after the handshake, with the bytes that wait in either direction.
pub(super) struct Connection {
    pub stream: Socket,
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
    /// Exchanges greeting and READY on a blocking stream: this side is a socket of the type `own`,
    /// the peer must be one of the type `wanted`.
    /// Error: the peer speaks no ZMTP 3 with NULL, or is another socket; errors of the stream.
    pub fn shake(stream: Socket, own: &str, wanted: &str) -> io::Result<Self> {
        let mut c = Connection {
            stream,
            identity: Vec::new(),
            buffer: vec![0; BUFFER],
            unread: 0..0,
            out: greeting(),
            sent: 0,
        };
        put_ready(&mut c.out, own);
        c.flush()?;
        c.wait_for(GREETING)?;
        let greeting = &c.buffer[c.unread.start..][..GREETING];
        if greeting[0] != 0xff || greeting[9] & 1 == 0 || greeting[10] < 3 {
            return Err(invalid("the peer sent no greeting of ZMTP 3"));
        }
        if &greeting[12..17] != b"NULL\0" {
            return Err(invalid("the peer wants another mechanism than NULL"));
        }
        c.unread.start += GREETING;
        let (flags, body) = loop {
            match c.frame()? {
                Some(frame) => break frame,
                None if c.unread.len() > MAX_READY => return Err(invalid("READY is too long")),
                None => c.read_some()?,
            }
        };
        let socket = match flags & COMMAND {
            0 => None,
            _ => read_ready(&c.buffer[body], &mut c.identity),
        };
        match socket {
            Some(socket) if socket == wanted.as_bytes() => Ok(c),
            Some(socket) => Err(invalid(format!(
                "the peer is a socket of type {}, not {wanted}",
                String::from_utf8_lossy(&socket)
            ))),
            None => Err(invalid("the peer sent no READY")),
        }
    }

    fn wait_for(&mut self, bytes: usize) -> io::Result<()> {
        while self.unread.len() < bytes {
            self.read_some()?;
        }
        Ok(())
    }

    fn read_some(&mut self) -> io::Result<()> {
        match self.fill()? {
            true => Ok(()),
            false => Err(ErrorKind::TimedOut.into()),
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
        let len = usize::try_from(len).ok().filter(|len| *len <= MAX_FRAME);
        let Some(len) = len else {
            return Err(invalid(format!("a frame has more than {MAX_FRAME} bytes")));
        };
        if bytes.len() < head + len {
            return Ok(None);
        }
        let flags = bytes[0];
        let begin = self.unread.start + head;
        self.unread.start = begin + len;
        Ok(Some((flags, begin..begin + len)))
    }

    /// The next message, which must be one frame; `None` if it is incomplete. Answers PING.
    /// Error: the message has several frames, or a frame is too long.
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
                let pong = [b"\x04PONG", context].concat();
                put_frame(&mut self.out, COMMAND, &pong);
            }
        }
        Ok(None)
    }

    /// Waits for the next message on a blocking stream.
    /// Errors: as [`Self::next`] and [`Self::fill`]; [`ErrorKind::TimedOut`].
    #[cfg(test)]
    pub fn wait(&mut self) -> io::Result<Vec<u8>> {
        loop {
            if let Some(message) = self.next()? {
                return Ok(message.to_vec());
            }
            self.read_some()?;
        }
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
    use std::{os::unix::net::UnixStream, thread, time::Duration};

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

    #[test]
    fn libzmq_is_understood_and_ping_answered() {
        let (a, mut b) = pair();
        b.write_all(&libzmq()).expect("sent");
        let mut c = Connection::shake(a, "ROUTER", "DEALER").expect("a dealer");
        assert_eq!(c.identity, [0, 0]);
        b.write_all(b"\x04\x09\x04PING\0\x64ab\0\x02hi")
            .expect("sent");
        assert_eq!(c.wait().expect("a message"), b"hi");
        c.flush().expect("sent");
        let mut all = vec![0; 64 + 2 + 6 + 22 + 2 + 7];
        b.read_exact(&mut all).expect("greeting, READY, PONG");
        assert!(all.ends_with(b"\x04\x07\x04PONGab"), "{all:?}");
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
        ] {
            let (a, mut b) = pair();
            b.write_all(bytes).expect("sent");
            b.shutdown(std::net::Shutdown::Write).expect("shut");
            let shaken = Connection::shake(a, "ROUTER", wanted);
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
                let mut c = Connection::shake(b, "PUSH", "PULL").expect("shaken");
                for n in &sizes {
                    c.queue(&[&vec![*n as u8; *n]]);
                }
                c.flush().expect("sent");
                sizes
            });
            let mut c = Connection::shake(a, "PULL", "PUSH").expect("shaken");
            let mut got = Vec::new();
            let end = loop {
                match c.wait() {
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
            let mut c = Connection::shake(a, "ROUTER", "DEALER").expect("shaken");
            while c.wait().is_ok() {}
        }
    }
}
