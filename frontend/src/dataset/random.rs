//! Random samples from a seed, with fixed or log-uniform lengths.

use anyhow::Result;
use fastrand::Rng;
use frontend_config::{Dimension, SizeDistribution};

use super::{Dataset, Lengths, Source, empty, length};

impl Dataset {
    /// Creates `count` random samples of `min` to `max` bytes.
    pub(super) fn random(
        count: usize,
        min: usize,
        max: usize,
        seed: u64,
        distribution: SizeDistribution,
    ) -> Result<Self> {
        let name = format!("random, seed {seed}");
        let (shortest, longest) = (length(min)?, length(max)?);
        if count == 0 || longest == 0 {
            return Err(empty(name));
        }
        let lengths = match distribution {
            SizeDistribution::Fixed => Lengths::Equal {
                len: longest,
                count,
            },
            SizeDistribution::LogUniform => {
                let mut rng = stream(seed, u64::MAX);
                let mut draw = || log_uniform(rng.u64(..), shortest.max(1), longest);
                Lengths::Each((0..count).map(|_| draw()).collect())
            }
        };
        Ok(Dataset::generated(name, lengths, Source::Random { seed }))
    }

    /// Creates `count` random samples of this shape, with elements of `element` bytes.
    pub(super) fn shaped(
        count: usize,
        shape: &[Dimension],
        element: usize,
        seed: u64,
    ) -> Result<Self> {
        let name = format!("random shapes, seed {seed}");
        let mut rng = stream(seed, u64::MAX);
        let mut draw = |d: &Dimension| {
            let choices = d.most.saturating_sub(d.least) / d.step.max(1) + 1;
            d.least + d.step * rng.usize(..choices)
        };
        let mut sample = || {
            let each = shape.iter().map(&mut draw);
            length(each.fold(element, usize::saturating_mul))
        };
        if count == 0 || shape.iter().any(|d| d.least == 0) {
            return Err(empty(name));
        }
        let lengths = match shape.iter().all(|d| d.least == d.most) {
            true => Lengths::Equal {
                len: sample()?,
                count,
            },
            false => Lengths::Each((0..count).map(|_| sample()).collect::<Result<_, _>>()?),
        };
        Ok(Dataset::generated(name, lengths, Source::Random { seed }))
    }
}

pub(super) fn fill(seed: u64, index: usize, to: &mut [u8]) {
    stream(seed, index as u64).fill(to);
}

/// Maps 64 random bits to a length between `min` and `max`, log-uniformly.
fn log_uniform(bits: u64, min: u32, max: u32) -> u32 {
    // The upper 53 bits as a fraction in [0, 1).
    let fraction = (bits >> 11) as f64 / (1u64 << 53) as f64;
    let (low, high) = (f64::from(min).ln(), (f64::from(max) + 1.0).ln());
    let len = (low + fraction * (high - low)).exp() as u32;
    len.clamp(min, max)
}

pub(super) fn stream(seed: u64, index: u64) -> Rng {
    Rng::with_seed(seed ^ index.wrapping_mul(0xD1B5_4A32_D192_ED03))
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{super::bytes, *};

    fn random(count: usize, min: usize, max: usize, seed: u64) -> Dataset {
        Dataset::random(count, min, max, seed, SizeDistribution::LogUniform).expect("sound")
    }

    #[test]
    fn random_samples_are_those_of_their_seed_and_all_different() {
        let (a, b, c) = (
            random(300, 8, 5000, 1),
            random(300, 8, 5000, 1),
            random(300, 8, 5000, 2),
        );
        let mut seen = HashSet::new();
        for i in 0..300 {
            assert_eq!(bytes(&a, i), bytes(&b, i));
            assert!(seen.insert(bytes(&a, i)), "sample {i} is there twice");
            assert!(
                seen.insert(bytes(&c, i)),
                "sample {i} is another seed's too"
            );
        }
    }

    #[test]
    fn log_uniform_sizes_have_every_magnitude() {
        let d = random(20_000, 1, 150_528, 3);
        let mut octaves = [0; 18];
        for i in 0..d.count() {
            let len = d.len(i).expect("there");
            assert!((1..=150_528).contains(&len));
            octaves[len.ilog2() as usize] += 1;
        }
        // 17.2 octaves share 20,000 samples; the last octave is a fraction.
        assert!(
            octaves[..17].iter().all(|n| (900..1500).contains(n)),
            "{octaves:?}"
        );
        assert_eq!(log_uniform(0, 5, 9), 5);
        assert_eq!(log_uniform(u64::MAX, 5, 9), 9);
        assert_eq!(log_uniform(u64::MAX, 1, u32::MAX), u32::MAX);
    }

    #[test]
    fn samples_of_a_shape_have_its_sizes_and_no_others() {
        let dimension = |least, most, step| Dimension { least, most, step };
        let shape = [dimension(2, 6, 2), dimension(5, 5, 1), dimension(1, 3, 1)];
        let d = Dataset::shaped(2000, &shape, 4, 1).expect("sound");
        let sizes: HashSet<_> = (0..2000).map(|i| d.len(i).expect("there")).collect();
        let due: HashSet<u32> = [2, 4, 6]
            .into_iter()
            .flat_map(|a| [1, 2, 3].map(|c| a * 5 * c * 4))
            .collect();
        assert_eq!(sizes, due);
        let again = Dataset::shaped(2000, &shape, 4, 1).expect("sound");
        assert!((0..2000).all(|i| d.len(i) == again.len(i)));
        let one = Dataset::shaped(3, &shape[1..2], 8, 1).expect("sound");
        assert_eq!((one.equal_len(), one.count()), (Some(40), 3));
        assert!(Dataset::shaped(1, &[dimension(1 << 30, 1 << 30, 1)], 8, 1).is_err());
        assert!(Dataset::shaped(0, &shape, 4, 1).is_err());
    }

    #[test]
    fn no_samples_at_all_are_refused() {
        let none = Dataset::random(0, 1, 8, 1, SizeDistribution::Fixed);
        let error = none.expect_err("empty").to_string();
        assert!(error.contains("it has no samples"), "{error}");
    }
}
