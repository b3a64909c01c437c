//! The transport contract, then one module for each fabric that implements it.
//!
//! This crate knows no configuration file, no MLPerf and no summary. Each fabric defines the keys
//! of its NICs ([`tcp::TcpKeys`], [`ib::IbKeys`], [`ofi::OfiKeys`]) and opens a NIC by its keys
//! ([`kinds::NicKeys::open`]).
//!
//! # The contract
//!
//! A fabric joins two peers by **connections**. A connection carries one-sided writes with a 32-bit
//! immediate from one peer's memory into *slots* of the other peer. RDMA does so natively; TCP does
//! so with a frame header (16 bytes, or 64 before large slots).
//!
//! **Windows.** Each end of a connection grants its peer a [`Window`]: a run of equally spaced
//! slots in a [`Region`]. A write names a slot (in its [`Imm`]), an offset within the slot and a
//! length. A valid write touches no byte outside its slot. With RDMA the NIC checks only the
//! region's bounds before the bytes land; the receiving half checks slot and grant afterwards.
//!
//! **Parts.** A window that allows parts ([`Window::in_parts`]) lets a write carry a part of a
//! slot. Each part but the last says that more follow ([`Imm::more`]). A part has at least 1 byte
//! and begins where the part before it ended. The sender states the part's offset ([`Post::at`]). A
//! NIC does not report the offset, so the receiver computes it from the lengths so far and reports
//! it ([`Event::Arrived`]). A part at a wrong offset, an empty part, or a part for a window without
//! parts breaks the connection. Parts of different slots may interleave.
//!
//! **Options.** A window of requests may let a write say that it begins with options
//! ([`Window::with_options`], [`Imm::has_options`]). The bit is that of a part, and such a window
//! takes no parts. The fabric passes the bit on; it breaks a connection whose window takes neither.
//!
//! **Ownership.** The sender owns slot *i* from the moment its grant is opened until the write with
//! the grant's use count has arrived. Then the receiver owns the slot until it opens the grant
//! again. Of a slot in parts, the receiver owns the bytes that have arrived and the sender owns the
//! rest, until the last part closes the grant. There is no rendezvous and no allocation on arrival.
//! The receiving half closes the grant ([`Grants::take`]), so one grant yields at most one last
//! [`Event::Arrived`]. A write or part without a grant, or with a wrong use count, breaks the
//! connection and is never reported as an arrival. `tcp` and `memory` refuse such a write before
//! they touch the slot.
//!
//! **Order.** Writes of one connection arrive in the order of posting, and so do the parts of a
//! slot. Writes of different connections have no order. Two mechanisms need this order: a receiver
//! adds up the lengths of a slot's parts, and the end of a connection must come last. A sample or
//! answer in one piece needs no order: its one immediate names the slot and the use, and the sender
//! posts the next write to that slot only after the peer's answer. An echo needs no order either.
//! So a fabric on an unordered network (`ofi` over EFA) refuses windows in parts, and delays a
//! connection's end until all writes have arrived. Everything else may arrive in any order.
//!
//! **Visibility.** After `Arrived`, the thread that polled may read every byte of the write, and of
//! the slot's earlier parts, through the region's address. So may each thread that synchronizes
//! with the polling thread. The GPU alone reads a GPU's memory ([`Region::of_device`]), after one
//! fence per batch ([`DeviceMemory::fence`]).
//!
//! **Completion.** [`Tx::post`] queues a write. Bytes need not move before [`Tx::flush`], which
//! rings one doorbell for all queued writes. Writes *retire* in the order of posting, and
//! [`Tx::retired`] counts them. The local memory of a retired write is free. A write no longer than
//! [`Tx::inline_limit`] frees its memory as soon as `post` returns. [`Flushed::Blocked`] means that
//! the fabric is full: flush again when the connection is writable (on `ib`: when sends have
//! retired). Where bytes move only during calls (`ofi` over sockets), `Blocked` also means that
//! bytes are still queued.
//!
//! **Bounds.** `post` refuses a write whose local bytes lie outside its source region or whose
//! remote bytes lie outside a slot. A full send queue is [`PostError::Full`], not a wait. No call
//! blocks.
//!
//! **Sleeping.** [`Rx::poll`] reports the events at hand and returns. A thread calls [`Rx::arm`]
//! before it sleeps on the connection's descriptor; after [`Armed::Ready`] it must poll again.
//! Descriptors are used edge-triggered.
//!
//! **Breaking.** A broken connection stays broken. Both halves report earlier arrivals first and
//! then return the [`Broken`] that says why. Dropping both halves tears the connection down;
//! afterwards no write of this connection can land in the window.
//!
//! **Threads.** The two halves are independent, and each has one owner at a time: the holder of the
//! connection's token owns [`Tx`], the NIC thread owns [`Rx`].
//!
//! The suite in `tests/it/conformance` tests this contract over each fabric.
//!
//! # Example
//!
//! One write over the fabric in memory; every fabric gives a [`Link`] with the same two halves.
//!
//! ```
//! use fabric::{Event, Imm, testkit};
//!
//! // Each end: four slots of 64 bytes that the peer writes, and one source region.
//! let (a, b) = (testkit::endpoint(4, 64, 8), testkit::endpoint(4, 64, 8));
//! let (mut sender, mut receiver, _) = testkit::memory::pair(a.clone(), b.clone())?;
//!
//! // The receiver grants slot 2; the sender fills its source and posts the write.
//! let imm = Imm::new(2, b.window.grants().open(2).expect("the slot is free"));
//! // SAFETY: no write reads the source yet.
//! unsafe { a.sources[0].store(0, b"hello")? };
//! sender.tx.post(&testkit::post(0, 5, imm))?;
//! sender.tx.flush()?;
//!
//! let mut events = Vec::new();
//! receiver.rx.poll(16, &mut |event| events.push(event));
//! assert_eq!(events, [Event::Arrived { imm, at: 0, len: 5 }]);
//! // SAFETY: the write has arrived, so the receiver owns the slot until it opens the grant again.
//! let bytes = unsafe { b.window.region().bytes(b.window.slot_offset(2), 5)? };
//! assert_eq!(bytes, b"hello");
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```

pub mod clock;
mod counts;
mod entry;
mod grants;
mod imm;
pub mod keys;
pub mod kinds;
mod nic;
mod opening;
mod parts;
mod probe;
mod region;

pub mod ib;
pub mod ofi;
pub mod os;
pub mod sync;
pub mod tcp;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod wire;

use std::{fmt, io, os::fd::RawFd, sync::Arc};

use crate::wire::Stream;

pub use counts::{FabricCounts, PathReading};
pub use grants::{GrantError, Grants};
pub use imm::{Control, Imm, MAX_SLOTS, Mailbox};
pub use nic::OpenError;
pub use opening::{Accepted, Connecting, ConnectionSecret, DeviceSlots, Half, Made, Nic, Which};
pub use probe::probe;
pub use region::{DeviceMemory, Region, RegionError};

/// The slots that the peer writes, with the grants that say which it may write now.
#[derive(Clone, Debug)]
pub struct Window {
    region: Arc<Region>,
    offset: usize,
    stride: usize,
    grants: Arc<Grants>,
    stream: Stream,
    options: bool,
}

impl Window {
    /// Makes a window of `grants.slots()` slots of `stride` bytes, from byte `offset` of `region`.
    /// Each slot takes one write per use.
    ///
    /// # Errors
    /// [`RegionError::OutOfBounds`] when the slots do not fit the region.
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
                options: false,
            }),
            _ => Err(RegionError::OutOfBounds {
                offset,
                len: bytes.unwrap_or(usize::MAX),
                region: region.len(),
            }),
        }
    }

    /// Makes the window take answers in the parts that `stream` names.
    #[must_use]
    pub fn in_parts(self, stream: Stream) -> Self {
        Window { stream, ..self }
    }

    /// Makes the window take requests that begin with options, where `options` is true.
    #[must_use]
    pub fn with_options(self, options: bool) -> Self {
        Window { options, ..self }
    }

    pub(crate) fn stream(&self) -> Stream {
        self.stream
    }

    pub(crate) fn takes_options(&self) -> bool {
        self.options
    }

    /// Whether a slot may be written in parts.
    pub fn takes_parts(&self) -> bool {
        self.stream != Stream::None
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.grants.slots()
    }

    /// Bytes from one slot to the next: the most that one slot holds.
    pub(crate) fn stride(&self) -> usize {
        self.stride
    }

    /// The region the slots lie in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// The grants of the slots.
    pub fn grants(&self) -> &Arc<Grants> {
        &self.grants
    }

    /// Offset of a slot within the region.
    pub fn slot_offset(&self, slot: u16) -> usize {
        self.offset + usize::from(slot) * self.stride
    }

    /// Checks a write of `len` bytes at offset `at` of the slot that `imm` names, and returns its
    /// offset within the region.
    ///
    /// # Errors
    /// [`Broken::OutOfBounds`] when a byte would lie outside the slot, or the slot lies outside the
    /// window.
    pub(crate) fn landing(&self, imm: Imm, at: u32, len: u32) -> Result<usize, Broken> {
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

/// Index of a registered source region of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SourceId(pub u16);

/// One write to the peer, for [`Tx::post`].
#[derive(Clone, Copy, Debug)]
pub struct Post {
    /// Region that holds the payload.
    pub source: SourceId,
    /// Offset of the payload in that region, in bytes.
    pub offset: usize,
    /// Length of the payload in bytes; 0 sends the immediate alone.
    pub len: u32,
    /// Offset within the remote slot in bytes: 0, or the end of the slot's previous part.
    pub at: u32,
    /// Slot and use count of the write, or a control message.
    pub imm: Imm,
}

impl Post {
    /// Makes a zero-length write that carries a control message of the data plane.
    pub fn control(message: Control) -> Self {
        Post {
            source: SourceId(0),
            offset: 0,
            len: 0,
            at: 0,
            imm: Imm::control(message),
        }
    }

    pub(crate) fn out_of_bounds(&self) -> PostError {
        PostError::OutOfBounds {
            source_id: self.source.0,
            offset: self.offset,
            len: self.len,
            at: self.at,
        }
    }

    /// Adds this write to the counts of the sending half, whose peer takes the parts of `stream`.
    pub(crate) fn count(&self, stream: Stream, counts: &mut FabricCounts) {
        if self.imm.is_control() {
            counts.control += 1;
        } else {
            counts.writes += 1;
            counts.parts += u64::from(self.imm.more() & (stream != Stream::None));
            counts.bytes += u64::from(self.len);
        }
    }
}

/// Error of [`Tx::post`]: the write was not queued.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each error and field is")]
pub enum PostError {
    /// Flush, and post again once writes have retired.
    #[error("the send queue is full")]
    Full,
    #[error(
        "a write of {len} bytes from source {source_id} at {offset} to offset {at} of a slot does not fit"
    )]
    OutOfBounds {
        source_id: u16,
        offset: usize,
        len: u32,
        at: u32,
    },
    /// The connection broke.
    #[error(transparent)]
    Broken(#[from] Broken),
}

/// Why a connection broke.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each error and field is")]
pub enum Broken {
    /// The peer closed the connection in good order.
    #[error("the peer closed the connection")]
    Closed,
    #[error("{verb}: {} (errno {errno})", io::Error::from_raw_os_error(*.errno))]
    Io { verb: &'static str, errno: i32 },
    #[error("bad frame: {what} is {value:#x}")]
    BadFrame { what: &'static str, value: u64 },
    #[error(
        "a write to slot {slot} of {slots}, bytes {at}..+{len} of {stride}, lies outside its grant"
    )]
    OutOfBounds {
        slot: u16,
        slots: usize,
        at: u32,
        len: u32,
        stride: usize,
    },
    /// The peer wrote without a grant.
    #[error(transparent)]
    Grant(#[from] GrantError),
    #[error("work completion: {0}")]
    WorkCompletion(String),
    #[error("device: {0}")]
    Device(String),
    /// This node gave the connection up because the peer is silent: an echo stayed unanswered, or
    /// the control session stayed silent.
    #[error("{0}")]
    Silent(String),
    /// This node gave the connection up for a different reason: the control session or the run
    /// ended.
    #[error("{0}")]
    GivenUp(String),
}

impl Broken {
    /// Whether the error says more than that the peer is gone.
    pub fn says_why(&self) -> bool {
        let gone = [libc::ECONNRESET, libc::EPIPE, libc::ECONNABORTED];
        !matches!(self, Broken::Closed)
            && !matches!(self, Broken::Io { errno, .. } if gone.contains(errno))
    }

    /// Whether a deadline of the configuration found the peer silent. The kernel applies the same
    /// deadline to unacknowledged payload (`TCP_USER_TIMEOUT`).
    pub fn by_silence(&self) -> bool {
        match self {
            Broken::Silent(_) => true,
            Broken::Io { errno, .. } => *errno == libc::ETIMEDOUT,
            _ => false,
        }
    }

    pub(crate) fn io(verb: &'static str, error: &io::Error) -> Self {
        Broken::Io {
            verb,
            errno: error.raw_os_error().unwrap_or(libc::EIO),
        }
    }
}

/// Result of [`Tx::flush`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Flushed {
    /// The fabric has taken all queued writes.
    Done,
    /// The fabric is full; flush again when the connection is writable.
    Blocked,
}

/// Result of [`Rx::arm`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Armed {
    /// No event is at hand: the thread may sleep until the descriptor is readable.
    Sleep,
    /// An event may be at hand: poll again before sleeping.
    Ready,
}

/// An event that [`Rx::poll`] reports.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum Event {
    /// A write has landed in the slot that `imm` names. The grant is closed, unless more parts
    /// follow ([`Imm::more`]).
    Arrived {
        /// Slot and use count.
        imm: Imm,
        /// Offset within the slot in bytes: 0, or the end of the slot's previous part.
        at: u32,
        /// Length of the write in bytes.
        len: u32,
    },
    /// A control message of the data plane.
    Control(Control),
    /// The connection broke; this is the last event.
    Broken(Broken),
}

/// The sending half of a connection.
pub trait Tx: Send {
    /// Queues one write.
    ///
    /// # Errors
    /// [`PostError`]; the write is not queued.
    fn post(&mut self, post: &Post) -> Result<(), PostError>;

    /// Hands the queued writes to the fabric.
    ///
    /// # Errors
    /// The connection is [`Broken`].
    fn flush(&mut self) -> Result<Flushed, Broken>;

    /// Number of writes that can surely be posted before [`PostError::Full`].
    fn room(&self) -> usize;

    /// Writes posted since the connection was opened.
    fn posted(&self) -> u64;

    /// Writes retired since the connection was opened; their local memory is free.
    fn retired(&self) -> u64;

    /// Longest payload, in bytes, whose memory is free as soon as `post` returns.
    fn inline_limit(&self) -> usize;

    /// Bytes that flushes have sent so far, frames included. 0 where a device carries the bytes
    /// without work by a thread.
    fn carried(&self) -> u64 {
        0
    }

    /// Sends the goodbye, if the fabric has one. Never waits: returns true once the goodbye is sent
    /// and all writes have retired, or after some milliseconds; until then the caller repeats the
    /// call. After the first call the caller posts no writes. [`Tx::counts`] are final after true.
    fn finish(&mut self) -> bool {
        true
    }

    /// Counts of this half.
    fn counts(&self) -> FabricCounts;
}

/// The receiving half of a connection.
pub trait Rx: Send {
    /// Passes up to about `budget` events to `sink` and returns their number. After
    /// [`Event::Broken`] it reports no more events.
    fn poll(&mut self, budget: usize, sink: &mut dyn FnMut(Event)) -> usize;

    /// Bytes that polls have received so far, frames and incomplete payloads included. 0 where a
    /// device carries the bytes without work by a thread.
    fn carried(&self) -> u64 {
        0
    }

    /// Prepares to sleep on [`Rx::fd`].
    fn arm(&mut self) -> Armed;

    /// Descriptor to sleep on, edge-triggered: readable when events are at hand, writable when a
    /// blocked flush may go on. It stays open while this half lives.
    fn fd(&self) -> RawFd;

    /// Bytes sent by this end, frames included, that the peer's system has acknowledged; `None`
    /// where the fabric does not know. May cost a system call, so callers ask only while the peer
    /// is silent.
    fn confirmed(&self) -> Option<u64> {
        None
    }

    /// The system's statistics of the path to the peer; `None` where the fabric has none. May cost
    /// a system call; callers ask a few times a second.
    fn path(&self) -> Option<PathReading> {
        None
    }

    /// Counts of this half.
    fn counts(&self) -> FabricCounts;
}

/// Both halves of one end of a connection.
pub struct Link {
    /// The sending half.
    pub tx: Box<dyn Tx>,
    /// The receiving half.
    pub rx: Box<dyn Rx>,
}

impl fmt::Debug for Link {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Link({:?}, {:?})", self.tx.counts(), self.rx.counts())
    }
}

/// One end's part in a connection: its window, its source regions, and the limits of its writes to
/// the peer.
#[derive(Clone, Debug)]
pub struct Endpoint {
    /// Slots that the peer writes.
    pub window: Window,
    /// Registered source regions of payloads; [`SourceId`] is an index into this list.
    pub sources: Vec<Arc<Region>>,
    /// Slots in the peer's window.
    pub peer_slots: usize,
    /// Bytes in each slot of the peer.
    pub peer_stride: usize,
    /// Parts in which this end writes the peer's slots.
    pub peer_stream: Stream,
    /// Writes that the send queue holds before [`PostError::Full`].
    pub send_depth: usize,
}

impl Endpoint {
    /// Checks a write against its source region and the peer's slots; every fabric's `post` calls
    /// it.
    ///
    /// # Errors
    /// [`PostError::OutOfBounds`].
    pub(crate) fn check(&self, post: &Post) -> Result<(), PostError> {
        let source = self.sources.get(usize::from(post.source.0));
        let local = source.is_some_and(|r| {
            post.offset
                .checked_add(post.len as usize)
                .is_some_and(|end| end <= r.len())
        });
        let remote = usize::from(post.imm.slot()) < self.peer_slots
            && u64::from(post.at) + u64::from(post.len) <= self.peer_stride as u64;
        let fits = match post.imm.is_control() {
            true => post.len == 0,
            false => local && remote,
        };
        if fits {
            Ok(())
        } else {
            Err(post.out_of_bounds())
        }
    }
}
