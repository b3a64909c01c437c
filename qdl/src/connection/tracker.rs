//! The transaction tracker of a connection: which sample each slot carries. Lock-free.
//!
//! States of a slot:
//!
//! ```text
//!   free --reserve--> reserved --begin--> in flight --response--> arrived --release--> free
//!                        |                    |
//!                        +--release--> free   +--sweep (connection lost)--> arrived
//! ```
//!
//! *Free* slots are set bits in a two-level bitmap. [`Tracker::reserve`] takes the first free slot
//! at or after a cursor, so samples issued together lie together and the accelerator can run them
//! in place. Busy slots are skipped, so a slot that is never freed costs only that slot. (When the
//! next 64 slots are busy, `reserve` takes the slot freed last.) A smaller allowance
//! ([`Tracker::allow`]) limits reservations to the first slots, whose memory then stays in the
//! caches. *In flight* is an open grant ([`Grants`]) of the response window. Only the NIC thread
//! reads a record: when a response or a sweep closes the grant, or when a part of an answer
//! arrives, whose first token it stores.
//!
//! Records are relaxed atomics. A thread writes a record before it opens the grant (release); the
//! NIC thread reads the record after the grant is closed (acquire). No `unsafe` is needed.

use std::{num::NonZeroU64, sync::Arc};

use crossbeam_utils::CachePadded;

use super::free_slots::FreeSlots;
use fabric::{
    Grants, Imm, SourceId,
    sync::{AtomicU32, AtomicU64, Ordering, fence},
};

pub(crate) use super::free_slots::Reserved;

/// The first token of an answer, as reported to the caller.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct FirstToken {
    /// Bytes of the token, little-endian.
    pub token: u64,
    /// Arrival time on [`fabric::clock`]. Never 0, so that [`Attempt`] fits one cache line.
    pub arrived_ns: NonZeroU64,
}

impl FirstToken {
    /// Makes a first token that arrived at `arrived_ns`; 0 becomes 1.
    pub fn new(token: u64, arrived_ns: u64) -> Self {
        FirstToken {
            token,
            arrived_ns: NonZeroU64::new(arrived_ns).unwrap_or(NonZeroU64::MIN),
        }
    }
}

/// A sample, as the caller issues it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sample {
    /// The caller's id (LoadGen's `ResponseId`); never leaves this node.
    pub id: u64,
    /// The caller's index (LoadGen's `QuerySampleIndex`).
    pub index: u64,
    /// Source region of the payload.
    pub source: SourceId,
    /// Offset of the payload in that region, in bytes.
    pub offset: usize,
    /// Length of the payload in bytes.
    pub len: u32,
    /// Issue time on [`fabric::clock`].
    pub issued_ns: u64,
    /// The payload begins with a block of options ([`crate::request`]), which `len` includes.
    pub has_options: bool,
}

impl Sample {
    /// Makes a sample that is issued now: `len` bytes of the first source region, from `offset` on.
    /// Its id is its index.
    pub fn now(index: u64, offset: usize, len: u32) -> Self {
        Sample {
            id: index,
            index,
            offset,
            len,
            issued_ns: fabric::clock::now_ns(),
            ..Sample::default()
        }
    }
}

/// An attempt to get a sample answered, and what the failed attempts before it have left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Attempt {
    /// The sample.
    pub sample: Sample,
    /// The failed attempts.
    pub history: History,
}

/// What the failed attempts of a sample have left.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct History {
    /// First token of the answer, if it was reported before the connection was lost. A retry does
    /// not report a first token again.
    pub first_token: Option<FirstToken>,
    /// Number of failed attempts.
    pub tries: Tries,
}

#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<Attempt>() == 64);

impl From<Sample> for Attempt {
    fn from(sample: Sample) -> Self {
        Attempt {
            sample,
            history: History::default(),
        }
    }
}

/// Refusals after which a sample fails. Two bits of a record count them.
pub(crate) const REFUSALS_MAX: u8 = 3;

/// Failed attempts of a sample.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Tries {
    /// Connections lost while the sample was in flight on them, at most [`Tries::LOSSES_MAX`].
    pub losses: u16,
    /// Refusals by accelerators, at most [`REFUSALS_MAX`].
    pub refusals: u8,
    /// Microseconds from issue to the end of the last failed attempt; 0 without a failed attempt.
    pub failed_us: u32,
}

impl Tries {
    /// Largest count of losses: 12 of 16 bits of the record. Two more bits count refusals.
    const LOSSES_MAX: u16 = (1 << 12) - 1;
    /// Bit of an attempt that failed, also where the sample was given back.
    const FAILED: u64 = 1 << 12;

    /// Counts a lost connection, `after_ns` after the sample's issue.
    pub(crate) fn lost(&mut self, after_ns: u64) {
        self.losses = (self.losses + 1).min(Tries::LOSSES_MAX);
        self.failed(after_ns);
    }

    /// Counts a refusal, `after_ns` after the sample's issue. Returns how many came earlier.
    pub fn refused(&mut self, after_ns: u64) -> usize {
        let before = self.refusals.min(REFUSALS_MAX - 1);
        self.refusals = before + 1;
        self.failed(after_ns);
        usize::from(before)
    }

    /// Records that an accelerator gave the sample back, which counts as no refusal of the sample.
    /// Returns 0: the owner counts it as a first one.
    pub(crate) fn given_back(&mut self, after_ns: u64) -> usize {
        self.failed(after_ns);
        0
    }

    /// Records that a prefill node has handed the sample over, as the begin of the next attempt.
    pub(crate) fn prefilled(&mut self, after_ns: u64) {
        self.failed(after_ns);
    }

    /// Whether the sample must not be tried again.
    pub(crate) fn are_over(&self) -> bool {
        self.refusals >= REFUSALS_MAX
    }

    fn failed(&mut self, after_ns: u64) {
        self.failed_us = u32::try_from(after_ns / 1000).unwrap_or(u32::MAX).max(1);
    }

    /// Clock time at which the last failed attempt ended, for a sample issued at `issued_ns`; 0
    /// without a failed attempt.
    pub fn failed_ns(&self, issued_ns: u64) -> u64 {
        match self.failed_us {
            0 => 0,
            us => issued_ns + u64::from(us) * 1000,
        }
    }

    fn bits(&self) -> u64 {
        let failed = u64::from(self.failed_us > 0) * Tries::FAILED;
        u64::from(self.losses.min(Tries::LOSSES_MAX)) | failed | u64::from(self.refusals) << 14
    }
}

/// Record of a sample in flight.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct InFlight {
    /// The sample.
    pub sample: Sample,
    /// Its failed attempts.
    pub history: History,
    /// Time at which the write was posted, on [`fabric::clock`].
    pub posted_ns: u64,
}

impl InFlight {
    /// The attempt, to go on with it or with a next one.
    pub fn attempt(&self) -> Attempt {
        Attempt {
            sample: self.sample,
            history: self.history,
        }
    }
}

/// Record of a slot, in one cache line, since every sample writes and reads a record. Cores fetch
/// lines in pairs. This is harmless, because mostly one thread posts and answers neighbouring
/// slots.
#[derive(Debug, Default)]
#[cfg_attr(not(feature = "loom"), repr(align(64)))]
struct Record {
    id: AtomicU64,
    index: AtomicU64,
    offset: AtomicU64,
    /// From the highest bit: refusals (2 bits), options (1), failed (1), losses (12), source (16),
    /// length (32).
    source_len: AtomicU64,
    issued_ns: AtomicU64,
    posted_ns: AtomicU64,
    token: AtomicU64,
    /// Arrival time of the first token; 0 without a token.
    first_ns: AtomicU64,
}

#[cfg(not(feature = "loom"))]
const _: () = assert!(size_of::<Record>() == 64);

/// Bit of [`Record::source_len`] that is set where the sample has options.
const OPTIONS: u64 = 1 << 61;

impl Record {
    fn first_token(&self) -> Option<FirstToken> {
        let arrived_ns = self.first_ns.load(Ordering::Relaxed);
        NonZeroU64::new(arrived_ns).map(|arrived_ns| FirstToken {
            token: self.token.load(Ordering::Relaxed),
            arrived_ns,
        })
    }

    fn set_first_token(&self, first: Option<FirstToken>) {
        let (token, arrived_ns) = first.map_or((0, 0), |f| (f.token, f.arrived_ns.get()));
        self.token.store(token, Ordering::Relaxed);
        self.first_ns.store(arrived_ns, Ordering::Relaxed);
    }
}

/// The slots of one connection with their samples.
#[derive(Debug)]
pub struct Tracker {
    grants: Arc<Grants>,
    records: Box<[Record]>,
    /// [`Tries::failed_us`] of each slot's sample after a failed attempt; rarely accessed.
    failed_us: Box<[AtomicU32]>,
    free: FreeSlots,
    /// Number of slots in use, from slot 0. Written rarely, read for each sample.
    allowance: AtomicU32,
    in_flight: CachePadded<AtomicU32>,
}

impl Tracker {
    /// Makes a tracker over the response window's grants, with all slots free.
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

    /// Restricts reservations to the first `slots` slots, or to none. Slots in flight above the
    /// limit are released as usual. Reservations fail while `slots` or more slots are in flight.
    pub(crate) fn allow(&self, slots: usize) {
        let slots = slots.min(self.slots()) as u32;
        self.allowance.store(slots, Ordering::Relaxed);
    }

    pub(crate) fn allowance(&self) -> usize {
        self.allowance.load(Ordering::Relaxed) as usize
    }

    pub(crate) fn slots(&self) -> usize {
        self.records.len()
    }

    /// Number of slots that are not free, reserved slots included.
    pub fn in_flight(&self) -> usize {
        self.in_flight.load(Ordering::Relaxed) as usize
    }

    /// Whether a reservation can succeed under the allowance.
    pub(crate) fn has_free(&self) -> bool {
        self.in_flight() < self.allowance()
    }

    /// Takes the next free slot.
    pub fn reserve(&self) -> Option<u16> {
        self.reserve_some(1).next()
    }

    /// Takes up to `slots_max` free slots of one bitmap word; fewer if the word has fewer, none if
    /// no slot is free. The caller gives unused slots back with [`Self::give_back`].
    pub(crate) fn reserve_some(&self, slots_max: usize) -> Reserved {
        let limit = self.allowance();
        let room = limit.saturating_sub(self.in_flight());
        let taken = match room {
            0 => None,
            // The connection is full but for one slot, which has probably just been freed.
            1 => self
                .free
                .take_freed(limit, 1)
                .or_else(|| self.free.take(limit, 1)),
            _ => self.free.take(limit, slots_max.min(room)),
        };
        let taken = taken.unwrap_or_default();
        self.in_flight
            .fetch_add(taken.len() as u32, Ordering::Relaxed);
        taken
    }

    /// Gives back unused slots. Returns true if there were any. If a thread publishes a sample and
    /// then looks for a slot, either it finds these slots, or the caller sees the sample after this
    /// call.
    pub(crate) fn give_back(&self, unused: &mut Reserved) -> bool {
        let n = self.free.give_back(unused);
        if n > 0 {
            self.in_flight.fetch_sub(n, Ordering::Relaxed);
            fence(Ordering::SeqCst);
        }
        n > 0
    }

    /// Stores the sample in a reserved slot's record and grants the response slot to the peer. The
    /// caller then posts the write with the returned immediate.
    ///
    /// `None` if the slot does not exist or is in flight already.
    pub fn begin(&self, slot: u16, attempt: &Attempt, posted_ns: u64) -> Option<Imm> {
        let Attempt { sample, history } = attempt;
        let r = self.records.get(usize::from(slot))?;
        r.id.store(sample.id, Ordering::Relaxed);
        r.index.store(sample.index, Ordering::Relaxed);
        r.offset.store(sample.offset as u64, Ordering::Relaxed);
        r.source_len.store(
            (history.tries.bits() << 48)
                | (u64::from(sample.has_options) * OPTIONS)
                | u64::from(sample.source.0) << 32
                | u64::from(sample.len),
            Ordering::Relaxed,
        );
        if history.tries.bits() != 0 {
            let failed_us = history.tries.failed_us;
            self.failed_us[usize::from(slot)].store(failed_us, Ordering::Relaxed);
        }
        r.issued_ns.store(sample.issued_ns, Ordering::Relaxed);
        r.posted_ns.store(posted_ns, Ordering::Relaxed);
        r.set_first_token(history.first_token);
        let use_count = self.grants.open(slot)?;
        Some(Imm::new(slot, use_count))
    }

    /// The record of a slot. Only once its grant is closed, or a part of its answer has arrived.
    #[inline]
    pub fn arrived(&self, slot: u16) -> Option<InFlight> {
        let r = self.records.get(usize::from(slot))?;
        let source_len = r.source_len.load(Ordering::Relaxed);
        let bits = ((source_len & !OPTIONS) >> 48) as u16;
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
                has_options: source_len & OPTIONS != 0,
            },
            history: History {
                first_token: r.first_token(),
                tries: Tries {
                    losses: bits & Tries::LOSSES_MAX,
                    refusals: (bits >> 14) as u8,
                    failed_us,
                },
            },
            posted_ns: r.posted_ns.load(Ordering::Relaxed),
        })
    }

    /// Slots in flight, with the id of each sample. Only the owner of the send token may call it:
    /// no other thread begins a slot meanwhile.
    pub(crate) fn granted(&self) -> impl Iterator<Item = (Imm, u64)> {
        (0..).zip(&self.records).filter_map(|(slot, r)| {
            let use_count = self.grants.open_use(slot)?;
            Some((Imm::new(slot, use_count), r.id.load(Ordering::Relaxed)))
        })
    }

    /// Stores the reported first token of an answer that continues. Only the NIC thread may call
    /// it, while the grant is open: no other thread closes the grant.
    pub fn set_first_token(&self, slot: u16, first: FirstToken) {
        if let Some(r) = self.records.get(usize::from(slot)) {
            r.set_first_token(Some(first));
        }
    }

    /// Frees a slot that the caller owns: the response has been used, or no write was posted.
    pub fn release(&self, slot: u16) {
        self.release_all(std::iter::once(slot));
    }

    /// Frees several slots; a run of neighbours costs little more than one slot.
    pub(crate) fn release_all(&self, slots: impl Iterator<Item = u16>) {
        let n = self.free.give(slots);
        self.in_flight.fetch_sub(n, Ordering::Relaxed);
    }

    /// Closes every open grant of a lost connection whose local side is destroyed. Passes each
    /// sample in flight to `lost` exactly once, but no sample whose response was taken. The slots
    /// are free afterwards; `run::life` decides when they may be *used* again.
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

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::collections::{HashMap, HashSet};

    use proptest::prelude::*;

    use super::*;

    fn attempt(id: u64) -> Attempt {
        let first = id.is_multiple_of(3);
        Attempt {
            sample: Sample {
                id,
                index: id ^ 7,
                source: SourceId(3),
                offset: id as usize * 11,
                len: id as u32,
                issued_ns: id + 1,
                has_options: id.is_multiple_of(2),
            },
            history: History {
                first_token: first.then_some(FirstToken::new(id * 5, id + 9)),
                tries: Tries {
                    losses: (id * 257) as u16 & Tries::LOSSES_MAX,
                    refusals: (id % 3) as u8 + 1,
                    failed_us: id as u32 + 5,
                },
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
    fn slots_beyond_a_smaller_allowance_come_back_and_stay_free() {
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
        assert!(!t.has_free() && t.reserve_some(1).is_empty());
        t.allow(1000);
        assert_eq!(t.allowance(), 100);
    }

    proptest! {
        /// Compares with a map from slot to sample. Every slot has one owner, records return
        /// unchanged, and a sweep yields exactly the samples in flight.
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
                            let imm = t.begin(slot, &attempt(id), id + 2).expect("reserved");
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
                            let imm = t.begin(slot, &attempt(id), id + 2).expect("reserved");
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
                        prop_assert_eq!((got.attempt(), got.posted_ns), (attempt(id), id + 2));
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

#[cfg(all(test, feature = "loom"))]
mod loom_tests {
    use loom::thread;

    use super::*;

    fn attempt(id: u64) -> Attempt {
        Attempt::from(Sample {
            id,
            ..Sample::default()
        })
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
    fn loom_slots_that_come_back_unused_are_seen_or_the_waiting_sample_is() {
        loom::model(|| {
            let t = Arc::new(Tracker::new(Arc::new(Grants::new(2))));
            let waiting = Arc::new(AtomicU32::new(0));
            let mut held = t.reserve_some(2);
            assert_eq!(held.next(), Some(0));
            let other = {
                let (t, waiting) = (t.clone(), waiting.clone());
                thread::spawn(move || {
                    // A thread puts its sample into the backlog and then looks for a free slot.
                    waiting.fetch_add(1, Ordering::SeqCst);
                    fence(Ordering::SeqCst);
                    t.has_free()
                })
            };
            // A burst ends and gives slots back.
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
            let imm = t.begin(slot, &attempt(42), 0).expect("reserved");
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
