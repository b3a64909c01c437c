//! How bytes cross. The contract first, then one module for each fabric.
//!
//! # The contract
//!
//! A fabric joins two peers by **connections**. A connection carries one-sided writes with a 32-bit
//! immediate from memory of one peer into *slots* of the other. That is what RDMA does natively,
//! and what TCP can do with a 16-byte frame header.
//!
//! **Windows.** Each end of a connection grants the other a [`Window`]: a run of equally spaced
//! slots in a [`Region`]. A write names a slot (in its [`Imm`]), an offset within it and a length;
//! it can touch nothing else. A fabric that cannot check this before the bytes land (RDMA: the NIC
//! checks the region alone) checks what it can when they have.
//!
//! **Parts.** A window that allows it ([`Window::in_parts`]) may have a slot written in parts: all
//! but the last say that more follow ([`Imm::more`]), each is at least one byte and begins where
//! the one before it ended. The sender says where it writes ([`Post::at`]); the receiver computes
//! where that must have been from the lengths so far, since a NIC does not tell it, and reports it
//! ([`Event::Arrived`]). A part that lies elsewhere, is empty, or comes to a window that takes none
//! breaks the connection. Parts of different slots may come in any mixture.
//!
//! **Ownership.** The sender owns the receiver's slot. Slot *i* belongs to the sender from
//! the moment its grant is opened until the write that carries the grant's use count has
//! arrived; from then on it belongs to the receiver until the grant is opened again. Of a slot in
//! parts, the bytes that have arrived belong to the receiver and the rest to the sender, until the
//! last part closes the grant. There is no rendezvous and no allocation on arrival. The receiving
//! half closes the grant itself ([`Grants::take`]), so one grant yields at most one last
//! [`Event::Arrived`]; a write, a part too, that has no grant, or the wrong use count, breaks the
//! connection and is never reported as an arrival. `tcp` and `memory` refuse such a write before
//! they touch the slot.
//!
//! **Order.** Writes of one connection arrive in the order they were posted, the parts of a slot
//! among them. Between connections there is no order. What needs it: the parts of one slot, since a
//! receiver adds their lengths up; and the end of a connection, before which everything has to have
//! come. Nothing else does. A sample or an answer in one piece is one immediate, which names its
//! slot and use; the next write to a slot is posted only after the peer has answered the last; and
//! an echo is only to come back. So a fabric on a network that keeps no order (`ofi` over EFA)
//! refuses windows in parts when a connection is made, sees to the end by itself, and may
//! otherwise let writes and control messages of a connection arrive in any order.
//!
//! **Visibility.** When `Arrived` is reported, every byte of that write, and of the parts before
//! it, may be read through the region's address by the thread it was reported to, and by
//! whoever that thread tells. Memory of a GPU ([`Region::of_device`]) is read
//! by the GPU alone, after one fence per batch ([`DeviceMemory::fence`]).
//!
//! **Completion.** [`Tx::post`] queues a write; nothing has to move before [`Tx::flush`], which
//! rings the doorbell once for all that was queued. Writes *retire* in the order they were posted:
//! [`Tx::retired`] counts them, and local memory of a write may be changed or freed once it is
//! counted. Writes no longer than [`Tx::inline_limit`] may be changed as soon as `post` returns.
//! [`Flushed::Blocked`] means that the fabric took what it could: flush again when the connection
//! is writable (or, on `ib`, when sends have retired). Where bytes move only while somebody calls
//! (`ofi` over sockets) it also means that some have yet to.
//!
//! **Bounds.** `post` refuses a write whose local bytes lie outside its
//! source region or whose remote bytes lie outside a slot, and a full
//! send queue is [`PostError::Full`], not a wait. Nothing here blocks.
//!
//! **Sleeping.** [`Rx::poll`] reports what is there and returns. Before a thread sleeps on the
//! connection's descriptor it calls [`Rx::arm`]; [`Armed::Ready`] means that something came in
//! between and it must poll again. Descriptors are used edge-triggered.
//!
//! **Breaking.** A connection breaks once and for good. Both halves then answer with the [`Broken`]
//! that says why; what had arrived before is reported first. Dropping both halves tears the
//! connection down: afterwards nothing of the peer's can land in the window through it.
//!
//! **Threads.** The two halves are independent and each has one owner at a time ([`Tx`] behind the
//! connection's token, [`Rx`] with the NIC thread).
//!
//! `testkit::conformance` holds the tests of all this, as functions for any fabric.

mod counts;
mod device_memory;
mod grants;
mod imm;
pub(crate) mod parts;
mod region;
mod sources;

pub mod ib;
pub mod ofi;
pub mod tcp;

use std::{fmt, io, os::fd::RawFd, sync::Arc};

use crate::wire::Stream;

pub use counts::{FabricCounts, PathReading};
pub use device_memory::{DeviceMemory, ProbeError, probe};
pub use grants::{GrantError, Grants};
pub use imm::{Control, Imm, MAX_SLOTS, Mailbox};
pub use region::{Region, RegionError};

/// Slots that the peer writes into, and which of them it may write now.
#[derive(Clone, Debug)]
pub struct Window {
    region: Arc<Region>,
    offset: usize,
    stride: usize,
    grants: Arc<Grants>,
    stream: Stream,
}

impl Window {
    /// `grants.slots()` slots of `stride` bytes each, beginning `offset` bytes into `region`, each
    /// to be written in one piece.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] when the region is too small for them.
    pub fn new(
        region: Arc<Region>,
        offset: usize,
        stride: usize,
        grants: Arc<Grants>,
    ) -> Result<Self, RegionError> {
        let bytes = stride.checked_mul(grants.slots());
        match bytes.and_then(|b| offset.checked_add(b)) {
            Some(end) if end <= region.len() && stride <= u32::MAX as usize => Ok(Window {
                region,
                offset,
                stride,
                grants,
                stream: Stream::None,
            }),
            _ => Err(RegionError::OutOfBounds {
                offset,
                len: bytes.unwrap_or(usize::MAX),
                region: region.len(),
            }),
        }
    }

    /// The same window, whose slots may be written in as many parts as `stream` makes of an answer.
    #[must_use]
    pub fn in_parts(self, stream: Stream) -> Self {
        Window { stream, ..self }
    }

    /// Which parts its slots are written in.
    pub fn stream(&self) -> Stream {
        self.stream
    }

    /// True where a slot may be written in parts.
    pub fn takes_parts(&self) -> bool {
        self.stream != Stream::None
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.grants.slots()
    }

    /// Bytes from one slot to the next, which is also the most that can be written to one.
    pub fn stride(&self) -> usize {
        self.stride
    }

    /// The region the slots lie in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Which slots the peer may write now.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// Offset of a slot within the region.
    pub fn slot_offset(&self, slot: u16) -> usize {
        self.offset + usize::from(slot) * self.stride
    }

    /// Where a write of `len` bytes at offset `at` of the slot that `imm` names would land: an
    /// offset within the region, checked against the slot's bounds.
    ///
    /// # Errors
    /// [`Broken::OutOfBounds`] when any byte would lie outside the slot, or
    /// the slot outside the window.
    pub fn landing(&self, imm: Imm, at: u32, len: u32) -> Result<usize, Broken> {
        let end = u64::from(at) + u64::from(len);
        if usize::from(imm.slot()) >= self.slots() || end > self.stride as u64 {
            return Err(Broken::OutOfBounds {
                slot: imm.slot(),
                slots: self.slots(),
                at,
                len,
                stride: self.stride,
            });
        }
        Ok(self.slot_offset(imm.slot()) + at as usize)
    }
}

/// Which of a connection's registered source regions a write reads from.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SourceId(pub u16);

/// One write.
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// Region the payload lies in.
    pub source: SourceId,
    /// Where in that region it begins.
    pub offset: usize,
    /// Its true length in bytes; 0 carries the immediate alone.
    pub len: u32,
    /// Offset within the remote slot: 0, or behind the parts before it.
    pub at: u32,
    /// Names the remote slot and its use, or carries a control message.
    pub imm: Imm,
}

impl Post {
    /// A zero-length write that carries a control message of the data plane.
    pub fn control(message: Control) -> Self {
        Post {
            source: SourceId(0),
            offset: 0,
            len: 0,
            at: 0,
            imm: Imm::control(message),
        }
    }

    /// Adds this write to what the sending half has done.
    pub(crate) fn count(&self, counts: &mut FabricCounts) {
        if self.imm.is_control() {
            counts.control += 1;
        } else {
            counts.writes += 1;
            counts.parts += u64::from(self.imm.more());
            counts.bytes += u64::from(self.len);
        }
    }
}

/// Why a write was not queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum PostError {
    /// The send queue is full: flush, and post again once writes have retired.
    #[error("the send queue is full")]
    Full,
    /// The payload does not lie in a registered source region, or would not fit the peer's slot.
    #[error(
        "a write of {len} bytes from source {source_id} at {offset} to offset {at} of a slot does not fit"
    )]
    OutOfBounds {
        /// Index of the source region.
        source_id: u16,
        /// Offset of the payload in it.
        offset: usize,
        /// Length of the payload.
        len: u32,
        /// Offset within the slot.
        at: u32,
    },
    /// The connection is gone.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Why a connection broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum Broken {
    /// The peer closed it in good order.
    #[error("the peer closed the connection")]
    Closed,
    /// A system call or verb failed.
    #[error("{verb}: {} (errno {errno})", io::Error::from_raw_os_error(*.errno))]
    Io {
        /// Name of the call.
        verb: &'static str,
        /// What it set `errno` to.
        errno: i32,
    },
    /// Bytes that are no frame.
    #[error("bad frame: {what} is {value:#x}")]
    BadFrame {
        /// Field that makes no sense.
        what: &'static str,
        /// Its value.
        value: u64,
    },
    /// A write outside its slot, or to a slot outside the window.
    #[error(
        "a write to slot {slot} of {slots}, bytes {at}..+{len} of {stride}, lies outside its grant"
    )]
    OutOfBounds {
        /// Slot it named.
        slot: u16,
        /// Slots in the window.
        slots: usize,
        /// Offset in the slot.
        at: u32,
        /// Length.
        len: u32,
        /// Bytes in a slot.
        stride: usize,
    },
    /// A write without a grant.
    #[error(transparent)]
    Grant(#[from] GrantError),
    /// A work completion with an error status (`ib`).
    #[error("work completion: {0}")]
    WorkCompletion(String),
    /// The device or port went away (`ib`).
    #[error("device: {0}")]
    Device(String),
    /// The node gave the connection up because its peer gave no sign
    /// of life: an echo unanswered, the control session silent.
    #[error("{0}")]
    Silent(String),
    /// The node gave the connection up for another reason: the control session lost, the run over.
    #[error("{0}")]
    GivenUp(String),
}

impl Broken {
    /// Whether it says more than that the peer is not there any more.
    pub fn says_why(&self) -> bool {
        let gone = [libc::ECONNRESET, libc::EPIPE, libc::ECONNABORTED];
        !matches!(self, Broken::Closed)
            && !matches!(self, Broken::Io { errno, .. } if gone.contains(errno))
    }

    /// Whether it was found out by waiting for a sign of life, for as long
    /// as the configuration's deadlines say. A socket whose payload nobody
    /// acknowledges ends by the same deadline (`TCP_USER_TIMEOUT`).
    pub fn by_silence(&self) -> bool {
        match self {
            Broken::Silent(_) => true,
            Broken::Io { errno, .. } => *errno == libc::ETIMEDOUT,
            _ => false,
        }
    }

    /// From the last OS error of `verb`.
    pub fn io(verb: &'static str, error: &io::Error) -> Self {
        Broken::Io {
            verb,
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// What [`Tx::flush`] achieved.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// Everything queued has been handed to the fabric.
    Done,
    /// The fabric is full; flush again when it is writable.
    Blocked,
}

/// What [`Rx::arm`] found.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// Nothing to poll: the descriptor will become readable when there is.
    Sleep,
    /// Poll again first.
    Ready,
}

/// What [`Rx::poll`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write has landed in the slot that `imm` names. Its grant is closed, unless it is a part
    /// that others follow ([`Imm::more`]).
    Arrived {
        /// Slot and use count.
        imm: Imm,
        /// Where in the slot it begins: 0, or behind the parts before it.
        at: u32,
        /// Bytes written by it.
        len: u32,
    },
    /// A control message of the data plane.
    Control(Control),
    /// The connection broke; nothing follows.
    Broken(Broken),
}

/// The sending half of a connection.
pub trait Tx: Send + fmt::Debug {
    /// Queues one write.
    ///
    /// # Errors
    /// [`PostError`]; nothing was queued then.
    fn post(&mut self, post: &Post) -> Result<(), PostError>;

    /// Hands what is queued to the fabric.
    ///
    /// # Errors
    /// The connection is [`Broken`].
    fn flush(&mut self) -> Result<Flushed, Broken>;

    /// How many writes can be posted before [`PostError::Full`], at the least.
    fn room(&self) -> usize;

    /// Writes posted since the connection was made.
    fn posted(&self) -> u64;

    /// Writes retired since the connection was made; the local memory of those is free.
    fn retired(&self) -> u64;

    /// Longest payload, in bytes, whose memory is free as soon as `post` returns.
    fn inline_limit(&self) -> usize;

    /// Bytes that flushes have carried so far, frames included; 0 where a device carries them, and
    /// no thread has work with it.
    fn carried(&self) -> u64 {
        0
    }

    /// The last that is asked of it: says goodbye where the fabric does not do so by itself. True
    /// once that is over and what was posted has retired, or some milliseconds have passed; until
    /// then call it again. It never waits. Nothing is posted after the first call, and
    /// [`Tx::counts`] are complete when it is over.
    fn finish(&mut self) -> bool {
        true
    }

    /// What this half has done.
    fn counts(&self) -> FabricCounts;
}

/// The receiving half of a connection.
pub trait Rx: Send + fmt::Debug {
    /// Reports up to about `budget` events to `sink` and returns how many there were. After
    /// [`Event::Broken`] it reports nothing more.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event)) -> usize;

    /// Bytes that polls have carried so far, frames included, those of payloads that are under way
    /// as well; 0 where a device carries them, and no thread has work with it.
    fn carried(&self) -> u64 {
        0
    }

    /// Prepares to sleep on [`Rx::fd`].
    fn arm(&mut self) -> Armed;

    /// Descriptor to wait on, edge-triggered: readable when there is something to poll, writable
    /// when a blocked flush may go on. It stays open as long as this half lives.
    fn fd(&self) -> RawFd;

    /// Bytes of this end, frames included, that the peer's system has confirmed so far; `None`
    /// where the fabric does not say. May cost a system call: asked only while the peer is silent.
    fn confirmed(&self) -> Option<u64> {
        None
    }

    /// What the system says of the way to the peer; `None` where the fabric does not say. May cost
    /// a system call: asked some times a second.
    fn path(&self) -> Option<PathReading> {
        None
    }

    /// What this half has done.
    fn counts(&self) -> FabricCounts;
}

/// Both halves of one end of a connection.
#[derive(Debug)]
pub struct Link {
    /// Sends.
    pub tx: Box<dyn Tx>,
    /// Receives.
    pub rx: Box<dyn Rx>,
}

/// What one end of a connection brings: the window it grants, the memory it sends from, and what it
/// may write on the other side.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Slots the peer writes.
    pub window: Window,
    /// Registered regions payloads are sent from; [`SourceId`] is an index into this.
    pub sources: Vec<Arc<Region>>,
    /// Slots in the peer's window.
    pub peer_slots: usize,
    /// Bytes in each of them.
    pub peer_stride: usize,
    /// Which parts they are written in.
    pub peer_stream: Stream,
    /// Writes that may be queued before [`PostError::Full`].
    pub send_depth: usize,
}

impl Endpoint {
    /// Checks a write against the source region and the
    /// peer's slots; every fabric's `post` calls this.
    ///
    /// # Errors
    /// [`PostError::OutOfBounds`].
    pub fn check(&self, post: &Post) -> Result<(), PostError> {
        if post.imm.is_control() {
            return if post.len == 0 {
                Ok(())
            } else {
                Err(out_of_bounds(post))
            };
        }
        let source = self.sources.get(usize::from(post.source.0));
        let local = source.is_some_and(|r| {
            post.offset
                .checked_add(post.len as usize)
                .is_some_and(|end| end <= r.len())
        });
        let remote = usize::from(post.imm.slot()) < self.peer_slots
            && u64::from(post.at) + u64::from(post.len) <= self.peer_stride as u64;
        if local && remote {
            Ok(())
        } else {
            Err(out_of_bounds(post))
        }
    }
}

fn out_of_bounds(post: &Post) -> PostError {
    PostError::OutOfBounds {
        source_id: post.source.0,
        offset: post.offset,
        len: post.len,
        at: post.at,
    }
}
