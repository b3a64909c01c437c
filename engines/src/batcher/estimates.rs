//! Estimates how long a batch takes in the engine, from the times of earlier batches.

/// Number of size classes: one for each power of two up to `MAX_BATCH`, and one for larger batches.
const PLACES: usize = 18;

/// Estimated engine time by batch size, in nanoseconds. Plain data.
#[derive(Clone, Debug, Default)]
pub struct Estimates {
    /// Element `i` is for batches of more than `2^(i-1)` and up to `2^i` samples; 0 without a time.
    ns: [u64; PLACES],
}

impl Estimates {
    /// Records that a batch of `samples` took `ns` nanoseconds. The estimate moves half the way to
    /// a longer time, an eighth of the way to a shorter: an underestimate makes answers late.
    pub fn observe(&mut self, samples: usize, ns: u64) {
        let place = &mut self.ns[place(samples)];
        *place = match *place {
            0 => ns,
            old if ns > old => old + (ns - old).div_ceil(2),
            old => old - (old - ns) / 8,
        };
    }

    /// Expected engine time of a batch of `samples`, in nanoseconds; 0 before any batch has run.
    /// If this size class has no time, the next larger class counts, else the next smaller.
    pub fn of(&self, samples: usize) -> u64 {
        let at = place(samples);
        let known = |ns: &&u64| **ns > 0;
        let larger = self.ns[at..].iter().find(known);
        let smaller = || self.ns[..at].iter().rev().find(known);
        larger.or_else(smaller).copied().unwrap_or(0)
    }
}

fn place(samples: usize) -> usize {
    let ceiling = usize::BITS - samples.saturating_sub(1).leading_zeros();
    (ceiling as usize).min(PLACES - 1)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn an_estimate_lies_between_what_was_seen(
            seen in prop::collection::vec((1usize..70_000, 1u64..1_000_000), 1..40),
            asked in 1usize..70_000,
        ) {
            let mut e = Estimates::default();
            prop_assert_eq!(e.of(asked), 0);
            for (n, ns) in &seen {
                e.observe(*n, *ns);
            }
            let min = seen.iter().map(|s| s.1).min().expect("some");
            let max = seen.iter().map(|s| s.1).max().expect("some");
            prop_assert!((min..=max).contains(&e.of(asked)));
        }
    }

    #[test]
    fn slower_is_believed_sooner_than_faster() {
        let mut e = Estimates::default();
        e.observe(64, 800);
        e.observe(64, 1000);
        assert_eq!(e.of(33), 900);
        e.observe(50, 100);
        assert_eq!(e.of(64), 800);
        assert_eq!((e.of(1), e.of(65)), (800, 800), "the only size there is");
        e.observe(128, 5);
        assert_eq!((e.of(65), e.of(64)), (5, 800));
    }

    #[test]
    fn sizes_share_a_place_up_to_a_power_of_two() {
        let places = [1, 2, 3, 4, 5, 64, 65, 65_536].map(place);
        assert_eq!(places, [0, 1, 2, 2, 3, 6, 7, 16]);
        assert_eq!(place(usize::MAX), PLACES - 1);
    }
}
