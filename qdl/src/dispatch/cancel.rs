//! Cancelled samples: each is completed once, and posted no more.
//!
//! ```text
//!   cancel(id) --> noted --> in the backlog, or a ring: completed empty at once
//!                        \-> in a slot: a cancel goes to its accelerator, which answers or refuses
//! ```
//!
//! The sample may move during the search, so the dispatcher notes the id first. Each thread
//! that is about to post a sample, or to send it again, looks for a note. A thread that holds a
//! connection's send token looks at the connection's ring and slots: nothing else posts there
//! meanwhile, and a poster that gets the token later sees the note.

use std::{
    collections::HashMap,
    sync::{
        Mutex,
        atomic::{AtomicU64, AtomicUsize, Ordering, fence},
    },
};

use crossbeam_utils::CachePadded;

use super::{Attempt, Connection, DispatchEvent, DispatchState, Dispatcher, WARM_UP_ID};
use fabric::{Imm, clock::now_ns, os::lock};

/// Age at which a note is purged whose sample is in no slot: no thread holds a sample between two
/// places for so long.
const NOTE_NS: u64 = 1_000_000_000;

/// Notes of cancelled samples.
#[derive(Default)]
pub(super) struct Cancels {
    note_count: CachePadded<AtomicUsize>,
    /// Cancels so far, by which a connection's poster knows of new ones.
    cancel_count: AtomicU64,
    notes: Mutex<HashMap<u64, Note>>,
}

struct Note {
    at_ns: u64,
    /// Connection and slot of the sample, once the cancel has been sent to its accelerator.
    sent: Option<(usize, Imm)>,
}

impl Cancels {
    /// Whether any sample is cancelled.
    #[inline]
    pub fn is_any(&self) -> bool {
        self.note_count.load(Ordering::Relaxed) > 0
    }

    /// Removes the note of a sample that ends now; false where it has none.
    #[inline]
    pub fn take(&self, id: u64) -> bool {
        self.is_any() && {
            let mut notes = lock(&self.notes);
            let is_noted = notes.remove(&id).is_some();
            self.note_count.store(notes.len(), Ordering::Relaxed);
            is_noted
        }
    }

    fn is_noted(&self, id: u64) -> bool {
        lock(&self.notes).contains_key(&id)
    }

    /// Removes the notes of these samples, which have ended.
    #[inline]
    pub fn take_all(&self, ids: impl Iterator<Item = u64>) {
        if self.is_any() {
            let mut notes = lock(&self.notes);
            for id in ids {
                notes.remove(&id);
            }
            self.note_count.store(notes.len(), Ordering::Relaxed);
        }
    }

    /// Removes the old notes of samples that no accelerator answers: they ended before their
    /// cancel.
    pub fn purge(&self, now: u64, connections: &[Connection]) {
        let mut notes = lock(&self.notes);
        notes.retain(|_, note| {
            let is_owed = note.sent.is_some_and(|(c, imm)| {
                let granted = connections[c].window.grants().open_use(imm.slot());
                granted == Some(imm.use_count())
            });
            is_owed || now.saturating_sub(note.at_ns) < NOTE_NS
        });
        self.note_count.store(notes.len(), Ordering::Relaxed);
    }

    fn add_note(&self, id: u64) {
        let mut notes = lock(&self.notes);
        let at_ns = now_ns();
        notes.entry(id).or_insert(Note { at_ns, sent: None });
        self.note_count.store(notes.len(), Ordering::Relaxed);
        self.cancel_count.fetch_add(1, Ordering::Relaxed);
    }

    /// Slots of a connection whose cancelled samples have no cancel under way, from now on one.
    fn take_unsent(&self, connection: &Connection) -> Vec<Imm> {
        let mut granted: Vec<_> = connection.tracker.granted().collect();
        let mut notes = lock(&self.notes);
        granted.retain(|(imm, id)| {
            let place = Some((connection.index, *imm));
            let note = notes.get_mut(id);
            note.is_some_and(|note| std::mem::replace(&mut note.sent, place) != place)
        });
        granted.into_iter().map(|(imm, _)| imm).collect()
    }
}

impl Dispatcher {
    /// Cancels the sample with this id, from any thread. It is completed once, as every sample:
    ///
    /// * in a ring or the backlog: empty ([`Owner::complete_empty`]), mostly before this returns;
    /// * in flight: when its accelerator answers or refuses it. An engine of a language model ends
    ///   the sequence at its next step, and the completion is empty; other engines answer as
    ///   always. If the connection is lost first, the completion is empty, too.
    ///
    /// Until its completion the sample's memory is in use.
    ///
    /// An answer under way completes the sample as if it had not been cancelled. The cancel of a
    /// sample that has ended has no effect, but its id may be issued again only after 1 s. No two
    /// outstanding samples may have this id.
    ///
    /// Cost: one look at each slot of all connections, and at the backlog, under its lock. Until
    /// the sample has ended, each post takes one more lock.
    ///
    /// [`Owner::complete_empty`]: super::Owner::complete_empty
    pub fn cancel(&self, id: u64) {
        let s = &*self.shared;
        if id == WARM_UP_ID {
            return;
        }
        s.cancels.add_note(id);
        s.end_waiting(id);
        for connection in &s.connections {
            // This thread looks, or the one that owns the send token.
            s.post_waiting(connection);
        }
        s.distribute();
    }
}

impl DispatchState {
    /// Completes a sample that is in no slot, if it is cancelled.
    pub(super) fn end_if_cancelled(&self, attempt: &Attempt) -> bool {
        let is_cancelled = self.cancels.take(attempt.sample.id);
        if is_cancelled {
            self.complete_empty(&[attempt.sample]);
        }
        is_cancelled
    }

    /// Completes a cancelled sample that waits in the backlog, or for the end of an aborted run.
    fn end_waiting(&self, id: u64) {
        let refused = {
            let mut refused = lock(&self.ends.refused_for_good);
            let at = refused.iter().position(|s| s.id == id);
            at.map(|at| refused.swap_remove(at))
        };
        let waiting = self.backlogs.iter().find_map(|backlog| backlog.remove(id));
        let waiting = waiting.map(|attempt| attempt.sample);
        if let Some(sample) = waiting.or(refused) {
            self.cancels.take(id);
            if self.handles.is_any() {
                // It may have held prefill nodes back.
                self.wake_all();
            }
            self.complete_empty(&[sample]);
        }
    }

    /// Looks again for a sample that waits, if it may have been cancelled before it waited.
    pub(super) fn look_again(&self, id: u64) {
        if self.cancels.is_any() && self.cancels.is_noted(id) {
            self.end_waiting(id);
        }
    }

    /// Looks for samples cancelled since the last look. The caller owns the send token.
    #[inline]
    pub(super) fn look_for_cancelled(&self, connection: &Connection) {
        let count = self.cancels.cancel_count.load(Ordering::Relaxed);
        if count != connection.cancels_seen.load(Ordering::Relaxed) {
            connection.cancels_seen.store(count, Ordering::Relaxed);
            self.find_cancelled(connection);
        }
    }

    #[cold]
    fn find_cancelled(&self, connection: &Connection) {
        let mut is_left = false;
        for _ in 0..connection.ring.len() {
            let Some(attempt) = connection.ring.pop() else {
                break;
            };
            if self.end_if_cancelled(&attempt) {
                self.choice.undo(connection, attempt.sample.len);
            } else if connection.ring.push(attempt).is_err() {
                self.requeue(connection, attempt);
                is_left = true;
            }
        }
        // Either this thread sees the connection closed, or the one that closes it the samples.
        fence(Ordering::SeqCst);
        if !connection.is_open() && !connection.ring.is_empty() {
            self.requeue_ring(connection);
            is_left = true;
        }
        if is_left {
            self.wake_all();
            self.distribute();
        }
        // Before the slots: the slots of an epoch that has ended must not get a new epoch's number.
        let epoch = connection.epoch.load(Ordering::Acquire);
        for imm in self.cancels.take_unsent(connection) {
            self.owner.event(DispatchEvent::Cancelled {
                connection: connection.index,
                epoch,
                imm,
            });
        }
    }
}
