//! Samples on their way to a connection: where whoever has its send token takes them from.

use std::{cell::Cell, sync::atomic::Ordering};

use super::{Connection, Sample, Shared, WARM_UP_ID};
use crate::connection::{Next, Outgoing, SendCounts, burst, tracker::Reserved};
use fabric::{PostError, Tx, clock::now_ns};

thread_local! {
    /// Where a thread puts samples of the backlog, while it posts them.
    static TAKEN: Cell<Vec<Sample>> = const { Cell::new(Vec::new()) };
}

/// Samples on their way to a connection: the caller's own first, then what was given to this
/// connection, and, but by health, the backlog.
pub(super) struct Requests<'a, D> {
    shared: &'a Shared,
    connection: &'a Connection,
    direct: D,
    /// When this burst began.
    now: u64,
    /// Most of a burst.
    burst: usize,
    /// Slots for those that are to be expected of this burst.
    slots: Reserved,
    /// Writes of this burst.
    posted: usize,
    /// Samples of the backlog, of which those before `next` have been posted in this burst: they
    /// are not taken off its length yet.
    taken: Vec<Sample>,
    next: usize,
    /// So many were posted of others, which `taken` held before.
    before: u64,
}

impl<'a, D: ExactSizeIterator<Item = Sample>> Requests<'a, D> {
    /// The caller's own are `direct`.
    pub fn new(shared: &'a Shared, connection: &'a Connection, direct: D) -> Self {
        Requests {
            shared,
            connection,
            direct,
            now: 0,
            burst: match shared.one_by_one {
                true => 1,
                // Answers that one poll brings make room for samples of one doorbell.
                false => burst(connection.tracker.allowance()),
            },
            slots: Reserved::default(),
            posted: 0,
            taken: Vec::new(),
            next: 0,
            before: 0,
        }
    }

    /// The next of those taken.
    fn of_taken(&mut self) -> Option<Sample> {
        let sample = self.taken.get(self.next).copied()?;
        self.next += 1;
        Some(sample)
    }

    /// The next where none of those taken is left.
    fn of_others(&mut self, room: usize) -> Option<Sample> {
        // What nothing was given to is not popped from: that takes a fence each time.
        let assigned = &self.connection.assigned;
        let given = || match assigned.is_empty() {
            true => None,
            false => assigned.pop(),
        };
        let sample = self.direct.next().or_else(given);
        sample.or_else(|| self.of_backlog(room))
    }

    /// The backlog's next, and those behind it, as many as are posted in this burst. Of those that
    /// were taken before none is left.
    fn of_backlog(&mut self, room: usize) -> Option<Sample> {
        let seen = self.before + self.next as u64;
        if self.connection.by_health || self.shared.waiting() <= seen {
            return None;
        }
        if self.taken.capacity() == 0 {
            self.taken = TAKEN.take();
        }
        self.shared
            .backlog
            .take(self.slots.len().min(room), &mut self.taken);
        (self.before, self.next) = (seen, 0);
        self.of_taken()
    }

    /// So many more are there to be posted, as far as can be seen.
    fn more(&self) -> usize {
        let backlog = match self.connection.by_health {
            true => 0,
            false => {
                let seen = self.before + self.next as u64;
                self.shared.waiting().saturating_sub(seen)
            }
        };
        self.direct.len() + self.connection.assigned() + backlog as usize
    }
}

impl<D: ExactSizeIterator<Item = Sample>> Outgoing for Requests<'_, D> {
    fn begin(&mut self) {
        self.now = now_ns();
    }

    fn burst(&self) -> usize {
        self.burst
    }

    fn post_next(&mut self, tx: &mut dyn Tx, counts: &mut SendCounts) -> Next {
        let (shared, connection) = (self.shared, self.connection);
        if self.slots.is_empty() {
            if !connection.tracker.has_free() {
                return Next::Nothing;
            }
            let more = self.more();
            if more == 0 {
                return Next::Nothing;
            }
            let left_of_burst = self.burst.saturating_sub(self.posted);
            self.slots = connection.tracker.reserve_some(more.min(left_of_burst));
            if self.slots.is_empty() {
                return Next::Nothing;
            }
        }
        // Those taken have their slots: none of what comes now goes before them. They are posted
        // from where they lie.
        let other;
        let sample = match self.taken.get(self.next) {
            Some(sample) => {
                self.next += 1;
                sample
            }
            None => match self.of_others(tx.room()) {
                Some(sample) => {
                    other = sample;
                    &other
                }
                None => return Next::Nothing,
            },
        };
        let staged = shared.staged_from.as_deref();
        let posted = match self.slots.next() {
            Some(slot) => {
                let sources = shared.sources.len();
                connection.post(tx, sources, staged, (slot, sample), self.now)
            }
            None => Err((PostError::Full, true)),
        };
        match posted {
            Ok(copied) => {
                self.posted += 1;
                counts.staged += u64::from(copied > 0);
                counts.staged_bytes += copied as u64;
                Next::Posted
            }
            Err((e, is_ours)) => {
                if is_ours {
                    shared.not_posted(connection, *sample);
                }
                e.into()
            }
        }
    }

    fn posted(&mut self, writes: usize, counts: &mut SendCounts) -> bool {
        let connection = self.connection;
        let came_back = connection.tracker.give_back(&mut self.slots);
        self.posted = 0;
        if let Some(left) = self.taken.get(self.next..) {
            // There is something where the link has failed alone: whoever takes the connection down
            // wakes the others.
            self.shared.backlog.put_back(left);
        }
        let seen = std::mem::take(&mut self.before) + std::mem::take(&mut self.next) as u64;
        self.taken.clear();
        self.shared.taken_off(seen);
        let in_flight = connection.tracker.in_flight();
        counts.in_flight_max = counts.in_flight_max.max(in_flight as u64);
        connection
            .posted
            .fetch_add(writes as u64, Ordering::Relaxed);
        came_back && self.more() > 0
    }
}

impl<D> Drop for Requests<'_, D> {
    fn drop(&mut self) {
        if self.taken.capacity() > 0 {
            TAKEN.set(std::mem::take(&mut self.taken));
        }
    }
}

impl Shared {
    /// A sample could not be posted after all: it goes by another connection.
    fn not_posted(&self, connection: &Connection, sample: Sample) {
        if sample.id == WARM_UP_ID {
            return self.warm_up.not_posted(connection.index);
        }
        if let Some(h) = self.health.get() {
            h.arbiter.taken_back(connection.index, sample.len);
        }
        self.push_all(std::iter::once(sample));
    }
}
