//! The sending half of a connection: the link's behind the send token, what it could not get rid
//! of, why it failed, and the control messages that go with the next doorbell.
//!
//! What there is to send is the caller's ([`Outgoing`]): samples at the frontend, responses at the
//! accelerator.

use std::sync::{
    Mutex, PoisonError,
    atomic::{AtomicBool, Ordering},
};

use super::token::SendToken;
use fabric::{Broken, Control, FabricCounts, Flushed, Mailbox, Post, PostError, Tx};

/// What a connection has to send.
pub(crate) trait Outgoing {
    /// A burst begins.
    fn begin(&mut self) {}

    /// Writes before the doorbell is rung for them, at most; 1 at least.
    fn burst(&self) -> usize;

    /// Posts the next write.
    fn post_next(&mut self, tx: &mut dyn Tx, counts: &mut SendCounts) -> Next;

    /// So many writes were posted, and will be flushed. True where there is more after all, which
    /// whoever brought it took for having to wait.
    fn posted(&mut self, writes: usize, counts: &mut SendCounts) -> bool;

    /// The connection is down: nothing can be posted.
    fn down(&mut self) {}
}

/// What became of the next write.
pub(crate) enum Next {
    /// It was posted.
    Posted,
    /// There is none, or no slot for it, or the fabric did not take it: it is where it was.
    Nothing,
    /// Nothing can be sent any more. Boxed: of every write this says what became of it.
    Broken(Box<Broken>),
}

impl From<PostError> for Next {
    fn from(error: PostError) -> Self {
        match error {
            PostError::Full => Next::Nothing,
            PostError::Broken(b) => Next::Broken(b.into()),
            e @ PostError::OutOfBounds { .. } => {
                let cause = Broken::GivenUp(format!("a payload cannot be sent: {e}"));
                Next::Broken(cause.into())
            }
        }
    }
}

/// What a sending half counts beside the fabric.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct SendCounts {
    /// Payloads copied into registered memory before they were sent.
    pub staged: u64,
    /// Bytes of those.
    pub staged_bytes: u64,
    /// Most writes in flight at once.
    pub in_flight_max: u64,
    /// Doorbells after which something was left that the socket or queue pair had no room for.
    pub blocked: u64,
}

/// What a drive achieved.
#[derive(Clone, Debug, Default)]
pub(crate) struct Posted {
    /// Writes posted.
    pub posted: usize,
    /// That carried bytes, if only of what was posted before.
    pub carried: bool,
    /// The link failed. The NIC's thread, once it is awake, finds that noted.
    pub broken: Option<Broken>,
}

impl Posted {
    /// Whether it was anything: writes posted, or bytes carried of those before.
    pub fn is_work(&self) -> bool {
        self.posted > 0 || self.carried
    }
}

/// What is the owner's of the token.
#[derive(Debug, Default)]
struct Sending {
    /// There while the connection is up.
    link: Option<Box<dyn Tx>>,
    /// There while it takes its leave.
    leaving: Option<Box<dyn Tx>>,
    counts: SendCounts,
    /// Of links that are gone.
    past: FabricCounts,
}

/// See the module.
#[derive(Debug, Default)]
pub(crate) struct SendHalf {
    token: SendToken<Sending>,
    /// The last flush did not get rid of everything.
    blocked: AtomicBool,
    /// A flush is in progress: its writable edge may come before its result is in `blocked`.
    flushing: AtomicBool,
    /// Why nothing can be sent any more, until the NIC's thread takes it: only that takes a
    /// connection down.
    failed: Mutex<Option<Broken>>,
    /// Whether there is something in `failed`.
    has_failed: AtomicBool,
    ask: Mailbox,
    answer: Mailbox,
}

impl SendHalf {
    /// Posts by a fresh link from now on.
    pub fn attach(&self, tx: Box<dyn Tx>) {
        self.token.exclusive(|s| {
            self.forget();
            s.link = Some(tx);
        });
    }

    /// Posts nothing from now on, and says goodbye. True once that is over and the link is gone:
    /// until then it is to be called again.
    pub fn finish(&self) -> bool {
        self.token.exclusive(|s| {
            if let Some(tx) = s.link.take() {
                s.leaving = Some(tx);
                self.forget();
            }
            let over = s.leaving.as_mut().is_none_or(|tx| tx.finish());
            if over && let Some(tx) = s.leaving.take() {
                s.past.add(&tx.counts());
            }
            over
        })
    }

    /// What was noted of the last link. With the token, so that nothing of the next one's is lost.
    fn forget(&self) {
        self.blocked.store(false, Ordering::SeqCst);
        let _ = self.take_failed();
    }

    /// Posts what there is for as long as there is room, and rings the doorbell once for each
    /// burst; or leaves all that to the owner of the token, who looks again.
    pub fn drive(&self, out: &mut impl Outgoing) -> Posted {
        let mut total = Posted::default();
        self.token.drive(|s| {
            let done = self.post(s, out);
            total.posted += done.posted;
            total.carried |= done.carried;
            if let Some(cause) = done.broken {
                self.fail(&cause);
                total.broken.get_or_insert(cause);
            }
        });
        total
    }

    fn post(&self, s: &mut Sending, out: &mut impl Outgoing) -> Posted {
        let mut done = Posted::default();
        let Sending { link, counts, .. } = s;
        let Some(tx) = link.as_deref_mut() else {
            out.down();
            return done;
        };
        let mut must_flush = self.blocked.load(Ordering::Relaxed);
        loop {
            for mailbox in [&self.ask, &self.answer] {
                if tx.room() > 0
                    && let Some(message) = mailbox.take()
                {
                    if let Err(PostError::Broken(b)) = tx.post(&Post::control(message)) {
                        done.broken = Some(b);
                    }
                    must_flush = true;
                }
            }
            out.begin();
            let most = out.burst();
            let (mut burst, mut no_room) = (0, false);
            while burst < most && done.broken.is_none() {
                no_room = tx.room() == 0;
                if no_room {
                    // A flush makes some, or finds out why there is none.
                    must_flush = true;
                    break;
                }
                match out.post_next(tx, counts) {
                    Next::Posted => burst += 1,
                    Next::Nothing => break,
                    Next::Broken(b) => done.broken = Some(*b),
                }
            }
            // Only while it gets on.
            let again = out.posted(burst, counts) && burst > 0;
            done.posted += burst;
            if done.broken.is_some() || (burst == 0 && !must_flush) {
                return done;
            }
            self.flushing.store(true, Ordering::SeqCst);
            let before = tx.carried();
            let flushed = tx.flush();
            done.carried |= tx.carried() > before;
            match &flushed {
                Ok(Flushed::Done) => self.blocked.store(false, Ordering::SeqCst),
                Ok(Flushed::Blocked) => {
                    self.blocked.store(true, Ordering::SeqCst);
                    counts.blocked += 1;
                }
                Err(b) => done.broken = Some(b.clone()),
            }
            self.flushing.store(false, Ordering::SeqCst);
            must_flush = false;
            let more = burst == most || again || (no_room && tx.room() > 0);
            if flushed != Ok(Flushed::Done) || !more {
                return done;
            }
        }
    }

    /// Notes that nothing can be sent any more. With the token: a link that is being replaced says
    /// nothing of the next.
    fn fail(&self, cause: &Broken) {
        let mut failed = self.failed.lock().unwrap_or_else(PoisonError::into_inner);
        failed.get_or_insert_with(|| cause.clone());
        self.has_failed.store(true, Ordering::SeqCst);
    }

    /// Whether nothing can be sent any more, and the NIC's thread does not know.
    pub fn has_failed(&self) -> bool {
        self.has_failed.load(Ordering::SeqCst)
    }

    /// Why nothing can be sent any more, once.
    pub fn take_failed(&self) -> Option<Broken> {
        if !self.has_failed() || !self.has_failed.swap(false, Ordering::SeqCst) {
            return None;
        }
        self.failed
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }

    /// Sends an echo with the next doorbell.
    pub fn ask(&self, echo: u32) {
        self.ask.put(Control::Echo(echo));
    }

    /// Answers an echo with the next doorbell.
    pub fn answer(&self, echo: u32) {
        self.answer.put(Control::EchoReply(echo));
    }

    /// Whether the last flush did not get rid of everything.
    pub fn is_blocked(&self) -> bool {
        self.blocked.load(Ordering::SeqCst)
    }

    /// Whether something may be left that the fabric had no room for. A flush in progress counts:
    /// what would wake the NIC's thread may come between the flush and its result, and whoever
    /// flushes looks again for those who drove meanwhile.
    pub fn is_held_up(&self) -> bool {
        // In this order: a flush that is seen to be over has left its result.
        self.flushing.load(Ordering::SeqCst) || self.is_blocked()
    }

    /// What its links have done, past and present. For a connection that is down: this takes the
    /// token, and what is to be sent meanwhile waits for the next [drive](Self::drive).
    pub fn fabric_counts(&self) -> FabricCounts {
        self.token.exclusive(|s| {
            let mut counts = s.past;
            if let Some(tx) = s.link.as_ref().or(s.leaving.as_ref()) {
                counts.add(&tx.counts());
            }
            counts
        })
    }

    /// What it has counted itself. As [`Self::fabric_counts`], it is not asked while samples are on
    /// their way, or is followed by a drive.
    pub fn counts(&self) -> SendCounts {
        self.token.exclusive(|s| s.counts)
    }

    /// Takes back what was counted since `counts`.
    pub fn set_counts(&self, counts: SendCounts) {
        self.token.exclusive(|s| s.counts = counts);
    }
}

#[cfg(all(test, not(qdl_loom)))]
#[path = "send_tests.rs"]
mod tests;
