//! Which sequence is in which slot, and what the next step computes. Plain data: no I/O, no clock.
//!
//! ```text
//!  push --> waiting --Join--> slot: keys and values of one sequence --Decode--> ... --take--> free
//!                             (alone, all of its prompt)     (one token of each, together)
//! ```
//!
//! A prompt is computed alone, so that what comes of it does not depend on who else is there; then
//! the sequence takes a token in each step of all. Few join between two such steps, since whoever
//! is at work waits meanwhile.

use std::collections::VecDeque;

/// A sequence in its slot.
#[derive(Debug)]
pub(super) struct Row<T> {
    /// Whose it is.
    pub owner: T,
    /// Tokens of its prompt.
    pub prompt: usize,
    /// Tokens made so far.
    pub made: usize,
    /// The newest of them: what the next step computes.
    pub last: i32,
}

impl<T> Row<T> {
    /// Positions of the slot that hold keys and values.
    pub fn held(&self) -> usize {
        match self.made {
            0 => 0,
            // The newest token is not in there yet.
            made => self.prompt + made - 1,
        }
    }
}

/// What to compute.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Step {
    /// Nothing is there.
    Idle,
    /// The prompt of the sequence that was put into this slot.
    Join {
        /// Which slot.
        slot: usize,
    },
    /// One token of each sequence in these slots.
    Decode {
        /// The first slot.
        first: usize,
        /// How many; a slot between may be free.
        rows: usize,
    },
}

/// The keys and values of a sequence that go to another slot.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Move {
    /// Slot that they are in.
    pub from: usize,
    /// A free one.
    pub to: usize,
    /// Positions that are in use.
    pub held: usize,
}

/// See the module.
#[derive(Debug)]
pub(super) struct Schedule<T> {
    slots: Box<[Option<Row<T>>]>,
    /// With the lengths of their prompts.
    waiting: VecDeque<(T, usize)>,
    active: usize,
    /// Joined since the last step of all.
    joined: usize,
    moves: bool,
}

impl<T> Schedule<T> {
    /// `moves`: sequences may change slots, so that those at work are side by side.
    pub fn new(slots: usize, moves: bool) -> Self {
        Schedule {
            slots: (0..slots).map(|_| None).collect(),
            waiting: VecDeque::with_capacity(slots),
            active: 0,
            joined: 0,
            moves,
        }
    }

    /// How many there are.
    pub fn slots(&self) -> usize {
        self.slots.len()
    }

    /// Sequences that may join between two steps of all.
    fn joins(&self) -> usize {
        1 + self.slots.len() / 8
    }

    /// Takes a sequence with a prompt of so many tokens.
    pub fn push(&mut self, owner: T, prompt: usize) {
        self.waiting.push_back((owner, prompt));
    }

    /// Drops the sequences that are not wanted any more.
    pub fn retain(&mut self, mut wanted: impl FnMut(&T) -> bool) {
        self.waiting.retain(|(owner, _)| wanted(owner));
        for slot in &mut self.slots {
            if slot.as_ref().is_some_and(|row| !wanted(&row.owner)) {
                *slot = None;
                self.active -= 1;
            }
        }
    }

    /// The next step. `moved` is told of each sequence that changes its slot before it.
    pub fn next(&mut self, mut moved: impl FnMut(Move)) -> Step {
        let free = self.slots.iter().position(Option::is_none);
        if let Some(slot) = free
            && (self.active == 0 || self.joined < self.joins())
            && let Some((owner, prompt)) = self.waiting.pop_front()
        {
            self.slots[slot] = Some(Row {
                owner,
                prompt,
                made: 0,
                last: 0,
            });
            self.active += 1;
            self.joined += 1;
            return Step::Join { slot };
        }
        self.joined = 0;
        if self.moves {
            self.close_up(&mut moved);
        }
        let first = self.slots.iter().position(Option::is_some);
        let last = self.slots.iter().rposition(Option::is_some);
        match (first, last) {
            (Some(first), Some(last)) => Step::Decode {
                first,
                rows: last - first + 1,
            },
            _ => Step::Idle,
        }
    }

    /// Fills each hole with the last sequence.
    fn close_up(&mut self, moved: &mut impl FnMut(Move)) {
        for to in 0..self.active {
            if self.slots[to].is_some() {
                continue;
            }
            // As many as are active lie from here on or before, so one lies behind.
            let Some(from) = self.slots.iter().rposition(Option::is_some) else {
                return;
            };
            if let Some(row) = self.slots[from].take() {
                let held = row.held();
                moved(Move { from, to, held });
                self.slots[to] = Some(row);
            }
        }
    }

    /// The sequence in a slot.
    pub fn row(&mut self, slot: usize) -> Option<&mut Row<T>> {
        self.slots.get_mut(slot)?.as_mut()
    }

    /// Frees a slot and gives back whose it was.
    pub fn take(&mut self, slot: usize) -> Option<T> {
        let row = self.slots.get_mut(slot)?.take()?;
        self.active -= 1;
        Some(row.owner)
    }
}

#[cfg(test)]
mod tests;
