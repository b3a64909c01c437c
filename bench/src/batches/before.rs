//! The rules as they are without a profile of sizes: a batch is all that is pending, up to
//! `max_batch` or to the largest listed size that it fills.

use std::collections::VecDeque;

use accelerator::batcher::{Batcher, Begun, Estimates, Policy, Step};

/// What decides.
pub trait Rules {
    /// A sample arrived.
    fn push(&mut self, now_ns: u64, sample: u64);
    /// What a free worker does while `busy` others run batches.
    fn step(&self, now_ns: u64, busy: usize) -> Step;
    /// Adds the samples of the next batch.
    fn take(&mut self, now_ns: u64, batch: &mut Vec<u64>) -> Begun;
    /// A batch ended that took so long.
    fn ended(&mut self, now_ns: u64, begun: Begun, ns: u64);
}

impl Rules for Batcher<u64> {
    fn push(&mut self, now_ns: u64, sample: u64) {
        Batcher::push(self, now_ns, sample);
    }

    fn step(&self, now_ns: u64, busy: usize) -> Step {
        Batcher::step(self, now_ns, busy)
    }

    fn take(&mut self, now_ns: u64, batch: &mut Vec<u64>) -> Begun {
        Batcher::take(self, now_ns, batch)
    }

    fn ended(&mut self, now_ns: u64, begun: Begun, ns: u64) {
        Batcher::ended(self, now_ns, begun, ns);
    }
}

/// See the module.
#[derive(Debug)]
pub struct Before {
    policy: Policy,
    sizes: Vec<usize>,
    estimates: Estimates,
    pending: VecDeque<(u64, u64)>,
}

impl Before {
    /// An empty one.
    pub fn new(policy: Policy, sizes: &[usize]) -> Self {
        Before {
            policy,
            sizes: sizes.to_vec(),
            estimates: Estimates::default(),
            pending: VecDeque::new(),
        }
    }
}

impl Rules for Before {
    fn push(&mut self, now_ns: u64, sample: u64) {
        self.pending.push_back((now_ns, sample));
    }

    fn step(&self, now_ns: u64, busy: usize) -> Step {
        let Some(&(oldest, _)) = self.pending.front() else {
            return Step::Wait;
        };
        let mut due = oldest.saturating_add(self.policy.max_delay_ns);
        if let Some(latency) = self.policy.latency_ns {
            let latest = latency.saturating_sub(self.estimates.of(self.pending.len()));
            due = due.min(oldest.saturating_add(latest));
        }
        if busy == 0 || self.pending.len() >= self.policy.max_batch || due <= now_ns {
            Step::Run
        } else {
            Step::WaitUntil(due)
        }
    }

    fn take(&mut self, _: u64, batch: &mut Vec<u64>) -> Begun {
        let most = self.pending.len().min(self.policy.max_batch);
        let filled = self.sizes.iter().rev().find(|size| **size <= most);
        let n = filled.copied().unwrap_or(most);
        batch.extend(self.pending.drain(..n).map(|(_, sample)| sample));
        Begun::of(n)
    }

    fn ended(&mut self, _: u64, begun: Begun, ns: u64) {
        self.estimates.observe(begun.samples, ns);
    }
}
