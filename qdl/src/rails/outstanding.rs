//! The arbiter of the policies without health.
//!
//! The arbiter reads each connection's samples in flight and slots. It chooses among the
//! connections that are up and not full. If there is none, the sample waits in the common backlog
//! until a slot is free, so the assignment is as late as possible.

use std::sync::atomic::{AtomicU32, Ordering};

use crate::wire::Policy;

/// Load of a connection.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Load {
    /// False if the connection is lost or was never up.
    pub up: bool,
    /// Samples in flight.
    pub in_flight: usize,
    /// Maximum number of samples in flight.
    pub slots: usize,
}

impl Load {
    pub(crate) fn takes(self) -> bool {
        self.up && self.in_flight < self.slots
    }

    /// Returns this load with `more` additional samples in flight and the same room.
    pub(crate) fn with_more(self, more: usize) -> Self {
        Load {
            in_flight: self.in_flight + more,
            slots: self.slots + more,
            ..self
        }
    }

    /// Returns the number of samples that the connection can take now.
    pub fn room(self) -> usize {
        self.slots.saturating_sub(self.in_flight)
    }
}

/// Chooses connections by a policy. All issuing threads share it.
#[derive(Debug)]
pub struct Arbiter {
    policy: Policy,
    turn: AtomicU32,
}

impl Arbiter {
    /// Creates an arbiter that begins with the first connection.
    pub fn new(policy: Policy) -> Self {
        Arbiter {
            policy,
            turn: AtomicU32::new(0),
        }
    }

    pub(crate) fn policy(&self) -> Policy {
        self.policy
    }

    /// Chooses one of connections `0..connections`; `load` returns the load of an index. `None` if
    /// no connection can take a sample now.
    pub fn pick(&self, connections: usize, load: impl Fn(usize) -> Load) -> Option<usize> {
        if connections == 0 {
            return None;
        }
        let start = self.turn.fetch_add(1, Ordering::Relaxed) as usize % connections;
        let mut best: Option<(usize, usize)> = None;
        // Plain loops, because this code visits every connection for each query.
        for range in [start..connections, 0..start] {
            for i in range {
                let l = load(i);
                if !l.takes() {
                    continue;
                }
                if self.policy == Policy::RoundRobin {
                    // The turns of those passed over end too, or the next one had them as well.
                    let passed = (i + connections - start) % connections;
                    self.turn.fetch_add(passed as u32, Ordering::Relaxed);
                    return Some(i);
                }
                if best.is_none_or(|(least, _)| l.in_flight < least) {
                    best = Some((l.in_flight, i));
                }
            }
        }
        best.map(|(_, i)| i)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn loads() -> impl Strategy<Value = Vec<Load>> {
        prop::collection::vec(
            (any::<bool>(), 0usize..8, 1usize..8).prop_map(|(up, in_flight, slots)| Load {
                up,
                in_flight,
                slots,
            }),
            0..9,
        )
    }

    proptest! {
        #[test]
        fn only_a_connection_that_takes_a_sample_is_chosen(
            loads in loads(), rr: bool, turns: u32,
        ) {
            let a = Arbiter::new(if rr { Policy::RoundRobin } else { Policy::LeastOutstanding });
            a.turn.store(turns, Ordering::Relaxed);
            match a.pick(loads.len(), |i| loads[i]) {
                Some(i) => {
                    prop_assert!(loads[i].takes());
                    if !rr {
                        let least = loads.iter().filter(|l| l.takes()).map(|l| l.in_flight).min();
                        prop_assert_eq!(Some(loads[i].in_flight), least);
                    }
                }
                None => prop_assert!(!loads.iter().any(|l| l.takes())),
            }
        }

        #[test]
        fn equals_are_used_evenly(n in 1usize..9, rounds in 1usize..20, rr: bool) {
            let a = Arbiter::new(if rr { Policy::RoundRobin } else { Policy::LeastOutstanding });
            let mut used = vec![0usize; n];
            for _ in 0..n * rounds {
                let load = |i: usize| Load { up: true, in_flight: used[i], slots: 1000 };
                let i = a.pick(n, load).expect("all take");
                used[i] += 1;
            }
            prop_assert!(used.iter().all(|u| *u == rounds));
        }

        #[test]
        fn round_robin_gives_no_connection_the_turns_of_one_that_is_down(
            n in 2usize..9, rounds in 1usize..20, down in 0usize..9,
        ) {
            let a = Arbiter::new(Policy::RoundRobin);
            let mut used = vec![0usize; n];
            used[down % n] = rounds;
            for _ in 0..(n - 1) * rounds {
                let load = |i: usize| Load { up: i != down % n, in_flight: 0, slots: 1000 };
                used[a.pick(n, load).expect("all but one take")] += 1;
            }
            prop_assert!(used.iter().all(|u| *u == rounds), "{used:?}");
        }
    }
}
