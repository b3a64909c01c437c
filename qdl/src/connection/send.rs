//! The sending half of a connection: the link's [`Tx`] behind the send token, the link's blocked
//! state and failure, and the control messages that wait for the next doorbell.
//!
//! The caller supplies the writes ([`WriteSource`]): samples at the frontend, responses at the
//! accelerator.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::token::SendToken;
use crate::counters::traffic;
use fabric::{Broken, Control, Flushed, Mailbox, Post, PostError, Tx};
use record::TrafficRecord;

pub(crate) trait WriteSource {
    /// Prepares a burst. Returns the most writes for its doorbell, at least 1.
    fn begin(&mut self) -> usize;

    /// Posts the next write. Returns false, with the source unchanged, if no write is waiting, no
    /// slot is free, or the fabric is full.
    ///
    /// # Errors
    /// The connection cannot send any more. The error is boxed to keep the result small.
    fn post_next(&mut self, tx: &mut dyn Tx, counts: &mut SendCounts) -> Result<bool, Box<Broken>>;

    /// Ends a burst of `writes` posted writes, before the flush. Returns true if more writes can be
    /// posted now: a producer that saw no free slot during the burst relies on this.
    fn end(&mut self, writes: usize, counts: &mut SendCounts) -> bool;

    /// Called in place of a burst while the connection is down.
    fn down(&mut self) {}
}

/// The result of [`WriteSource::post_next`] for a write that was not posted.
pub(crate) fn not_posted(error: PostError) -> Result<bool, Box<Broken>> {
    match error {
        PostError::Full => Ok(false),
        PostError::Broken(b) => Err(b.into()),
        e @ PostError::OutOfBounds { .. } => {
            let cause = Broken::GivenUp(format!("a payload cannot be sent: {e}"));
            Err(cause.into())
        }
    }
}

/// Counts of a sending half beside the fabric's counts.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCounts {
    /// Payloads copied into registered memory before they were sent.
    pub staged: u64,
    /// Bytes of these payloads.
    pub staged_bytes: u64,
    pub in_flight_max: u64,
    /// Doorbells that left writes behind because the socket or queue pair was full.
    pub blocked: u64,
}

#[derive(Default)]
struct Sending {
    link: Option<Box<dyn Tx>>,
    /// The link during its goodbye.
    leaving: Option<Box<dyn Tx>>,
    counts: SendCounts,
    past: TrafficRecord,
}

/// The sending half of a connection across its links.
#[derive(Default)]
pub(crate) struct SendHalf {
    token: SendToken<Sending>,
    /// Whether the last flush left bytes or writes behind.
    blocked: AtomicBool,
    /// Whether a flush is in progress: epoll's writable edge may come before `blocked` is stored.
    flushing: AtomicBool,
    /// Why the link cannot send. The NIC thread takes it, as only it takes a connection down.
    failed: Mutex<Option<Broken>>,
    has_failed: AtomicBool,
    ask: Mailbox,
    answer: Mailbox,
}

impl SendHalf {
    pub(crate) fn attach(&self, tx: Box<dyn Tx>) {
        self.token.exclusive(|s| {
            self.forget();
            s.link = Some(tx);
        });
    }

    /// Stops posting and says goodbye. True once the link is dropped; call again until then.
    pub(crate) fn finish(&self) -> bool {
        self.token.exclusive(|s| {
            if let Some(tx) = s.link.take() {
                s.leaving = Some(tx);
                self.forget();
            }
            let over = s.leaving.as_mut().is_none_or(|tx| tx.finish());
            if over && let Some(tx) = s.leaving.take() {
                s.past.add(&traffic(&tx.counts()));
            }
            over
        })
    }

    /// Clears the last link's state. The caller owns the token, so a new link keeps its own state.
    fn forget(&self) {
        self.blocked.store(false, Ordering::SeqCst);
        let _ = self.take_failed();
    }

    /// Posts writes while there is room, with one doorbell per burst. If a second thread owns the
    /// token, that thread looks again and does the work. Returns whether this call posted a write
    /// or carried bytes, possibly of earlier posts. Stores a failure of the link for the NIC thread
    /// ([`Self::has_failed`]).
    pub(crate) fn post(&self, source: &mut impl WriteSource) -> bool {
        let mut is_work = false;
        let mut claim = self.token.claim();
        while let Some(mut sending) = claim.next() {
            let Sending { link, counts, .. } = &mut *sending;
            let Some(tx) = link.as_deref_mut() else {
                source.down();
                continue;
            };
            let mut must_flush = self.blocked.load(Ordering::Relaxed);
            loop {
                let mut broken = None;
                for mailbox in [&self.ask, &self.answer] {
                    if tx.room() > 0
                        && let Some(message) = mailbox.take()
                    {
                        if let Err(PostError::Broken(b)) = tx.post(&Post::control(message)) {
                            broken = Some(b);
                        }
                        must_flush = true;
                    }
                }
                let most = source.begin();
                let (mut writes, mut no_room) = (0, false);
                while writes < most && broken.is_none() {
                    no_room = tx.room() == 0;
                    if no_room {
                        // A flush makes room, or returns the reason why there is none.
                        must_flush = true;
                        break;
                    }
                    match source.post_next(tx, counts) {
                        Ok(true) => writes += 1,
                        Ok(false) => break,
                        Err(b) => broken = Some(*b),
                    }
                }
                // Repeat only if this burst posted a write.
                let again = source.end(writes, counts) && writes > 0;
                is_work |= writes > 0;
                if let Some(cause) = broken {
                    self.fail(cause);
                    break;
                }
                if writes == 0 && !must_flush {
                    break;
                }
                self.flushing.store(true, Ordering::SeqCst);
                let before = tx.carried();
                let flushed = tx.flush();
                is_work |= tx.carried() > before;
                let is_done = matches!(flushed, Ok(Flushed::Done));
                match flushed {
                    Ok(Flushed::Done) => self.blocked.store(false, Ordering::SeqCst),
                    Ok(Flushed::Blocked) => {
                        self.blocked.store(true, Ordering::SeqCst);
                        counts.blocked += 1;
                    }
                    Err(cause) => self.fail(cause),
                }
                self.flushing.store(false, Ordering::SeqCst);
                must_flush = false;
                let more = writes == most || again || (no_room && tx.room() > 0);
                if !is_done || !more {
                    break;
                }
            }
        }
        is_work
    }

    /// Records why the link cannot send. The caller owns the token, so a link that is being
    /// replaced cannot report a failure for the next link.
    fn fail(&self, cause: Broken) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.get_or_insert(cause);
        self.has_failed.store(true, Ordering::SeqCst);
    }

    /// Whether the link has failed and the NIC thread has not taken the failure.
    pub(crate) fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    pub(crate) fn take_failed(&self) -> Option<Broken> {
        if !self.has_failed() || !self.has_failed.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    pub(crate) fn ask(&self, echo: u32) {
        self.ask.put(Control::Echo(echo));
    }

    pub(crate) fn answer(&self, echo: u32) {
        self.answer.put(Control::EchoReply(echo));
    }

    /// Whether the last flush left bytes or writes behind.
    pub(crate) fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::SeqCst)
    }

    /// Whether a full fabric may hold up writes. True during a flush too, whose result may come
    /// after the edge that wakes the NIC thread. The flushing thread looks again for every thread
    /// that posted meanwhile.
    pub(crate) fn is_held_up(&self) -> bool {
        // Load `flushing` first: a finished flush has stored its result in `blocked`.
        self.flushing.load(Ordering::SeqCst) || self.is_blocked()
    }

    /// Fabric's counts of all links so far. Holds the token: work published meanwhile waits for the
    /// next [`Self::post`]. So call it only for a connection that is down.
    pub(crate) fn fabric_counts(&self) -> TrafficRecord {
        self.token.exclusive(|s| {
            let mut counts = s.past;
            if let Some(tx) = s.link.as_ref().or(s.leaving.as_ref()) {
                counts.add(&traffic(&tx.counts()));
            }
            counts
        })
    }

    /// This half's own counts. Holds the token like [`Self::fabric_counts`]: call it while no
    /// samples are in flight, or call [`Self::post`] afterwards.
    pub(crate) fn counts(&self) -> SendCounts {
        self.token.exclusive(|s| s.counts)
    }

    pub(crate) fn set_counts(&self, counts: SendCounts) {
        self.token.exclusive(|s| s.counts = counts);
    }
}

#[cfg(all(test, not(feature = "loom")))]
#[path = "send_tests.rs"]
mod tests;
