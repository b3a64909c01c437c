//! The receiving half of a socket.
//!
//! ```text
//!   socket --recv---> [ rest of the current payload, in its slot ][ staging buffer ]
//!                                                                   |
//!                    headers are parsed here; a whole payload here is copied to its slot, and so
//!                    is the start of a longer payload, whose rest the next recvmsg reads in place
//! ```
//!
//! So a burst of small writes costs one system call for all and one copy each. Of a large payload,
//! only the bytes that shared a read with earlier bytes are copied.

use std::{io, os::fd::RawFd, sync::Arc};

use super::{
    HEADER_BYTES, Socket,
    frame::{self, ALIGNED_HEADER_BYTES},
};
use crate::{Armed, Broken, Event, FabricCounts, Imm, PathReading, Rx, Window, parts::Parts};

/// Payloads of at least this many bytes are large.
const LARGE: usize = 16 << 10;
/// Most bytes that a read takes behind a large payload: a few headers. The next payload is probably
/// large too, and bytes in the staging buffer cost a copy.
const READ_PAST_LARGE: usize = 4 * ALIGNED_HEADER_BYTES;

#[derive(Clone, Copy, Debug)]
struct Landing {
    imm: Imm,
    len: u32,
    /// Offset of the payload within its slot.
    begins: u32,
    /// Offset of the payload's next byte within the region.
    at: usize,
    left: usize,
}

pub(super) struct TcpRx {
    socket: Arc<Socket>,
    parts: Parts,
    /// Bytes in front of each payload.
    header_bytes: usize,
    staging: Box<[u8]>,
    /// The unparsed bytes of the staging buffer are `start..end`.
    start: usize,
    end: usize,
    landing: Option<Landing>,
    large: bool,
    /// Bytes read from the socket.
    carried: u64,
    /// The last read found the socket empty.
    drained: bool,
    broken: bool,
    counts: FabricCounts,
}

impl TcpRx {
    pub(super) fn new(socket: Arc<Socket>, window: Window, staging_bytes: usize) -> Self {
        TcpRx {
            header_bytes: frame::header_bytes(window.stride()),
            socket,
            parts: Parts::new(window),
            staging: vec![0; staging_bytes.max(2 * ALIGNED_HEADER_BYTES)].into(),
            start: 0,
            end: 0,
            landing: None,
            large: false,
            carried: 0,
            drained: false,
            broken: false,
            counts: FabricCounts::default(),
        }
    }

    /// Parses the next event in the staging buffer; `None` when the parser needs more bytes.
    fn parse(&mut self) -> Result<Option<Event>, Broken> {
        if let Some(mut l) = self.landing {
            let n = l.left.min(self.end - self.start);
            self.copy(l.at, n);
            l.at += n;
            l.left -= n;
            if l.left > 0 {
                self.landing = Some(l);
                return Ok(None);
            }
            self.landing = None;
            let arrived = self.parts.land(l.imm, l.begins, l.len, &mut self.counts);
            return arrived.map(Some);
        }
        let ahead = &self.staging[self.start..self.end];
        let Some((header, padding)) = ahead
            .get(..self.header_bytes)
            .and_then(|bytes| bytes.split_first_chunk::<HEADER_BYTES>())
        else {
            return Ok(None);
        };
        let h = frame::decode(header)?;
        frame::check_padding(padding)?;
        self.start += self.header_bytes;
        if let Some(message) = h.imm.message() {
            self.counts.control += 1;
            return Ok(Some(Event::Control(message)));
        }
        let to = self.parts.landing(h.imm, Some(h.at), h.len)?;
        let (len, here) = (h.len as usize, self.end - self.start);
        self.large = len >= LARGE;
        self.copy(to.offset, len.min(here));
        if len > here {
            self.landing = Some(Landing {
                imm: h.imm,
                len: h.len,
                begins: to.at,
                at: to.offset + here,
                left: len - here,
            });
            return Ok(None);
        }
        let arrived = self.parts.land(h.imm, to.at, h.len, &mut self.counts);
        arrived.map(Some)
    }

    /// Moves the next `n` bytes of the staging buffer to offset `to` of the window's region.
    fn copy(&mut self, to: usize, n: usize) {
        if n == 0 {
            return;
        }
        let from = &self.staging[self.start..self.start + n];
        if let Some(to) = self.parts.window().region().reach(to, n) {
            // SAFETY: `reach` checked the bounds; `Parts::landing` found the slot's grant open and
            // the payload behind the parts that have arrived. The sender owns these bytes, and no
            // thread reads them before the arrival.
            unsafe { std::ptr::copy_nonoverlapping(from.as_ptr(), to, n) };
        }
        self.start += n;
        self.counts.copied_bytes += n as u64;
        self.counts.copies += 1;
    }

    /// Reads once. Returns false when the socket is empty.
    fn read(&mut self) -> Result<bool, Broken> {
        if self.start > 0 {
            // The remaining bytes are shorter than a header.
            self.staging.copy_within(self.start..self.end, 0);
            self.end -= self.start;
            self.start = 0;
        }
        let room = self.staging.len() - self.end;
        let room = match self.large {
            true => room.min(READ_PAST_LARGE),
            false => room,
        };
        let mut iov = [libc::iovec {
            iov_base: std::ptr::null_mut(),
            iov_len: 0,
        }; 2];
        let mut in_place = 0;
        if let Some(l) = &self.landing
            && let Ok(at) = self.parts.window().region().at(l.at, l.left)
        {
            in_place = l.left;
            iov[0] = libc::iovec {
                iov_base: at.cast(),
                iov_len: in_place,
            };
        }
        iov[1] = libc::iovec {
            iov_base: self.staging[self.end..].as_mut_ptr().cast(),
            iov_len: room,
        };
        loop {
            // `recv` with one buffer costs less than `recvmsg` with a list of two.
            let n = if in_place == 0 {
                let [_, to] = iov;
                // SAFETY: the buffer is the unused end of `staging`; the socket is open.
                unsafe {
                    libc::recv(
                        self.socket.fd(),
                        to.iov_base,
                        to.iov_len,
                        libc::MSG_DONTWAIT,
                    )
                }
            } else {
                // SAFETY: an all-zero msghdr is valid; the lines below set the list.
                let mut msg: libc::msghdr = unsafe { std::mem::zeroed() };
                msg.msg_iov = iov.as_mut_ptr();
                msg.msg_iovlen = iov.len();
                // SAFETY: the first entry is the rest of a payload in its slot, within the bounds
                // that `at` checked; the sender owns it, and `self.parts` keeps it mapped. The
                // second entry is the unused end of `staging`.
                unsafe { libc::recvmsg(self.socket.fd(), &mut msg, libc::MSG_DONTWAIT) }
            };
            self.counts.syscalls += 1;
            match n {
                0 => return Err(Broken::Closed),
                n if n > 0 => {
                    let n = n as usize;
                    self.carried += n as u64;
                    let direct = n.min(in_place);
                    if let Some(l) = &mut self.landing {
                        l.at += direct;
                        l.left -= direct;
                    }
                    self.end += n - direct;
                    self.counts.partial += u64::from(n < in_place);
                    return Ok(true);
                }
                _ => {
                    let e = io::Error::last_os_error();
                    match e.kind() {
                        io::ErrorKind::WouldBlock => {
                            self.counts.empty_syscalls += 1;
                            return Ok(false);
                        }
                        io::ErrorKind::Interrupted => {}
                        io::ErrorKind::ConnectionReset => return Err(Broken::Closed),
                        _ => return Err(Broken::io("recv", &e)),
                    }
                }
            }
        }
    }

    fn broke(&mut self, broken: Broken, sink: &mut dyn FnMut(Event)) {
        self.broken = true;
        sink(Event::Broken(broken));
    }
}

impl Rx for TcpRx {
    fn confirmed(&self) -> Option<u64> {
        self.socket.confirmed()
    }

    fn path(&self) -> Option<PathReading> {
        self.socket.path()
    }

    /// Reads until an event is at hand and reports all events of that read. Does not read again
    /// just to find the socket empty: the caller handles the events first, and the next poll reads.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event)) -> usize {
        let mut events = 0;
        while !self.broken {
            while events < budget {
                match self.parse() {
                    Ok(Some(event)) => {
                        sink(event);
                        events += 1;
                    }
                    Ok(None) => break,
                    Err(b) => {
                        self.broke(b, sink);
                        return events + 1;
                    }
                }
            }
            if events > 0 || budget == 0 {
                break;
            }
            match self.read() {
                Ok(true) => self.drained = false,
                Ok(false) => {
                    self.drained = true;
                    break;
                }
                Err(b) => {
                    self.broke(b, sink);
                    return 1;
                }
            }
        }
        events
    }

    fn carried(&self) -> u64 {
        self.carried
    }

    fn arm(&mut self) -> Armed {
        // The descriptor is edge-triggered: an edge follows only after a read found the socket
        // empty. Before that read, the socket or the staging buffer may hold bytes.
        if self.drained || self.broken {
            Armed::Sleep
        } else {
            Armed::Ready
        }
    }

    fn fd(&self) -> RawFd {
        self.socket.fd()
    }

    fn counts(&self) -> FabricCounts {
        self.counts
    }
}

impl Drop for TcpRx {
    fn drop(&mut self) {
        // SAFETY: `self.socket` keeps the socket open. An error means that it is down already.
        unsafe { libc::shutdown(self.socket.fd(), libc::SHUT_RDWR) };
    }
}
