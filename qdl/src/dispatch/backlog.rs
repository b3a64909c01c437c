//! The backlog: samples that have no slot yet, or that other threads are to post. One for all
//! connections.

use std::sync::atomic::Ordering;

use super::{Connection, Sample, Shared};

impl Shared {
    /// Posts the backlog on every connection that has room, for as long
    /// as there is any: a connection whose token is taken may have less
    /// room than there are samples. Begins with connection `first`.
    pub(super) fn drive_all(&self, first: usize) {
        let (before, from) = self.connections.split_at(first.min(self.connections.len()));
        for connection in from.iter().chain(before).filter(|l| l.takes()) {
            self.drive(connection);
            if !self.has_backlog() {
                return;
            }
        }
    }

    /// Puts samples of the caller's into the backlog, and counts why they are there: as many as
    /// there are slots for were left to other threads, the others have none to go to. Slots are
    /// looked at before anybody can take them, as those who choose a connection look at them.
    pub(super) fn leave_to_others(&self, samples: impl ExactSizeIterator<Item = Sample>) {
        let n = samples.len() as u64;
        let before = self.backlog_len.load(Ordering::Relaxed);
        let free = self.free_slots(before.saturating_add(n));
        let handed_over = free.saturating_sub(before).min(n);
        self.push_all(samples);
        if handed_over > 0 {
            self.handed_over.fetch_add(handed_over, Ordering::Relaxed);
        }
        if handed_over < n {
            let waiting = before.saturating_add(n).saturating_sub(free);
            self.backlog_max.fetch_max(waiting, Ordering::Relaxed);
            self.backlogged
                .fetch_add(n - handed_over, Ordering::Relaxed);
        }
    }

    /// Free slots of connections that are up; no more than `enough` are looked for.
    pub(super) fn free_slots(&self, enough: u64) -> u64 {
        let mut free = 0;
        for load in self.connections.iter().map(Connection::load) {
            if load.up {
                free += load.room() as u64;
            }
            if free >= enough {
                break;
            }
        }
        free
    }

    pub(super) fn push_all(&self, samples: impl ExactSizeIterator<Item = Sample>) {
        let n = samples.len() as u64;
        if n > 0 {
            // Counted first, so that the length is never less than what can be popped.
            self.backlog_len.fetch_add(n, Ordering::SeqCst);
            self.backlog.push(samples);
        }
    }

    /// The backlog's length goes down by so many that were taken: when they are posted, so that
    /// nobody takes it for empty who could find what is put back of them.
    pub(super) fn taken_off(&self, taken: u64) {
        if taken > 0 {
            self.backlog_len.fetch_sub(taken, Ordering::SeqCst);
        }
    }

    /// Samples in the backlog, those included that are being posted.
    pub(super) fn waiting(&self) -> u64 {
        self.backlog_len.load(Ordering::SeqCst)
    }

    pub(super) fn has_backlog(&self) -> bool {
        self.waiting() > 0
    }

    pub(super) fn empty_backlog(&self) {
        let spent = std::mem::take(&mut *self.spent());
        if !spent.is_empty() {
            self.complete_empty(&spent);
        }
        if let Some(h) = self.health.get() {
            // One of its samples may be held by whoever gives them out.
            return self.distribute(h);
        }
        while let Some(sample) = self.backlog.pop() {
            self.taken_off(1);
            self.complete_empty(&[sample]);
        }
    }
}
