//! Source of a connection's writes: the samples that the owner of its send token posts.

use std::{cell::Cell, sync::atomic::Ordering};

use super::{Connection, Sample, Shared, WARM_UP_ID};
use crate::connection::{Next, Outgoing, SendCounts, burst, tracker::Reserved};
use fabric::{PostError, Tx, clock::now_ns};

thread_local! {
    /// Samples of the backlog that this thread is posting.
    static TAKEN: Cell<Vec<Sample>> = const { Cell::new(Vec::new()) };
}

/// Samples for one connection: first the caller's own, then the connection's ring, and, unless the
/// policy is by health, the backlog.
pub(super) struct Requests<'a, D> {
    shared: &'a Shared,
    connection: &'a Connection,
    direct: D,
    /// Start time of this burst.
    now: u64,
    /// Most samples of a burst.
    burst: usize,
    /// Reserved slots for the samples expected in this burst.
    slots: Reserved,
    /// Writes of this burst.
    posted: usize,
    /// Samples of the backlog. Those before `next` are posted in this burst, and are not yet
    /// subtracted from the backlog's length.
    taken: Vec<Sample>,
    next: usize,
    /// Posted samples that `taken` held earlier in this burst.
    before: u64,
}

impl<'a, D: ExactSizeIterator<Item = Sample>> Requests<'a, D> {
    /// Makes the source of `connection`'s writes; `direct` are the caller's own samples.
    pub fn new(shared: &'a Shared, connection: &'a Connection, direct: D) -> Self {
        Requests {
            shared,
            connection,
            direct,
            now: 0,
            burst: match shared.one_by_one {
                true => 1,
                // One doorbell's samples match the answers of one poll.
                false => burst(connection.tracker.allowance()),
            },
            slots: Reserved::default(),
            posted: 0,
            taken: Vec::new(),
            next: 0,
            before: 0,
        }
    }

    /// The next of `taken`.
    fn of_taken(&mut self) -> Option<Sample> {
        let sample = self.taken.get(self.next).copied()?;
        self.next += 1;
        Some(sample)
    }

    /// The next sample where `taken` is used up.
    fn of_others(&mut self, room: usize) -> Option<Sample> {
        // Check for an empty ring first, since each pop costs a fence.
        let assigned = &self.connection.assigned;
        let given = || match assigned.is_empty() {
            true => None,
            false => assigned.pop(),
        };
        let sample = self.direct.next().or_else(given);
        sample.or_else(|| self.of_backlog(room))
    }

    /// Refills `taken` from the backlog, up to the number posted in this burst, and returns the
    /// first. Requires that `taken` is used up.
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

    /// Number of samples known to wait.
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
        // The samples in `taken` have their slots and go first; they are posted in place, without a
        // copy.
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
            // Only a failed link leaves any. The thread that takes the connection down wakes the
            // others.
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
    /// Returns a sample that could not be posted to the backlog; a warm-up sample is dropped.
    fn not_posted(&self, connection: &Connection, sample: Sample) {
        if sample.id == WARM_UP_ID {
            return self.warm_up.not_posted(connection.index);
        }
        if let Some(h) = self.health.get() {
            h.arbiter.take_back(connection.index, sample.len);
        }
        self.push_all(std::iter::once(sample));
    }
}
