//! Answers of one connection on the way to the frontend: the queue of slots with bytes to post, and
//! the progress of each answer in parts.
//!
//! ```text
//!   engine's thread                              owner of the send token
//!   bytes of the output are final --> Growing    Growing --> one write for all new bytes,
//!           \--> the slot, unless it is in --> [ready] --/   but the first part alone
//! ```
//!
//! A slot whose answer leaves in parts is in the queue at most once, however many parts wait. One
//! write carries all unposted bytes of a slot, so the queue is bounded.

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::response::{Refusal, ResponseTrailer};
use fabric::{
    Imm,
    sync::{AtomicBool, AtomicU32, AtomicU64, Ordering},
    wire::Stream,
};

#[derive(Clone, Copy, Debug)]
pub(super) enum Ready {
    /// An answer in one piece, or a refusal without earlier parts; `bytes` includes the header.
    Whole { imm: Imm, bytes: u32, refused: bool },
    /// A slot whose answer has new bytes.
    Part(u16),
}

/// Flag of [`Growing::state`]: the answer is complete.
const LAST: u64 = 1 << 31;
/// Mask of [`Growing::state`]: number of final bytes of the slot, header included.
const BYTES: u64 = LAST - 1;

/// Most bytes of a slot that an answer in parts may use: [`Refusal::mark`] leaves 30 bits.
pub(super) const BYTES_MAX: usize = (1 << 30) - 1;

/// An answer that leaves in parts. The engine's thread writes the fields up to `reason`, then
/// `state`. The owner of the send token writes `posted`, `parts` and `sum_us`.
#[derive(Debug, Default)]
pub(super) struct Growing {
    imm: AtomicU32,
    /// End of the first part, as an offset in the slot.
    first: AtomicU32,
    compute_us: AtomicU32,
    /// Start of the refusal's reason within the slot, with the mark of [`Refusal`]; 0 without a
    /// refusal.
    reason: AtomicU32,
    /// [`LAST`], [`BYTES`], and above them the microseconds from sample's arrival to newest part.
    state: AtomicU64,
    /// Whether the slot is in [`ResponseQueue::ready`].
    queued: AtomicBool,
    posted: AtomicU32,
    parts: AtomicU32,
    sum_us: AtomicU64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Immediate, without the flag for further parts.
    pub imm: Imm,
    /// Range of the write within the slot (`from..to`), without the trailer.
    pub from: u32,
    pub to: u32,
    /// Trailer behind the last part.
    pub trailer: Option<ResponseTrailer>,
}

impl Growing {
    /// Starts an answer whose first part ends at offset `first` of the slot.
    pub(crate) fn begin(&self, imm: Imm, first: u32) {
        self.imm.store(imm.bits(), Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
        self.reason.store(0, Ordering::Relaxed);
    }

    /// Number of final bytes of the slot, header included; 0 before the first part.
    pub(crate) fn grown(&self) -> u32 {
        (self.state.load(Ordering::Relaxed) & BYTES) as u32
    }

    /// Ends the answer at offset `to`, with a refusal's reason in place of the rest.
    pub(crate) fn refuse(&self, to: u32, refusal: Refusal) {
        let reason = Refusal::mark(self.grown(), Some(refusal));
        self.reason.store(reason, Ordering::Relaxed);
        self.grow(to, 0, self.compute_us.load(Ordering::Relaxed), true);
    }

    /// Marks the slot's bytes up to offset `to` as final.
    pub(crate) fn grow(&self, to: u32, queue_us: u32, compute_us: u32, last: bool) {
        let residence = u64::from(queue_us.saturating_add(compute_us));
        self.compute_us.store(compute_us, Ordering::Relaxed);
        let last = if last { LAST } else { 0 };
        let state = residence << 32 | last | u64::from(to);
        self.state.store(state, Ordering::Release);
    }

    /// Discards a complete answer. Returns true once per answer, false for an incomplete one.
    fn give_up(&self) -> bool {
        // No part follows the last one, so a set `LAST` flag is stable.
        self.state.load(Ordering::Acquire) & LAST != 0
            && self.state.swap(0, Ordering::AcqRel) & LAST != 0
    }

    /// The next write, and the microseconds from the sample's arrival until its bytes were final.
    fn next(&self) -> Option<(Piece, u64)> {
        let state = self.state.load(Ordering::Acquire);
        let (ready, residence) = ((state & BYTES) as u32, state >> 32);
        let from = self.posted.load(Ordering::Relaxed);
        let ends = state & LAST != 0;
        let (reason, refusal) = Refusal::unmark(self.reason.load(Ordering::Relaxed));
        let (to, last) = match (from, reason) {
            (0, _) => (self.first.load(Ordering::Relaxed), false),
            // The rest of the answer goes before the reason, which is a separate part.
            (_, at) if from < at && ends => (at, false),
            _ => (ready, ends),
        };
        if ready == 0 || (to == from && !last) {
            return None;
        }
        let trailer = last.then(|| {
            let parts = self.parts.load(Ordering::Relaxed) + 1;
            let sum_us = self.sum_us.load(Ordering::Relaxed) + residence;
            ResponseTrailer {
                len: ready - crate::response::RESPONSE_HEADER_BYTES as u32,
                parts,
                refusal,
                compute_us: self.compute_us.load(Ordering::Relaxed),
                mean_us: u32::try_from(sum_us / u64::from(parts)).unwrap_or(u32::MAX),
            }
        });
        let imm = Imm::from_bits(self.imm.load(Ordering::Relaxed));
        let piece = Piece {
            imm,
            from,
            to,
            trailer,
        };
        Some((piece, residence))
    }

    fn posted(&self, piece: &Piece, residence_us: u64) {
        if piece.trailer.is_some() {
            self.posted.store(0, Ordering::Relaxed);
            self.parts.store(0, Ordering::Relaxed);
            self.sum_us.store(0, Ordering::Relaxed);
            // The slot's next answer starts from this state.
            self.state.store(0, Ordering::Release);
        } else {
            let add =
                |to: &AtomicU64, n| to.store(to.load(Ordering::Relaxed) + n, Ordering::Relaxed);
            self.posted.store(piece.to, Ordering::Relaxed);
            self.parts
                .store(self.parts.load(Ordering::Relaxed) + 1, Ordering::Relaxed);
            add(&self.sum_us, residence_us);
        }
    }
}

#[derive(Debug)]
pub(super) struct ResponseQueue {
    ready: ArrayQueue<Ready>,
    /// One entry per slot; empty where every answer leaves in one piece.
    growing: Box<[CachePadded<Growing>]>,
}

impl ResponseQueue {
    pub(crate) fn new(slots: usize, stream: Stream) -> Self {
        let growing = match stream {
            Stream::None => 0,
            Stream::First | Stream::All => slots,
        };
        ResponseQueue {
            // A slot is granted again after its answer is posted, so one entry per slot suffices.
            // With parts, bytes that become final during a post need a second entry.
            ready: ArrayQueue::new((slots + growing).max(1)),
            growing: (0..growing).map(|_| CachePadded::default()).collect(),
        }
    }

    /// State of a slot's answer in parts; `None` where answers leave in one piece.
    pub(crate) fn growing(&self, slot: u16) -> Option<&Growing> {
        self.growing.get(usize::from(slot)).map(|g| &**g)
    }

    /// Queues an entry. Returns false if the queue is full: a slot was answered twice.
    pub(crate) fn push(&self, ready: Ready) -> bool {
        if let Ready::Part(slot) = ready
            && let Some(g) = self.growing(slot)
        {
            // The thread that pops the entry clears the flag first and reads the state afterwards.
            if g.queued.swap(true, Ordering::AcqRel) {
                return true;
            }
        }
        self.ready.push(ready).is_ok()
    }

    /// Takes the next entry. The bytes of an entry's slot may have been posted already.
    pub(crate) fn pop(&self) -> Option<Ready> {
        // Check for emptiness first, since a pop of an empty queue costs a fence.
        if self.ready.is_empty() {
            return None;
        }
        let ready = self.ready.pop()?;
        if let Ready::Part(slot) = ready
            && let Some(g) = self.growing(slot)
        {
            g.queued.swap(false, Ordering::AcqRel);
        }
        Some(ready)
    }

    pub(crate) fn waiting(&self) -> usize {
        self.ready.len()
    }

    pub(crate) fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// The next write of a slot. Only the owner of the send token may call it.
    pub(crate) fn piece(&self, slot: u16) -> Option<(Piece, u64)> {
        self.growing(slot)?.next()
    }

    /// Records that `piece` was posted, and queues the slot again if bytes remain.
    pub(crate) fn posted(&self, slot: u16, piece: &Piece, residence_us: u64) {
        if let Some(g) = self.growing(slot) {
            g.posted(piece, residence_us);
            if g.next().is_some() {
                self.push(Ready::Part(slot));
            }
        }
    }

    /// Discards an entry. Returns true if this discards a complete answer: once per answer, even if
    /// the slot is queued again meanwhile. Only the owner of the send token may call it.
    pub(crate) fn give_up(&self, ready: Ready) -> bool {
        match ready {
            Ready::Whole { .. } => true,
            Ready::Part(slot) => self.growing(slot).is_some_and(Growing::give_up),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use super::*;

    fn pieces(answers: &ResponseQueue) -> Vec<(u32, u32, Option<ResponseTrailer>)> {
        let mut all = Vec::new();
        while let Some(ready) = answers.pop() {
            let Ready::Part(slot) = ready else { continue };
            let Some((piece, residence)) = answers.piece(slot) else {
                continue;
            };
            answers.posted(slot, &piece, residence);
            all.push((piece.from, piece.to, piece.trailer));
        }
        all
    }

    #[test]
    fn waiting_parts_leave_together_but_the_first_by_itself() {
        let answers = ResponseQueue::new(4, Stream::All);
        let g = answers.growing(2).expect("a slot");
        g.begin(Imm::new(2, 1), 20);
        for (to, compute_us) in [(20, 10), (24, 20), (28, 30)] {
            g.grow(to, 5, compute_us, false);
            assert!(answers.push(Ready::Part(2)));
        }
        assert_eq!(answers.ready.len(), 1, "a slot waits once");
        assert_eq!(pieces(&answers), [(0, 20, None), (20, 28, None)]);
        g.grow(36, 5, 50, true);
        answers.push(Ready::Part(2));
        let trailer = ResponseTrailer {
            len: 20,
            parts: 3,
            refusal: None,
            compute_us: 50,
            mean_us: (35 + 35 + 55) / 3,
        };
        assert_eq!(pieces(&answers), [(28, 36, Some(trailer))]);
        // The slot's next answer starts afresh, despite a stale queue entry.
        answers.push(Ready::Part(2));
        assert_eq!(pieces(&answers), []);
        g.begin(Imm::new(2, 2), 20);
        g.grow(20, 0, 1, false);
        g.grow(20, 0, 3, true);
        answers.push(Ready::Part(2));
        let trailer = ResponseTrailer {
            len: 4,
            parts: 2,
            refusal: None,
            compute_us: 3,
            mean_us: 3,
        };
        assert_eq!(pieces(&answers), [(0, 20, None), (20, 20, Some(trailer))]);
    }

    #[test]
    fn a_refusal_in_the_middle_ends_the_answer_with_its_reason() {
        let answers = ResponseQueue::new(4, Stream::All);
        let g = answers.growing(2).expect("a slot");
        g.begin(Imm::new(2, 1), 20);
        g.grow(24, 0, 7, false);
        assert_eq!(g.grown(), 24);
        g.refuse(30, Refusal::Cut);
        answers.push(Ready::Part(2));
        let ends = pieces(&answers);
        assert_eq!(ends[..2], [(0, 20, None), (20, 24, None)]);
        let (from, to, trailer) = ends[2];
        assert_eq!((ends.len(), from, to), (3, 24, 30));
        let trailer = trailer.expect("the last");
        assert_eq!((trailer.refusal, trailer.len), (Some(Refusal::Cut), 14));
        assert_eq!(g.grown(), 0, "the slot begins anew");
    }

    #[test]
    fn an_answer_that_is_given_up_is_counted_once() {
        let answers = ResponseQueue::new(4, Stream::All);
        let g = answers.growing(1).expect("a slot");
        g.begin(Imm::new(1, 1), 20);
        g.grow(20, 0, 1, false);
        answers.push(Ready::Part(1));
        let first = answers.pop().expect("a part");
        // The answer ends while a different thread holds its first part.
        g.grow(24, 0, 2, true);
        answers.push(Ready::Part(1));
        assert!(answers.give_up(first));
        let second = answers.pop().expect("it is queued again");
        assert!(!answers.give_up(second), "counted twice");
        assert_eq!(answers.piece(1), None);
        // An incomplete answer is not counted.
        let g = answers.growing(2).expect("a slot");
        g.begin(Imm::new(2, 1), 20);
        g.grow(20, 0, 1, false);
        assert!(!answers.give_up(Ready::Part(2)));
        g.grow(24, 0, 2, true);
        assert!(answers.give_up(Ready::Part(2)));
    }
}

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use loom::{sync::Arc, thread};

    use super::*;
    use crate::connection::token::SendToken;

    const SLOT: u16 = 1;

    /// A slot whose first part ends at 20 and is final.
    fn begun() -> Arc<ResponseQueue> {
        let answers = Arc::new(ResponseQueue::new(2, Stream::All));
        let g = answers.growing(SLOT).expect("a slot");
        g.begin(Imm::new(SLOT, 1), 20);
        g.grow(20, 0, 1, false);
        answers.push(Ready::Part(SLOT));
        answers
    }

    /// Ends the answer at 24.
    fn end(answers: &ResponseQueue) {
        let g = answers.growing(SLOT).expect("a slot");
        g.grow(24, 0, 2, true);
        answers.push(Ready::Part(SLOT));
    }

    /// Hands the queue's entries to `take`, as the owner of the send token.
    fn serve<T>(
        token: &SendToken<T>,
        answers: &ResponseQueue,
        take: fn(&ResponseQueue, Ready, &mut T),
    ) {
        let mut claim = token.claim();
        while let Some(mut value) = claim.next() {
            while let Some(ready) = answers.pop() {
                take(answers, ready, &mut value);
            }
        }
    }

    #[test]
    fn loom_bytes_that_become_final_during_a_post_leave_once_and_in_order() {
        fn post(answers: &ResponseQueue, _: Ready, all: &mut Vec<(u32, u32, bool)>) {
            if let Some((piece, residence)) = answers.piece(SLOT) {
                answers.posted(SLOT, &piece, residence);
                all.push((piece.from, piece.to, piece.trailer.is_some()));
            }
        }
        loom::model(|| {
            let answers = begun();
            let token = Arc::new(SendToken::new(Vec::new()));
            let engine = {
                let (answers, token) = (answers.clone(), token.clone());
                thread::spawn(move || {
                    end(&answers);
                    serve(&token, &answers, post);
                })
            };
            serve(&token, &answers, post);
            engine.join().expect("joined");
            let posted = token.exclusive(std::mem::take);
            assert_eq!(posted, [(0, 20, false), (20, 24, true)]);
        });
    }

    #[test]
    fn loom_an_answer_that_ends_during_the_teardown_is_given_up_once() {
        fn give_up(answers: &ResponseQueue, ready: Ready, late: &mut u64) {
            *late += u64::from(answers.give_up(ready));
        }
        loom::model(|| {
            let answers = begun();
            let token = Arc::new(SendToken::new(0));
            let engine = {
                let (answers, token) = (answers.clone(), token.clone());
                thread::spawn(move || {
                    end(&answers);
                    serve(&token, &answers, give_up);
                })
            };
            serve(&token, &answers, give_up);
            engine.join().expect("joined");
            assert_eq!(token.exclusive(|late| *late), 1);
        });
    }
}
