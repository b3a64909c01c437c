//! Chooses a plan's profile for a batch, and the size at which the batch runs. Plain data.

/// Smallest and largest batch of each profile.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct Profiles(Vec<(usize, usize)>);

impl Profiles {
    /// Takes the profiles of a plan. `choose` never returns a profile with an empty range.
    pub fn new(ranges: Vec<(usize, usize)>) -> Self {
        Profiles(ranges)
    }

    pub fn len(&self) -> usize {
        self.0.len()
    }

    pub fn largest(&self) -> usize {
        self.0.iter().map(|(_, most)| *most).max().unwrap_or(0)
    }

    /// The profile and the size for a batch of `n` samples: the smallest size of at least `n`. Of
    /// several profiles, takes the one with the smallest largest batch: its kernels suit `n` best.
    pub fn choose(&self, n: usize) -> Option<(usize, usize)> {
        let fits = |(i, (least, most)): (usize, &(usize, usize))| {
            (*most >= n && least <= most).then(|| (n.max(*least).max(1), *most, i))
        };
        let best = self.0.iter().enumerate().filter_map(fits).min()?;
        Some((best.2, best.0))
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_batch_runs_where_it_fits_and_no_larger_than_it_must(
            ranges in prop::collection::vec((0usize..20, 0usize..20), 0..5),
            n in 1usize..25,
        ) {
            let profiles = Profiles::new(ranges.clone());
            let sizes = |n: usize| {
                let fit = ranges.iter().filter(move |(l, m)| l <= m && *m >= n);
                fit.map(move |(l, _)| n.max(*l))
            };
            match profiles.choose(n) {
                None => prop_assert_eq!(sizes(n).count(), 0),
                Some((i, at)) => {
                    let (least, most) = ranges[i];
                    prop_assert!(at >= n && at >= least && at <= most);
                    prop_assert_eq!(Some(at), sizes(n).min());
                }
            }
        }
    }

    #[test]
    fn each_batch_goes_to_the_profile_tuned_nearest() {
        let p = Profiles::new(vec![(1, 8), (9, 64), (65, 512)]);
        assert_eq!(p.choose(1), Some((0, 1)));
        assert_eq!(p.choose(9), Some((1, 9)));
        assert_eq!(p.choose(512), Some((2, 512)));
        assert_eq!(p.choose(513), None);
        assert_eq!((p.len(), p.largest()), (3, 512));
        // A plan of one size pads.
        assert_eq!(Profiles::new(vec![(32, 32)]).choose(5), Some((0, 32)));
    }
}
