//! The backlog, one for all connections: samples without a slot, and samples left to other threads.

use std::sync::atomic::Ordering;

use super::{Connection, Sample, Shared};

impl Shared {
    /// Posts the backlog on every connection with room, starting at connection `first`, until the
    /// backlog is empty. One connection may not suffice: a second thread may hold its token.
    pub(super) fn drive_all(&self, first: usize) {
        let (before, from) = self.connections.split_at(first.min(self.connections.len()));
        for connection in from.iter().chain(before).filter(|l| l.takes()) {
            self.drive(connection);
            if !self.has_backlog() {
                return;
            }
        }
    }

    /// Puts the caller's samples into the backlog and counts the reasons: those with a free slot
    /// are handed over to other threads, the rest are backlogged. Free slots are counted before the
    /// push, by the same measure by which the arbiter counts them.
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

    /// Free slots of the connections that are up; stops counting at `enough`.
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
            // Count first, so that the length is never less than the number of samples.
            self.backlog_len.fetch_add(n, Ordering::SeqCst);
            self.backlog.push(samples);
        }
    }

    /// Reduces the backlog's length by `taken` posted samples. Runs after the post, so that the
    /// length is not 0 while some of them may be put back.
    pub(super) fn taken_off(&self, taken: u64) {
        if taken > 0 {
            self.backlog_len.fetch_sub(taken, Ordering::SeqCst);
        }
    }

    /// Samples in the backlog, those being posted included.
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
            // The thread that distributes samples may hold one of them.
            return self.distribute(h);
        }
        while let Some(sample) = self.backlog.pop() {
            self.taken_off(1);
            self.complete_empty(&[sample]);
        }
    }
}
