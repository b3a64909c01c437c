//! Parts that the NIC fabrics, `ib` and `ofi`, share: the cause of a failure, the cell beside a
//! slot, and checks of the peer's announced regions.

use std::sync::{
    OnceLock,
    atomic::{AtomicBool, Ordering},
};

use super::{Broken, Imm, Region};

/// Why a connection broke, for both halves. The first cause stays.
#[derive(Debug, Default)]
pub(super) struct Cause {
    is_broken: AtomicBool,
    cause: OnceLock<Broken>,
}

impl Cause {
    /// Breaks the connection. `stop` keeps the peer from writing: it runs before this returns and
    /// before [`Cause::get`] returns a cause. Two threads may both run `stop`; neither blocks.
    pub fn fail(&self, cause: Broken, stop: impl FnOnce()) {
        // Before `stop`: completions that `stop` flushes are consequences, not causes.
        let _ = self.cause.set(cause);
        if !self.is_broken.load(Ordering::Acquire) {
            stop();
            self.is_broken.store(true, Ordering::Release);
        }
    }

    /// The cause, if the connection broke. Costs one atomic load while the connection is up.
    pub fn get(&self) -> Option<&Broken> {
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
    verbs::CqError: verb;
    verbs::PostError: verb;
    ofi::OpError: call;
}

/// Bit of an immediate: the cell beside the slot describes the payload, or the payload fills its
/// slot. Slot numbers are below 8,192, so the bit is free.
pub(super) const IN_CELL: u32 = 1 << 15;

/// Size of a cell in bytes.
pub(super) const CELL_BYTES: usize = 16;

/// Describes a payload; its write carries it in the cell beside the slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Descriptor {
    /// Payload length in bytes.
    pub len: u32,
    /// Use count of the slot, as in the immediate.
    pub use_count: u16,
    /// Offset of the payload within the slot, in bytes.
    pub at: u32,
}

impl Descriptor {
    pub fn encode(self) -> [u8; CELL_BYTES] {
        let mut b = [0; CELL_BYTES];
        b[..4].copy_from_slice(&self.len.to_le_bytes());
        b[4..6].copy_from_slice(&self.use_count.to_le_bytes());
        b[8..12].copy_from_slice(&self.at.to_le_bytes());
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
    pub fn read(cells: Option<&Region>, imm: Imm) -> Result<Self, Broken> {
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

/// Checks that a peer's region holds `slots` slots of `stride` bytes.
///
/// # Errors
/// The condition that the region violates, as text.
pub(super) fn covers(
    (address, length): (u64, u64),
    slots: usize,
    stride: usize,
) -> Result<(), String> {
    let needed = (slots as u64).checked_mul(stride as u64);
    let fits = needed.is_some_and(|needed| needed <= length);
    if fits && address.checked_add(length).is_some() {
        return Ok(());
    }
    Err(format!("{slots} slots of {stride} bytes must lie in it"))
}
