//! Refused samples: each is tried again, first at a different accelerator.

use std::{
    iter,
    sync::{MutexGuard, PoisonError, atomic::Ordering},
};

use super::{
    Connection, DispatchEvent, Sample, Shared, WARM_UP_ID,
    answers::{self, payload},
    api::RefusedSample,
    posting::Burst,
};
use fabric::clock::now_ns;

impl Shared {
    /// Handles a refusal: tries the sample again, at a different accelerator where one has room.
    pub(super) fn refused(&self, epoch: u32, refused: &answers::RefusedAnswer) {
        let connection = &self.connections[refused.connection];
        let slot = refused.imm.slot();
        // SAFETY: the receiving half has closed the grant (`Shared::arrived`), and the slot is
        // released only below, so the peer does not write these bytes.
        let reason = unsafe { payload(&connection.window, slot, refused.at, refused.len) };
        let reason = String::from_utf8_lossy(reason);
        let reason = reason.replace(char::is_control, " ");
        connection.tracker.release(slot);
        let mut sample = refused.sample;
        let after_ns = now_ns().saturating_sub(sample.issued_ns);
        let before = sample.tries.refused(after_ns);
        let warms_up = sample.id == WARM_UP_ID;
        self.owner.event(DispatchEvent::Refused(RefusedSample {
            connection: refused.connection,
            epoch,
            imm: refused.imm,
            index: (!warms_up).then_some(sample.index),
            tries: sample.tries,
            is_cut: refused.is_cut,
            reason: reason.clone(),
        }));
        if warms_up {
            connection.warmed.fetch_add(1, Ordering::Relaxed);
            let words = format!("sample {} was refused: {reason}", sample.index);
            return self.warm_up.refused(connection.index, words);
        }
        connection.refused.fetch_add(1, Ordering::Relaxed);
        self.refused[before].fetch_add(1, Ordering::Relaxed);
        if let Some(h) = self.health.get() {
            h.arbiter.take_back(connection.index, sample.len);
        }
        let peer = connection.cfgs.peer;
        if sample.tries.are_over() {
            // The sample is not tried again. The owner aborts the run, which completes it empty.
            self.spent().push(sample);
        } else if !self.give_to_one(&sample, |c| c.cfgs.peer != peer)
            && !self.give_to_one(&sample, |_| true)
        {
            self.push_all(iter::once(sample));
        }
        if self.aborted.load(Ordering::SeqCst) {
            self.empty_backlog();
        }
    }

    /// Samples refused three times.
    pub(super) fn spent(&self) -> MutexGuard<'_, Vec<Sample>> {
        self.spent.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Puts a sample into the ring of a connection that `may` admits. False where none has room.
    fn give_to_one(&self, sample: &Sample, may: impl Fn(&Connection) -> bool) -> bool {
        let given = match self.health.get() {
            Some(h) => self.assign_to(h, now_ns(), sample, may),
            None => {
                let load = |i: usize| self.connections[i].load_if(&may);
                let chosen = self.arbiter.pick(self.connections.len(), load);
                let is_given = |i: &usize| self.connections[*i].assigned.push(*sample).is_ok();
                chosen.filter(is_given).map(|i| (i, false))
            }
        };
        if let Some((i, is_idle)) = given {
            self.post_or_leave_given(&self.connections[i], Burst::of(sample), is_idle);
        }
        given.is_some()
    }
}
