//! Sizes of the batches that an accelerator's engine ran.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

/// Counts batches by size. Counting allocates no memory.
///
/// In JSON: an object from size to number of batches, for the sizes that occurred.
#[derive(Clone, Default)]
pub struct BatchSizes {
    /// `counts[n]` batches of `n` samples.
    counts: Vec<u64>,
}

/// Maximum size; larger batches count as this. It bounds the allocation for a peer's report.
const LARGEST: usize = 1 << 16;

impl BatchSizes {
    /// Creates empty counts for sizes up to `max_batch`; larger batches count as `max_batch`.
    pub fn new(max_batch: usize) -> Self {
        BatchSizes {
            counts: vec![0; max_batch.clamp(1, LARGEST) + 1],
        }
    }

    /// Counts one batch.
    pub fn record(&mut self, size: usize) {
        let last = self.counts.len().saturating_sub(1);
        if let Some(count) = self.counts.get_mut(size.min(last)) {
            *count += 1;
        }
    }

    /// Adds the counts of another engine thread.
    pub fn merge(&mut self, other: &BatchSizes) {
        if self.counts.len() < other.counts.len() {
            self.counts.resize(other.counts.len(), 0);
        }
        for (mine, theirs) in self.counts.iter_mut().zip(&other.counts) {
            *mine = mine.saturating_add(*theirs);
        }
    }

    /// Returns the counts since the earlier reading `before`.
    pub fn since(mut self, before: &BatchSizes) -> Self {
        for (now, then) in self.counts.iter_mut().zip(&before.counts) {
            *now = now.saturating_sub(*then);
        }
        self
    }

    /// Creates the counts from a slice: element `n` is the number of batches of `n` samples.
    pub fn from_counts(counts: &[u64]) -> Self {
        let mut sizes = BatchSizes {
            counts: counts[..counts.len().min(LARGEST + 1)].to_vec(),
        };
        if sizes.counts.is_empty() {
            sizes.counts.push(0);
        }
        sizes
    }

    /// Returns the sizes that occurred, ascending, with their counts.
    pub fn iter(&self) -> impl Iterator<Item = (usize, u64)> + '_ {
        let all = self.counts.iter().copied().enumerate();
        all.filter(|&(_, count)| count > 0)
    }

    /// Returns the number of batches.
    pub fn batches(&self) -> u64 {
        self.iter().fold(0, |sum, (_, n)| sum.saturating_add(n))
    }

    /// Returns the number of samples in all batches.
    pub fn samples(&self) -> u64 {
        self.iter().fold(0, |sum, (size, n)| {
            sum.saturating_add(n.saturating_mul(size as u64))
        })
    }

    /// Returns the mean size; 0 without batches.
    pub fn mean(&self) -> f64 {
        match self.batches() {
            0 => 0.0,
            n => self.samples() as f64 / n as f64,
        }
    }

    /// Returns the median size: half of the batches are no larger.
    pub fn median(&self) -> usize {
        let half = self.batches().div_ceil(2);
        let mut seen = 0u64;
        for (size, n) in self.iter() {
            seen = seen.saturating_add(n);
            if seen >= half {
                return size;
            }
        }
        0
    }

    /// Returns the maximum size; 0 without batches.
    pub fn max(&self) -> usize {
        self.iter().last().map_or(0, |(size, _)| size)
    }
}

/// Equal if the same sizes occurred as often; capacity does not matter.
impl PartialEq for BatchSizes {
    fn eq(&self, other: &Self) -> bool {
        self.iter().eq(other.iter())
    }
}

impl Eq for BatchSizes {}

impl fmt::Debug for BatchSizes {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_map().entries(self.iter()).finish()
    }
}

impl Serialize for BatchSizes {
    fn serialize<S: Serializer>(&self, serializer: S) -> Result<S::Ok, S::Error> {
        serializer.collect_map(self.iter())
    }
}

impl<'de> Deserialize<'de> for BatchSizes {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        // Reads keys as text, because a flattened object passes its keys as text.
        let read = BTreeMap::<String, u64>::deserialize(deserializer)?;
        let mut map = BTreeMap::<u32, u64>::new();
        for (key, n) in read {
            let size = key.parse().map_err(|_| {
                de::Error::custom(format_args!("{key:?} is not the size of a batch"))
            })?;
            let count = map.entry(size).or_default();
            *count = u64::saturating_add(*count, n);
        }
        let largest = map.keys().next_back().map_or(1, |&n| n as usize);
        let mut sizes = BatchSizes::new(largest);
        for (size, n) in map {
            let at = (size as usize).min(sizes.counts.len() - 1);
            sizes.counts[at] = sizes.counts[at].saturating_add(n);
        }
        Ok(sizes)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn figures_are_those_of_the_list(mut list in prop::collection::vec(1usize..200, 1..300)) {
            let mut sizes = BatchSizes::new(256);
            list.iter().for_each(|&n| sizes.record(n));
            list.sort_unstable();
            prop_assert_eq!(sizes.batches(), list.len() as u64);
            prop_assert_eq!(sizes.samples(), list.iter().sum::<usize>() as u64);
            prop_assert_eq!(sizes.median(), list[list.len().div_ceil(2) - 1]);
            prop_assert_eq!(sizes.max(), list[list.len() - 1]);
            let json = serde_json::to_string(&sizes).expect("JSON");
            let back: BatchSizes = serde_json::from_str(&json).expect("reads back");
            prop_assert_eq!(back, sizes);
        }
    }

    #[test]
    fn larger_than_the_largest_is_the_largest() {
        let mut sizes = BatchSizes::new(4);
        sizes.record(9);
        assert_eq!(sizes.iter().collect::<Vec<_>>(), [(4, 1)]);
        let wild: BatchSizes =
            serde_json::from_str(r#"{"4294967295": 18446744073709551615, "3": 7}"#).expect("JSON");
        assert_eq!(wild.max(), LARGEST);
        assert_eq!(wild.batches(), u64::MAX);
    }

    #[test]
    fn a_size_that_is_no_number_is_named() {
        let error = serde_json::from_str::<BatchSizes>(r#"{"many": 3}"#).expect_err("no number");
        let text = error.to_string();
        assert!(
            text.starts_with("\"many\" is not the size of a batch"),
            "{text}"
        );
    }
}
