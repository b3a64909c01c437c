//! Posting: which thread posts a sample, and the samples that it posts.
//!
//! ```text
//!   a call of LoadGen --> bursts --> a connection's ring --> the issuing thread posts
//!                     |                                  \-> the NIC thread posts in its next turn
//!                     \-> more bursts than connections, or no room: the backlog
//! ```
//!
//! A burst has 1 to [`BURST`] samples, and at most [`BURST_BYTES`] unless it is one sample. It goes
//! to the connection of the issuing thread's last burst if that burst is younger than
//! `affinity_ns`, both fit one burst together, and the connection has room. Otherwise the arbiter
//! chooses. Of an accelerator's connections, the one with the last burst counts one burst less in
//! flight, because its NIC threads are awake. The rule stands in `docs/architecture.md`, *Which
//! thread posts*; its measurements in `bench/README.md`.

use std::{cell::Cell, iter};

use super::{
    Attempt, Connection, DispatchState, Dispatcher, Issuing, NEW, Sample, WARM_UP_ID,
    backlog::Backlog,
    connection::{BURST, NotPosted},
};
use crate::connection::{
    NicThreadHandle, SendCounts, WriteSource, not_posted, tracker::Reserved, writes_at_once,
};
use fabric::os::lock;
use fabric::{
    Broken, Tx,
    clock::now_ns,
    sync::{Ordering, fence},
};

/// Most payload bytes of a burst: as many as one core copies while a second core wakes up.
pub(super) const BURST_BYTES: u64 = 64 << 10;

/// Bursts that the issuing thread posts to one connection while the NIC thread sleeps. Their system
/// calls cost as much as one wake-up, so the next burst wakes the NIC thread.
const FOR_SLEEPER: u32 = 4;

/// Lower bound of a round trip: a connection with a burst more recent than this is not idle.
const ROUND_TRIP_NS: u64 = 4_000;

/// The connection that a thread issues to, and the room left in that connection's burst.
#[derive(Clone, Copy, Debug)]
struct Affinity {
    /// Number of the dispatcher ([`Issuing::number`]); 0 for none.
    dispatcher: u64,
    connection: usize,
    issued_ns: u64,
    /// Samples that still fit the burst, each with a free slot.
    samples: usize,
    bytes: u64,
    /// Bursts that this thread has posted to `connection` while the NIC thread slept.
    for_sleeper: u32,
}

impl Affinity {
    const NONE: Affinity = Affinity {
        dispatcher: 0,
        connection: 0,
        issued_ns: 0,
        samples: 0,
        bytes: 0,
        for_sleeper: 0,
    };

    /// Whether the whole burst goes to the connection of the thread's last burst.
    fn takes(&self, dispatcher: u64, burst: &Burst, now_ns: u64, affinity_ns: u64) -> bool {
        self.dispatcher == dispatcher
            && burst.samples <= self.samples
            && burst.bytes <= self.bytes
            && now_ns.saturating_sub(self.issued_ns) < affinity_ns
    }
}

thread_local! {
    static AFFINITY: Cell<Affinity> = const { Cell::new(Affinity::NONE) };
    /// An empty row, reused for the backlog samples that this thread posts.
    static ROW: Cell<Vec<Attempt>> = const { Cell::new(Vec::new()) };
}

/// Size of a burst: the first samples of a call that go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Burst {
    samples: usize,
    bytes: u64,
}

impl Burst {
    pub(crate) fn of(sample: &Sample) -> Burst {
        Burst {
            samples: 1,
            bytes: u64::from(sample.len),
        }
    }

    pub(crate) fn add(&mut self, sample: &Sample) {
        self.samples += 1;
        self.bytes += u64::from(sample.len);
    }

    /// The first burst of `samples`, of at most `samples_max`; empty for no samples.
    fn first(samples: &[Sample], samples_max: usize) -> Burst {
        let mut burst = Burst::default();
        for s in samples.iter().take(samples_max) {
            if burst.samples > 0 && burst.bytes + u64::from(s.len) > BURST_BYTES {
                break;
            }
            burst.add(s);
        }
        burst
    }

    /// Whether `samples` are at most `bursts_max` bursts.
    fn are_at_most(mut samples: &[Sample], bursts_max: usize, samples_max: usize) -> bool {
        if samples.len() > bursts_max.saturating_mul(samples_max) {
            return false;
        }
        for _ in 0..bursts_max {
            samples = &samples[Burst::first(samples, samples_max).samples..];
        }
        samples.is_empty()
    }
}

/// Samples of `len` bytes in a full burst: at least 1, at most [`BURST`].
#[inline]
pub(super) fn samples_of_burst(len: u32) -> usize {
    let fit = BURST_BYTES / u64::from(len).max(1);
    (fit as usize).clamp(1, BURST)
}

impl Dispatcher {
    /// Issues samples and returns at once. Each sample is completed exactly once: from a NIC
    /// thread, or from the thread that empties the backlog after an abort.
    ///
    /// The call never sleeps. Only a policy by health takes a lock for each choice (the peer's).
    /// Samples that go to the backlog take its lock and may allocate a row.
    pub fn issue(&self, samples: &[Sample]) {
        let s = &*self.shared;
        let issuing = &s.issuing;
        if issuing
            .issued
            .fetch_add(samples.len() as u64, Ordering::Relaxed)
            == 0
        {
            issuing.first_ns.store(now_ns().max(1), Ordering::Relaxed);
        }
        let bursts_max = s.connections.len();
        let is_short = || Burst::are_at_most(samples, bursts_max, s.choice.samples_max());
        let given = match s.backlogs[NEW].is_empty() && is_short() {
            true => s.issue_bursts(samples),
            false => 0,
        };
        if given < samples.len() {
            s.defer(&samples[given..]);
        }
        if s.is_aborted() {
            s.empty_backlog();
        }
    }
}

impl DispatchState {
    /// Puts samples into connections' rings, burst by burst, and posts those bursts that fall to
    /// this thread. Returns the number of samples put; no connection has room for the rest.
    fn issue_bursts(&self, samples: &[Sample]) -> usize {
        let Issuing {
            number,
            affinity_ns,
            ..
        } = self.issuing;
        let samples_max = self.choice.samples_max();
        let mut affinity = AFFINITY.get();
        let mut given = 0;
        while let Some(first) = samples.get(given) {
            let mut burst = Burst::first(&samples[given..], samples_max);
            let mut is_crowded = false;
            let is_affine =
                samples_max > 1 && affinity.takes(number, &burst, first.issued_ns, affinity_ns);
            if !is_affine {
                let Some(chosen) =
                    self.choice
                        .pick(&self.connections, first, Connection::takes_new)
                else {
                    break;
                };
                let connection = &self.connections[chosen];
                affinity = Affinity {
                    dispatcher: number,
                    connection: chosen,
                    // 0, so that the code below checks whether the connection is idle.
                    issued_ns: 0,
                    samples: BURST.min(connection.load().room()),
                    bytes: BURST_BYTES.max(burst.bytes),
                    for_sleeper: 0,
                };
                is_crowded = connection.is_crowded();
                if affinity.samples < burst.samples {
                    burst = Burst::first(&samples[given..given + affinity.samples], samples_max);
                }
            }
            let connection = &self.connections[affinity.connection];
            // Other threads write these counters: read them only if the connection may be idle.
            let is_recent = first.issued_ns.saturating_sub(affinity.issued_ns) < ROUND_TRIP_NS;
            let is_idle = !is_recent && connection.is_idle();
            let next = &samples[given..given + burst.samples];
            let pushed = next
                .iter()
                .map_while(|s| connection.ring.push(Attempt::from(*s)).ok())
                .count();
            if pushed == 0 {
                // Other threads have filled the ring since the choice.
                self.choice.undo(connection, first.len);
                affinity = Affinity::NONE;
                break;
            }
            given += pushed;
            affinity.samples -= pushed;
            affinity.bytes = affinity.bytes.saturating_sub(burst.bytes);
            affinity.issued_ns = first.issued_ns;
            burst.samples = pushed;
            let is_free = is_idle || is_crowded;
            if !self.post_or_leave(connection, burst, is_free, &mut affinity.for_sleeper) {
                affinity = Affinity::NONE;
            }
        }
        AFFINITY.set(affinity);
        given
    }

    /// Puts a sample into the ring of a connection that `may` admits. Returns the connection, and
    /// whether it was idle; `None` if none has room.
    pub(super) fn enqueue(
        &self,
        attempt: &Attempt,
        may: impl Fn(&Connection) -> bool,
    ) -> Option<(&Connection, bool)> {
        let sample = &attempt.sample;
        let chosen = self.choice.pick(&self.connections, sample, may)?;
        let connection = &self.connections[chosen];
        let is_idle = connection.is_idle();
        if connection.ring.push(*attempt).is_err() {
            // Other threads have filled the ring since the choice.
            self.choice.undo(connection, sample.len);
            return None;
        }
        Some((connection, is_idle))
    }

    /// Whether the issuing thread posts a burst: a small one, if the connection is free or its NIC
    /// thread sleeps. `for_sleeper` is the number of bursts posted for the sleeping thread so far.
    fn is_posted_here(&self, bytes: u64, sleeps: bool, is_free: bool, for_sleeper: u32) -> bool {
        let posts = match sleeps {
            true => for_sleeper < FOR_SLEEPER,
            false => is_free,
        };
        posts && bytes <= self.issuing.post_up_to
    }

    /// Posts a burst that this thread has put into a ring, or leaves it to the NIC thread, which it
    /// wakes if needed. Counts bursts posted for a sleeping NIC thread in `for_sleeper`. If the
    /// connection is not open, returns false, and its ring is in the backlog again.
    pub(super) fn post_or_leave(
        &self,
        connection: &Connection,
        burst: Burst,
        is_free: bool,
        for_sleeper: &mut u32,
    ) -> bool {
        // After the fence in `is_asleep`, either this thread sees the connection closed, or the
        // thread that closes the connection sees the samples. A NIC thread that is awake sees
        // the samples before it sleeps.
        let thread = self.nic_thread(connection);
        let sleeper = thread.filter(|t| t.is_asleep());
        if !connection.is_open() {
            self.requeue_ring(connection);
            self.wake_all();
            return false;
        }
        if self.is_posted_here(burst.bytes, sleeper.is_some(), is_free, *for_sleeper) {
            *for_sleeper += u32::from(sleeper.is_some());
            self.post_waiting(connection);
        } else {
            sleeper.inspect(|t| NicThreadHandle::wake(t));
            let handed_over = &self.issuing.handed_over;
            handed_over.fetch_add(burst.samples as u64, Ordering::Relaxed);
        }
        true
    }

    /// Posts a connection's ring and, unless the policy is by health, the backlog. A second thread
    /// that owns the send token posts instead. Returns whether this call did any work.
    pub(super) fn post_waiting(&self, connection: &Connection) -> bool {
        let mut requests = Requests::new(self, connection);
        let posted = connection.send.post_from(&mut requests);
        if posted.is_left || connection.send.has_failed() {
            // The NIC thread posts what is left, or takes the connection down, even if no event
            // comes from the link.
            self.wake(connection);
        }
        posted.is_work
    }

    /// Puts a call's samples into the backlog, then posts them, or wakes the NIC threads to post
    /// them. Those for which a slot is free count as handed over, the rest as backlogged. Free
    /// slots are counted before the push, from the same loads that the arbiter reads.
    fn defer(&self, samples: &[Sample]) {
        let (n, backlog) = (samples.len() as u64, &self.backlogs[NEW]);
        let before = backlog.len();
        let free = self.free_slots(before.saturating_add(n));
        let handed_over = free.saturating_sub(before).min(n);
        backlog.push(samples.iter().copied().map(Attempt::from));
        if self.cancels.is_any() {
            samples.iter().for_each(|sample| self.look_again(sample.id));
        }
        if handed_over > 0 {
            let all = &self.issuing.handed_over;
            all.fetch_add(handed_over, Ordering::Relaxed);
        }
        if handed_over < n {
            let waiting = before.saturating_add(n).saturating_sub(free);
            backlog.max.fetch_max(waiting, Ordering::Relaxed);
            backlog.waited.fetch_add(n - handed_over, Ordering::Relaxed);
        }
        // A slot may have come free between the count and the push.
        fence(Ordering::SeqCst);
        self.assign_backlog();
        let bytes: u64 = samples.iter().take(BURST).map(|s| u64::from(s.len)).sum();
        if samples.len() > BURST || bytes > self.issuing.post_up_to {
            return self.wake_all();
        }
        // One connection may not suffice: a second thread may hold its token.
        for connection in &self.connections {
            if self.waits_for(connection) && connection.takes() {
                self.post_waiting(connection);
            }
        }
    }

    /// Whether samples wait that this connection may post.
    #[inline]
    pub(super) fn waits_for(&self, connection: &Connection) -> bool {
        let is_waiting = !connection.ring.is_empty()
            || (!self.choice.is_by_health() && !self.backlog(connection).is_empty());
        is_waiting && !self.is_held_back(connection)
    }

    /// Free slots of the connections that are up and take new samples; stops counting at `enough`.
    pub(super) fn free_slots(&self, enough: u64) -> u64 {
        let mut free = 0;
        for load in self
            .connections
            .iter()
            .map(|c| c.load_if(Connection::takes_new))
        {
            if load.up {
                free += load.room() as u64;
            }
            if free >= enough {
                break;
            }
        }
        free
    }

    /// Completes all waiting samples empty, after an abort.
    pub(super) fn empty_backlog(&self) {
        let refused = std::mem::take(&mut *lock(&self.ends.refused_for_good));
        if !refused.is_empty() {
            self.complete_empty(&refused);
        }
        if self.choice.health().is_some() {
            // The thread that distributes the backlog may hold one sample.
            return self.distribute();
        }
        for backlog in &self.backlogs {
            while let Some(attempt) = backlog.pop() {
                backlog.count_off(1);
                self.complete_empty(&[attempt.sample]);
            }
        }
    }

    /// Requeues all attempts of a connection's ring.
    pub(super) fn requeue_ring(&self, connection: &Connection) {
        while let Some(attempt) = connection.ring.pop() {
            self.requeue(connection, attempt);
        }
    }

    /// Moves an attempt that was not posted to the backlog; a warm-up sample is dropped.
    pub(super) fn requeue(&self, connection: &Connection, attempt: Attempt) {
        if attempt.sample.id == WARM_UP_ID {
            return self.warm_up.not_posted(connection.index);
        }
        self.choice.undo(connection, attempt.sample.len);
        self.backlog(connection).push(iter::once(attempt));
        self.look_again(attempt.sample.id);
    }
}

/// Source of a connection's writes: its ring and, unless the policy is by health, the backlog.
struct Requests<'a> {
    shared: &'a DispatchState,
    connection: &'a Connection,
    backlog: &'a Backlog,
    /// The backlog's samples are not for this connection to take.
    is_by_health: bool,
    /// Start time of this burst on [`fabric::clock`].
    now_ns: u64,
    writes_max: usize,
    /// Reserved slots for the samples expected in this burst.
    slots: Reserved,
    writes: usize,
    /// Samples taken from the backlog; the samples before index `next` have been posted.
    row: Vec<Attempt>,
    next: usize,
    /// Backlog samples posted in this burst; the backlog's length still includes them.
    from_backlog: u64,
}

impl<'a> Requests<'a> {
    fn new(shared: &'a DispatchState, connection: &'a Connection) -> Self {
        Requests {
            shared,
            connection,
            backlog: shared.backlog(connection),
            is_by_health: shared.choice.is_by_health(),
            now_ns: 0,
            writes_max: match shared.issuing.one_by_one {
                true => 1,
                // A doorbell covers as many samples as one poll reads answers.
                false => writes_at_once(connection.tracker.allowance()),
            },
            slots: Reserved::default(),
            writes: 0,
            row: Vec::new(),
            next: 0,
            from_backlog: 0,
        }
    }

    /// Takes a sample from the ring; if empty, refills the row with up to `room` of the backlog.
    fn pop_or_refill(&mut self, room: usize) -> Option<Attempt> {
        // Check for an empty ring first, since each pop costs a fence.
        let ring = &self.connection.ring;
        if !ring.is_empty()
            && let Some(attempt) = ring.pop()
        {
            return Some(attempt);
        }
        if !self.is_by_health && self.backlog.len() > self.from_backlog {
            if self.row.capacity() == 0 {
                self.row = ROW.take();
            }
            self.next = 0;
            let samples_max = room.min(self.slots.len());
            self.backlog.take(samples_max, &mut self.row);
        }
        None
    }

    /// Number of samples waiting in the ring and, unless the policy is by health, the backlog.
    fn waiting(&self) -> usize {
        let backlog = match self.is_by_health {
            true => 0,
            false => self.backlog.len().saturating_sub(self.from_backlog),
        };
        self.connection.ring.len() + backlog as usize
    }
}

impl WriteSource for Requests<'_> {
    fn begin(&mut self) -> usize {
        self.shared.look_for_cancelled(self.connection);
        self.now_ns = now_ns();
        self.writes_max
    }

    fn post_next(&mut self, tx: &mut dyn Tx, counts: &mut SendCounts) -> Result<bool, Box<Broken>> {
        let (shared, connection) = (self.shared, self.connection);
        if self.slots.is_empty() {
            if !connection.tracker.has_free() || shared.is_held_back(connection) {
                return Ok(false);
            }
            let waiting = self.waiting();
            if waiting == 0 {
                return Ok(false);
            }
            let slots_max = waiting.min(self.writes_max.saturating_sub(self.writes));
            self.slots = connection.tracker.reserve_some(slots_max);
            if self.slots.is_empty() {
                return Ok(false);
            }
        }
        let mut popped;
        let (attempt, handle) = loop {
            popped = match self.next < self.row.len() {
                true => None,
                false => self.pop_or_refill(tx.room()),
            };
            // A sample of the row is posted without a copy.
            let attempt = match (&popped, self.row.get(self.next)) {
                (Some(attempt), _) => attempt,
                (None, Some(attempt)) => {
                    self.next += 1;
                    self.from_backlog += 1;
                    attempt
                }
                (None, None) => return Ok(false),
            };
            if !shared.end_if_cancelled(attempt) {
                if connection.takes_new() {
                    break (attempt, None);
                }
                let id = attempt.sample.id;
                let handle = shared.fresh_handle(id, self.now_ns);
                // A warm-up sample may have none.
                if handle.is_some() || id == WARM_UP_ID {
                    break (attempt, handle);
                }
                shared.prefill_again(attempt);
            }
            shared.choice.undo(connection, attempt.sample.len);
        };
        let (now, payloads) = (self.now_ns, &shared.payloads);
        let posted = match (self.slots.next(), handle) {
            (Some(slot), None) => connection.post_sample(tx, payloads, slot, attempt, now),
            (Some(slot), Some(handle)) => {
                shared.post_prefilled(connection, tx, slot, attempt, handle, now)
            }
            (None, _) => Err(NotPosted::FULL),
        };
        match posted {
            Ok(copied) => {
                self.writes += 1;
                counts.staged += u64::from(copied > 0);
                counts.staged_bytes += copied as u64;
                Ok(true)
            }
            Err(NotPosted { error, is_ours }) => {
                if is_ours {
                    shared.requeue(connection, *attempt);
                }
                not_posted(error)
            }
        }
    }

    fn down(&mut self) {
        self.shared.look_for_cancelled(self.connection);
    }

    fn end(&mut self, writes: usize, counts: &mut SendCounts) -> bool {
        let connection = self.connection;
        let has_unused = connection.tracker.give_back(&mut self.slots);
        self.writes = 0;
        // Only a failed link leaves samples in the row. The thread that takes the connection down
        // wakes the others.
        let left = self.row.get(self.next..).unwrap_or_default();
        self.backlog.put_back(left);
        left.iter()
            .for_each(|attempt| self.shared.look_again(attempt.sample.id));
        self.row.clear();
        self.next = 0;
        let from_backlog = std::mem::take(&mut self.from_backlog);
        self.backlog.count_off(from_backlog);
        if from_backlog > 0 && !connection.takes_new() && self.backlog.is_empty() {
            // Nothing holds prefill nodes back any more.
            self.shared.wake_all();
        }
        let in_flight = connection.tracker.in_flight();
        counts.in_flight_max = counts.in_flight_max.max(in_flight as u64);
        connection
            .posted
            .fetch_add(writes as u64, Ordering::Relaxed);
        has_unused && self.waiting() > 0 && !self.shared.is_held_back(connection)
    }
}

impl Drop for Requests<'_> {
    fn drop(&mut self) {
        if self.row.capacity() > 0 {
            ROW.set(std::mem::take(&mut self.row));
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn samples(lengths: &[u32]) -> Vec<Sample> {
        let sample = |(id, len): (usize, &u32)| Sample {
            id: id as u64,
            index: id as u64,
            len: *len,
            issued_ns: 1,
            ..Sample::default()
        };
        lengths.iter().enumerate().map(sample).collect()
    }

    proptest! {
        /// Bursts cover a call. Each is within its bounds or is one sample, and none could take the
        /// first sample of the next one.
        #[test]
        fn bursts_are_as_long_as_their_bounds_allow(
            lengths in prop::collection::vec(0u32..100_000, 0..300),
            most in 0usize..9,
        ) {
            let all = samples(&lengths);
            let (mut left, mut bursts) = (&all[..], 0);
            while !left.is_empty() {
                let burst = Burst::first(left, BURST);
                let (these, rest) = left.split_at(burst.samples);
                let bytes = these.iter().map(|s| u64::from(s.len)).sum::<u64>();
                prop_assert_eq!(bytes, burst.bytes);
                prop_assert!((1..=BURST).contains(&burst.samples));
                prop_assert!(burst.samples == 1 || bytes <= BURST_BYTES);
                if let Some(next) = rest.first() {
                    let more = bytes + u64::from(next.len);
                    prop_assert!(burst.samples == BURST || more > BURST_BYTES);
                }
                (left, bursts) = (rest, bursts + 1);
            }
            prop_assert_eq!(Burst::are_at_most(&all, most, BURST), bursts <= most);
        }
    }

    #[test]
    fn the_advantage_of_the_last_connection_is_one_burst_whatever_the_length() {
        let cases = [(0, 64), (64, 64), (1_024, 64), (4_608, 14), (65_536, 1)];
        for (len, burst) in cases.into_iter().chain([(150_528, 1), (u32::MAX, 1)]) {
            assert_eq!(samples_of_burst(len), burst, "{len} bytes");
            let all = samples(&vec![len; 2 * BURST]);
            assert_eq!(Burst::first(&all, BURST).samples, burst, "{len} bytes");
        }
    }

    #[test]
    fn an_affinity_ends_with_its_time_its_room_and_its_bytes() {
        let affinity = Affinity {
            dispatcher: 7,
            connection: 1,
            issued_ns: 1_000,
            samples: 3,
            bytes: 100,
            for_sleeper: 0,
        };
        let burst = |samples, bytes| Burst { samples, bytes };
        assert!(affinity.takes(7, &burst(3, 100), 1_499, 500));
        assert!(!affinity.takes(7, &burst(3, 100), 1_500, 500), "too late");
        assert!(!affinity.takes(7, &burst(4, 100), 1_001, 500), "no room");
        assert!(!affinity.takes(7, &burst(3, 101), 1_001, 500), "too long");
        assert!(
            !affinity.takes(8, &burst(1, 1), 1_001, 500),
            "another dispatcher"
        );
        assert!(
            !Affinity::NONE.takes(0, &burst(1, 1), 0, 500),
            "no affinity"
        );
    }
}
