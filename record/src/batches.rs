//! Batches that an accelerator's engine ran: their sizes, and the work of each GPU.

use std::{collections::BTreeMap, fmt};

use serde::{Deserialize, Deserializer, Serialize, Serializer, de};

use super::{CountRow, counts::counts_since};

/// Counts batches by size. Counting allocates no memory.
///
/// In JSON: an object from size to number of batches, for the sizes that occurred.
#[derive(Clone, Default)]
pub struct BatchSizes {
    /// `counts[n]` batches of `n` samples.
    counts: Vec<u64>,
}

impl BatchSizes {
    /// Larger batches count as batches of this size. Bounds the allocation for a peer's report.
    pub const LARGEST: usize = 1 << 16;

    /// Creates empty counts for sizes up to `max_batch`; larger batches count as `max_batch`.
    pub fn new(max_batch: usize) -> Self {
        BatchSizes {
            counts: vec![0; max_batch.clamp(1, Self::LARGEST) + 1],
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
            counts: counts[..counts.len().min(Self::LARGEST + 1)].to_vec(),
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

    /// Returns the mean size of a batch, in samples; 0 without batches.
    pub fn mean(&self) -> f64 {
        match self.batches() {
            0 => 0.0,
            n => self.samples() as f64 / n as f64,
        }
    }

    /// Returns the distribution of the sizes over the batches; `None` without batches.
    pub fn row(&self) -> Option<CountRow> {
        let all = self.batches();
        let (min, _) = self.iter().next()?;
        let quantile = |percent: u128| {
            let mut seen = 0;
            let mut reached = self.iter().skip_while(|(_, n)| {
                seen += u128::from(*n);
                seen * 100 < u128::from(all) * percent
            });
            reached.next().map_or(0, |(size, _)| size as u64)
        };
        Some(CountRow {
            min: min as u64,
            p50: quantile(50),
            mean: (self.mean() * 1000.0).round() / 1000.0,
            p99: quantile(99),
            max: self.max() as u64,
        })
    }

    /// Returns the size of the largest batch, in samples; 0 without batches.
    pub fn max(&self) -> usize {
        self.iter().last().map_or(0, |(size, _)| size)
    }
}

/// Equal if each size occurred equally often; ignores the maximum size.
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

/// One GPU's counts and times. CUDA events on each batch's stream give the times. Each time is a
/// sum over all batches. Concurrent batches overlap, so a sum can exceed the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuRecord {
    /// Index of the GPU in CUDA.
    pub index: usize,
    /// Name of the GPU in the driver.
    pub name: String,
    /// Batches run, by size.
    pub batches: BatchSizes,
    /// Padding samples that fill batches up to a size the engine runs; answers are discarded.
    pub padded: u64,
    /// Copies of inputs to the GPU; one call that copies several pieces counts each piece.
    pub copies_in: u64,
    /// Bytes of `copies_in`, over PCIe.
    pub bytes_in: u64,
    /// Bytes of inputs already in GPU memory that were copied within it into one batch.
    pub gathered: u64,
    /// Batches read in place, where the NIC wrote the samples into GPU memory.
    pub in_place: u64,
    /// Fences after a NIC's writes to GPU memory: one per batch if the GPU needs it.
    pub fences: u64,
    /// Batches launched with one call, as a CUDA graph recorded in the warm-up.
    pub graphs: u64,
    /// Bytes of outputs copied to the host, over PCIe.
    pub bytes_out: u64,
    /// Microseconds of input copies.
    pub copy_in_us: u64,
    /// Microseconds of compute.
    pub compute_us: u64,
    /// Microseconds of output copies.
    pub copy_out_us: u64,
}

impl GpuRecord {
    /// Returns the counts since the earlier reading `before`.
    #[must_use]
    pub fn since(self, before: &GpuRecord) -> Self {
        let batches = self.batches.clone().since(&before.batches);
        let since = counts_since!(self, before: padded copies_in bytes_in gathered in_place fences
            graphs bytes_out copy_in_us compute_us copy_out_us);
        GpuRecord { batches, ..since }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn figures_are_those_of_the_list(list in prop::collection::vec(1usize..200, 1..300)) {
            let mut sizes = BatchSizes::new(256);
            list.iter().for_each(|&n| sizes.record(n));
            prop_assert_eq!(sizes.batches(), list.len() as u64);
            prop_assert_eq!(sizes.samples(), list.iter().sum::<usize>() as u64);
            let mut sorted = list.clone();
            sorted.sort_unstable();
            let at = |percent: usize| sorted[(sorted.len() * percent).div_ceil(100).max(1) - 1];
            let row = sizes.row().expect("batches");
            let expected = [sorted[0], at(50), at(99), sorted[sorted.len() - 1], sizes.max()];
            let found = [row.min, row.p50, row.p99, row.max, row.max];
            prop_assert_eq!(found, expected.map(|n| n as u64));
            let json = serde_json::to_string(&sizes).expect("JSON");
            let back: BatchSizes = serde_json::from_str(&json).expect("reads back");
            prop_assert_eq!(back, sizes);
        }
    }

    #[test]
    fn larger_than_the_largest_is_the_largest() {
        let mut sizes = BatchSizes::new(4);
        assert_eq!(sizes.row(), None);
        sizes.record(9);
        assert_eq!(sizes.iter().collect::<Vec<_>>(), [(4, 1)]);
        let wild: BatchSizes =
            serde_json::from_str(r#"{"4294967295": 18446744073709551615, "3": 7}"#).expect("JSON");
        assert_eq!(wild.max(), BatchSizes::LARGEST);
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

    #[test]
    fn a_record_since_another() {
        let mut before = GpuRecord {
            name: "H200".to_owned(),
            batches: BatchSizes::new(8),
            copies_in: 3,
            bytes_in: 100,
            ..GpuRecord::default()
        };
        before.batches.record(4);
        let mut after = before.clone();
        after.batches.record(8);
        after.batches.record(4);
        (after.copies_in, after.compute_us) = (5, 3000);
        after.graphs = 2;
        let d = after.since(&before);
        assert_eq!((d.copies_in, d.bytes_in, d.batches.samples()), (2, 0, 12));
        assert_eq!(d.graphs, 2);
    }
}
