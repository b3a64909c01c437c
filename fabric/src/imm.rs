//! The 32-bit immediate: it names a slot and the slot's use, or carries a control message.
//!
//! ```text
//!  31 30                      16 15 14 13                 0
//! +--+--------------------------+--+--+--------------------+
//! | 0|        use count         | s| m|        slot        |   a write
//! +--+--------+-----------------+--+--+--------------------+
//! | 1|  kind  |                   value                    |   a control message (length 0)
//! +--+--------+--------------------------------------------+
//!    30     28 27                                         0
//! ```
//!
//! *m*: in an answer, more parts follow; in a request, a block of options is in front of the
//! payload. *s* (`ib`, `ofi`): the payload is the write before.

use std::fmt;

use super::{Broken, Event};
use crate::sync::{AtomicU32, Ordering};

pub use crate::wire::MAX_SLOTS;

const CONTROL: u32 = 1 << 31;
const USE_MASK: u32 = 0x7fff;
/// Set in an answer where more parts follow into the slot, and in a request that has options.
const MORE: u32 = 1 << 14;
/// Wider than any valid slot number, so that a receiver detects an invalid number.
const SLOT_MASK: u32 = MORE - 1;
const VALUE_MASK: u32 = 0x0fff_ffff;

/// The immediate of a write, as it crosses the wire.
#[derive(Clone, Copy, PartialEq, Eq, Hash)]
pub struct Imm(u32);

/// Control messages of the data plane. They travel as zero-length writes, ordered like other
/// writes. The peer's NIC thread answers an echo, so the answer proves that the whole path works.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Control {
    /// Asks for an [`Control::EchoReply`] with the same value (28 bits).
    Echo(u32),
    /// Answers an [`Control::Echo`].
    EchoReply(u32),
}

impl Imm {
    /// Makes the immediate for one use of a slot. Use counts wrap at 15 bits.
    pub const fn new(slot: u16, use_count: u16) -> Self {
        Imm(((use_count as u32 & USE_MASK) << 16) | (slot as u32 & SLOT_MASK))
    }

    /// Marks the write as a part that more parts follow.
    #[must_use]
    pub const fn with_more(self) -> Self {
        Imm(self.0 | MORE)
    }

    /// Whether the write is a part that more parts of the same slot follow.
    pub const fn more(self) -> bool {
        !self.is_control() && self.0 & MORE != 0
    }

    /// Marks the write as a request that begins with a block of options, if `has_options` is true.
    #[must_use]
    pub const fn with_options(self, has_options: bool) -> Self {
        Imm(self.0 | (has_options as u32 * MORE))
    }

    /// Whether the write, a request, begins with a block of options: the bit of [`Imm::more`].
    pub const fn has_options(self) -> bool {
        self.more()
    }

    pub(crate) const fn control(message: Control) -> Self {
        let (kind, value) = match message {
            Control::Echo(v) => (0, v),
            Control::EchoReply(v) => (1, v),
        };
        Imm(CONTROL | (kind << 28) | (value & VALUE_MASK))
    }

    /// Decodes the immediate from the wire; every value is valid.
    pub const fn from_bits(bits: u32) -> Self {
        Imm(bits)
    }

    /// Encodes the immediate for the wire.
    pub const fn bits(self) -> u32 {
        self.0
    }

    /// Slot that the immediate names; meaningless for a control message.
    pub const fn slot(self) -> u16 {
        (self.0 & SLOT_MASK) as u16
    }

    /// Use count that the immediate carries; meaningless for a control message.
    pub const fn use_count(self) -> u16 {
        ((self.0 >> 16) & USE_MASK) as u16
    }

    pub(crate) const fn is_control(self) -> bool {
        self.0 & CONTROL != 0
    }

    /// The control message, or `None` for a write or an unknown kind.
    pub const fn message(self) -> Option<Control> {
        if !self.is_control() {
            return None;
        }
        let value = self.0 & VALUE_MASK;
        match (self.0 >> 28) & 7 {
            0 => Some(Control::Echo(value)),
            1 => Some(Control::EchoReply(value)),
            _ => None,
        }
    }

    /// Converts an arrived control message; an unknown kind is a [`Broken::BadFrame`].
    pub(crate) fn control_event(self) -> Result<Event, Broken> {
        self.message().map(Event::Control).ok_or(Broken::BadFrame {
            what: "control message",
            value: u64::from(self.0),
        })
    }
}

/// One control message that waits for the next doorbell; a later message replaces an earlier one.
#[derive(Debug, Default)]
pub struct Mailbox(AtomicU32);

impl Mailbox {
    /// Stores a message, replacing one that waits.
    pub fn put(&self, message: Control) {
        self.0
            .store(Imm::control(message).bits(), Ordering::Release);
    }

    /// Takes the message that waits, if any.
    pub fn take(&self) -> Option<Control> {
        // A control immediate is never 0.
        if self.0.load(Ordering::Relaxed) == 0 {
            return None;
        }
        Imm::from_bits(self.0.swap(0, Ordering::Acquire)).message()
    }
}

impl fmt::Debug for Imm {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.message() {
            Some(m) => write!(f, "Imm({m:?})"),
            None if self.is_control() => write!(f, "Imm(control {:#x})", self.0),
            None => {
                let more = if self.more() { ", more" } else { "" };
                let (slot, use_count) = (self.slot(), self.use_count());
                write!(f, "Imm(slot {slot}, use {use_count}{more})")
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn slot_and_use_survive(
            slot in 0u16..0x4000,
            use_count in 0u16..0x8000,
            more: bool,
        ) {
            let imm = Imm::new(slot, use_count);
            let imm = Imm::from_bits(if more { imm.with_more() } else { imm }.bits());
            prop_assert_eq!(imm.more(), more);
            prop_assert_eq!(imm.slot(), slot);
            prop_assert_eq!(imm.use_count(), use_count);
            prop_assert!(!imm.is_control());
            prop_assert_eq!(imm.message(), None);
        }

        #[test]
        fn control_survives(value in 0u32..1 << 28, reply: bool) {
            let m = if reply { Control::EchoReply(value) } else { Control::Echo(value) };
            prop_assert_eq!(Imm::from_bits(Imm::control(m).bits()).message(), Some(m));
        }
    }
}
