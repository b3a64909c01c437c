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

use std::{num::NonZeroU64, sync::Arc};

use crossbeam_utils::CachePadded;

use super::free_slots::FreeSlots;
use fabric::{
    Grants, Imm, SourceId,
    sync::{AtomicU32, AtomicU64, Ordering, fence},
};

pub use super::free_slots::Reserved;

/// The first token of an answer, as it was reported.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct First {
    /// Its bytes, little-endian.
    pub token: u64,
    /// When it came, on [`fabric::clock`]; never 0, so that a sample is one cache line.
    pub at_ns: NonZeroU64,
}

impl First {
    /// This token, which came at that time.
    pub fn new(token: u64, at_ns: u64) -> Self {
        First {
            token,
            at_ns: NonZeroU64::new(at_ns).unwrap_or(NonZeroU64::MIN),
        }
    }
}

#[cfg(not(qdl_loom))]
const _: () = assert!(size_of::<Sample>() == 64);

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
    /// When it was issued, on [`fabric::clock`].
    pub issued_ns: u64,
    /// The first token of its answer, where that was reported before the connection that brought
    /// it was lost: it is not reported again.
    pub first: Option<First>,
    /// What became of it before.
    pub tries: Tries,
}

/// Refusals after which a sample is not tried again. Two bits of a record count them.
pub const MOST_REFUSALS: u8 = 3;

/// Attempts of a sample that failed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Connections that were lost while it was in flight on them; at most [`Tries::MOST`] count.
    pub losses: u16,
    /// Times an accelerator refused it, [`MOST_REFUSALS`] at most.
    pub refusals: u8,
    /// Microseconds from the sample's issue to the end of the last of them; 0 without one.
    pub failed_us: u32,
}

impl Tries {
    /// Losses that are told apart: two bits of the record's 16 are refusals.
    const MOST: u16 = (1 << 14) - 1;

    /// One more connection was lost, so long after the sample was issued.
    pub fn lost(&mut self, after_ns: u64) {
        self.losses = (self.losses + 1).min(Tries::MOST);
        self.failed(after_ns);
    }

    /// An accelerator refused it once more, so long after it was issued. Returns how many times it
    /// was refused before.
    pub fn refused(&mut self, after_ns: u64) -> usize {
        let before = self.refusals.min(MOST_REFUSALS - 1);
        self.refusals = before + 1;
        self.failed(after_ns);
        usize::from(before)
    }

    /// It is not tried again.
    pub fn are_over(&self) -> bool {
        self.refusals >= MOST_REFUSALS
    }

    fn failed(&mut self, after_ns: u64) {
        self.failed_us = u32::try_from(after_ns / 1000).unwrap_or(u32::MAX).max(1);
    }

    /// When the last attempt ended, of a sample issued then; 0 where none failed.
    pub fn failed_ns(&self, issued_ns: u64) -> u64 {
        match self.failed_us {
            0 => 0,
            us => issued_ns + u64::from(us) * 1000,
        }
    }

    fn bits(&self) -> u64 {
        u64::from(self.losses.min(Tries::MOST)) | u64::from(self.refusals) << 14
    }
}

/// What the tracker kept about a slot in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The sample.
    pub sample: Sample,
    /// When its write was posted.
    pub posted_ns: u64,
}

/// A record is written and read with every sample: it takes one cache line. Two share what a core
/// fetches at once; neighbours are posted and answered one after the other, mostly by one thread.
#[derive(Debug, Default)]
#[cfg_attr(not(qdl_loom), repr(align(64)))]
struct Record {
    id: AtomicU64,
    index: AtomicU64,
    offset: AtomicU64,
    /// From the top: refusals, losses, source, and the length in the lower half.
    source_len: AtomicU64,
    issued_ns: AtomicU64,
    posted_ns: AtomicU64,
    token: AtomicU64,
    /// When that came; 0 without one.
    first_ns: AtomicU64,
}

#[cfg(not(qdl_loom))]
const _: () = assert!(size_of::<Record>() == 64);

impl Record {
    fn first(&self) -> Option<First> {
        let at_ns = self.first_ns.load(Ordering::Relaxed);
        NonZeroU64::new(at_ns).map(|at_ns| First {
            token: self.token.load(Ordering::Relaxed),
            at_ns,
        })
    }

    fn set_first(&self, first: Option<First>) {
        let (token, at_ns) = first.map_or((0, 0), |f| (f.token, f.at_ns.get()));
        self.token.store(token, Ordering::Relaxed);
        self.first_ns.store(at_ns, Ordering::Relaxed);
    }
}

/// See the module.
#[derive(Debug)]
pub struct Tracker {
    grants: Arc<Grants>,
    records: Box<[Record]>,
    /// [`Tries::failed_us`] of each slot's sample, where it has failed before: seldom touched.
    failed_us: Box<[AtomicU32]>,
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
            records: (0..slots).map(|_| Record::default()).collect(),
            failed_us: (0..slots).map(|_| AtomicU32::new(0)).collect(),
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
        self.reserve_some(1).next()
    }

    /// Takes free slots, `most` at most, for whoever is about to begin with as many: fewer where
    /// the next free neighbours are fewer, none where there is none. What is not used of them is to
    /// be given back ([`Self::give_back`]).
    pub fn reserve_some(&self, most: usize) -> Reserved {
        let first = self.allowance();
        let left = first.saturating_sub(self.in_flight());
        let taken = match left {
            0 => None,
            // A full connection: what there is came back just now.
            1 => self
                .free
                .take_freed(first, 1)
                .or_else(|| self.free.take(first, 1)),
            _ => self.free.take(first, most.min(left)),
        };
        let taken = taken.unwrap_or_default();
        self.in_flight
            .fetch_add(taken.len() as u32, Ordering::Relaxed);
        taken
    }

    /// Takes back what was reserved and not used. True where there was something: whoever found no
    /// slot meanwhile, having made its sample known before it looked, either sees these, or its
    /// sample is seen by who looks for it after this.
    pub fn give_back(&self, unused: &mut Reserved) -> bool {
        let n = self.free.give_back(unused);
        if n > 0 {
            self.in_flight.fetch_sub(n, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        n > 0
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
            sample.tries.bits() << 48 | u64::from(sample.source.0) << 32 | u64::from(sample.len),
            Ordering::Relaxed,
        );
        if sample.tries.bits() != 0 {
            let failed_us = sample.tries.failed_us;
            self.failed_us[usize::from(slot)].store(failed_us, Ordering::Relaxed);
        }
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
        let bits = (source_len >> 48) as u16;
        let failed_us = match bits {
            0 => 0,
            _ => self.failed_us[usize::from(slot)].load(Ordering::Relaxed),
        };
        Some(InFlight {
            sample: Sample {
                id: r.id.load(Ordering::Relaxed),
                index: r.index.load(Ordering::Relaxed),
                source: SourceId((source_len >> 32) as u16),
                offset: r.offset.load(Ordering::Relaxed) as usize,
                len: source_len as u32,
                issued_ns: r.issued_ns.load(Ordering::Relaxed),
                first: r.first(),
                tries: Tries {
                    losses: bits & Tries::MOST,
                    refusals: (bits >> 14) as u8,
                    failed_us,
                },
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
        self.release_all(std::iter::once(slot));
    }

    /// The same of several at once: neighbours that follow each other cost little more than one.
    pub fn release_all(&self, slots: impl Iterator<Item = u16>) {
        let n = self.free.give(slots);
        self.in_flight.fetch_sub(n, Ordering::Relaxed);
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
            first: id.is_multiple_of(3).then_some(First::new(id * 5, id + 9)),
            tries: Tries {
                losses: (id * 257) as u16 & Tries::MOST,
                refusals: (id % 3) as u8 + 1,
                failed_us: id as u32 + 5,
            },
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
            steps in prop::collection::vec((0u8..13, any::<prop::sample::Index>()), 0..400),
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
                    11 => {
                        let mut some = t.reserve_some(1 + pick.index(80));
                        prop_assert_eq!(some.is_empty(), model.len() >= allowed);
                        for slot in some.by_ref().take(pick.index(80)) {
                            let imm = t.begin(slot, &sample(id), id + 2).expect("reserved");
                            prop_assert!(model.insert(slot, (id, imm)).is_none(), "slot {} given twice", slot);
                            prop_assert!(usize::from(slot) < allowed);
                        }
                        t.give_back(&mut some);
                    }
                    12 => {
                        let n = pick.index(model.len() + 1);
                        let imms = model.values().map(|(_, imm)| *imm);
                        let taken: Vec<_> = imms.take(n).collect();
                        for imm in &taken {
                            prop_assert!(t.grants.take(*imm).is_ok());
                            model.remove(&imm.slot());
                        }
                        t.release_all(taken.iter().map(|imm| imm.slot()));
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
            tries: Default::default(),
        }
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
    fn loom_slots_that_come_back_unused_are_seen_or_who_found_none_is() {
        loom::model(|| {
            let t = Arc::new(Tracker::new(Arc::new(Grants::new(2))));
            let waiting = Arc::new(AtomicU32::new(0));
            let mut held = t.reserve_some(2);
            assert_eq!(held.next(), Some(0));
            let other = {
                let (t, waiting) = (t.clone(), waiting.clone());
                thread::spawn(move || {
                    // As a sample goes into the backlog, and then looks for a connection.
                    waiting.fetch_add(1, Ordering::SeqCst);
                    fence(Ordering::SeqCst);
                    t.has_free()
                })
            };
            // As a burst ends.
            assert!(t.give_back(&mut held));
            let seen = waiting.load(Ordering::Relaxed) > 0;
            let found = other.join().expect("joined");
            assert!(seen || found, "a sample waits beside a free slot");
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
