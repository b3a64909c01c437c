//! Assigns sequences to slots and chooses the next step. Plain data: no I/O, no clock.
//!
//! ```text
//!  push --> waiting --Join--> slot: keys and values of one sequence --Decode--> ... --take--> free
//!                             (alone, all of its prompt)     (one token of each, together)
//! ```
//!
//! The engine computes a prompt alone, so the result does not depend on other sequences. Then the
//! sequence gets one token in each step of all sequences. Only a few sequences join between two
//! such steps, because the other sequences wait during a join.

use std::collections::VecDeque;

#[derive(Debug)]
pub(super) struct ActiveSequence<T> {
    /// The caller's handle of the sequence.
    pub owner: T,
    pub prompt: usize,
    pub made: usize,
    /// The newest token, the input of the next step.
    pub last: i32,
}

impl<T> ActiveSequence<T> {
    /// Number of positions in the slot that hold keys and values.
    pub fn held(&self) -> usize {
        match self.made {
            0 => 0,
            // The keys and values of the newest token are not computed yet.
            made => self.prompt + made - 1,
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum DecodeStep {
    Idle,
    /// Compute the prompt of the sequence that joined in this slot.
    Join {
        slot: usize,
    },
    /// Compute one token of each sequence in `rows` slots from `first` on.
    Decode {
        first: usize,
        /// Number of slots; some of them may be free.
        rows: usize,
    },
}

/// Copy a sequence's keys and values to another slot: the first `held` positions.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct SlotMove {
    pub from: usize,
    pub to: usize,
    pub held: usize,
}

#[derive(Debug)]
pub(super) struct Schedule<T> {
    slots: Box<[Option<ActiveSequence<T>>]>,
    /// Waiting sequences, each with the number of its prompt tokens.
    waiting: VecDeque<(T, usize)>,
    active: usize,
    joined: usize,
    moves: bool,
}

impl<T> Schedule<T> {
    /// Makes an empty schedule. With `moves`, sequences change slots to keep used slots contiguous.
    pub fn new(slots: usize, moves: bool) -> Self {
        Schedule {
            slots: (0..slots).map(|_| None).collect(),
            waiting: VecDeque::with_capacity(slots),
            active: 0,
            joined: 0,
            moves,
        }
    }

    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    fn joins(&self) -> usize {
        1 + self.slots.len() / 8
    }

    pub fn push(&mut self, owner: T, prompt: usize) {
        self.waiting.push_back((owner, prompt));
    }

    /// Drops the sequences for which `wanted` is false.
    pub fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        self.waiting.retain(|(owner, _)| wanted(owner));
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|row| !wanted(&row.owner)) {
                *slot = None;
                self.active -= 1;
            }
        }
    }

    /// Returns the next step; calls `moved` for each copy that the caller makes before this step.
    pub fn next(&mut self, mut moved: impl FnMut(SlotMove)) -> DecodeStep {
        let free = self.slots.iter().position(Option::is_none);
        if let Some(slot) = free
            && (self.active == 0 || self.joined < self.joins())
            && let Some((owner, prompt)) = self.waiting.pop_front()
        {
            self.slots[slot] = Some(ActiveSequence {
                owner,
                prompt,
                made: 0,
                last: 0,
            });
            self.active += 1;
            self.joined += 1;
            return DecodeStep::Join { slot };
        }
        self.joined = 0;
        if self.moves {
            self.close_up(&mut moved);
        }
        let first = self.slots.iter().position(Option::is_some);
        let last = self.slots.iter().rposition(Option::is_some);
        match (first, last) {
            (Some(first), Some(last)) => DecodeStep::Decode {
                first,
                rows: last - first + 1,
            },
            _ => DecodeStep::Idle,
        }
    }

    /// Moves the last sequence into the first free slot, until the used slots are contiguous.
    fn close_up(&mut self, moved: &mut impl FnMut(SlotMove)) {
        for to in 0..self.active {
            if self.slots[to].is_some() {
                continue;
            }
            // Fewer than `active` sequences lie before this free slot, so one lies behind it.
            let Some(from) = self.slots.iter().rposition(Option::is_some) else {
                return;
            };
            if let Some(row) = self.slots[from].take() {
                let held = row.held();
                moved(SlotMove { from, to, held });
                self.slots[to] = Some(row);
            }
        }
    }

    pub fn row(&mut self, slot: usize) -> Option<&mut ActiveSequence<T>> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Frees a slot and returns the handle of its sequence.
    pub fn take(&mut self, slot: usize) -> Option<T> {
        let row = self.slots.get_mut(slot)?.take()?;
        self.active -= 1;
        Some(row.owner)
    }
}

#[cfg(test)]
mod tests;
