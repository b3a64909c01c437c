//! The plain-socket contender. Both ends know the message sizes, so messages have no headers;
//! answers come in order. A burst is one `sendmsg`; a read goes straight into the ring buffer.
//! The socket buffer sizes were the fastest of those measured.

use std::{
    io,
    net::TcpStream,
    os::fd::AsRawFd,
    sync::atomic::{AtomicBool, Ordering},
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use fabric::clock::now_ns;

use crate::meter::{Deadline, Meter, SAMPLES, Shape};

/// The client copies requests up to this size, in bytes, into one buffer. It sends longer requests
/// from the memory of their samples.
const COPY_UP_TO: usize = 1024;
/// `SO_SNDBUF` in bytes. With a send buffer smaller than the receive buffer, a slow reader stalls
/// loopback (see the README).
const SEND_BUFFER: usize = 1 << 20;
/// `SO_RCVBUF` in bytes: the kernel's automatic sizing begins with less than one large payload.
const RECEIVE_BUFFER: usize = 1 << 20;
const READ_UP_TO: usize = 256 << 10;
/// Longest sleep of a thread in the kernel before it checks its stop flag, in milliseconds.
const PATIENCE_MS: i32 = 10;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Wait {
    /// The thread polls again at once.
    Spin,
    /// The thread sleeps in the kernel: in `recvmsg` with one connection, else in `poll`.
    Sleep,
}

struct Ring {
    bytes: Box<[u8]>,
    at: usize,
    /// Bytes of the last, incomplete message that have arrived.
    part: usize,
}

impl Ring {
    fn new(slots: usize, stride: usize) -> Self {
        // The ring has at least 8 KiB, so that few reads of small messages end at its wrap.
        let slots = slots.max(8192 / stride);
        let mut bytes = vec![0u8; slots * stride].into_boxed_slice();
        bytes.fill(1);
        Ring {
            bytes,
            at: 0,
            part: 0,
        }
    }

    /// Ring memory for the next read: the part before the wrap, then the part after the wrap.
    fn room(&mut self) -> [libc::iovec; 2] {
        let base = self.bytes.as_mut_ptr();
        let first = (self.bytes.len() - self.at).min(READ_UP_TO);
        let second = if first < READ_UP_TO {
            self.at.min(READ_UP_TO - first)
        } else {
            0
        };
        [
            iovec(base.wrapping_add(self.at), first),
            iovec(base, second),
        ]
    }

    /// Counts `n` received bytes, and returns how many messages they complete.
    fn complete(&mut self, n: usize, stride: usize) -> usize {
        self.at += n;
        if self.at >= self.bytes.len() {
            self.at -= self.bytes.len();
        }
        self.part += n;
        let whole = self.part / stride;
        self.part -= whole * stride;
        whole
    }
}

fn iovec(base: *mut u8, len: usize) -> libc::iovec {
    libc::iovec {
        iov_base: base.cast(),
        iov_len: len,
    }
}

fn message(iov: &mut [libc::iovec]) -> libc::msghdr {
    // SAFETY: an all-zero msghdr is valid; the needed fields are set below.
    let mut message: libc::msghdr = unsafe { std::mem::zeroed() };
    message.msg_iov = iov.as_mut_ptr();
    message.msg_iovlen = iov.len().min(1024);
    message
}

struct Connection {
    stream: TcpStream,
    ring: Ring,
    stride: usize,
    out: Vec<u8>,
    iov: Vec<libc::iovec>,
    head: usize,
    /// Post time of each request in flight, in ns: a ring from index `first` up to `last`.
    posted_ns: Vec<u64>,
    first: usize,
    last: usize,
}

// SAFETY: the addresses in `iov` point into `out`, and into memory that the connection's owner
// keeps alive; they are used only under `&mut self`.
unsafe impl Send for Connection {}

impl Connection {
    fn new(stream: TcpStream, slots: usize, stride: usize, wait: Wait) -> Result<Self> {
        stream.set_nodelay(true)?;
        socket2::SockRef::from(&stream).set_send_buffer_size(SEND_BUFFER)?;
        socket2::SockRef::from(&stream).set_recv_buffer_size(RECEIVE_BUFFER)?;
        if wait == Wait::Sleep {
            stream.set_read_timeout(Some(Duration::from_millis(PATIENCE_MS as u64)))?;
        }
        Ok(Connection {
            stream,
            ring: Ring::new(slots, stride),
            stride,
            out: Vec::with_capacity(slots * COPY_UP_TO),
            iov: Vec::with_capacity(slots + 1),
            head: 0,
            posted_ns: vec![0; slots + 1],
            first: 0,
            last: 0,
        })
    }

    fn copy(&mut self, bytes: &[u8]) {
        // `out` never grows: `new` reserved room for every slot.
        self.out.extend_from_slice(bytes);
        let len = self.out.len();
        let base = self.out.as_mut_ptr();
        match self.iov.last_mut() {
            Some(v) => v.iov_len = len,
            None => self.iov.push(iovec(base, len)),
        }
    }

    fn point(&mut self, bytes: &[u8]) {
        self.iov.push(iovec(bytes.as_ptr().cast_mut(), bytes.len()));
    }

    fn pending(&self) -> bool {
        self.head < self.iov.len()
    }

    /// Sends the queued messages with one `sendmsg`, or several if the socket takes only a part.
    fn send(&mut self) -> Result<()> {
        while self.pending() {
            let msg = message(&mut self.iov[self.head..]);
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            // SAFETY: the entries point into `out` and into memory that the owner keeps alive; the
            // socket is open.
            let sent = unsafe { libc::sendmsg(self.stream.as_raw_fd(), &msg, flags) };
            if sent < 0 {
                let e = io::Error::last_os_error();
                match e.kind() {
                    io::ErrorKind::WouldBlock => return Ok(()),
                    io::ErrorKind::Interrupted => continue,
                    _ => bail!("sendmsg: {e}"),
                }
            }
            let mut sent = sent as usize;
            while sent > 0 {
                let v = &mut self.iov[self.head];
                if sent < v.iov_len {
                    v.iov_base = v.iov_base.cast::<u8>().wrapping_add(sent).cast();
                    v.iov_len -= sent;
                    break;
                }
                sent -= v.iov_len;
                self.head += 1;
            }
        }
        self.iov.clear();
        self.out.clear();
        self.head = 0;
        Ok(())
    }

    /// Reads once; returns the number of messages that are now complete.
    fn receive(&mut self, block: bool) -> Result<usize> {
        let mut iov = self.ring.room();
        let mut msg = message(&mut iov);
        let flags = if block { 0 } else { libc::MSG_DONTWAIT };
        // SAFETY: the entries are two disjoint runs of the ring, which `self` owns; the socket is
        // open.
        let n = unsafe { libc::recvmsg(self.stream.as_raw_fd(), &mut msg, flags) };
        match n {
            0 => bail!("a plain connection was closed"),
            n if n > 0 => Ok(self.ring.complete(n as usize, self.stride)),
            _ => {
                let e = io::Error::last_os_error();
                match e.kind() {
                    io::ErrorKind::WouldBlock | io::ErrorKind::Interrupted => Ok(0),
                    _ => bail!("recvmsg: {e}"),
                }
            }
        }
    }
}

/// Sleeps until a connection is readable, or writable if it has pending data.
fn sleep(connections: &[Connection]) {
    let mut fds = [libc::pollfd {
        fd: -1,
        events: 0,
        revents: 0,
    }; 8];
    for (fd, c) in fds.iter_mut().zip(connections) {
        fd.fd = c.stream.as_raw_fd();
        fd.events = libc::POLLIN | if c.pending() { libc::POLLOUT } else { 0 };
    }
    let n = connections.len().min(fds.len());
    // SAFETY: `fds` has at least `n` entries and outlives the call.
    unsafe { libc::poll(fds.as_mut_ptr(), n as libc::nfds_t, PATIENCE_MS) };
}

/// Waits as `wait` says. Returns true if the next read may block: with one connection only.
fn idle(wait: Wait, connections: &[Connection]) -> bool {
    match wait {
        Wait::Spin => {
            std::hint::spin_loop();
            false
        }
        Wait::Sleep if connections.len() == 1 && !connections[0].pending() => true,
        Wait::Sleep => {
            sleep(connections);
            false
        }
    }
}

pub struct Client {
    shape: Shape,
    wait: Wait,
    samples: Vec<u8>,
    connections: Vec<Connection>,
    sent: u64,
}

impl Client {
    /// Makes a client over connected streams.
    pub fn new(shape: Shape, wait: Wait, streams: Vec<TcpStream>) -> Result<Self> {
        let connections = streams
            .into_iter()
            .map(|s| Connection::new(s, shape.slots(), shape.response, wait))
            .collect::<Result<_>>()?;
        Ok(Client {
            shape,
            wait,
            samples: vec![1; SAMPLES * shape.request],
            connections,
            sent: 0,
        })
    }

    fn queue(&mut self, connection: usize, now: u64) {
        let request = self.shape.request;
        let at = Shape::sample(self.sent) * request;
        let bytes = &self.samples[at..at + request];
        let c = &mut self.connections[connection];
        if bytes.len() <= COPY_UP_TO {
            c.copy(bytes);
        } else {
            c.point(bytes);
        }
        c.posted_ns[c.last] = now;
        c.last = (c.last + 1) % c.posted_ns.len();
        self.sent += 1;
    }

    /// Runs a round: replaces each answered request until the deadline, then awaits all answers.
    pub fn round(&mut self, deadline: Deadline, meter: &mut Meter) -> Result<()> {
        let n = self.connections.len();
        let mut now = now_ns();
        // Small requests per connection that wait until the connection has sent its last burst: the
        // copies of one burst must be contiguous in `out`.
        let mut waiting = vec![0usize; n];
        for i in 0..self.shape.in_flight {
            self.queue(i % n, now);
        }
        for c in &mut self.connections {
            c.send()?;
        }
        let mut in_flight = self.shape.in_flight;
        let mut block = false;
        while in_flight > 0 {
            let mut moved = false;
            for i in 0..n {
                let got = self.connections[i].receive(block)?;
                if got == 0 {
                    if self.connections[i].pending() {
                        self.connections[i].send()?;
                    }
                } else {
                    moved = true;
                    now = now_ns();
                    let c = &mut self.connections[i];
                    for _ in 0..got {
                        meter.answer(c.posted_ns[c.first], now);
                        c.first = (c.first + 1) % c.posted_ns.len();
                    }
                    if deadline.goes_on(now, meter.answered) {
                        waiting[self.shape.next(i)] += got;
                    } else {
                        in_flight -= got;
                        ensure!(
                            now < deadline.at_ns + 10_000_000_000,
                            "plain sockets did not answer"
                        );
                    }
                }
                let to = self.shape.next(i);
                let may = self.shape.request > COPY_UP_TO || !self.connections[to].pending();
                if waiting[to] > 0 && may {
                    for _ in 0..std::mem::take(&mut waiting[to]) {
                        self.queue(to, now);
                    }
                    self.connections[to].send()?;
                }
            }
            block = !moved && waiting.iter().all(|w| *w == 0) && idle(self.wait, &self.connections);
        }
        Ok(())
    }
}

pub struct Server {
    wait: Wait,
    response: usize,
    outputs: Vec<Box<[u8]>>,
    /// Index of the next output slot, for each connection.
    at: Vec<usize>,
    connections: Vec<Connection>,
}

impl Server {
    pub fn new(shape: Shape, wait: Wait, streams: Vec<TcpStream>) -> Result<Self> {
        let connections: Vec<_> = streams
            .into_iter()
            .map(|s| Connection::new(s, shape.slots(), shape.request, wait))
            .collect::<Result<_>>()?;
        let outputs = connections
            .iter()
            .map(|_| vec![1u8; shape.slots() * shape.response].into_boxed_slice())
            .collect();
        Ok(Server {
            wait,
            response: shape.response,
            outputs,
            at: vec![0; connections.len()],
            connections,
        })
    }

    pub fn serve(&mut self, stop: &AtomicBool) -> Result<()> {
        let mut block = false;
        while !stop.load(Ordering::Relaxed) {
            let mut moved = false;
            for (i, c) in self.connections.iter_mut().enumerate() {
                let got = c.receive(block)?;
                moved |= got > 0;
                let (output, at) = (&self.outputs[i], &mut self.at[i]);
                let slots = output.len() / self.response;
                let mut left = got;
                // The output slots are contiguous, so a burst is at most two runs (one wrap).
                while left > 0 {
                    let run = left.min(slots - *at);
                    let from = *at * self.response;
                    c.point(
                        output
                            .get(from..from + run * self.response)
                            .context("a slot")?,
                    );
                    *at = (*at + run) % slots;
                    left -= run;
                }
                if c.pending() {
                    c.send()?;
                }
            }
            block = !moved && idle(self.wait, &self.connections);
        }
        Ok(())
    }
}
