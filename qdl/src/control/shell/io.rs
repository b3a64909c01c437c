//! The I/O around a core: moves bytes between a stream and the core, and sleeps until its
//! deadlines.

use std::{io, time::Duration};

use bytes::{Buf, BytesMut};
use tokio::{
    io::{ErrorKind, Interest},
    time::sleep,
};
use tokio_util::codec::{Decoder, Encoder};

use fabric::clock::now_ns;

use super::stream::ControlStream;
use crate::control::{
    core::{Core, Link},
    frame::{Codec, FrameError},
};

/// Bytes read or encoded at a time.
const CHUNK: usize = 8192;

/// Most bytes of the peer that are drained when a session ends.
const LINGER_BYTES: usize = 4 << 20;

/// The codec of a control connection, and the bytes that it has not decoded or sent yet.
#[derive(Debug)]
pub(in crate::control) struct Framing {
    codec: Codec,
    input: BytesMut,
    pub(in crate::control) output: BytesMut,
}

impl Framing {
    /// Makes the framing of an unauthenticated peer.
    pub(crate) fn new() -> Self {
        Framing {
            codec: Codec::before_auth(),
            input: BytesMut::new(),
            output: BytesMut::new(),
        }
    }

    /// Passes the frames in `bytes` to the core. A core that is leaving drops them.
    pub(crate) fn receive<C: Core>(&mut self, core: &mut C, bytes: &[u8], now: u64) {
        self.input.extend_from_slice(bytes);
        while !core.link().is_leaving() && !core.link().is_over() {
            match self.codec.decode(&mut self.input) {
                Ok(Some(message)) => core.handle(message, now),
                Ok(None) => return,
                Err(e) => core.link_mut().fail_frame(e, now),
            }
            if let Some(session) = core.link_mut().handshake.take_session() {
                self.codec.secure(session);
            }
        }
        self.input.clear();
    }

    /// Passes the end of the peer's bytes to the core.
    pub(crate) fn end<C: Core>(&mut self, core: &mut C, now: u64) {
        if core.link().is_leaving() {
            return;
        }
        match self.codec.decode_eof(&mut self.input) {
            Err(e) => core.link_mut().fail_frame(e, now),
            Ok(_) => core.link_mut().handle_eof(),
        }
    }

    /// Encodes the core's next frame; false if none waits.
    pub(crate) fn transmit(&mut self, link: &mut Link, now: u64) -> bool {
        let Some(message) = link.poll_transmit(now) else {
            return false;
        };
        if let Err(e) = self.codec.encode(&message, &mut self.output) {
            link.fail_frame(e, now);
        }
        true
    }
}

/// Stream and buffers of a control connection.
#[derive(Debug)]
pub(super) struct Wire {
    stream: Box<dyn ControlStream>,
    framing: Framing,
    /// The peer has ended its direction.
    eof: bool,
    /// This node's direction is shut down.
    shut: bool,
    /// Bytes drained.
    lingered: usize,
}

impl Wire {
    /// Wraps a connected stream.
    pub(crate) fn new(stream: Box<dyn ControlStream>) -> Self {
        Wire {
            stream,
            framing: Framing::new(),
            eof: false,
            shut: false,
            lingered: 0,
        }
    }

    /// Drives the core until its next event; `None` once the session is over. Cancelling the wait
    /// loses nothing. Frames that the owner queues meanwhile are sent by the next call.
    pub(crate) async fn next<C: Core>(&mut self, core: &mut C) -> Option<C::Event> {
        loop {
            if let Some(event) = core.poll_event() {
                return Some(event);
            }
            // Read before the time limits are checked: this process may have been too slow to read.
            self.receive(core);
            core.handle_timeout(now_ns());
            self.transmit(core.link_mut());
            if let Some(event) = core.poll_event() {
                return Some(event);
            }
            let until = core.poll_timeout()?;
            self.ready(core.link(), until).await;
        }
    }

    /// Drives a core whose session is over until its connection is closed.
    pub(crate) async fn close<C: Core>(mut self, mut core: C) {
        while self.next(&mut core).await.is_some() {}
    }

    fn receive<C: Core>(&mut self, core: &mut C) {
        if self.eof || !core.link().wants_input() {
            return;
        }
        let mut chunk = [0; CHUNK];
        let mut read = self.stream.try_read(&mut chunk);
        let now = now_ns();
        if would_block(&read) && core.poll_timeout().is_some_and(|at| now >= at) {
            // The runtime's readiness may be stale. A thread that was blocked may not have polled
            // since then, and would take its own delay for the peer's silence.
            read = self.stream.read_at_once(&mut chunk);
        }
        match read {
            Ok(0) => {
                self.eof = true;
                self.framing.end(core, now);
            }
            Ok(n) if core.link().is_leaving() => {
                self.lingered += n;
                if self.lingered > LINGER_BYTES {
                    core.link_mut().end_lingering();
                }
            }
            Ok(n) => self.framing.receive(core, &chunk[..n], now),
            Err(e) if e.kind() == ErrorKind::WouldBlock => {}
            Err(e) => core.link_mut().fail_frame(FrameError::from(e), now),
        }
    }

    fn transmit(&mut self, link: &mut Link) {
        loop {
            let now = now_ns();
            while self.framing.output.len() < CHUNK && self.framing.transmit(link, now) {}
            let output = &mut self.framing.output;
            if output.is_empty() {
                link.note_flushed(now);
                break;
            }
            match self.stream.try_write(output) {
                Ok(n) => output.advance(n),
                Err(e) if e.kind() == ErrorKind::WouldBlock => break,
                Err(e) => {
                    output.clear();
                    link.fail_write(&e, now);
                    break;
                }
            }
        }
        if link.is_shut() && !self.shut {
            self.shut = true;
            self.stream.shut();
        }
        if link.is_shut() && self.eof {
            link.end_lingering();
        }
    }

    /// Waits until the socket is readable or writable as needed, or until `until`.
    async fn ready(&self, link: &Link, until: u64) {
        let sleep = sleep(Duration::from_nanos(until.saturating_sub(now_ns())));
        let read = (!self.eof && link.wants_input()).then_some(Interest::READABLE);
        let write = (!self.framing.output.is_empty()).then_some(Interest::WRITABLE);
        let Some(interest) = read.into_iter().chain(write).reduce(Interest::add) else {
            return sleep.await;
        };
        tokio::select! { biased;
            () = self.stream.ready(interest) => {}
            () = sleep => {}
        }
    }
}

fn would_block(read: &io::Result<usize>) -> bool {
    matches!(read, Err(e) if e.kind() == ErrorKind::WouldBlock)
}
