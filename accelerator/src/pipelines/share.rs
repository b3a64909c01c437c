//! Shares samples that may go to any GPU out to the pipelines. Plain data.

/// Shares `samples` out so that the sums of `load` (samples in flight) and share are as equal as
/// possible; the remainder goes to the least loaded. `shares` gets a share for each of `load`.
pub(super) fn share(load: &[usize], samples: usize, shares: &mut Vec<usize>) {
    shares.clear();
    shares.resize(load.len(), 0);
    let mut by_load: Vec<usize> = (0..load.len()).collect();
    by_load.sort_by_key(|i| load[*i]);
    // Raises the `filled` least loaded to the level of the next one, while samples remain.
    let mut left = samples;
    let (mut filled, mut level) = (0, 0);
    while let Some(next) = by_load.get(filled) {
        let need = filled.saturating_mul(load[*next] - level);
        if filled > 0 && need > left {
            break;
        }
        left -= need;
        level = load[*next];
        filled += 1;
    }
    if filled == 0 {
        return;
    }
    level += left / filled;
    let over = left % filled;
    for (i, at) in by_load[..filled].iter().enumerate() {
        shares[*at] = level - load[*at] + usize::from(i < over);
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Compares with giving samples out one by one, each to the least loaded.
        #[test]
        fn nobody_is_given_one_who_has_more_than_another(
            load in prop::collection::vec(0usize..30, 1..9),
            samples in 0usize..200,
        ) {
            let mut shares = vec![7; 3];
            share(&load, samples, &mut shares);
            prop_assert_eq!(shares.iter().sum::<usize>(), samples);
            let mut one_by_one = load.clone();
            for _ in 0..samples {
                let least = (0..load.len()).min_by_key(|i| one_by_one[*i]).expect("not empty");
                one_by_one[least] += 1;
            }
            let mut ours: Vec<usize> = load.iter().zip(&shares).map(|(a, b)| a + b).collect();
            ours.sort_unstable();
            one_by_one.sort_unstable();
            prop_assert_eq!(ours, one_by_one);
        }
    }

    #[test]
    fn without_any_pipeline_nothing_is_shared() {
        let mut shares = vec![1];
        share(&[], 4, &mut shares);
        assert!(shares.is_empty());
    }
}
