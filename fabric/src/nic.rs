//! Parts that the NIC fabrics, `ib` and `ofi`, share: errors of opening, the cause of a failure,
//! registrations of source memory, the cell beside a slot, and checks of the peer's announced
//! regions.

use std::{
    fmt,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicBool, Ordering},
    },
};

use super::{Broken, Imm, Post, Region, RegionError, os::lock};

/// Why a NIC cannot be opened or a connection cannot be made. The line names the NIC or the peer,
/// and the key, limit, verb or call.
#[derive(Debug, thiserror::Error)]
pub enum OpenError {
    /// This node lacks a library, a device, memory or room; a key has a wrong value; or a call of
    /// this node's library or system failed.
    #[error("{0}")]
    Local(String),
    /// The port, the peer's end, or the path to the peer does not allow a connection.
    #[error("{0}")]
    Refused(String),
}

impl OpenError {
    /// The error for the value of a NIC's key.
    pub(crate) fn setting(nic: impl fmt::Display, key: &str, problem: impl fmt::Display) -> Self {
        OpenError::Local(format!("{nic}: {key}: {problem}"))
    }

    /// Makes errors of something that the system does not give.
    pub(crate) fn system<E: fmt::Display>(what: &'static str) -> impl Fn(E) -> Self {
        move |cause| OpenError::Local(format!("{what}: {cause}"))
    }
}

macro_rules! local_by {
    ($($error:ty)*) => {$(
        impl From<$error> for OpenError {
            fn from(e: $error) -> Self {
                OpenError::Local(e.to_string())
            }
        }
    )*};
}

local_by!(verbs::Error ofi::Error RegionError);

/// The error for a field of the peer's end that does not fit this connection.
pub(super) fn unfit(field: &str, value: impl fmt::Display, wanted: impl fmt::Display) -> OpenError {
    OpenError::Refused(format!(
        "the peer's end of a connection makes no sense: {field} is {value}, {wanted}"
    ))
}

/// Cause of a broken connection, for both halves. The first cause stays.
#[derive(Debug, Default)]
pub(super) struct Cause {
    is_broken: AtomicBool,
    cause: OnceLock<Broken>,
}

impl Cause {
    /// Breaks the connection. `stop` keeps the peer from writing; it runs before `fail` returns,
    /// and before [`Cause::get`] returns a cause. Two threads may both run `stop`; neither blocks.
    pub(crate) fn fail(&self, cause: Broken, stop: impl FnOnce()) {
        // Before `stop`: completions that `stop` flushes are consequences, not causes.
        let _ = self.cause.set(cause);
        if !self.is_broken.load(Ordering::Acquire) {
            stop();
            self.is_broken.store(true, Ordering::Release);
        }
    }

    /// The cause, if the connection broke. Costs one atomic load while the connection is up.
    pub(crate) fn get(&self) -> Option<&Broken> {
        if self.is_broken.load(Ordering::Acquire) {
            self.cause.get()
        } else {
            None
        }
    }
}

/// Converts the error of a failed operation into [`Broken::Io`].
macro_rules! broken_by {
    ($($error:ty: $call:ident;)*) => {$(
        impl From<$error> for Broken {
            fn from(e: $error) -> Self {
                let (verb, errno) = (e.$call, e.errno);
                Broken::Io { verb, errno }
            }
        }
    )*};
}

broken_by! {
    verbs::OpError: verb;
    ofi::OpError: call;
}

/// Bit of a split write's immediate: the cell beside the slot describes the payload, or the payload
/// fills the slot. Slot numbers are below 8,192, so the bit is free.
pub(super) const IN_CELL: u32 = 1 << 15;

pub(super) const CELL_BYTES: usize = 16;

/// Description of a payload, which the sender writes into the cell beside the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Payload length in bytes.
    pub len: u32,
    pub use_count: u16,
    /// Offset of the payload within the slot, in bytes.
    pub at: u32,
}

impl Descriptor {
    pub(crate) fn encode(post: &Post) -> [u8; CELL_BYTES] {
        let mut b = [0; CELL_BYTES];
        b[..4].copy_from_slice(&post.len.to_le_bytes());
        b[4..6].copy_from_slice(&post.imm.use_count().to_le_bytes());
        b[8..12].copy_from_slice(&post.at.to_le_bytes());
        b
    }

    fn decode(b: &[u8; CELL_BYTES]) -> Self {
        Descriptor {
            len: u32::from_le_bytes([b[0], b[1], b[2], b[3]]),
            use_count: u16::from_le_bytes([b[4], b[5]]),
            at: u32::from_le_bytes([b[8], b[9], b[10], b[11]]),
        }
    }

    /// Reads the descriptor of the write that arrived with `imm`.
    ///
    /// # Errors
    /// [`Broken::BadFrame`] if the cell is missing or has another use count.
    pub(crate) fn read(cells: Option<&Region>, imm: Imm) -> Result<Self, Broken> {
        let offset = usize::from(imm.slot()) * CELL_BYTES;
        // SAFETY: the sender writes the cell before its immediate, and again only after the
        // receiver has opened the slot's grant again. Parts have no cells.
        let cell = cells.and_then(|cells| unsafe { cells.bytes(offset, CELL_BYTES) }.ok());
        let cell = cell.and_then(<[u8]>::first_chunk);
        match cell.map(Self::decode) {
            Some(d) if d.use_count == imm.use_count() => Ok(d),
            d => Err(Broken::BadFrame {
                what: "use count in a cell",
                value: d.map_or(0, |d| u64::from(d.use_count)),
            }),
        }
    }
}

/// Checks that a peer's region of (address, length) holds `slots` slots of `stride` bytes.
///
/// # Errors
/// [`OpenError::Refused`] names `field`.
pub(super) fn covers(
    field: &str,
    (address, length): (u64, u64),
    slots: usize,
    stride: usize,
) -> Result<(), OpenError> {
    let needed = (slots as u64).checked_mul(stride as u64);
    let fits = needed.is_some_and(|needed| needed <= length);
    if fits && address.checked_add(length).is_some() {
        return Ok(());
    }
    let wanted = format!("{slots} slots of {stride} bytes must lie in it");
    Err(unfit(field, length, wanted))
}

/// Draws a number that a peer cannot guess; `what` names the number in the error.
pub(super) fn random(what: &'static str) -> Result<u64, OpenError> {
    let mut b = [0; 8];
    getrandom::fill(&mut b).map_err(OpenError::system(what))?;
    Ok(u64::from_le_bytes(b))
}

pub(super) fn ofi_memory(
    region: &Arc<Region>,
    offset: usize,
    len: usize,
) -> Result<ofi::Memory, RegionError> {
    let at = region.at(offset, len)?;
    // SAFETY: the range lies within the region, which stays mapped while it lives. References to
    // its bytes are made under the slot protocol only (see `Region`).
    Ok(unsafe { ofi::Memory::new(at, len, region.clone()) })
}

#[derive(Debug)]
pub(super) struct Sources<M> {
    /// Registrations by the address of their region. A registration keeps its region alive, so the
    /// address is unique while its entry lives.
    all: Mutex<Vec<(usize, Weak<M>)>>,
    kept: Mutex<Vec<Arc<M>>>,
}

impl<M> Default for Sources<M> {
    fn default() -> Self {
        Sources {
            all: Mutex::default(),
            kept: Mutex::default(),
        }
    }
}

impl<M> Sources<M> {
    /// Registers `region` by `register`, or returns the existing registration.
    pub(crate) fn get(
        &self,
        region: &Arc<Region>,
        register: impl FnOnce() -> Result<Arc<M>, OpenError>,
    ) -> Result<Arc<M>, OpenError> {
        let key = Arc::as_ptr(region) as usize;
        let mut all = lock(&self.all);
        all.retain(|(_, mr)| mr.strong_count() > 0);
        let mut known = all.iter().filter(|(k, _)| *k == key);
        if let Some(mr) = known.find_map(|(_, mr)| mr.upgrade()) {
            return Ok(mr);
        }
        let mr = register()?;
        all.push((key, Arc::downgrade(&mr)));
        Ok(mr)
    }

    /// Keeps a source registered while no connection is up.
    pub(crate) fn keep(&self, source: Arc<M>) {
        lock(&self.kept).push(source);
    }
}
