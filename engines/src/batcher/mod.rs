//! Decides which samples run together, and when.
//!
//! The rules for a free worker:
//!
//! 1. If `max_batch` samples are pending, run `max_batch` samples now.
//! 2. If no other worker is busy (the engine is idle), run the pending samples now.
//! 3. Otherwise wait until the oldest sample is `max_delay` old; then run the pending samples.
//!
//! If answers have a due time, rule 3 waits less: the batch begins early enough to answer the
//! oldest sample in time, by the estimated engine time of the batch. If the engine runs listed
//! sizes, a batch takes the largest listed size that the pending samples fill; the youngest samples
//! wait. If that size is less than half of the pending samples, the batch takes all of them, and
//! the engine pads the batch to the next size.
//!
//! With `begin_apart`, a batch begins at least that time after the previous batch began, unless the
//! engine is idle. Batches that begin together on a GPU run the same layers at the same time: they
//! compete first for memory, then for arithmetic. `docs/gpu.md` has measurements.
//!
//! Samples leave in the order of their arrival. The batcher is a plain data structure: no thread,
//! no clock, no engine.

mod estimates;

use std::collections::VecDeque;

use self::estimates::Estimates;

/// Pending samples that a batcher holds without an allocation: the most in flight on a connection.
const ROOM: usize = 8192;

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Policy {
    /// Most samples in a batch; 0 counts as 1.
    pub max_batch: usize,
    /// Longest wait for a larger batch, in nanoseconds since the arrival of the oldest sample.
    pub max_delay_ns: u64,
    /// Nanoseconds from a sample's arrival to the due time of its answer, if it has one.
    pub latency_ns: Option<u64>,
    /// Least nanoseconds between the beginnings of two batches while other workers are busy; with
    /// 0, a batch may begin as soon as a worker is free.
    pub begin_apart_ns: u64,
}

/// What a free worker does next.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum BatchDecision {
    /// Call [`Batcher::take`] and run the batch.
    Run,
    /// Wait until this time (in nanoseconds on the caller's clock), or until samples arrive or the
    /// engine becomes idle; then call [`Batcher::step`] again.
    WaitUntil(u64),
    Wait,
}

/// Pending samples. `T` is the caller's handle of a sample.
#[derive(Debug)]
pub struct Batcher<T> {
    policy: Policy,
    /// Listed batch sizes, ascending; empty if the engine runs any size.
    sizes: Box<[usize]>,
    estimates: Estimates,
    /// Earliest begin time of the next batch while other workers are busy, in nanoseconds.
    next_ns: u64,
    /// Arrival time and sample, ordered by arrival: the front is the oldest.
    pending: VecDeque<(u64, T)>,
}

impl<T> Batcher<T> {
    /// An empty batcher. `sizes` lists the engine's sizes, ascending; empty if it runs any size.
    pub fn new(policy: Policy, sizes: &[usize]) -> Self {
        let policy = Policy {
            max_batch: policy.max_batch.max(1),
            ..policy
        };
        Batcher {
            policy,
            sizes: sizes.into(),
            estimates: Estimates::default(),
            next_ns: 0,
            pending: VecDeque::with_capacity(ROOM.max(2 * policy.max_batch)),
        }
    }

    /// Adds a sample that arrived at `arrived_ns`, in front of the samples that arrived later.
    /// Several rails deliver almost in order, so these are few.
    pub fn push(&mut self, arrived_ns: u64, sample: T) {
        let latest = self.pending.iter().rev();
        let younger = latest.take_while(|(at, _)| *at > arrived_ns).count();
        if younger == 0 {
            self.pending.push_back((arrived_ns, sample));
        } else {
            let at = self.pending.len() - younger;
            self.pending.insert(at, (arrived_ns, sample));
        }
    }

    /// Decides what a free worker does at `now_ns` while `busy` other workers run batches.
    pub fn step(&self, now_ns: u64, busy: usize) -> BatchDecision {
        let Some(&(oldest, _)) = self.pending.front() else {
            return BatchDecision::Wait;
        };
        let mut due = oldest.saturating_add(self.policy.max_delay_ns);
        if let Some(latency) = self.policy.latency_ns {
            // The batch begins early enough to end at the due time; a late batch runs at once.
            let latest = latency.saturating_sub(self.estimates.of(self.pending.len()));
            due = due.min(oldest.saturating_add(latest));
        }
        if self.pending.len() >= self.policy.max_batch {
            due = now_ns;
        }
        let begin = due.max(self.next_ns);
        if busy == 0 || begin <= now_ns {
            BatchDecision::Run
        } else {
            BatchDecision::WaitUntil(begin)
        }
    }

    /// Records that a batch of `samples` took `ns` nanoseconds in the engine.
    pub fn observe(&mut self, samples: usize, ns: u64) {
        self.estimates.observe(samples, ns);
    }

    /// Begins a batch: appends the oldest samples, at most `max_batch`, to `batch`. Takes the
    /// largest listed size that these samples fill, or all if that size is less than half of them.
    pub fn take(&mut self, now_ns: u64, batch: &mut Vec<T>) {
        let most = self.pending.len().min(self.policy.max_batch);
        let filled = self.sizes.iter().rev().find(|size| **size <= most);
        let n = match filled {
            Some(size) if 2 * size >= most => *size,
            _ => most,
        };
        batch.extend(self.pending.drain(..n).map(|(_, sample)| sample));
        self.next_ns = now_ns.saturating_add(self.policy.begin_apart_ns);
    }

    pub fn len(&self) -> usize {
        self.pending.len()
    }

    pub fn is_empty(&self) -> bool {
        self.pending.is_empty()
    }

    pub fn clear(&mut self) {
        self.pending.clear();
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    /// Simulated workers and clock: free workers ask the batcher, busy ones finish at a given time.
    struct World {
        batcher: Batcher<usize>,
        sizes: Vec<usize>,
        policy: Policy,
        now: u64,
        busy_until: Vec<Option<u64>>,
        /// Begin time of the last batch.
        began: Option<u64>,
        arrived: Vec<u64>,
        batches: Vec<Vec<usize>>,
    }

    impl World {
        fn new(policy: Policy, sizes: &[usize], workers: usize) -> Self {
            World {
                batcher: Batcher::new(policy, sizes),
                sizes: sizes.to_vec(),
                policy,
                now: 0,
                busy_until: vec![None; workers],
                began: None,
                arrived: Vec::new(),
                batches: Vec::new(),
            }
        }

        /// Lets every free worker call `step`, as in the pipeline; returns the next wake-up time.
        fn settle(&mut self, compute: u64) -> Option<u64> {
            for w in &mut self.busy_until {
                if w.is_some_and(|t| t <= self.now) {
                    *w = None;
                }
            }
            loop {
                let free = self.busy_until.iter().position(Option::is_none)?;
                let busy = self.busy_until.iter().flatten().count();
                let due = self.due();
                match self.batcher.step(self.now, busy) {
                    BatchDecision::Run => {
                        let mut batch = Vec::new();
                        let pending = self.batcher.len();
                        let before = self.began.replace(self.now).filter(|_| busy > 0);
                        let apart = before.map_or(u64::MAX, |at| self.now - at);
                        assert!(apart >= self.policy.begin_apart_ns, "{apart} ns apart");
                        let is_due = due.is_some_and(|due| due <= self.now);
                        assert!(busy == 0 || is_due, "{due:?} is later than {}", self.now);
                        self.batcher.take(self.now, &mut batch);
                        self.check_size(pending, batch.len());
                        self.batcher.observe(batch.len(), compute);
                        self.batches.push(batch);
                        self.busy_until[free] = Some(self.now + compute);
                    }
                    BatchDecision::WaitUntil(t) => {
                        assert!(t > self.now, "a deadline in the past is a batch");
                        assert_eq!(Some(t), due, "deadlines are exact");
                        assert!(busy > 0, "no sample waits for an idle engine");
                        return Some(t);
                    }
                    BatchDecision::Wait => {
                        assert!(self.batcher.is_empty());
                        return None;
                    }
                }
            }
        }

        /// Time from which a free worker beside busy ones begins a batch, by the policy.
        fn due(&self) -> Option<u64> {
            let oldest = self.batcher.pending.front()?.0;
            let delay = match self.policy.latency_ns {
                Some(latency) => {
                    let takes = self.batcher.estimates.of(self.batcher.len());
                    self.policy.max_delay_ns.min(latency.saturating_sub(takes))
                }
                None => self.policy.max_delay_ns,
            };
            let next = self.began.unwrap_or(0) + self.policy.begin_apart_ns;
            let due = match self.batcher.len() < self.policy.max_batch {
                true => oldest + delay,
                false => self.now,
            };
            Some(due.max(next))
        }

        /// Checks that a batch has a listed size or holds all pending samples.
        fn check_size(&self, pending: usize, took: usize) {
            let most = pending.min(self.policy.max_batch);
            assert!((1..=most).contains(&took));
            let sizes = &self.sizes;
            if sizes.iter().any(|s| *s <= most) {
                let listed = took == most || sizes.contains(&took);
                assert!(listed, "{took} of {pending}, listed {sizes:?}");
            }
        }

        /// Advances the clock to `to`, and lets workers act at every deadline and batch end before.
        fn advance(&mut self, to: u64, compute: u64) {
            loop {
                let wake = self.settle(compute);
                let times = self.busy_until.iter().flatten().copied().chain(wake);
                let next = times.filter(|t| *t > self.now).min();
                match next {
                    Some(t) if t <= to => self.now = t,
                    _ => break,
                }
            }
            self.now = to;
        }
    }

    proptest! {
        #[test]
        fn every_sample_runs_once_in_order_and_in_time(
            max_batch in 1usize..9,
            max_delay_ns in 0u64..50,
            latency_ns in prop::option::of(1u64..80),
            begin_apart_ns in prop_oneof![Just(0), 1u64..40],
            sizes in prop::collection::btree_set(1usize..9, 0..4),
            workers in 1usize..4,
            events in prop::collection::vec((0u64..40, 1usize..12, 1u64..60), 1..60),
        ) {
            let sizes: Vec<usize> = sizes.into_iter().filter(|s| *s <= max_batch).collect();
            let policy = Policy { max_batch, max_delay_ns, latency_ns, begin_apart_ns };
            let mut w = World::new(policy, &sizes, workers);
            for (gap, burst, compute) in events {
                w.advance(w.now + gap, compute);
                for _ in 0..burst {
                    let id = w.arrived.len();
                    w.arrived.push(w.now);
                    w.batcher.push(w.now, id);
                }
                w.settle(compute);
            }
            w.advance(w.now + 1_000_000, 1);

            prop_assert!(w.batcher.is_empty());
            prop_assert!(w.batches.iter().all(|b| !b.is_empty() && b.len() <= max_batch));
            let order: Vec<usize> = w.batches.concat();
            let all: Vec<usize> = (0..w.arrived.len()).collect();
            prop_assert_eq!(order, all, "each once, oldest first");
        }

        #[test]
        fn late_arrivals_are_put_in_order(times in prop::collection::vec(0u64..20, 1..40)) {
            let mut b = batcher(64, [5, 0], &[]);
            for (i, t) in times.iter().enumerate() {
                b.push(*t, (*t, i));
            }
            let oldest = times.iter().min().copied().unwrap_or(0);
            prop_assert_eq!(b.step(0, 1), BatchDecision::WaitUntil(oldest + 5));
            let mut out = Vec::new();
            b.take(0, &mut out);
            let mut want = out.clone();
            want.sort_unstable();
            prop_assert_eq!(out, want, "by arrival; equal times in the order of delivery");
        }
    }

    /// Delay and time between two begins in nanoseconds.
    fn batcher<T>(max_batch: usize, times: [u64; 2], sizes: &[usize]) -> Batcher<T> {
        let [max_delay_ns, begin_apart_ns] = times;
        let policy = Policy {
            max_batch,
            max_delay_ns,
            latency_ns: None,
            begin_apart_ns,
        };
        Batcher::new(policy, sizes)
    }

    #[test]
    fn a_batch_is_the_largest_size_that_is_filled_to_half_at_least() {
        let take = |sizes: &[usize], pending: usize| {
            let mut b = batcher(64, [100, 0], sizes);
            (0..pending).for_each(|i| b.push(0, i));
            let mut taken = Vec::new();
            b.take(0, &mut taken);
            taken.len()
        };
        let taken = [1, 2, 3, 31, 32, 63, 64, 200].map(|n| take(&[1, 32, 64], n));
        assert_eq!(taken, [1, 1, 3, 31, 32, 32, 64, 64]);
        assert_eq!([7, 3, 1].map(|n| take(&[2, 4, 8], n)), [4, 2, 1]);
    }

    #[test]
    fn a_time_near_the_end_of_the_clock_does_not_wrap() {
        let mut b = batcher(2, [u64::MAX, 0], &[]);
        b.push(7, ());
        assert_eq!(b.step(8, 1), BatchDecision::WaitUntil(u64::MAX));
    }
}
