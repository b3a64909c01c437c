//! The sending half of a connection: the link's [`Tx`] behind the send token, the link's blocked
//! state and failure, and the control messages that wait for the next doorbell.
//!
//! The caller supplies the writes ([`WriteSource`]): samples at the frontend, responses at the
//! accelerator.

use std::sync::PoisonError;

use super::token::SendToken;
use fabric::{
    Broken, Control, FabricCounts, Flushed, Mailbox, Post, PostError, Tx,
    sync::{AtomicBool, Mutex, Ordering},
};

pub(crate) trait WriteSource {
    /// Prepares the writes of a doorbell. Returns their maximum, at least 1.
    fn begin(&mut self) -> usize;

    /// Posts the next write. Returns false, with the source unchanged, if no write is waiting, no
    /// slot is free, or the fabric is full.
    ///
    /// # Errors
    /// The connection cannot send any more. The error is boxed to keep the result small.
    fn post_next(&mut self, tx: &mut dyn Tx, counts: &mut SendCounts) -> Result<bool, Box<Broken>>;

    /// Ends the `writes` posted writes of a doorbell, before the flush. Returns true if more writes
    /// can be posted now: a producer that saw no free slot meanwhile relies on this
    /// ([`Posted::is_left`]).
    fn end(&mut self, writes: usize, counts: &mut SendCounts) -> bool;

    /// Called in place of all that while the connection is down.
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

/// Result of [`SendHalf::post_from`].
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Posted {
    /// The call posted a write or carried bytes, possibly of earlier posts.
    pub is_work: bool,
    /// Writes wait beside free slots that the last doorbell held without a use. Their producer may
    /// have seen no free slot, so the caller wakes the NIC thread.
    pub is_left: bool,
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
    past: FabricCounts,
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
                s.past.add(&tx.counts());
            }
            over
        })
    }

    /// Clears the last link's state. The caller owns the token, so a new link keeps its own state.
    fn forget(&self) {
        self.blocked.store(false, Ordering::SeqCst);
        let _ = self.take_failed();
    }

    /// Posts writes while there is room, with few doorbells. If a second thread owns the
    /// token, that thread looks again and does the work. Stores a failure of the link for the NIC
    /// thread ([`Self::has_failed`]).
    pub(crate) fn post_from(&self, source: &mut impl WriteSource) -> Posted {
        let (mut is_work, mut is_left) = (false, false);
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
                let writes_max = source.begin();
                let (mut writes, mut no_room) = (0, false);
                while writes < writes_max && broken.is_none() {
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
                let is_more_left = source.end(writes, counts);
                is_work |= writes > 0;
                is_left = is_more_left && writes == 0;
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
                let more = writes == writes_max || is_more_left || (no_room && tx.room() > 0);
                if !is_done || !more {
                    break;
                }
            }
        }
        Posted { is_work, is_left }
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
    /// next [`Self::post_from`]. So call it only for a connection that is down.
    pub(crate) fn fabric_counts(&self) -> FabricCounts {
        self.token.exclusive(|s| {
            let mut counts = s.past;
            if let Some(tx) = s.link.as_ref().or(s.leaving.as_ref()) {
                counts.add(&tx.counts());
            }
            counts
        })
    }

    /// This half's own counts. Holds the token like [`Self::fabric_counts`]: call it while no
    /// samples are in flight, or call [`Self::post_from`] afterwards.
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

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use std::sync::Mutex as Plain;

    use loom::{sync::Arc, thread};

    use super::*;
    use crate::connection::tracker::{Reserved, Tracker};
    use fabric::{
        FabricCounts, Grants, Imm,
        sync::{AtomicU32, fence},
    };

    /// A link that carries its writes if the fabric has room, and records what it carried.
    struct Wire {
        has_room: Arc<AtomicBool>,
        queued: Vec<Imm>,
        carried: std::sync::Arc<Plain<Vec<Imm>>>,
    }

    impl Tx for Wire {
        fn post(&mut self, post: &Post) -> Result<(), PostError> {
            self.queued.push(post.imm);
            Ok(())
        }
        fn flush(&mut self) -> Result<Flushed, Broken> {
            // A system call.
            fence(Ordering::SeqCst);
            if !self.has_room.load(Ordering::Relaxed) {
                return Ok(Flushed::Blocked);
            }
            self.carried.lock().expect("alive").append(&mut self.queued);
            Ok(Flushed::Done)
        }
        fn room(&self) -> usize {
            8 - self.queued.len()
        }
        fn posted(&self) -> u64 {
            0
        }
        fn retired(&self) -> u64 {
            0
        }
        fn inline_limit(&self) -> usize {
            0
        }
        fn counts(&self) -> FabricCounts {
            FabricCounts::default()
        }
    }

    /// So many writes.
    struct Writes(usize);

    impl WriteSource for Writes {
        fn begin(&mut self) -> usize {
            8
        }
        fn post_next(&mut self, tx: &mut dyn Tx, _: &mut SendCounts) -> Result<bool, Box<Broken>> {
            if self.0 == 0 {
                return Ok(false);
            }
            self.0 -= 1;
            let post = Post {
                imm: Imm::new(0, 1),
                ..Post::control(Control::Echo(0))
            };
            tx.post(&post).map_or_else(not_posted, |()| Ok(true))
        }
        fn end(&mut self, _: usize, _: &mut SendCounts) -> bool {
            false
        }
    }

    type Carried = std::sync::Arc<Plain<Vec<Imm>>>;

    fn up(has_room: bool) -> (Arc<SendHalf>, Arc<AtomicBool>, Carried) {
        let (half, carried) = (Arc::new(SendHalf::default()), Carried::default());
        let has_room = Arc::new(AtomicBool::new(has_room));
        half.attach(Box::new(Wire {
            has_room: has_room.clone(),
            queued: Vec::new(),
            carried: carried.clone(),
        }));
        (half, has_room, carried)
    }

    fn post(half: &SendHalf, writes: usize) {
        half.post_from(&mut Writes(writes));
    }

    /// A source that has reserved a slot for a sample which another connection then takes.
    struct Reserves<'a> {
        tracker: &'a Tracker,
        waiting: &'a AtomicU32,
        held: Reserved,
    }

    impl WriteSource for Reserves<'_> {
        fn begin(&mut self) -> usize {
            8
        }
        fn post_next(&mut self, _: &mut dyn Tx, _: &mut SendCounts) -> Result<bool, Box<Broken>> {
            self.held = self.tracker.reserve_some(1);
            Ok(false)
        }
        fn end(&mut self, _: usize, _: &mut SendCounts) -> bool {
            self.tracker.give_back(&mut self.held) && self.waiting.load(Ordering::SeqCst) > 0
        }
    }

    #[test]
    fn loom_a_sample_that_waits_beside_a_slot_held_for_nothing_is_left_to_the_nic_thread() {
        loom::model(|| {
            let (half, ..) = up(true);
            let tracker = Arc::new(Tracker::new(std::sync::Arc::new(Grants::new(1))));
            let waiting = Arc::new(AtomicU32::new(0));
            let other = {
                let (tracker, waiting) = (tracker.clone(), waiting.clone());
                thread::spawn(move || {
                    // A thread puts its sample into the backlog and then looks for a free slot.
                    waiting.fetch_add(1, Ordering::SeqCst);
                    fence(Ordering::SeqCst);
                    tracker.has_free()
                })
            };
            let posted = half.post_from(&mut Reserves {
                tracker: &tracker,
                waiting: &waiting,
                held: Reserved::default(),
            });
            let is_posted = other.join().expect("joined");
            assert!(is_posted || posted.is_left, "it waits beside a free slot");
        });
    }

    #[test]
    fn loom_room_that_comes_while_a_flush_ends_is_not_overlooked() {
        loom::model(|| {
            let (half, has_room, carried) = up(false);
            let issuing = {
                let half = half.clone();
                thread::spawn(move || post(&half, 1))
            };
            // Room comes, and its edge wakes the NIC thread.
            has_room.store(true, Ordering::Relaxed);
            fence(Ordering::SeqCst);
            if half.is_held_up() {
                post(&half, 0);
            }
            issuing.join().expect("joined");
            assert_eq!(carried.lock().expect("alive").len(), 1);
        });
    }

    #[test]
    fn loom_a_message_leaves_with_its_own_post_or_another_threads() {
        loom::model(|| {
            let (half, _, carried) = up(true);
            let issuing = {
                let half = half.clone();
                thread::spawn(move || post(&half, 1))
            };
            half.ask(7);
            post(&half, 0);
            issuing.join().expect("joined");
            let carried = carried.lock().expect("alive");
            let asks = |imm: &&Imm| imm.message() == Some(Control::Echo(7));
            assert_eq!(carried.iter().filter(asks).count(), 1);
        });
    }
}
