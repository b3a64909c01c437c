//! Samples that come closer together than posting them takes: the thread that issues leaves them to
//! NIC threads.
//!
//! ```text
//!   issue --> is there time to post it? (`connection::doorbell`)
//!               yes, or nothing else is outstanding: it is posted here and now
//!               no: the lane's connection, its queue --> posted by its NIC thread, which is awake
//!                   \-> asleep: posted here, until that has taken as long as waking would; woken
//! ```
//!
//! A *lane* is the connection that a thread stays with for a while: what it leaves there in a row
//! goes with one doorbell, and one other thread alone looks at the lines it writes. It stays for as
//! long as it would rest from what choosing and posting cost, for as many samples as that doorbell
//! is worth and a burst at most, and then takes the connection with the fewest samples in flight.
//! Where their copies take longer than a doorbell, what is not posted yet counts for more, and a
//! thread that sleeps is as far behind as what it could have posted until it wakes ([`Weights`]).
//!
//! When the rest is over and nothing was posted of what it had left when that began, the NIC
//! thread has no core: then it posts itself, and rests again.

use std::{
    cell::Cell,
    iter,
    sync::atomic::{Ordering, fence},
};

use super::{Connection, Sample, Shared, end::BURST};
use crate::{
    clock::now_ns,
    connection::{DoorbellWait, NicThreadHandle, PostingCosts, Ringer, learned},
    rails::Load,
};

/// What a thread that issues remembers of where it leaves samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
struct Lane {
    connection: usize,
    /// So many more go there.
    more: usize,
    /// When it looks again what became of them.
    until_ns: u64,
    /// The connection it began with, and what was posted on that then.
    watched: usize,
    posted: u64,
    /// What posting here has taken since the NIC thread of share `asleep` fell asleep.
    asleep_ns: u64,
    asleep: usize,
    /// What choosing takes, with what had to be posted for it: smoothed.
    choosing_ns: u64,
}

thread_local! {
    static OF_THIS_THREAD: Cell<Lane> = const {
        Cell::new(Lane {
            connection: 0,
            more: 0,
            until_ns: 0,
            watched: 0,
            posted: 0,
            asleep_ns: 0,
            asleep: 0,
            choosing_ns: 0,
        })
    };
}

/// What it means for a sample, by what posting its like costs, to come behind others that are not
/// posted yet, or to a thread that sleeps; in samples in flight.
///
/// Short ones go many in a row, and their doorbell is what there is to share. Long ones take as
/// long as they are copied, whoever copies them: what matters then is that all threads copy.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Weights {
    /// What one that is not posted counts for beside being in flight: as many doorbells as its copy
    /// takes.
    unposted: usize,
    /// What a thread counts for that sleeps: the samples that it could have posted until it runs.
    asleep: usize,
    /// So many in a row: then a doorbell is a ninth of what they took.
    row: usize,
}

impl Weights {
    /// Of samples whose copy takes so long, where a doorbell takes `call_ns` and a thread that is
    /// woken runs after `awake_ns`.
    fn new(call_ns: u64, copy_ns: u64, awake_ns: u64) -> Self {
        let samples = |n: u64| usize::try_from(n).map_or(BURST, |n| n.min(BURST));
        let call_ns = call_ns.max(1);
        let each = copy_ns.saturating_add(call_ns.div_ceil(BURST as u64));
        let unposted = samples(each / call_ns);
        Weights {
            unposted,
            asleep: samples(awake_ns.div_ceil(each)) * (1 + unposted),
            row: samples(Ringer::rest_after(call_ns) / each).max(1),
        }
    }

    /// What a connection counts for beside what is in flight: so many samples were left to it and
    /// not posted yet, and its thread may sleep.
    fn of(&self, unposted: usize, asleep: bool) -> usize {
        unposted * self.unposted + if asleep { self.asleep } else { 0 }
    }

    /// A connection's load with these. It takes a sample as it did, however few its slots.
    fn weigh(&self, load: Load, unposted: usize, asleep: bool) -> Load {
        let more = self.of(unposted, asleep);
        Load {
            in_flight: load.in_flight + more,
            slots: load.slots + more,
            ..load
        }
    }
}

impl Lane {
    /// The thread of a share, which is to post, sleeps: whether this one posts instead, at
    /// `cost_ns`. It does until that has taken as long as the other would have taken to wake: so no
    /// sample waits more than twice as long as with the better of the two. What was posted for
    /// another that sleeps counts, too.
    fn posts_for_sleeper(&mut self, share: usize, cost_ns: u64, costs: &PostingCosts) -> bool {
        self.asleep = share;
        let spent = self.asleep_ns.saturating_add(cost_ns);
        let posts = spent <= costs.awake_ns;
        self.asleep_ns = if posts { spent } else { 0 };
        posts
    }

    /// The thread of a share is awake: if it is the one that slept, that is over. Others that are
    /// awake beside it say nothing of it.
    fn is_awake(&mut self, share: usize) {
        if self.asleep == share {
            self.asleep_ns = 0;
        }
    }
}

impl Shared {
    /// Leaves samples to NIC threads. Returns how many of them, from the first on: no connection
    /// has room for the others. `None` where they are all there is: they wait for nobody, and are
    /// the caller's to post.
    pub(super) fn leave(&self, samples: &[Sample], now: u64) -> Option<usize> {
        let mut lane = OF_THIS_THREAD.get();
        let mut left = 0;
        while let Some(first) = samples.get(left) {
            if lane.more == 0 || now >= lane.until_ns {
                if left == 0 && self.are_alone(samples.len()) {
                    lane.more = 0;
                    OF_THIS_THREAD.set(lane);
                    return None;
                }
                if !self.next_lane(&mut lane, now, u64::from(first.len)) {
                    break;
                }
            }
            let Some(connection) = self.connections.get(lane.connection) else {
                lane.more = 0;
                continue;
            };
            let in_a_row = samples[left..].iter().take(lane.more);
            let pushed = in_a_row
                .map_while(|s| connection.assigned.push(*s).ok())
                .count();
            if pushed == 0 {
                // Full since the look.
                lane.more = 0;
                break;
            }
            lane.more -= pushed;
            let bytes = samples[left..left + pushed]
                .iter()
                .map(|s| u64::from(s.len));
            left += pushed;
            self.hand_over(connection, &mut lane, (pushed, bytes.sum()));
        }
        OF_THIS_THREAD.set(lane);
        Some(left)
    }

    /// Whether nothing is outstanding but so many samples, which were counted as issued.
    fn are_alone(&self, samples: usize) -> bool {
        let completed = self.completed.iter().map(|c| c.load(Ordering::Relaxed));
        let done = completed.sum::<u64>() + self.completed_empty.load(Ordering::Relaxed);
        self.issued.load(Ordering::Relaxed).saturating_sub(done) <= samples as u64
    }

    /// Chooses the connection that samples of so many bytes go to next; `false` where none has
    /// room. Where the last rest is over it looks first what became of the samples that were left
    /// when it began.
    fn next_lane(&self, lane: &mut Lane, now: u64, bytes: u64) -> bool {
        let rest_is_over = now >= lane.until_ns;
        if rest_is_over && let Some(watched) = self.connections.get(lane.watched) {
            let posted = watched.posted.load(Ordering::Relaxed);
            if posted == lane.posted && watched.assigned() > 0 {
                self.drive(watched, None, iter::empty());
            }
        }
        let handles = self.handles();
        let connections = &self.connections;
        let call_ns = Ringer::cost_ns(0);
        let copy_ns = Ringer::cost_ns(bytes) - call_ns;
        let weights = Weights::new(call_ns, copy_ns, self.costs.awake_ns);
        let chosen = self.arbiter.pick(connections.len(), |i| {
            let (connection, load) = (&connections[i], connections[i].load());
            if !load.takes() {
                return load;
            }
            let thread = handles.get(connection.share);
            let asleep = thread.is_some_and(NicThreadHandle::seems_asleep);
            weights.weigh(load, connection.assigned(), asleep)
        });
        let Some(chosen) = chosen else {
            lane.more = 0;
            return false;
        };
        let load = connections[chosen].load();
        lane.connection = chosen;
        // Each with a slot, as far as can be seen.
        lane.more = load
            .slots
            .saturating_sub(load.in_flight)
            .clamp(1, weights.row);
        if rest_is_over {
            lane.watched = chosen;
            lane.posted = connections[chosen].posted.load(Ordering::Relaxed);
            let ended = now_ns();
            lane.choosing_ns = learned(lane.choosing_ns, ended.saturating_sub(now));
            let took = lane.choosing_ns.max(call_ns);
            lane.until_ns = ended.saturating_add(Ringer::rest_after(took));
        }
        true
    }

    /// So many samples, of so many bytes together, were put into a connection's queue: sees that
    /// they are posted.
    fn hand_over(&self, connection: &Connection, lane: &mut Lane, (n, bytes): (usize, u64)) {
        // Either the connection is seen to be down here, or whoever takes it down sees the samples;
        // and its thread, if it is awake, sees them before it sleeps.
        fence(Ordering::SeqCst);
        if !connection.up.load(Ordering::SeqCst) {
            lane.more = 0;
            self.take_assigned_back(connection);
            return self.drive_all(lane.connection);
        }
        let share = connection.share;
        let cost_ns = Ringer::cost_ns(bytes);
        match self.handles().get(share) {
            Some(thread) if !thread.needs_waking() => lane.is_awake(share),
            Some(thread) if !lane.posts_for_sleeper(share, cost_ns, &self.costs) => {
                thread.wake();
            }
            _ => {
                let began = now_ns();
                let done = self.drive(connection, None, iter::empty());
                if done.rang && done.posted == n {
                    Ringer::rang(began, now_ns(), bytes, DoorbellWait::ByCost);
                }
                return;
            }
        }
        self.handed_over.fetch_add(n as u64, Ordering::Relaxed);
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::{rails::Arbiter, wire::Policy};

    proptest! {
        /// Among connections with as many answers to come, a sample waits no longer until its copy
        /// begins than with the best of them, but for one sample's time; however few slots are
        /// free.
        #[test]
        fn a_long_sample_waits_no_longer_than_where_it_waits_least(
            call_ns in 100u64..20_000,
            times in 1u64..100,
            awake_ns in 1u64..100_000,
            connections in prop::collection::vec((0usize..200, any::<bool>(), 0usize..9), 1..9),
            answers in 0usize..9,
        ) {
            let copy_ns = call_ns * times;
            let weights = Weights::new(call_ns, copy_ns, awake_ns);
            prop_assume!(awake_ns / copy_ns < BURST as u64);
            let each = copy_ns + call_ns.div_ceil(BURST as u64);
            let arbiter = Arbiter::new(Policy::LeastOutstanding);
            let load = |(unposted, _, free): &(usize, bool, usize)| Load {
                up: true,
                in_flight: answers + unposted,
                slots: answers + unposted + free,
            };
            let chosen = arbiter.pick(connections.len(), |i| {
                let c = &connections[i];
                weights.weigh(load(c), c.0, c.1)
            });
            let waits = |(unposted, asleep, _): &(usize, bool, usize)| {
                *unposted as u64 * each + if *asleep { awake_ns } else { 0 }
            };
            let takes = connections.iter().filter(|c| load(c).takes());
            match takes.map(waits).min() {
                Some(least) => {
                    let chosen = &connections[chosen.expect("one takes it")];
                    prop_assert!(load(chosen).takes());
                    prop_assert!(waits(chosen) <= least + each);
                }
                None => prop_assert_eq!(chosen, None),
            }
        }

        /// Whatever they cost: a doorbell is hardly more than a ninth of what goes with it, or as
        /// many go with it as may, and none waits for more copies than a doorbell is worth.
        #[test]
        fn as_many_go_in_a_row_as_a_doorbell_is_worth(
            call_ns in 1u64..20_000,
            copy_ns in 0u64..1_000_000,
        ) {
            let row = Weights::new(call_ns, copy_ns, 10_000).row as u64;
            prop_assert!((1..=BURST as u64).contains(&row));
            prop_assert!(row == 1 || row * copy_ns <= Ringer::rest_after(call_ns));
            let more = copy_ns + call_ns.div_ceil(BURST as u64);
            prop_assert!(row == BURST as u64 || (row + 1) * more > Ringer::rest_after(call_ns));
        }

        /// What a thread spends on posting for one that sleeps is at most what waking it takes,
        /// over and over: then it is woken.
        #[test]
        fn a_sleeper_is_posted_for_no_longer_than_it_takes_to_wake(
            awake_ns in 1u64..60_000,
            costs in prop::collection::vec(1u64..20_000, 1..200),
        ) {
            let here = PostingCosts { awake_ns, ..PostingCosts::default() };
            let (mut lane, mut spent) = (Lane::default(), 0);
            for cost in costs {
                // Another that is awake beside it changes nothing.
                lane.is_awake(1);
                if lane.posts_for_sleeper(0, cost, &here) {
                    spent += cost;
                    prop_assert!(spent <= awake_ns);
                } else {
                    prop_assert!(spent + cost > awake_ns, "woken too soon");
                    spent = 0;
                }
            }
        }
    }

    #[test]
    fn short_ones_share_a_doorbell_and_long_ones_the_threads() {
        let of = |copy_ns| Weights::new(2_700, copy_ns, 12_000);
        let short = of(1);
        assert_eq!((short.unposted, short.asleep, short.row), (0, BURST, BURST));
        let middle = of(900);
        assert_eq!((middle.unposted, middle.asleep, middle.row), (0, 13, 22));
        let long = of(35_000);
        assert_eq!((long.unposted, long.asleep, long.row), (12, 13, 1));
        assert_eq!(long.of(2, true), 37);
        // Nothing that is measured makes it divide by nothing.
        assert_eq!(Weights::new(0, 0, 0).row, 8);
    }
}
