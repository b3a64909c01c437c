//! Chooses the size at which a batch runs. Plain data.

/// The listed batch sizes, ascending, with the largest last; or any size up to the largest.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Sizes {
    listed: Vec<usize>,
    pub largest: usize,
}

impl Sizes {
    /// The configured sizes. An empty list means any size up to `max_batch`. Otherwise the last
    /// listed size is `max_batch` (the configuration checks this), so every batch has a size.
    pub fn new(listed: &[usize], max_batch: usize) -> Self {
        Sizes {
            listed: listed.to_vec(),
            largest: max_batch,
        }
    }

    pub fn is_listed(&self, size: usize) -> bool {
        self.listed.binary_search(&size).is_ok()
    }

    /// Size at which `n` samples run: the smallest listed size of at least `n`, else `n`.
    pub fn run_at(&self, n: usize) -> usize {
        let found = self.listed.iter().copied().find(|size| *size >= n);
        found.unwrap_or(n)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn a_batch_runs_at_the_smallest_size_that_holds_it(
            steps in prop::collection::vec(1usize..40, 1..8),
            n in any::<prop::sample::Index>(),
        ) {
            let list: Vec<usize> = steps.iter().scan(0, |at, s| { *at += s; Some(*at) }).collect();
            let largest = list[list.len() - 1];
            let sizes = Sizes::new(&list, largest);
            let n = 1 + n.index(largest);
            let at = sizes.run_at(n);
            prop_assert!(at >= n && list.contains(&at));
            prop_assert!(list.iter().all(|s| *s < n || *s >= at));
        }
    }

    #[test]
    fn without_a_list_every_batch_runs_as_it_is() {
        let sizes = Sizes::new(&[], 64);
        assert_eq!(
            (sizes.run_at(1), sizes.run_at(63), sizes.largest),
            (1, 63, 64)
        );
        assert!(!sizes.is_listed(64));
        let sizes = Sizes::new(&[1, 64], 64);
        assert!(sizes.is_listed(64) && !sizes.is_listed(63));
    }
}
