//! The accelerator's memory budget for slots, over all sessions. Memory is reserved before slots
//! are made, and freed when the last reader drops them, independently of the session.

use std::sync::{Arc, Mutex, Weak};

use crate::run::lock;

#[derive(Debug)]
pub(super) struct Budget<S>(Arc<Mutex<Uses<S>>>);

#[derive(Debug)]
struct Uses<S> {
    /// Bytes reserved for slots in the making.
    making: usize,
    made: Vec<(Weak<S>, usize)>,
}

/// Bytes reserved for slots in the making; freed on drop.
#[derive(Debug)]
pub(super) struct Reservation<S> {
    uses: Arc<Mutex<Uses<S>>>,
    bytes: usize,
}

impl<S> Budget<S> {
    pub(crate) fn new() -> Self {
        Budget(Arc::new(Mutex::new(Uses {
            making: 0,
            made: Vec::new(),
        })))
    }

    /// Reserves `bytes` if the total stays within `limit`.
    ///
    /// # Errors
    /// The bytes in use.
    pub(crate) fn reserve(&self, bytes: usize, limit: usize) -> Result<Reservation<S>, usize> {
        let mut uses = lock(&self.0);
        let in_use = uses.in_use();
        if in_use.saturating_add(bytes) > limit {
            return Err(in_use);
        }
        uses.making += bytes;
        Ok(Reservation {
            uses: self.0.clone(),
            bytes,
        })
    }

    /// Bytes in use.
    pub(crate) fn in_use(&self) -> usize {
        lock(&self.0).in_use()
    }
}

impl<S> Uses<S> {
    fn in_use(&mut self) -> usize {
        self.made.retain(|(slots, _)| slots.strong_count() > 0);
        self.making + self.made.iter().map(|(_, bytes)| bytes).sum::<usize>()
    }
}

impl<S> Reservation<S> {
    /// Ties the reservation to `slots`: it is freed when the last reference is dropped.
    pub(crate) fn tie_to(self, slots: &Arc<S>) {
        let made = (Arc::downgrade(slots), self.bytes);
        lock(&self.uses).made.push(made);
    }
}

impl<S> Drop for Reservation<S> {
    fn drop(&mut self) {
        lock(&self.uses).making -= self.bytes;
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn bytes_are_in_use_from_before_slots_are_made_until_nothing_reads_them() {
        let budget = Budget::new();
        let first = budget.reserve(60, 100).expect("free");
        assert_eq!(budget.reserve(50, 100).err(), Some(60), "being made");
        drop(first);
        let slots = Arc::new(());
        budget.reserve(60, 100).expect("free again").tie_to(&slots);
        assert_eq!(
            (budget.in_use(), budget.reserve(41, 100).err()),
            (60, Some(60))
        );
        let reader = slots.clone();
        drop(slots);
        assert_eq!(budget.in_use(), 60, "a batch reads them");
        drop(reader);
        assert_eq!(budget.in_use(), 0);
        assert_eq!(
            budget.reserve(usize::MAX, 100).err(),
            Some(0),
            "no overflow"
        );
    }
}
