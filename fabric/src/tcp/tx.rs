//! The sending half of a socket: queue headers and
//! payload addresses, hand all of it to one `sendmsg`.
//!
//! What is queued is a list of `iovec`s. Headers, and payloads short
//! enough to be worth copying, lie in a staging buffer, where neighbours
//! share one `iovec`; longer payloads are sent from where they lie.

use std::{collections::VecDeque, fmt, io, sync::Arc};

use super::{Socket, frame};
use crate::{Broken, Endpoint, FabricCounts, Flushed, Post, PostError, Tx};

/// `IOV_MAX` on Linux.
const IOV_MAX: usize = 1024;

pub(super) struct TcpTx {
    socket: Arc<Socket>,
    endpoint: Endpoint,
    /// Bytes in front of each payload.
    header_bytes: usize,
    inline_bytes: usize,
    /// Headers and short payloads, twice as much as can be
    /// queued. Its heap block never moves: `iov` points into it.
    staging: Box<[u8]>,
    staged: usize,
    iov: Vec<libc::iovec>,
    /// First `iovec` not sent whole.
    head: usize,
    /// Where in the byte stream each queued write ends, oldest first.
    ends: VecDeque<u64>,
    queued_bytes: u64,
    sent_bytes: u64,
    posted: u64,
    broken: Option<Broken>,
    counts: FabricCounts,
}

// SAFETY: the addresses in `iov` point into `staging` and into regions that `endpoint` keeps alive,
// both owned by this value; they are used only under `&mut self`.
unsafe impl Send for TcpTx {}

impl TcpTx {
    pub(super) fn new(socket: Arc<Socket>, mut endpoint: Endpoint, inline_bytes: usize) -> Self {
        endpoint.send_depth = endpoint.send_depth.max(1);
        let depth = endpoint.send_depth;
        let header_bytes = frame::header_bytes(endpoint.peer_stride);
        TcpTx {
            socket,
            header_bytes,
            inline_bytes,
            // Twice what `depth` writes can take at most, so
            // that what is sent makes way only now and then.
            staging: vec![0; 2 * depth * (header_bytes + inline_bytes)].into(),
            staged: 0,
            iov: Vec::with_capacity(4 * depth),
            head: 0,
            ends: VecDeque::with_capacity(depth),
            queued_bytes: 0,
            sent_bytes: 0,
            posted: 0,
            broken: None,
            counts: FabricCounts::default(),
            endpoint,
        }
    }

    /// Takes `len` bytes of the staging buffer, joined to the last
    /// `iovec` where they touch it. Returns where they begin.
    fn stage(&mut self, len: usize) -> usize {
        let start = self.staged;
        self.staged += len;
        let at = self.staging[start..self.staged].as_mut_ptr();
        match self.iov.last_mut() {
            Some(last) if last.iov_base.cast::<u8>().wrapping_add(last.iov_len) == at => {
                last.iov_len += len;
            }
            _ => self.iov.push(libc::iovec {
                iov_base: at.cast(),
                iov_len: len,
            }),
        }
        start
    }

    /// Moves what is not sent to the front of `iov` and of the staging buffer. Afterwards there is
    /// room for as many writes as the send depth allows.
    fn make_way(&mut self) {
        self.iov.drain(..self.head);
        self.head = 0;
        let base = self.staging.as_ptr() as usize;
        let staged = base..base + self.staged;
        // The staged bytes of unsent entries are the end of what is staged.
        let first = self
            .iov
            .iter()
            .map(|v| v.iov_base as usize)
            .find(|at| staged.contains(at));
        let gone = first.map_or(self.staged, |at| at - base);
        self.staging.copy_within(gone..self.staged, 0);
        self.staged -= gone;
        for v in &mut self.iov {
            if staged.contains(&(v.iov_base as usize)) {
                v.iov_base = v.iov_base.cast::<u8>().wrapping_sub(gone).cast();
            }
        }
    }

    fn advance(&mut self, mut n: usize) {
        self.sent_bytes += n as u64;
        if self.sent_bytes == self.queued_bytes {
            self.iov.clear();
            self.head = 0;
            self.staged = 0;
            self.ends.clear();
            return;
        }
        while n > 0 {
            let v = &mut self.iov[self.head];
            if n < v.iov_len {
                v.iov_base = v.iov_base.cast::<u8>().wrapping_add(n).cast();
                v.iov_len -= n;
                break;
            }
            n -= v.iov_len;
            self.head += 1;
        }
        while self.ends.front().is_some_and(|e| *e <= self.sent_bytes) {
            self.ends.pop_front();
        }
    }
}

impl Tx for TcpTx {
    fn post(&mut self, post: &Post) -> Result<(), PostError> {
        if let Some(b) = &self.broken {
            return Err(b.clone().into());
        }
        self.endpoint.check(post)?;
        if self.room() == 0 {
            return Err(PostError::Full);
        }
        let len = post.len as usize;
        let full = self.staging.len() - self.staged < self.header_bytes + self.inline_bytes;
        if full || self.iov.capacity() - self.iov.len() < 2 {
            self.make_way();
        }
        let copied = if len <= self.inline_bytes { len } else { 0 };
        let start = self.stage(self.header_bytes + copied);
        let staged = &mut self.staging[start..self.staged];
        let (header, payload) = staged.split_at_mut(self.header_bytes);
        frame::write(header, post.imm, post.at, post.len);
        post.count(&mut self.counts);
        self.counts.inline += u64::from(!post.imm.is_control() && copied == len);
        if len > 0 {
            let source = &self.endpoint.sources[usize::from(post.source.0)];
            if copied > 0 {
                if let Some(from) = source.reach(post.offset, len) {
                    // SAFETY: `reach` checked the bounds, `payload` is `len` bytes of ours, and
                    // the poster leaves the source alone until `post` returns (the contract).
                    unsafe { std::ptr::copy_nonoverlapping(from, payload.as_mut_ptr(), len) };
                }
                self.counts.copies += 1;
                self.counts.copied_bytes += len as u64;
            } else if let Ok(at) = source.at(post.offset, len) {
                self.iov.push(libc::iovec {
                    iov_base: at.cast(),
                    iov_len: len,
                });
            }
        }
        self.queued_bytes += (self.header_bytes + len) as u64;
        self.ends.push_back(self.queued_bytes);
        self.posted += 1;
        Ok(())
    }

    fn flush(&mut self) -> Result<Flushed, Broken> {
        if let Some(b) = &self.broken {
            return Err(b.clone());
        }
        while self.head < self.iov.len() {
            let iov = &mut self.iov[self.head..];
            let n = iov.len().min(IOV_MAX);
            let flags = libc::MSG_NOSIGNAL | libc::MSG_DONTWAIT;
            let sent = if let [all] = iov {
                // SAFETY: `all` is a live entry, as below; it costs less than a list of one.
                unsafe { libc::send(self.socket.fd(), all.iov_base, all.iov_len, flags) }
            } else {
                // SAFETY: an all-zero msghdr is valid; the fields that matter are set below.
                let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
                msg.msg_iov = iov.as_mut_ptr();
                msg.msg_iovlen = n;
                // SAFETY: `iov` holds `n` live entries that point into `staging` and the source
                // regions, which this value owns; the socket is open as long as `self.socket`
                // lives.
                unsafe { libc::sendmsg(self.socket.fd(), &msg, flags) }
            };
            self.counts.syscalls += 1;
            if sent < 0 {
                let e = io::Error::last_os_error();
                match e.kind() {
                    io::ErrorKind::WouldBlock => {
                        self.counts.empty_syscalls += 1;
                        return Ok(Flushed::Blocked);
                    }
                    io::ErrorKind::Interrupted => continue,
                    _ => {
                        let b = Broken::io("send", &e);
                        self.broken = Some(b.clone());
                        return Err(b);
                    }
                }
            }
            let asked: usize = iov[..n].iter().map(|v| v.iov_len).sum();
            self.counts.partial += u64::from((sent as usize) < asked);
            self.advance(sent as usize);
        }
        Ok(Flushed::Done)
    }

    fn room(&self) -> usize {
        self.endpoint.send_depth - self.ends.len()
    }

    fn posted(&self) -> u64 {
        self.posted
    }

    fn retired(&self) -> u64 {
        self.posted - self.ends.len() as u64
    }

    fn inline_limit(&self) -> usize {
        self.inline_bytes
    }

    fn carried(&self) -> u64 {
        self.sent_bytes
    }

    fn counts(&self) -> FabricCounts {
        self.counts
    }
}

impl Drop for TcpTx {
    fn drop(&mut self) {
        // The other half may live on for a moment; nothing more is to be sent or received.
        // SAFETY: the socket is open: `self.socket` lives. A failure means that it is down already.
        unsafe { libc::shutdown(self.socket.fd(), libc::SHUT_RDWR) };
    }
}

impl fmt::Debug for TcpTx {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "TcpTx({} posted, {} retired)",
            self.posted,
            self.retired()
        )
    }
}
