//! Grants: which slots the peer may write now, and with which use count.
//!
//! One word per slot:
//!
//! ```text
//!  31      15 14        0
//! +--+-------+-----------+
//! |op|   0   | use count |
//! +--+-------+-----------+
//! ```
//!
//! `op` set: the peer owns the slot and owes one write, or its parts, with this use count. `op`
//! clear: this node owns the slot. The thread that clears the bit (on arrival, or in the sweep of a
//! lost connection) owns the sample of the slot. So each sample is either completed or sent again,
//! never both.

use crate::sync::{AtomicU32, Ordering};

use super::{Imm, MAX_SLOTS};

const OPEN: u32 = 1 << 31;
const USE_MASK: u32 = 0x7fff;

/// Word of a slot that the peer owns.
fn granted(use_count: u16) -> u32 {
    OPEN + u32::from(use_count)
}

/// The grants of one window. A grant is taken once:
///
/// ```
/// use fabric::{Grants, Imm};
///
/// let grants = Grants::new(4);
/// let imm = Imm::new(1, grants.open(1).expect("closed"));
/// assert!(grants.take(imm).is_ok(), "the write arrives");
/// assert!(grants.take(imm).is_err(), "a duplicate is refused");
/// ```
#[derive(Debug)]
pub struct Grants {
    words: Box<[AtomicU32]>,
}

/// Error of a write without a grant.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum GrantError {
    /// The window has no such slot.
    #[error("a write to slot {slot} of a window of {slots}")]
    NoSuchSlot {
        /// Slot that the immediate names.
        slot: u16,
        /// Slots in the window.
        slots: usize,
    },
    /// The slot expects no write: the write is a duplicate or comes too late.
    #[error("a write to slot {slot} (use {use_count}) that expects none (last use {last})")]
    NotExpected {
        /// Slot that the immediate names.
        slot: u16,
        /// Use count that the immediate carries.
        use_count: u16,
        /// Use count of the slot's last grant.
        last: u16,
    },
    /// The slot expects a write with a different use count.
    #[error("a write to slot {slot} with use {use_count} where use {expected} is expected")]
    WrongUse {
        /// Slot that the immediate names.
        slot: u16,
        /// Use count that the immediate carries.
        use_count: u16,
        /// Use count of the slot's grant.
        expected: u16,
    },
}

impl Grants {
    /// Makes `slots` closed grants with use count 0.
    ///
    /// # Panics
    /// If `slots` exceeds [`MAX_SLOTS`]; the configuration check rejects such values earlier.
    pub fn new(slots: usize) -> Self {
        assert!(slots <= MAX_SLOTS, "{slots} slots, {MAX_SLOTS} at most");
        Grants {
            words: (0..slots).map(|_| AtomicU32::new(0)).collect(),
        }
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.words.len()
    }

    /// Grants the next use of a slot to the peer and returns its use count, or `None` when the slot
    /// is granted already or does not exist. The thread that takes the grant sees all earlier
    /// memory writes of the caller.
    pub fn open(&self, slot: u16) -> Option<u16> {
        let word = self.words.get(usize::from(slot))?;
        let old = word.load(Ordering::Relaxed);
        if old & OPEN != 0 {
            return None;
        }
        let use_count = ((old + 1) & USE_MASK) as u16;
        // Only the slot's owner opens it, so no other thread changes the word in between.
        word.store(granted(use_count), Ordering::Release);
        Some(use_count)
    }

    /// Whether the slot is granted.
    pub fn is_open(&self, slot: u16) -> bool {
        self.open_use(slot).is_some()
    }

    /// Use count of the slot's grant; `None` where the slot is not granted.
    pub fn open_use(&self, slot: u16) -> Option<u16> {
        let word = self.words.get(usize::from(slot))?.load(Ordering::Acquire);
        (word & OPEN != 0).then_some((word & USE_MASK) as u16)
    }

    /// Checks that `imm` has a grant, for fabrics that check before bytes land.
    ///
    /// # Errors
    /// [`GrantError`] says why the grant does not permit the write.
    pub(crate) fn permits(&self, imm: Imm) -> Result<(), GrantError> {
        let word = self.word(imm)?.load(Ordering::Acquire);
        if word == granted(imm.use_count()) {
            Ok(())
        } else {
            Err(refusal(imm, word))
        }
    }

    /// Closes the grant that `imm` names. At most one caller succeeds for each grant.
    ///
    /// # Errors
    /// [`GrantError`] says why; the grant is unchanged.
    pub fn take(&self, imm: Imm) -> Result<(), GrantError> {
        self.word(imm)?
            .compare_exchange(
                granted(imm.use_count()),
                u32::from(imm.use_count()),
                Ordering::AcqRel,
                Ordering::Acquire,
            )
            .map(|_| ())
            .map_err(|word| refusal(imm, word))
    }

    /// Closes a slot's grant whatever its use count, in the sweep of a lost connection. Returns
    /// true where the grant was open: the caller then owns the slot's sample.
    pub fn revoke(&self, slot: u16) -> bool {
        let Some(word) = self.words.get(usize::from(slot)) else {
            return false;
        };
        word.fetch_and(!OPEN, Ordering::AcqRel) & OPEN != 0
    }

    /// Closes every grant and sets all use counts to 0, for a connection that is opened again. The
    /// caller must be the only user of the window meanwhile.
    pub fn reset(&self) {
        self.words
            .iter()
            .for_each(|w| w.store(0, Ordering::Release));
    }

    fn word(&self, imm: Imm) -> Result<&AtomicU32, GrantError> {
        self.words
            .get(usize::from(imm.slot()))
            .ok_or(GrantError::NoSuchSlot {
                slot: imm.slot(),
                slots: self.words.len(),
            })
    }
}

fn refusal(imm: Imm, word: u32) -> GrantError {
    let (slot, use_count) = (imm.slot(), imm.use_count());
    let granted = (word & USE_MASK) as u16;
    if word & OPEN == 0 {
        GrantError::NotExpected {
            slot,
            use_count,
            last: granted,
        }
    } else {
        GrantError::WrongUse {
            slot,
            use_count,
            expected: granted,
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    #[test]
    fn one_grant_is_taken_once() {
        let g = Grants::new(4);
        assert!(matches!(
            g.take(Imm::new(1, 1)),
            Err(GrantError::NotExpected { last: 0, .. })
        ));
        assert_eq!(g.open(1), Some(1));
        assert_eq!(g.open(1), None, "an open grant is not opened again");
        assert!(matches!(
            g.permits(Imm::new(1, 2)),
            Err(GrantError::WrongUse { expected: 1, .. })
        ));
        assert_eq!(g.take(Imm::new(1, 1)), Ok(()));
        assert!(g.take(Imm::new(1, 1)).is_err(), "a duplicate is caught");
        assert_eq!(g.open(1), Some(2));
        assert!(g.take(Imm::new(1, 1)).is_err(), "a late write is caught");
        assert!(g.revoke(1));
        assert!(!g.revoke(1));
        assert!(matches!(
            g.take(Imm::new(9, 1)),
            Err(GrantError::NoSuchSlot { slots: 4, .. })
        ));
    }

    #[test]
    fn a_reset_closes_every_grant_and_begins_with_the_first_use() {
        let g = Grants::new(2);
        assert_eq!([g.open(0), g.open(1)], [Some(1); 2]);
        g.take(Imm::new(1, 1)).expect("granted");
        g.reset();
        assert!(!g.is_open(0));
        assert_eq!([g.open(0), g.open(1)], [Some(1); 2]);
    }

    #[test]
    fn use_counts_wrap() {
        let g = Grants::new(1);
        for i in 1..=0x8001u32 {
            let u = g.open(0).expect("closed");
            assert_eq!(u32::from(u), i & USE_MASK);
            g.take(Imm::new(0, u)).expect("granted");
        }
    }
}
