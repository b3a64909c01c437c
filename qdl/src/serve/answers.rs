//! Answers of one connection on their way to the frontend: which slots have something to post, and
//! how far those have gone that leave in parts.
//!
//! ```text
//!   engine's thread                              whoever has the send token
//!   bytes of the output are final --> Growing    Growing --> one write for all that is new,
//!           \--> the slot, unless it is in --> [ready] --/   the first part by itself
//! ```
//!
//! A slot that answers in parts is in the queue once, however many of its parts wait there: what
//! could not be posted yet leaves with what follows it, so that nothing here grows without bound.

use std::sync::atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering};

use crossbeam_queue::ArrayQueue;
use crossbeam_utils::CachePadded;

use crate::response::{Refusal, ResponseTrailer};
use fabric::Imm;
use fabric::wire::Stream;

/// Something to post.
#[derive(Clone, Copy, Debug)]
pub(super) enum Ready {
    /// An answer in one piece, or a refusal of one that had no part yet; header included.
    Whole { imm: Imm, bytes: u32, refused: bool },
    /// The slot of one that has grown.
    Part(u16),
}

/// In [`Growing::state`]: nothing follows.
const LAST: u64 = 1 << 31;
/// In the same: bytes of the slot that are final, header included.
const BYTES: u64 = LAST - 1;

/// In [`Growing::reason`]: more of it comes over the control plane.
const CUT: u32 = LAST as u32;

/// Most bytes of a slot that an answer in parts may take.
pub(super) const MOST: usize = BYTES as usize;

/// An answer that leaves in parts. What the engine's thread writes comes before `state`, which it
/// writes last; the rest belongs to whoever has the send token.
#[derive(Debug, Default)]
pub(super) struct Growing {
    imm: AtomicU32,
    /// Where the first part ends.
    first: AtomicU32,
    compute_us: AtomicU32,
    /// Where the reason begins that takes the place of its rest, with [`CUT`]; 0 without one.
    reason: AtomicU32,
    /// Microseconds from the sample's arrival to the newest part (32 bits), [`LAST`], [`BYTES`].
    state: AtomicU64,
    /// The slot is in the queue.
    queued: AtomicBool,
    posted: AtomicU32,
    parts: AtomicU32,
    sum_us: AtomicU64,
}

/// A write of an answer in parts.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Piece {
    /// Without the bit that says that more follow.
    pub imm: Imm,
    /// Bytes of the slot, the trailer left out.
    pub from: u32,
    pub to: u32,
    /// What is written behind the last.
    pub trailer: Option<ResponseTrailer>,
}

impl Growing {
    /// An answer begins with a part that ends at `first`.
    pub fn begin(&self, imm: Imm, first: u32) {
        self.imm.store(imm.bits(), Ordering::Relaxed);
        self.first.store(first, Ordering::Relaxed);
        self.reason.store(0, Ordering::Relaxed);
    }

    /// Bytes of the slot that are final, header included; 0 before its first part.
    pub fn grown(&self) -> u32 {
        (self.state.load(Ordering::Relaxed) & BYTES) as u32
    }

    /// The answer ends at `to` with a reason in the place of its rest.
    pub fn refuse(&self, to: u32, refusal: Refusal) {
        let cut = if refusal == Refusal::Cut { CUT } else { 0 };
        self.reason.store(self.grown() | cut, Ordering::Relaxed);
        self.grow(to, 0, self.compute_us.load(Ordering::Relaxed), true);
    }

    /// Its slot is final up to `to`.
    pub fn grow(&self, to: u32, queue_us: u32, compute_us: u32, last: bool) {
        let residence = u64::from(queue_us.saturating_add(compute_us));
        self.compute_us.store(compute_us, Ordering::Relaxed);
        let last = if last { LAST } else { 0 };
        let state = residence << 32 | last | u64::from(to);
        self.state.store(state, Ordering::Release);
    }

    /// True where an answer is complete, which ends with this: once for each.
    fn give_up(&self) -> bool {
        // Nothing grows behind the last part.
        self.state.load(Ordering::Acquire) & LAST != 0
            && self.state.swap(0, Ordering::AcqRel) & LAST != 0
    }

    /// What to write now, and how long after the sample's arrival that was ready.
    fn next(&self) -> Option<(Piece, u64)> {
        let state = self.state.load(Ordering::Acquire);
        let (ready, residence) = ((state & BYTES) as u32, state >> 32);
        let from = self.posted.load(Ordering::Relaxed);
        let ends = state & LAST != 0;
        let reason = self.reason.load(Ordering::Relaxed);
        let (to, last) = match (from, reason & !CUT) {
            (0, _) => (self.first.load(Ordering::Relaxed), false),
            // What is left of the answer goes before the reason, which is a part by itself.
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
                refusal: match reason {
                    0 => None,
                    _ if reason & CUT != 0 => Some(Refusal::Cut),
                    _ => Some(Refusal::Whole),
                },
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

    /// That was posted.
    fn posted(&self, piece: &Piece, residence_us: u64) {
        if piece.trailer.is_some() {
            self.posted.store(0, Ordering::Relaxed);
            self.parts.store(0, Ordering::Relaxed);
            self.sum_us.store(0, Ordering::Relaxed);
            // The slot's next user begins with this.
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

/// See the module.
#[derive(Debug)]
pub(super) struct Answers {
    ready: ArrayQueue<Ready>,
    /// One for each slot; none where every answer leaves in one piece.
    growing: Box<[CachePadded<Growing>]>,
}

impl Answers {
    /// Of a connection of so many slots.
    pub fn new(slots: usize, stream: Stream) -> Self {
        let growing = match stream {
            Stream::None => 0,
            Stream::First | Stream::All => slots,
        };
        Answers {
            // A slot is granted again once its answer is posted, so that it has one place; and one
            // more for what is left of an answer in parts that another thread has just posted.
            ready: ArrayQueue::new((slots + growing).max(1)),
            growing: (0..growing).map(|_| CachePadded::default()).collect(),
        }
    }

    /// The answer of a slot that may leave in parts.
    pub fn growing(&self, slot: u16) -> Option<&Growing> {
        self.growing.get(usize::from(slot)).map(|g| &**g)
    }

    /// Queues something; false where there is no place, as only a slot that was answered twice
    /// could bring about.
    pub fn push(&self, ready: Ready) -> bool {
        if let Ready::Part(slot) = ready
            && let Some(g) = self.growing(slot)
        {
            // Whoever takes it from the queue clears this first, and looks afterwards.
            if g.queued.swap(true, Ordering::AcqRel) {
                return true;
            }
        }
        self.ready.push(ready).is_ok()
    }

    /// The next that has something to post, or had when it was queued.
    pub fn pop(&self) -> Option<Ready> {
        // Looking costs nothing; to find it empty by popping takes a fence.
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

    /// How many slots wait in the queue.
    pub fn waiting(&self) -> usize {
        self.ready.len()
    }

    /// Whether none waits there.
    pub fn is_empty(&self) -> bool {
        self.ready.is_empty()
    }

    /// What to write of a slot. With the send token alone.
    pub fn piece(&self, slot: u16) -> Option<(Piece, u64)> {
        self.growing(slot)?.next()
    }

    /// That was posted; what is left of the slot goes to the end of the queue.
    pub fn posted(&self, slot: u16, piece: &Piece, residence_us: u64) {
        if let Some(g) = self.growing(slot) {
            g.posted(piece, residence_us);
            if g.next().is_some() {
                self.push(Ready::Part(slot));
            }
        }
    }

    /// Gives up what was queued, and what follows it. True where that was an answer, or the end of
    /// one: once for each, though a slot may be in the queue again while it is given up. With the
    /// send token alone.
    pub fn give_up(&self, ready: Ready) -> bool {
        match ready {
            Ready::Whole { .. } => true,
            Ready::Part(slot) => self.growing(slot).is_some_and(Growing::give_up),
        }
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use super::*;

    fn pieces(answers: &Answers) -> Vec<(u32, u32, Option<ResponseTrailer>)> {
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
    fn what_waits_leaves_together_but_the_first_part_by_itself() {
        let answers = Answers::new(4, Stream::All);
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
        // And the slot begins anew, whatever is left in the queue.
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
        let answers = Answers::new(4, Stream::All);
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
        let answers = Answers::new(4, Stream::All);
        let g = answers.growing(1).expect("a slot");
        g.begin(Imm::new(1, 1), 20);
        g.grow(20, 0, 1, false);
        answers.push(Ready::Part(1));
        let first = answers.pop().expect("a part");
        // It ends while another thread has its first part in hand.
        g.grow(24, 0, 2, true);
        answers.push(Ready::Part(1));
        assert!(answers.give_up(first));
        let second = answers.pop().expect("it is queued again");
        assert!(!answers.give_up(second), "counted twice");
        assert_eq!(answers.piece(1), None);
        // One that goes on is not over.
        let g = answers.growing(2).expect("a slot");
        g.begin(Imm::new(2, 1), 20);
        g.grow(20, 0, 1, false);
        assert!(!answers.give_up(Ready::Part(2)));
        g.grow(24, 0, 2, true);
        assert!(answers.give_up(Ready::Part(2)));
    }
}
