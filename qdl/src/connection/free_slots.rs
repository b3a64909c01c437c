//! Free slots of a connection, as a bitmap with lock-free access.

use crossbeam_utils::CachePadded;

use fabric::sync::{AtomicU32, AtomicU64, Ordering, loom_fence};

/// Slots taken by one caller and not used yet, all in one bitmap word. The caller uses the slots in
/// ascending order and gives the rest back.
#[derive(Debug, Default)]
pub(crate) struct Reserved {
    word: usize,
    bits: u64,
}

impl Reserved {
    pub(crate) fn len(&self) -> usize {
        self.bits.count_ones() as usize
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.bits == 0
    }
}

impl Iterator for Reserved {
    type Item = u16;

    /// Takes the lowest slot, which the caller then owns.
    fn next(&mut self) -> Option<u16> {
        let bit = self.bits.trailing_zeros();
        // Clears the lowest set bit; returns `None` if `bits` is 0.
        self.bits &= self.bits.checked_sub(1)?;
        Some((self.word * 64) as u16 + bit as u16)
    }
}

fn lowest(bits: u64, slots_max: usize) -> u64 {
    if bits.count_ones() as usize <= slots_max {
        return bits;
    }
    let mut rest = bits;
    for _ in 0..slots_max {
        rest &= rest - 1;
    }
    bits ^ rest
}

/// The free slots: one bit per slot in words of 64, and one summary bit for each word that may have
/// free slots. A search takes few instructions, whatever the number of slots.
///
/// Only a search that finds a word empty clears the word's summary bit; taking the last slot does
/// not. So on a full connection, samples that empty and refill a word leave the summary unchanged.
#[derive(Debug)]
pub(super) struct FreeSlots {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
    cursor: CachePadded<AtomicU32>,
    /// Hint: the word of the slot freed last, where a search looks when nearly all slots are busy.
    freed: CachePadded<AtomicU32>,
}

impl FreeSlots {
    pub(crate) fn new(slots: usize) -> Self {
        let word = |i: usize, bits: usize| {
            let n = bits.saturating_sub(i * 64).min(64);
            AtomicU64::new(if n == 64 { !0 } else { (1u64 << n) - 1 })
        };
        let words = slots.div_ceil(64).max(1);
        let summary = words.div_ceil(64);
        FreeSlots {
            words: (0..words).map(|i| word(i, slots)).collect(),
            summary: (0..summary).map(|i| word(i, words)).collect(),
            cursor: CachePadded::new(AtomicU32::new(0)),
            freed: CachePadded::new(AtomicU32::new(0)),
        }
    }

    /// Returns the first word at or after word `from` with a set summary bit, wrapping once.
    fn word_from(&self, from: usize) -> Option<usize> {
        let n = self.summary.len();
        let (first, bit) = (from / 64 % n, from % 64);
        for i in 0..=n {
            let s = (first + i) % n;
            let mut bits = self.summary[s].load(Ordering::SeqCst);
            if i == 0 {
                bits &= !0 << bit;
            }
            if bits != 0 {
                return Some(s * 64 + bits.trailing_zeros() as usize);
            }
        }
        None
    }

    /// Takes up to `slots_max` free slots below slot `limit`, all from one word. `None` if none is
    /// free.
    pub(crate) fn take(&self, limit: usize, slots_max: usize) -> Option<Reserved> {
        let words = limit.div_ceil(64).clamp(1, self.words.len());
        let cursor = self.cursor.load(Ordering::Relaxed) as usize;
        let here = cursor / 64 % words;
        let next = if here + 1 < words { here + 1 } else { 0 };
        let near = self
            .take_from(here, !0 << (cursor % 64), limit, slots_max)
            .or_else(|| self.take_from(next, !0, limit, slots_max))
            .or_else(|| self.take_freed(limit, slots_max));
        if near.is_some() {
            return near;
        }
        if words < self.words.len() {
            // The summary also covers words above the limit, so look at each word below the limit.
            return self.take_any(words, limit, slots_max);
        }
        loop {
            let word = self.word_from(next).or_else(|| self.any_word())?;
            if let Some(taken) = self.take_from(word, !0, limit, slots_max) {
                return Some(taken);
            }
            if word + 1 == words
                && self.words[word].load(Ordering::SeqCst) & !mask(word, limit) != 0
            {
                // All free slots of the word are at or above `limit`: its summary bit stays set.
                return self.take_any(words, limit, slots_max);
            }
            self.emptied(word);
        }
    }

    fn take_any(&self, words: usize, limit: usize, slots_max: usize) -> Option<Reserved> {
        (0..words).find_map(|word| self.take_from(word, !0, limit, slots_max))
    }

    /// Takes slots from the word of the slot freed last.
    pub(crate) fn take_freed(&self, limit: usize, slots_max: usize) -> Option<Reserved> {
        self.take_from(
            self.freed.load(Ordering::Relaxed) as usize,
            !0,
            limit,
            slots_max,
        )
    }

    /// Takes the lowest free slots of a word, from those in `within` and below `limit`, with one
    /// atomic operation.
    fn take_from(
        &self,
        word: usize,
        within: u64,
        limit: usize,
        slots_max: usize,
    ) -> Option<Reserved> {
        let within = within & mask(word, limit);
        let mut bits = self.words[word].load(Ordering::Acquire) & within;
        while bits != 0 {
            let wanted = lowest(bits, slots_max.max(1));
            let old = self.words[word].fetch_and(!wanted, Ordering::AcqRel);
            let got = old & wanted;
            if got != 0 {
                let last = word as u32 * 64 + (u64::BITS - 1 - got.leading_zeros());
                self.cursor.store(last + 1, Ordering::Relaxed);
                return Some(Reserved { word, bits: got });
            }
            // A different thread changed the word; `old` has the bits that are left.
            bits = old & within;
        }
        None
    }

    /// Searches without the summary. In `emptied`, a word's summary bit is clear for a moment
    /// although a slot is free. A missed slot would make a sample wait for the next response.
    fn any_word(&self) -> Option<usize> {
        self.words
            .iter()
            .position(|w| w.load(Ordering::SeqCst) != 0)
    }

    /// Clears the summary bit of a word found empty, and restores it if a slot came back.
    fn emptied(&self, word: usize) {
        let (s, bit) = (word / 64, 1u64 << (word % 64));
        self.summary[s].fetch_and(!bit, Ordering::SeqCst);
        loom_fence();
        if self.words[word].load(Ordering::SeqCst) != 0 {
            self.summary[s].fetch_or(bit, Ordering::SeqCst);
        }
    }

    /// Frees slots, with one atomic operation per sequence of slots in one word. Returns the number
    /// of slots.
    pub(crate) fn give(&self, slots: impl Iterator<Item = u16>) -> u32 {
        let (mut word, mut bits, mut n) = (0, 0, 0);
        for slot in slots {
            let of = usize::from(slot) / 64;
            if of != word && bits != 0 {
                self.give_bits(word, bits);
                bits = 0;
            }
            let bit = 1u64 << (slot % 64);
            debug_assert_eq!(bits & bit, 0, "slot {slot} is given twice");
            word = of;
            bits |= bit;
            n += 1;
        }
        if bits != 0 {
            self.give_bits(word, bits);
        }
        n
    }

    /// Gives unused slots back; the next search takes these first. Returns the number of slots.
    pub(crate) fn give_back(&self, unused: &mut Reserved) -> u32 {
        let (word, bits) = (unused.word, std::mem::take(&mut unused.bits));
        if bits != 0 {
            self.give_bits(word, bits);
            let first = word as u32 * 64 + bits.trailing_zeros();
            self.cursor.store(first, Ordering::Relaxed);
        }
        bits.count_ones()
    }

    fn give_bits(&self, word: usize, bits: u64) {
        let old = self.words[word].fetch_or(bits, Ordering::SeqCst);
        debug_assert_eq!(old & bits, 0, "slots of word {word} were free already");
        if old == 0 {
            self.freed.store(word as u32, Ordering::Relaxed);
            // Either the summary bit is set, or a search has just cleared it. That search rereads
            // the word and finds the slots.
            let (s, bit) = (word / 64, 1u64 << (word % 64));
            loom_fence();
            if self.summary[s].load(Ordering::SeqCst) & bit == 0 {
                self.summary[s].fetch_or(bit, Ordering::SeqCst);
            }
        }
    }
}

/// Returns the bits of a word that belong to slots below `limit`.
fn mask(word: usize, limit: usize) -> u64 {
    match limit.saturating_sub(word * 64) {
        n @ 0..64 => (1 << n) - 1,
        _ => !0,
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with a set: a taken slot was free and below the limit, and no more are taken
        /// than requested. A search succeeds while any slot is free.
        #[test]
        fn slots_are_taken_and_given_in_any_number(
            slots in 1usize..300,
            steps in prop::collection::vec(
                (any::<bool>(), any::<prop::sample::Index>(), 1usize..70, 0usize..70), 0..200),
        ) {
            let free = FreeSlots::new(slots);
            let mut model: BTreeSet<u16> = (0..slots as u16).collect();
            let mut held = Vec::new();
            for (take, pick, most, used) in steps {
                if take {
                    let first = 1 + pick.index(slots);
                    let there = model.range(..first as u16).count();
                    let taken = match there {
                        1 => free.take_freed(first, most).or_else(|| free.take(first, most)),
                        _ => free.take(first, most),
                    };
                    prop_assert_eq!(taken.is_some(), there > 0);
                    let Some(mut taken) = taken else { continue };
                    prop_assert!((1..=most).contains(&taken.len()));
                    for slot in taken.by_ref().take(used) {
                        prop_assert!(usize::from(slot) < first && model.remove(&slot));
                        held.push(slot);
                    }
                    free.give_back(&mut taken);
                } else {
                    let n = pick.index(held.len() + 1);
                    let given = held.split_off(held.len() - n);
                    prop_assert_eq!(free.give(given.iter().copied()) as usize, n);
                    model.extend(given);
                }
            }
        }
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use loom::{sync::Arc, thread};

    use super::*;

    #[test]
    fn loom_a_search_that_clears_a_summary_bit_never_hides_a_slot_that_comes_back() {
        loom::model(|| {
            let free = Arc::new(FreeSlots {
                words: Box::new([AtomicU64::new(0), AtomicU64::new(0)]),
                // A stale bit of a slot that was taken.
                summary: Box::new([AtomicU64::new(0b10)]),
                cursor: CachePadded::new(AtomicU32::new(0)),
                freed: CachePadded::new(AtomicU32::new(0)),
            });
            let giver = {
                let free = free.clone();
                thread::spawn(move || free.give(std::iter::once(64 + 6)))
            };
            free.emptied(1);
            giver.join().expect("joined");
            assert_eq!(free.summary[0].load(Ordering::SeqCst), 0b10);
            let taken = free.take(128, 64).expect("a slot");
            assert_eq!(taken.collect::<Vec<_>>(), [64 + 6]);
        });
    }
}
