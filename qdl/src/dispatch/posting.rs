//! Which thread posts a sample: the issuing thread, or its connection's NIC thread.
//!
//! ```text
//!   a call of LoadGen --> bursts --> a connection's ring --> the issuing thread posts
//!                     |                                  \-> the NIC thread posts in its next turn
//!                     \-> more bursts than connections, or no room: the backlog
//! ```
//!
//! A burst has 1 to [`BURST`] samples, and at most [`BURST_BYTES`] unless it is one sample. It goes
//! to the connection of the thread's last burst if that is less than `stay_ns` ago, both together
//! fit one burst, and the connection has room. Otherwise the arbiter chooses. Of an accelerator's
//! connections, the one with the last burst has an advantage of one burst in flight: its NIC
//! threads are awake. The rule stands in `docs/architecture.md`, *Which thread posts*; its
//! measurements in `bench/README.md`.

use std::{
    cell::Cell,
    ptr,
    sync::atomic::{Ordering, fence},
};

use super::{Connection, Dispatcher, Sample, Shared, end::BURST};
use crate::connection::NicThreadHandle;
use fabric::clock::now_ns;

/// Most payload bytes of a burst: as many as one core copies while a second core wakes up.
pub(super) const BURST_BYTES: u64 = 64 << 10;

/// Samples in a ring above which the NIC thread has no core: the issuing thread then posts. Twice
/// the samples issued during a turn of a running NIC thread.
const CROWD: usize = 2 * BURST;

/// Bursts of a stay that the issuing thread posts for a sleeping NIC thread. Their system calls
/// cost as much as one wake-up, so the next burst wakes the NIC thread.
const FOR_SLEEPER: u32 = 4;

/// Lower bound of a round trip: a connection with a burst more recent than this is not idle.
const ROUND_TRIP_NS: u64 = 4_000;

/// The connection that a thread issues to, and the room left in its burst.
#[derive(Clone, Copy, Debug)]
struct Stay {
    /// Address of the dispatcher that `connection` belongs to.
    dispatcher: usize,
    connection: usize,
    /// Issue time of the last burst.
    issued_ns: u64,
    /// Samples that still fit the burst, each with a free slot.
    samples: usize,
    bytes: u64,
    /// Bursts that the thread has posted for the sleeping NIC thread.
    for_sleeper: u32,
}

impl Stay {
    const NONE: Stay = Stay {
        dispatcher: 0,
        connection: 0,
        issued_ns: 0,
        samples: 0,
        bytes: 0,
        for_sleeper: 0,
    };

    /// Whether the whole burst goes to the connection of the last one.
    fn takes(&self, dispatcher: usize, burst: &Burst, now_ns: u64, stay_ns: u64) -> bool {
        self.dispatcher == dispatcher
            && burst.samples <= self.samples
            && burst.bytes <= self.bytes
            && now_ns.saturating_sub(self.issued_ns) < stay_ns
    }
}

thread_local! {
    static STAY: Cell<Stay> = const { Cell::new(Stay::NONE) };
}

/// Size of a burst: the first samples of a call that go together.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(super) struct Burst {
    samples: usize,
    bytes: u64,
}

impl Burst {
    /// Makes a burst of one sample.
    pub fn of(sample: &Sample) -> Burst {
        Burst {
            samples: 1,
            bytes: u64::from(sample.len),
        }
    }

    /// Adds one sample.
    pub fn add(&mut self, sample: &Sample) {
        self.samples += 1;
        self.bytes += u64::from(sample.len);
    }

    /// The first burst of `samples`; empty for no samples.
    fn first(samples: &[Sample]) -> Burst {
        let mut burst = Burst::default();
        for s in samples.iter().take(BURST) {
            if burst.samples > 0 && burst.bytes + u64::from(s.len) > BURST_BYTES {
                break;
            }
            burst.add(s);
        }
        burst
    }

    /// Whether `samples` make at most `most` bursts.
    fn are_at_most(mut samples: &[Sample], most: usize) -> bool {
        if samples.len() > most.saturating_mul(BURST) {
            return false;
        }
        for _ in 0..most {
            samples = &samples[Burst::first(samples).samples..];
        }
        samples.is_empty()
    }
}

impl Dispatcher {
    /// Issues samples and returns at once. Each sample is completed exactly once: from a NIC
    /// thread, or from the thread that empties the backlog after an abort.
    ///
    /// The call never sleeps. It takes no lock, except that a policy by health locks the peer for
    /// each choice. It allocates only for samples that go to the backlog, which has a lock and
    /// grows by rows.
    pub fn issue(&self, samples: &[Sample]) {
        let s = &*self.shared;
        if s.issued.fetch_add(samples.len() as u64, Ordering::Relaxed) == 0 {
            s.first_ns.store(now_ns().max(1), Ordering::Relaxed);
        }
        if let Some(health) = s.health.get() {
            s.issue_by_health(health, samples);
        } else {
            let mut left = samples;
            if !s.has_backlog() && Burst::are_at_most(samples, s.connections.len()) {
                let given = s.give(samples);
                left = &samples[given..];
            }
            if !left.is_empty() {
                s.back_up(left);
            }
        }
        if s.aborted.load(Ordering::SeqCst) {
            s.empty_backlog();
        }
    }
}

impl Shared {
    /// Puts samples into the backlog, and sees to it that threads post them when slots come free.
    fn back_up(&self, samples: &[Sample]) {
        let bytes = samples.iter().take(BURST).map(|s| u64::from(s.len)).sum();
        let is_small = samples.len() <= BURST && self.is_small(bytes);
        self.leave_to_others(samples.iter().copied());
        // A slot may have come free between the count and the push.
        fence(Ordering::SeqCst);
        if is_small {
            self.drive_all(0);
        } else {
            self.wake_all();
        }
    }

    /// Gives samples to connections, burst by burst. Returns the number of samples given; no
    /// connection has room for the rest.
    fn give(&self, samples: &[Sample]) -> usize {
        let dispatcher = ptr::from_ref(self).addr();
        let mut stay = STAY.get();
        let mut given = 0;
        while let Some(first) = samples.get(given) {
            let mut burst = Burst::first(&samples[given..]);
            let mut is_crowded = false;
            if !stay.takes(dispatcher, &burst, first.issued_ns, self.stay_ns) {
                let Some(chosen) = self.pick(first) else {
                    break;
                };
                let connection = &self.connections[chosen];
                stay = Stay {
                    dispatcher,
                    connection: chosen,
                    // 0, so that the code below checks whether the connection is idle.
                    issued_ns: 0,
                    samples: BURST.min(connection.load().room()),
                    bytes: BURST_BYTES.max(burst.bytes),
                    for_sleeper: 0,
                };
                is_crowded = connection.assigned() > CROWD;
                if stay.samples < burst.samples {
                    burst = Burst::first(&samples[given..given + stay.samples]);
                }
            }
            let connection = &self.connections[stay.connection];
            // Other threads write the connection's counters, so read them only when it may be idle.
            let is_recent = first.issued_ns.saturating_sub(stay.issued_ns) < ROUND_TRIP_NS;
            let is_idle = !is_recent && connection.is_idle();
            let next = &samples[given..given + burst.samples];
            let pushed = next
                .iter()
                .map_while(|s| connection.assigned.push(*s).ok())
                .count();
            if pushed == 0 {
                // Other threads have taken the room since the choice.
                stay = Stay::NONE;
                break;
            }
            given += pushed;
            stay.samples -= pushed;
            stay.bytes = stay.bytes.saturating_sub(burst.bytes);
            stay.issued_ns = first.issued_ns;
            burst.samples = pushed;
            let posts = is_idle || is_crowded;
            if !self.post_or_leave(connection, burst, posts, &mut stay.for_sleeper) {
                stay = Stay::NONE;
            }
        }
        STAY.set(stay);
        given
    }

    /// The connection that the arbiter chooses for a burst that begins with `first`; `None` where
    /// none has room.
    fn pick(&self, first: &Sample) -> Option<usize> {
        let advantage = BURST_BYTES / u64::from(first.len).max(1);
        let advantage = BURST.min(advantage as usize);
        let last = |c: &Connection| &self.last_of_peer[c.cfgs.peer];
        let chosen = self.arbiter.pick(self.connections.len(), |i| {
            let connection = &self.connections[i];
            let load = connection.load();
            match last(connection).load(Ordering::Relaxed) == i {
                true => load,
                false => load.with_more(advantage),
            }
        })?;
        let last = last(&self.connections[chosen]);
        if last.load(Ordering::Relaxed) != chosen {
            last.store(chosen, Ordering::Relaxed);
        }
        Some(chosen)
    }

    /// As [`Self::post_or_leave`], for samples that a policy by health has put into a ring.
    pub(super) fn post_or_leave_given(&self, connection: &Connection, burst: Burst, is_idle: bool) {
        let posts = is_idle || connection.assigned() > CROWD;
        self.post_or_leave(connection, burst, posts, &mut 0);
    }

    /// Whether the issuing thread may post `bytes` payload bytes.
    fn is_small(&self, bytes: u64) -> bool {
        bytes <= self.post_up_to
    }

    /// Posts or leaves a burst in a connection's ring. The caller posts the ring if the burst is
    /// small and either `posts` is true or the NIC thread sleeps. Otherwise the NIC thread posts,
    /// and is woken if it sleeps. `for_sleeper` counts the bursts of this stay posted for a
    /// sleeping NIC thread. Returns false where the connection is down.
    fn post_or_leave(
        &self,
        connection: &Connection,
        burst: Burst,
        posts: bool,
        for_sleeper: &mut u32,
    ) -> bool {
        // After the fence in `is_asleep`, this thread sees the connection down, or the thread that
        // takes it down sees the samples. A NIC thread that is awake sees the samples before it
        // sleeps.
        let thread = self.handles().get(connection.share);
        let sleeper = thread.filter(|t| t.is_asleep());
        if !connection.up.load(Ordering::SeqCst) {
            self.take_assigned_back(connection);
            self.wake_all();
            return false;
        }
        let posts = match sleeper {
            Some(_) => *for_sleeper < FOR_SLEEPER,
            None => posts,
        };
        if posts && self.is_small(burst.bytes) {
            *for_sleeper += u32::from(sleeper.is_some());
            self.drive(connection);
            return true;
        }
        sleeper.inspect(|t| NicThreadHandle::wake(t));
        self.handed_over
            .fetch_add(burst.samples as u64, Ordering::Relaxed);
        true
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use fabric::SourceId;

    fn samples(lengths: &[u32]) -> Vec<Sample> {
        let sample = |(id, len): (usize, &u32)| Sample {
            id: id as u64,
            index: id as u64,
            source: SourceId(0),
            offset: 0,
            len: *len,
            issued_ns: 1,
            first: None,
            tries: Default::default(),
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
                let burst = Burst::first(left);
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
            prop_assert_eq!(Burst::are_at_most(&all, most), bursts <= most);
        }
    }

    #[test]
    fn a_stay_ends_with_its_time_its_room_and_its_bytes() {
        let stay = Stay {
            dispatcher: 7,
            connection: 1,
            issued_ns: 1_000,
            samples: 3,
            bytes: 100,
            for_sleeper: 0,
        };
        let burst = |samples, bytes| Burst { samples, bytes };
        assert!(stay.takes(7, &burst(3, 100), 1_499, 500));
        assert!(!stay.takes(7, &burst(3, 100), 1_500, 500), "too late");
        assert!(!stay.takes(7, &burst(4, 100), 1_001, 500), "no room");
        assert!(!stay.takes(7, &burst(3, 101), 1_001, 500), "too long");
        assert!(
            !stay.takes(8, &burst(1, 1), 1_001, 500),
            "another dispatcher"
        );
        assert!(!Stay::NONE.takes(0, &burst(1, 1), 0, 500), "no stay");
    }
}
