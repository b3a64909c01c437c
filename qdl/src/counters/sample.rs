//! Timestamps of a sample, and their split into stages.

use record::Stage;

/// Timestamps of one sample, and the durations that the accelerator reports.
///
/// All `_ns` fields are readings of this process's clock, in nanoseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct SampleTimes {
    /// Issue by LoadGen.
    pub issued_ns: u64,
    /// End of the last failed attempt; 0 without a failed attempt.
    pub failed_ns: u64,
    /// Post of the sample's write; if the sample was sent again, of the last write.
    pub posted_ns: u64,
    /// The NIC thread read the response.
    pub seen_ns: u64,
    /// Return of `QuerySamplesComplete`.
    pub completed_ns: u64,
    /// Microseconds that the sample waited on the accelerator for its batch.
    pub queue_us: u32,
    /// Microseconds that the sample's batch spent in the engine.
    pub compute_us: u32,
    /// Payload bytes of the request.
    pub bytes_out: u32,
    /// Payload bytes of the response.
    pub bytes_in: u32,
    /// The NIC thread read the response's first part; `seen_ns` for a response in one part.
    pub first_ns: u64,
    /// Microseconds from the sample's arrival at the accelerator to the post of the first part.
    pub first_residence_us: u32,
    /// Payload bytes of the response's first part; `bytes_in` for a response in one part.
    pub first_bytes: u32,
    /// A prefill node gave the first token: `failed_ns` is the time of its handle.
    pub is_prefilled: bool,
    /// The NIC thread read the decode node's first part; 0 without one.
    pub decoded_ns: u64,
    /// Number of writes of the response; 1 for a response in one part.
    pub parts: u32,
    /// Mean over all parts of the microseconds from `posted_ns` to the part's arrival.
    pub parts_after_us: u32,
    /// Mean microseconds from the sample's arrival at the accelerator to the post of a part.
    pub parts_residence_us: u32,
    /// Index of the connection that carried the response; 0 without a connection.
    pub connection: u32,
}

/// LoadGen's limits on the token times of each sample, in nanoseconds.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct TokenLimits {
    /// Time from the issue to the first token.
    pub ttft_ns: u64,
    /// Time per token after the first.
    pub tpot_ns: u64,
}

impl TokenLimits {
    /// Whether a sample, with an answer of `tokens` tokens, is within both limits, as LoadGen
    /// computes the times. LoadGen counts an answer of fewer than two tokens as an error.
    pub(crate) fn hold(self, t: &SampleTimes, tokens: u64) -> bool {
        let tpot_ns = t.tpot_ns(tokens.saturating_sub(1));
        t.ttft_ns() <= self.ttft_ns && tpot_ns.is_some_and(|ns| ns <= self.tpot_ns)
    }
}

impl SampleTimes {
    pub(crate) fn ttft_ns(&self) -> u64 {
        self.first_ns.saturating_sub(self.issued_ns)
    }

    /// Returns the time from the first part to the last, per token of `later` tokens that came in
    /// this time; `None` without such tokens.
    pub(crate) fn tpot_ns(&self, later: u64) -> Option<u64> {
        let whole = self.seen_ns.saturating_sub(self.first_ns);
        whole.checked_div(later)
    }

    /// Returns the nanoseconds of each stage (`Stage as usize`), and whether their sum is right.
    ///
    /// The sum differs from the total if timestamps decrease, or if the accelerator's residence, in
    /// whole microseconds, exceeds the round trip (`network` is then 0).
    pub(crate) fn split(&self) -> ([u64; Stage::COUNT], bool) {
        let queue = u64::from(self.queue_us) * 1000;
        let compute = u64::from(self.compute_us) * 1000;
        let round_trip = self.seen_ns.saturating_sub(self.posted_ns);
        let mut ns = [0; Stage::COUNT];
        let begun_ns = match self.failed_ns {
            0 => self.issued_ns,
            failed_ns => failed_ns,
        };
        let before = match self.is_prefilled {
            true => Stage::Prefill,
            false => Stage::Failed,
        };
        ns[before as usize] = begun_ns.saturating_sub(self.issued_ns);
        if self.decoded_ns > 0 {
            ns[Stage::Transfer as usize] = self.decoded_ns.saturating_sub(begun_ns);
        }
        ns[Stage::IssueToPost as usize] = self.posted_ns.saturating_sub(begun_ns);
        ns[Stage::Network as usize] = round_trip.saturating_sub(queue + compute);
        ns[Stage::Queue as usize] = queue;
        ns[Stage::Compute as usize] = compute;
        ns[Stage::Completion as usize] = self.completed_ns.saturating_sub(self.seen_ns);
        ns[Stage::RoundTrip as usize] = round_trip;
        ns[Stage::Total as usize] = self.completed_ns.saturating_sub(self.issued_ns);
        let parts: u64 = Stage::PARTS
            .iter()
            .map(|s| ns[*s as usize])
            .fold(0, u64::saturating_add);
        (ns, parts == ns[Stage::Total as usize])
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn the_parts_add_up_to_the_total(
            start in 0u64..1 << 50,
            gaps in prop::array::uniform3(0u64..1 << 40),
            failed in 0u64..1 << 40,
            queue_us in 0u32..1 << 20,
            compute_us in 0u32..1 << 20,
        ) {
            let residence = (u64::from(queue_us) + u64::from(compute_us)) * 1000;
            let posted_ns = start + failed + gaps[0];
            let seen_ns = posted_ns + residence + gaps[1];
            let times = SampleTimes {
                issued_ns: start,
                failed_ns: if failed == 0 { 0 } else { start + failed },
                posted_ns,
                seen_ns,
                completed_ns: seen_ns + gaps[2],
                queue_us,
                compute_us,
                ..SampleTimes::default()
            };
            let (ns, adds_up) = times.split();
            prop_assert!(adds_up);
            prop_assert_eq!(ns[Stage::Network as usize], gaps[1]);
            prop_assert_eq!(ns[Stage::RoundTrip as usize], residence + gaps[1]);
            let total = failed + gaps.iter().sum::<u64>() + residence;
            prop_assert_eq!(ns[Stage::Total as usize], total);
            prop_assert_eq!(ns[Stage::Failed as usize], failed);
        }

        #[test]
        fn marks_in_any_order_do_no_harm(
            marks in prop::array::uniform4(any::<u64>()),
            queue_us: u32,
            compute_us: u32,
        ) {
            let [issued_ns, posted_ns, seen_ns, completed_ns] = marks;
            let times = SampleTimes {
                issued_ns,
                posted_ns,
                seen_ns,
                completed_ns,
                queue_us,
                compute_us,
                ..SampleTimes::default()
            };
            let (ns, adds_up) = times.split();
            if adds_up {
                let parts: u64 = Stage::PARTS.iter().map(|s| ns[*s as usize]).sum();
                prop_assert_eq!(parts, ns[Stage::Total as usize]);
            }
        }
    }

    #[test]
    fn a_residence_longer_than_the_round_trip_is_noticed() {
        let times = SampleTimes {
            posted_ns: 100,
            seen_ns: 1_900,
            completed_ns: 2_000,
            compute_us: 2,
            ..SampleTimes::default()
        };
        let (ns, adds_up) = times.split();
        assert_eq!(ns[Stage::Network as usize], 0);
        assert!(!adds_up);
    }
}
