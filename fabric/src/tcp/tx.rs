//! The sending half of a socket: it queues headers and payload addresses, and sends the queue with
//! one `sendmsg`.
//!
//! The queue is a list of `iovec`s. Headers and short payloads are copied into a staging buffer,
//! where neighbours share one `iovec`. Longer payloads are sent from the source region.

use std::{collections::VecDeque, io, sync::Arc};

use super::{Socket, frame};
use crate::{Broken, Endpoint, FabricCounts, Flushed, Post, PostError, Tx};

const IOV_MAX: usize = 1024;

pub(super) struct TcpTx {
    socket: Arc<Socket>,
    endpoint: Endpoint,
    /// Bytes in front of each payload.
    header_bytes: usize,
    inline_bytes: usize,
    /// Headers and short payloads, twice as much as the queue holds. `iov` points into this heap
    /// block, which never moves.
    staging: Box<[u8]>,
    staged: usize,
    iov: Vec<libc::iovec>,
    /// Index of the first `iovec` that is not sent in full.
    head: usize,
    /// End of each queued write in the byte stream, oldest first.
    ends: VecDeque<u64>,
    queued_bytes: u64,
    sent_bytes: u64,
    posted: u64,
    broken: Option<Broken>,
    counts: FabricCounts,
}

// SAFETY: the addresses in `iov` point into `staging` and into regions that `endpoint` keeps alive.
// This value owns both, and uses the addresses only under `&mut self`.
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
            // Twice the bytes of `depth` writes, so that `make_way` runs rarely.
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

    /// Reserves `len` bytes of the staging buffer and returns their offset. The bytes extend the
    /// last `iovec` where they adjoin it.
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

    /// Moves the unsent entries to the front of `iov` and their bytes to the front of the staging
    /// buffer. Then `iov` and buffer have room for as many writes as the send depth allows.
    fn make_way(&mut self) {
        self.iov.drain(..self.head);
        self.head = 0;
        let base = self.staging.as_ptr() as usize;
        let staged = base..base + self.staged;
        // Unsent staged bytes lie at the end of the staged bytes.
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
        post.count(self.endpoint.peer_stream, &mut self.counts);
        self.counts.inline += u64::from(!post.imm.is_control() && copied == len);
        if len > 0 {
            let source = &self.endpoint.sources[usize::from(post.source.0)];
            if copied > 0 {
                if let Some(from) = source.reach(post.offset, len) {
                    // SAFETY: `reach` checked the bounds, `payload` has `len` bytes of `staging`,
                    // and the caller of `post` leaves the source unchanged until `post` returns
                    // (the contract).
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
                // SAFETY: `all` is a live entry, as below; `send` costs less than a list of one.
                unsafe { libc::send(self.socket.fd(), all.iov_base, all.iov_len, flags) }
            } else {
                // SAFETY: an all-zero msghdr is valid; the lines below set the list.
                let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
                msg.msg_iov = iov.as_mut_ptr();
                msg.msg_iovlen = n;
                // SAFETY: `iov` holds `n` live entries that point into `staging` and the source
                // regions, which this value keeps alive; `self.socket` keeps the socket open.
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
        // Ends both directions, although the receiving half may live on for a moment.
        // SAFETY: `self.socket` keeps the socket open. An error means that it is down already.
        unsafe { libc::shutdown(self.socket.fd(), libc::SHUT_RDWR) };
    }
}
