//! The transaction tracker: which slot belongs to which sample. One for each connection, lock-free.
//!
//! A slot goes round like this:
//!
//! ```text
//!   free --reserve--> reserved --begin--> in flight --response--> arrived --release--> free
//!                        |                    |
//!                        +--release--> free   +--sweep (connection lost)--> arrived
//! ```
//!
//! *Free* slots are set bits in a two-level bitmap; [`Tracker::reserve`] takes the first at or
//! after a cursor, so that samples that are neighbours in time are neighbours in memory (the
//! accelerator runs them where they lie), and skips busy ones, so that a slot held for ever costs
//! one slot. (Where the next 64 are all busy there are no neighbours to be had, and the slot freed
//! last will do.) Where fewer are to be in use than there are ([`Tracker::allow`]), those are the
//! first so many: the same memory is used again while it is in the caches, and neighbours stay
//! neighbours. *In flight* is an open grant ([`Grants`]) of the response window. Whoever closes
//! the grant, the response or the sweep, owns the record; nobody else reads it. (Both are the NIC
//! thread's, which also looks at it, and notes the first token, when a part of the answer comes.)
//!
//! Records are plain relaxed atomics: they are written before the grant is opened (release) and
//! read after it is closed (acquire), which orders them, and the structure needs no `unsafe`.

use std::sync::Arc;

use crossbeam_utils::CachePadded;

use crate::{
    fabric::{Grants, Imm, SourceId},
    sync::{AtomicU32, AtomicU64, Ordering},
};

/// The first token of an answer, as it was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// Its bytes, little-endian.
    pub token: u64,
    /// When it came, on [`crate::clock`].
    pub at_ns: u64,
}

/// A sample on its way: what it takes to send it, and to send it again.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Sample {
    /// The caller's name for it (LoadGen's `ResponseId`); never leaves this node.
    pub id: u64,
    /// The caller's second name for it (LoadGen's `QuerySampleIndex`).
    pub index: u64,
    /// Source region its bytes lie in.
    pub source: SourceId,
    /// Where in that region.
    pub offset: usize,
    /// How many bytes.
    pub len: u32,
    /// When it was issued, on [`crate::clock`].
    pub issued_ns: u64,
    /// The first token of its answer, where that was reported before the connection that brought
    /// it was lost: it is not reported again.
    pub first: Option<First>,
    /// Connections that were lost while it was in flight on them.
    pub losses: u16,
}

/// What the tracker kept about a slot in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The sample.
    pub sample: Sample,
    /// When its write was posted.
    pub posted_ns: u64,
}

#[derive(Debug, Default)]
struct Record {
    id: AtomicU64,
    index: AtomicU64,
    offset: AtomicU64,
    /// From the top: losses, source, and the length in the lower half.
    source_len: AtomicU64,
    issued_ns: AtomicU64,
    posted_ns: AtomicU64,
    token: AtomicU64,
    /// When that came; 0 without one.
    first_ns: AtomicU64,
}

/// A record is written and read with every sample: it takes one cache line.
#[cfg(not(qdl_loom))]
const _: () = assert!(size_of::<Record>() == 64);

impl Record {
    fn first(&self) -> Option<First> {
        let at_ns = self.first_ns.load(Ordering::Relaxed);
        (at_ns != 0).then(|| First {
            token: self.token.load(Ordering::Relaxed),
            at_ns,
        })
    }

    fn set_first(&self, first: Option<First>) {
        let (token, at_ns) = first.map_or((0, 0), |f| (f.token, f.at_ns.max(1)));
        self.token.store(token, Ordering::Relaxed);
        self.first_ns.store(at_ns, Ordering::Relaxed);
    }
}

/// See the module.
#[derive(Debug)]
pub struct Tracker {
    grants: Arc<Grants>,
    records: Box<[CachePadded<Record>]>,
    free: FreeSlots,
    /// How many slots are handed out: the first so many. Written now and then, read for each
    /// sample.
    allowance: AtomicU32,
    in_flight: CachePadded<AtomicU32>,
}

impl Tracker {
    /// A tracker over the response window's grants, all slots free.
    pub fn new(grants: Arc<Grants>) -> Self {
        let slots = grants.slots();
        Tracker {
            grants,
            records: (0..slots)
                .map(|_| CachePadded::new(Record::default()))
                .collect(),
            free: FreeSlots::new(slots),
            allowance: AtomicU32::new(slots as u32),
            in_flight: CachePadded::new(AtomicU32::new(0)),
        }
    }

    /// From now on hands out the first so many slots alone, 1 to all of them. Those beyond that are
    /// in flight come back as they would; until enough have, none is handed out.
    pub fn allow(&self, slots: usize) {
        let slots = slots.clamp(1, self.slots().max(1)) as u32;
        self.allowance.store(slots, Ordering::Relaxed);
    }

    /// Slots that are handed out.
    pub fn allowance(&self) -> usize {
        self.allowance.load(Ordering::Relaxed) as usize
    }

    /// Number of slots.
    pub fn slots(&self) -> usize {
        self.records.len()
    }

    /// Slots that are not free.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed) as usize
    }

    /// False while every slot is taken that may be.
    pub fn has_free(&self) -> bool {
        self.in_flight() < self.allowance()
    }

    /// Takes the next free slot.
    pub fn reserve(&self) -> Option<u16> {
        let first = self.allowance();
        let slot = match first.checked_sub(self.in_flight())? {
            0 => return None,
            // A full connection: what there is came back just now.
            1 => self
                .free
                .take_freed(first)
                .or_else(|| self.free.take(first)),
            _ => self.free.take(first),
        }?;
        self.in_flight.fetch_add(1, Ordering::Relaxed);
        Some(slot)
    }

    /// Records the sample under a reserved slot and grants the slot's response to the peer. The
    /// write that carries the returned immediate may be posted afterwards.
    ///
    /// `None` when the slot was not a reserved one.
    pub fn begin(&self, slot: u16, sample: &Sample, posted_ns: u64) -> Option<Imm> {
        let r = self.records.get(usize::from(slot))?;
        r.id.store(sample.id, Ordering::Relaxed);
        r.index.store(sample.index, Ordering::Relaxed);
        r.offset.store(sample.offset as u64, Ordering::Relaxed);
        r.source_len.store(
            u64::from(sample.losses) << 48
                | u64::from(sample.source.0) << 32
                | u64::from(sample.len),
            Ordering::Relaxed,
        );
        r.issued_ns.store(sample.issued_ns, Ordering::Relaxed);
        r.posted_ns.store(posted_ns, Ordering::Relaxed);
        r.set_first(sample.first);
        let use_count = self.grants.open(slot)?;
        Some(Imm::new(slot, use_count))
    }

    /// What was in flight in a slot whose grant the caller (or the receiving half for it) has
    /// closed, or of whose answer a part has come.
    pub fn arrived(&self, slot: u16) -> Option<InFlight> {
        let r = self.records.get(usize::from(slot))?;
        let source_len = r.source_len.load(Ordering::Relaxed);
        Some(InFlight {
            sample: Sample {
                id: r.id.load(Ordering::Relaxed),
                index: r.index.load(Ordering::Relaxed),
                source: SourceId((source_len >> 32) as u16),
                offset: r.offset.load(Ordering::Relaxed) as usize,
                len: source_len as u32,
                issued_ns: r.issued_ns.load(Ordering::Relaxed),
                first: r.first(),
                losses: (source_len >> 48) as u16,
            },
            posted_ns: r.posted_ns.load(Ordering::Relaxed),
        })
    }

    /// The first token of an answer that goes on was reported. The caller has seen the slot's grant
    /// open, and is the one who would close it: the NIC's thread.
    pub fn first_came(&self, slot: u16, first: First) {
        if let Some(r) = self.records.get(usize::from(slot)) {
            r.set_first(Some(first));
        }
    }

    /// Makes a slot free again: its response has been
    /// used, or nothing was posted. The caller owns it.
    pub fn release(&self, slot: u16) {
        self.free.give(slot);
        self.in_flight.fetch_sub(1, Ordering::Relaxed);
    }

    /// Takes back everything in flight on a connection that is lost and
    /// whose local side is destroyed: each sample is handed to `lost` once,
    /// and never if its response was taken. The slots are free afterwards;
    /// when they may be *used* again is for `run::life` to decide.
    pub fn sweep(&self, mut lost: impl FnMut(InFlight)) {
        for slot in 0..self.slots() as u16 {
            if self.grants.revoke(slot)
                && let Some(in_flight) = self.arrived(slot)
            {
                lost(in_flight);
                self.release(slot);
            }
        }
    }
}

/// The free slots: one bit for each, and one summary bit for each word that may have some, so that
/// the next free one is found in a handful of instructions however many slots there are.
///
/// A summary bit is cleared only by a search that found its word empty, not
/// by whoever emptied the word: on a connection that is always full, words
/// are emptied and refilled with every sample, and the summary is left alone.
#[derive(Debug)]
struct FreeSlots {
    words: Box<[AtomicU64]>,
    summary: Box<[AtomicU64]>,
    cursor: CachePadded<AtomicU32>,
    /// The word that a slot came back to last: where to
    /// look when nearly all are busy. Only ever a hint.
    freed: CachePadded<AtomicU32>,
}

impl FreeSlots {
    fn new(slots: usize) -> Self {
        let word = |i: usize, bits: usize| {
            let n = bits.saturating_sub(i * 64).min(64);
            AtomicU64::new(if n == 64 { !0 } else { (1u64 << n) - 1 })
        };
        let words = slots.div_ceil(64).max(1);
        let summary = words.div_ceil(64);
        FreeSlots {
            words: (0..words).map(|i| word(i, slots)).collect(),
            summary: (0..summary).map(|i| word(i, words)).collect(),
            cursor: CachePadded::new(AtomicU32::new(0)),
            freed: CachePadded::new(AtomicU32::new(0)),
        }
    }

    /// The first word at or after `from` whose summary bit is set, going round once.
    fn word_from(&self, from: usize) -> Option<usize> {
        let n = self.summary.len();
        let (first, bit) = (from / 64 % n, from % 64);
        for i in 0..=n {
            let s = (first + i) % n;
            let mut bits = self.summary[s].load(Ordering::SeqCst);
            if i == 0 {
                bits &= !0 << bit;
            }
            if bits != 0 {
                return Some(s * 64 + bits.trailing_zeros() as usize);
            }
        }
        None
    }

    /// Takes a free slot of the first `first`.
    fn take(&self, first: usize) -> Option<u16> {
        let words = first.div_ceil(64).clamp(1, self.words.len());
        let cursor = self.cursor.load(Ordering::Relaxed) as usize;
        let here = cursor / 64 % words;
        let next = if here + 1 < words { here + 1 } else { 0 };
        let near = self
            .take_from(here, !0 << (cursor % 64), first)
            .or_else(|| self.take_from(next, !0, first))
            .or_else(|| self.take_freed(first));
        if near.is_some() {
            return near;
        }
        if words < self.words.len() {
            // Few enough to look at each: the summary speaks of words beyond, too.
            return self.take_any(words, first);
        }
        loop {
            let word = self.word_from(next).or_else(|| self.any_word())?;
            if let Some(slot) = self.take_from(word, !0, first) {
                return Some(slot);
            }
            if word + 1 == words
                && self.words[word].load(Ordering::SeqCst) & !mask(word, first) != 0
            {
                // What it has lies beyond: it is as good as empty, and its summary bit will not say
                // so.
                return self.take_any(words, first);
            }
            self.emptied(word);
        }
    }

    /// Looks at each of the first `words`.
    fn take_any(&self, words: usize, first: usize) -> Option<u16> {
        (0..words).find_map(|word| self.take_from(word, !0, first))
    }

    /// Takes a slot of the word that one came back to last.
    fn take_freed(&self, first: usize) -> Option<u16> {
        self.take_from(self.freed.load(Ordering::Relaxed) as usize, !0, first)
    }

    /// Takes the first free slot of a word, of those in `within` and the first `first`.
    fn take_from(&self, word: usize, within: u64, first: usize) -> Option<u16> {
        let within = within & mask(word, first);
        let mut bits = self.words[word].load(Ordering::Acquire) & within;
        while bits != 0 {
            let bit = bits & bits.wrapping_neg();
            let old = self.words[word].fetch_and(!bit, Ordering::AcqRel);
            if old & bit != 0 {
                let slot = word * 64 + bit.trailing_zeros() as usize;
                self.cursor.store(slot as u32 + 1, Ordering::Relaxed);
                return Some(slot as u16);
            }
            // Somebody else was quicker; `old` is what is left.
            bits = old & within;
        }
        None
    }

    /// Looks past the summary: while somebody else clears the bit of a word
    /// and sets it again, it can seem that nothing is free, and a slot
    /// overlooked now might be waited for until the next one comes back.
    fn any_word(&self) -> Option<usize> {
        self.words
            .iter()
            .position(|w| w.load(Ordering::SeqCst) != 0)
    }

    /// Clears the summary bit of a word seen empty, and
    /// sets it again if a slot came back meanwhile.
    fn emptied(&self, word: usize) {
        let (s, bit) = (word / 64, 1u64 << (word % 64));
        self.summary[s].fetch_and(!bit, Ordering::SeqCst);
        loom_fence();
        if self.words[word].load(Ordering::SeqCst) != 0 {
            self.summary[s].fetch_or(bit, Ordering::SeqCst);
        }
    }

    fn give(&self, slot: u16) {
        let (word, bit) = (usize::from(slot) / 64, 1u64 << (slot % 64));
        let old = self.words[word].fetch_or(bit, Ordering::SeqCst);
        debug_assert_eq!(old & bit, 0, "slot {slot} was free already");
        if old == 0 {
            self.freed.store(word as u32, Ordering::Relaxed);
            // Set already, or cleared by a search that has yet
            // to look at the word, and will see the slot.
            let (s, bit) = (word / 64, 1u64 << (word % 64));
            loom_fence();
            if self.summary[s].load(Ordering::SeqCst) & bit == 0 {
                self.summary[s].fetch_or(bit, Ordering::SeqCst);
            }
        }
    }
}

/// The bits of a word that are among the first `first` slots.
fn mask(word: usize, first: usize) -> u64 {
    match first.saturating_sub(word * 64) {
        n @ 0..64 => (1 << n) - 1,
        _ => !0,
    }
}

/// loom takes sequentially consistent accesses for less; this fence, loom's alone, restores their
/// order.
fn loom_fence() {
    #[cfg(qdl_loom)]
    crate::sync::fence(Ordering::SeqCst);
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn sample(id: u64) -> Sample {
        Sample {
            id,
            index: id ^ 7,
            source: SourceId(3),
            offset: id as usize * 11,
            len: id as u32,
            issued_ns: id + 1,
            first: id.is_multiple_of(3).then_some(First {
                token: id * 5,
                at_ns: id + 9,
            }),
            losses: (id * 257) as u16,
        }
    }

    fn tracker(slots: usize) -> Tracker {
        Tracker::new(Arc::new(Grants::new(slots)))
    }

    #[test]
    fn neighbours_in_time_are_neighbours_in_memory() {
        let t = tracker(200);
        let first: Vec<_> = (0..100).filter_map(|_| t.reserve()).collect();
        assert_eq!(first, (0..100).collect::<Vec<_>>());
        first.iter().for_each(|s| t.release(*s));
        let next: Vec<_> = (0..100).filter_map(|_| t.reserve()).collect();
        assert_eq!(next, (100..200).collect::<Vec<_>>());
    }

    #[test]
    fn the_first_slots_are_used_again_and_again_where_no_more_are_allowed() {
        for slots in [1usize, 16, 64, 65, 200, 8192] {
            for allowed in [1, 3, 16, 63, 64, 65, 130, 200].map(|a: usize| a.min(slots)) {
                let t = tracker(slots);
                t.allow(allowed);
                for round in 0..3 {
                    let got: HashSet<_> = std::iter::from_fn(|| t.reserve()).collect();
                    let first: HashSet<_> = (0..allowed as u16).collect();
                    assert_eq!(got, first, "{allowed} of {slots}, round {round}");
                    assert!(!t.has_free());
                    got.into_iter().for_each(|s| t.release(s));
                }
            }
        }
    }

    #[test]
    fn what_is_in_flight_beyond_a_smaller_allowance_comes_back_and_is_left_alone() {
        let t = tracker(100);
        let all: Vec<_> = std::iter::from_fn(|| t.reserve()).collect();
        t.allow(10);
        assert!(!t.has_free());
        let (first, beyond) = all.split_at(10);
        t.release(first[3]);
        assert_eq!(t.reserve(), None, "90 beyond are in flight still");
        beyond.iter().for_each(|s| t.release(*s));
        assert_eq!((t.in_flight(), t.reserve()), (9, Some(3)));
        assert_eq!(t.reserve(), None);
        t.allow(12);
        assert_eq!([t.reserve(), t.reserve()], [Some(10), Some(11)]);
        t.allow(0);
        assert_eq!(t.allowance(), 1, "one at least");
        t.allow(1000);
        assert_eq!(t.allowance(), 100);
    }

    #[test]
    fn one_slot_held_for_ever_costs_one_slot() {
        for slots in [1usize, 2, 63, 64, 65, 4097, 8192] {
            let t = tracker(slots);
            let held = t.reserve().expect("all are free");
            for _ in 0..3 {
                let got: HashSet<_> = std::iter::from_fn(|| t.reserve()).collect();
                assert_eq!(got.len(), slots - 1);
                assert!(!got.contains(&held));
                got.into_iter().for_each(|s| t.release(s));
            }
        }
    }

    #[test]
    fn eight_thousand_slots_fill_drain_and_wrap_a_thousand_times() {
        let t = tracker(8192);
        let grants = t.grants.clone();
        for round in 0..1000u64 {
            let mut imms = Vec::with_capacity(8192);
            while let Some(slot) = t.reserve() {
                imms.push(
                    t.begin(slot, &sample(round * 8192 + u64::from(slot)), 0)
                        .expect("reserved"),
                );
            }
            assert_eq!(imms.len(), 8192);
            for imm in imms {
                grants.take(imm).expect("granted");
                let got = t.arrived(imm.slot()).expect("in the window");
                assert_eq!(got.sample.id, round * 8192 + u64::from(imm.slot()));
                t.release(imm.slot());
            }
        }
        assert_eq!(t.in_flight(), 0);
    }

    proptest! {
        /// Against a model: a map from slot to sample. Every slot has one owner, records come back
        /// as they went in, a sweep gives exactly what was in flight.
        #[test]
        fn behaves_like_a_map(
            slots in 1usize..200,
            steps in prop::collection::vec((0u8..11, any::<prop::sample::Index>()), 0..400),
        ) {
            let t = tracker(slots);
            let mut allowed = slots;
            let mut model: HashMap<u16, (u64, Imm)> = HashMap::new();
            for (id, (step, pick)) in steps.into_iter().enumerate() {
                let id = id as u64;
                match step {
                    0..5 => match t.reserve() {
                        Some(slot) => {
                            let imm = t.begin(slot, &sample(id), id + 2).expect("reserved");
                            prop_assert!(model.insert(slot, (id, imm)).is_none(), "slot {} given twice", slot);
                            prop_assert!(usize::from(slot) < allowed);
                        }
                        None => prop_assert!(model.len() >= allowed),
                    },
                    10 => {
                        allowed = 1 + pick.index(slots);
                        t.allow(allowed);
                    }
                    5..9 if !model.is_empty() => {
                        let mut keys: Vec<_> = model.keys().copied().collect();
                        keys.sort_unstable();
                        let slot = *pick.get(&keys);
                        let (id, imm) = model.remove(&slot).expect("chosen from it");
                        prop_assert!(t.grants.take(imm).is_ok());
                        prop_assert!(t.grants.take(imm).is_err(), "a duplicate is refused");
                        let got = t.arrived(slot).expect("in range");
                        prop_assert_eq!(got, InFlight { sample: sample(id), posted_ns: id + 2 });
                        t.release(slot);
                    }
                    9 => {
                        let mut swept = HashSet::new();
                        t.sweep(|f| { swept.insert(f.sample.id); });
                        let expected: HashSet<_> = model.drain().map(|(_, (id, _))| id).collect();
                        prop_assert_eq!(swept, expected);
                    }
                    _ => {}
                }
                prop_assert_eq!(t.in_flight(), model.len());
                prop_assert_eq!(t.has_free(), model.len() < allowed);
            }
        }
    }
}

#[cfg(all(test, qdl_loom))]
mod loom_tests {
    use loom::thread;

    use super::*;

    fn sample(id: u64) -> Sample {
        Sample {
            id,
            index: 0,
            source: SourceId(0),
            offset: 0,
            len: 0,
            issued_ns: 0,
            first: None,
            losses: 0,
        }
    }

    #[test]
    fn loom_a_search_that_clears_a_summary_bit_never_hides_a_slot_that_comes_back() {
        loom::model(|| {
            let free = Arc::new(FreeSlots {
                words: Box::new([AtomicU64::new(0), AtomicU64::new(0)]),
                // Left over from a slot that was taken.
                summary: Box::new([AtomicU64::new(0b10)]),
                cursor: CachePadded::new(AtomicU32::new(0)),
                freed: CachePadded::new(AtomicU32::new(0)),
            });
            let giver = {
                let free = free.clone();
                thread::spawn(move || free.give(64 + 6))
            };
            free.emptied(1);
            giver.join().expect("joined");
            assert_eq!(free.summary[0].load(Ordering::SeqCst), 0b10);
            assert_eq!(free.take(128), Some(64 + 6));
        });
    }

    #[test]
    fn loom_two_reservers_never_share_a_slot_and_a_release_is_never_lost() {
        loom::model(|| {
            let t = Arc::new(Tracker::new(Arc::new(Grants::new(2))));
            let held = t.reserve().expect("free");
            let other = {
                let t = t.clone();
                thread::spawn(move || t.reserve())
            };
            t.release(held);
            let mine = t.reserve();
            let theirs = other.join().expect("joined");
            assert!(mine.is_some() && theirs.is_some(), "{mine:?} {theirs:?}");
            assert_ne!(mine, theirs);
            assert_eq!(t.reserve(), None);
            assert!(
                !t.has_free(),
                "a search that found nothing leaves no false hope"
            );
        });
    }

    #[test]
    fn loom_a_response_and_a_sweep_take_a_sample_once() {
        loom::model(|| {
            let t = Arc::new(Tracker::new(Arc::new(Grants::new(1))));
            let slot = t.reserve().expect("free");
            let imm = t.begin(slot, &sample(42), 0).expect("reserved");
            let poster = {
                let t = t.clone();
                thread::spawn(move || {
                    t.grants
                        .take(imm)
                        .is_ok()
                        .then(|| t.arrived(slot).expect("in range").sample.id)
                })
            };
            let mut swept = None;
            t.sweep(|f| swept = Some(f.sample.id));
            let answered = poster.join().expect("joined");
            match (answered, swept) {
                (Some(42), None) | (None, Some(42)) => {}
                other => panic!("taken wrongly: {other:?}"),
            }
        });
    }
}
