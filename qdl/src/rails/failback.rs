//! Fail-back of a rail: a rail that was out of service must stay healthy for a hold time, which
//! doubles if the rail soon goes out of service again.

use serde::{Deserialize, Serialize};

/// Hold times.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FailbackCfgs {
    /// The first hold time, in nanoseconds.
    pub first_ns: u64,
    /// Maximum of the doubled hold time, in nanoseconds.
    pub most_ns: u64,
}

/// A rail that has been back for this many hold times begins again with the first hold time.
const FORGIVEN: u64 = 8;

/// Fail-back of one rail, whatever the reason of its outage.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Failback {
    cfgs: FailbackCfgs,
    hold_ns: u64,
    healthy_since: Option<u64>,
    back_at: Option<u64>,
}

impl Failback {
    /// Creates the state of a rail that has never been out of service.
    pub fn new(cfgs: FailbackCfgs) -> Self {
        Failback {
            cfgs,
            hold_ns: 0,
            healthy_since: None,
            back_at: None,
        }
    }

    /// Returns the current hold time in nanoseconds; 0 before the first outage.
    pub fn hold_ns(&self) -> u64 {
        self.hold_ns
    }

    /// Records that the rail goes out of service, or fails again during the hold.
    pub fn out(&mut self, now: u64) {
        let forgiven = self
            .back_at
            .is_some_and(|at| now.saturating_sub(at) >= self.hold_ns.saturating_mul(FORGIVEN));
        self.hold_ns = if self.hold_ns == 0 || forgiven {
            self.cfgs.first_ns
        } else {
            self.hold_ns.saturating_mul(2)
        }
        .min(self.cfgs.most_ns);
        self.healthy_since = None;
        self.back_at = None;
    }

    /// Records the rail's health. Returns true once the rail has been healthy for the hold time.
    pub fn looks(&mut self, now: u64, healthy: bool) -> bool {
        if !healthy {
            self.healthy_since = None;
            return false;
        }
        let since = *self.healthy_since.get_or_insert(now);
        let back = now.saturating_sub(since) >= self.hold_ns;
        if back && self.back_at.is_none() {
            self.back_at = Some(now);
        }
        back
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    const CFGS: FailbackCfgs = FailbackCfgs {
        first_ns: 100,
        most_ns: 1000,
    };

    #[test]
    fn the_hold_doubles_and_is_capped_and_forgiven() {
        let mut f = Failback::new(CFGS);
        let mut now = 0;
        for expected in [100, 200, 400, 800, 1000, 1000] {
            f.out(now);
            assert_eq!(f.hold_ns(), expected);
            assert!(!f.looks(now, true));
            assert!(!f.looks(now + expected - 1, true));
            assert!(f.looks(now + expected, true));
            now += expected + 10;
        }
        now += 8 * 1000;
        f.out(now);
        assert_eq!(f.hold_ns(), 100);
    }

    proptest! {
        /// A rail is back only after uninterrupted health for the hold time.
        #[test]
        fn health_must_be_unbroken(
            looks in prop::collection::vec((0u64..60, prop::bool::weighted(0.9)), 1..80),
        ) {
            let mut f = Failback::new(CFGS);
            f.out(0);
            let (mut now, mut since) = (0, None);
            for (passed, healthy) in looks {
                now += passed;
                since = if healthy { since.or(Some(now)) } else { None };
                let long = since.is_some_and(|s| now - s >= f.hold_ns());
                prop_assert_eq!(f.looks(now, healthy), long);
            }
        }
    }
}
