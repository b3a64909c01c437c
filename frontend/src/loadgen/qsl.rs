//! LoadGen's query sample library: loads samples directly into the memory from which they are sent.
//!
//! One [`Region`] holds all loaded samples, one after the other. With `qsl: registered` the fabric
//! sends from the region; with `qsl: staged` it sends copies. The region is allocated once, because
//! a fabric registers memory before the test. Its size suffices for all samples that LoadGen may
//! hold at a time.
//!
//! LoadGen loads a set, issues it and then unloads it, so an outstanding sample does not move.
//!
//! Where answers are tokens, a block of options lies in front of each sample. A sample of the
//! warm-up is sent with its block, which limits the answer; LoadGen's samples are sent without.

use std::sync::{
    Arc, Mutex,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use anyhow::{Result, anyhow, bail};
use fabric::os::lock;
use fabric::{Region, os::Near};
use loadgen_bridge::QuerySampleLibrary;
use qdl::{
    model::ModelSpec,
    request::{OPTIONS_BYTES, RequestOptions},
};

use crate::{
    dataset::Dataset,
    loadgen::exit::{ExitCode, Verdict},
    loadgen::verify::Verifier,
};

/// Alignment of samples of different lengths: a cache line, which suits every element type. Samples
/// of equal length lie back to back, so that an engine can run neighbours in place.
const ALIGN: usize = 64;
/// Limit of the answer to a sample of the warm-up, in tokens: the fewest that LoadGen accepts.
const WARM_UP_TOKENS: u32 = 2;

/// Position of a sample in the region; `len` is 0 while the sample is not loaded.
#[derive(Debug, Default)]
struct SamplePosition {
    offset: AtomicU64,
    len: AtomicU32,
}

#[derive(Debug, Default)]
struct Loaded {
    used: usize,
    /// Load count of each sample: LoadGen may load a sample several times.
    times: Vec<u32>,
    total: usize,
}

/// The query sample library over one data set.
pub struct Qsl {
    dataset: Dataset,
    region: Arc<Region>,
    positions: Box<[SamplePosition]>,
    near: Near,
    performance_count: usize,
    /// Bytes in front of each sample, which end with its block of options; 0 without options.
    front: usize,
    loaded: Mutex<Loaded>,
    verifier: Option<Arc<Verifier>>,
    verdict: Verdict,
}

impl Qsl {
    /// Creates the library over a data set. LoadGen loads at most `performance_count` samples at a
    /// time (`None`: all), into memory on the NUMA nodes of `near`.
    pub fn new(
        dataset: Dataset,
        model: &ModelSpec,
        performance_count: Option<usize>,
        near: Near,
        verifier: Option<Arc<Verifier>>,
        verdict: Verdict,
    ) -> Result<Self> {
        let total = dataset.count();
        let largest = model.max_input_bytes().unwrap_or(usize::MAX);
        for index in 0..total {
            let bytes = dataset.len(index).unwrap_or(0);
            if bytes as usize > largest {
                bail!(
                    "sample {index} of the data set has {bytes} bytes and fits no slot, the \
                     model's input has {largest} at most: set its `shape` on every node to what \
                     the longest sample needs"
                );
            }
            if dataset.equal_len().is_some() {
                break;
            }
        }
        let performance_count = performance_count.unwrap_or(total).clamp(1, total);
        let front = if model.answers_tokens() { ALIGN } else { 0 };
        let bytes = capacity(&dataset, performance_count);
        let bytes = bytes.saturating_add(front.saturating_mul(performance_count));
        let region = Region::on_nodes(bytes, &near.nodes);
        let region = region.map_err(|error| {
            anyhow!(
                "memory for {performance_count} loaded samples: {error}; set \
                 performance_sample_count to a smaller number"
            )
        })?;
        Ok(Qsl {
            near,
            region: Arc::new(region),
            positions: (0..total).map(|_| SamplePosition::default()).collect(),
            performance_count,
            front,
            loaded: Mutex::new(Loaded {
                times: vec![0; total],
                ..Loaded::default()
            }),
            dataset,
            verifier,
            verdict,
        })
    }

    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Returns the position of a loaded sample in the region: offset and length in bytes.
    pub fn place(&self, index: usize) -> Option<(usize, u32)> {
        let position = self.positions.get(index)?;
        match position.len.load(Ordering::Acquire) {
            0 => None,
            len => Some((position.offset.load(Ordering::Relaxed) as usize, len)),
        }
    }

    /// Returns the position of a loaded sample with a block in front that limits the answer to
    /// [`WARM_UP_TOKENS`]; `None` where answers are no tokens.
    pub fn limited_place(&self, index: usize) -> Option<(usize, u32)> {
        let (offset, len) = self.place(index).filter(|_| self.front > 0)?;
        Some((offset - OPTIONS_BYTES, len + OPTIONS_BYTES as u32))
    }

    fn load(&self, indices: &[usize]) -> Result<()> {
        let options = RequestOptions::limit_block(WARM_UP_TOKENS);
        let mut loaded = lock(&self.loaded);
        let align = stride_of(&self.dataset);
        for &index in indices {
            let Some(len) = self.dataset.len(index) else {
                bail!(
                    "cannot load sample {index}: the data set has {}",
                    self.dataset.count()
                );
            };
            loaded.total += 1;
            loaded.times[index] += 1;
            if loaded.times[index] > 1 {
                continue;
            }
            let offset = loaded.used + self.front;
            if self.front > 0 {
                let to = self.room(index, offset - OPTIONS_BYTES, OPTIONS_BYTES)?;
                to.copy_from_slice(&options);
            }
            let to = self.room(index, offset, len as usize)?;
            self.dataset.read(index, to)?;
            if let Some(verifier) = &self.verifier {
                verifier.loaded(index, to);
            }
            loaded.used = offset + (len as usize).next_multiple_of(align);
            let position = &self.positions[index];
            position.offset.store(offset as u64, Ordering::Relaxed);
            position.len.store(len, Ordering::Release);
        }
        Ok(())
    }

    /// Returns `bytes` bytes of the region at `offset`, behind all loaded samples.
    #[expect(clippy::mut_from_ref, reason = "whoever loads holds the lock")]
    fn room(&self, index: usize, offset: usize, bytes: usize) -> Result<&mut [u8]> {
        // SAFETY: bytes from `used` on belong to no loaded sample, so no thread reads them: the
        // holder of the lock on `loaded` writes them before it publishes the sample in `positions`.
        let to = unsafe { self.region.bytes_mut(offset, bytes) };
        to.map_err(|e| {
            anyhow!(
                "cannot load sample {index}: {e}; set performance_sample_count to as many as \
                 LoadGen loads"
            )
        })
    }

    fn unload(&self, indices: &[usize]) {
        let mut loaded = lock(&self.loaded);
        for &index in indices {
            let Some(times) = loaded.times.get_mut(index).filter(|t| **t > 0) else {
                continue;
            };
            *times -= 1;
            if *times == 0 {
                self.positions[index].len.store(0, Ordering::Release);
            }
            loaded.total -= 1;
        }
        // LoadGen unloads a whole set of samples before the next load.
        if loaded.total == 0 {
            loaded.used = 0;
        }
    }
}

fn stride_of(dataset: &Dataset) -> usize {
    match dataset.equal_len() {
        Some(_) => 1,
        None => ALIGN,
    }
}

/// Bytes for the `count` longest samples.
fn capacity(dataset: &Dataset, count: usize) -> usize {
    let align = stride_of(dataset);
    let carried = |len: u32| (len as usize).next_multiple_of(align);
    if let Some(len) = dataset.equal_len() {
        return carried(len).saturating_mul(count);
    }
    let mut lengths: Vec<usize> = (0..dataset.count())
        .filter_map(|i| dataset.len(i))
        .map(carried)
        .collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.into_iter().take(count).sum()
}

impl QuerySampleLibrary for Qsl {
    fn name(&self) -> String {
        self.dataset.name.clone()
    }

    fn total_sample_count(&self) -> usize {
        self.dataset.count()
    }

    fn performance_sample_count(&self) -> usize {
        self.performance_count
    }

    fn load_samples(&self, indices: &[usize]) {
        // Load on cores near the NICs: unbound memory lies near the core that first touches it.
        if let Err(error) = self.near.run(|| self.load(indices)) {
            self.verdict.fail(ExitCode::Setup, error.to_string());
        }
    }

    fn unload_samples(&self, indices: &[usize]) {
        self.unload(indices);
    }
}

#[cfg(test)]
mod tests {
    use frontend_config::DatasetConfig;

    use super::*;

    fn qsl(count: usize, min: usize, max: usize, loaded: Option<usize>) -> Qsl {
        let config = DatasetConfig::random(count, (min, max));
        let model = ModelSpec::opaque("m", max, 8);
        let dataset = Dataset::open(&config, &model).expect("sound");
        made(dataset, &model, loaded, None).expect("memory")
    }

    fn made(
        dataset: Dataset,
        model: &ModelSpec,
        loaded: Option<usize>,
        verifier: Option<Arc<Verifier>>,
    ) -> Result<Qsl> {
        let (near, verdict) = (Near::default(), Verdict::default());
        Qsl::new(dataset, model, loaded, near, verifier, verdict)
    }

    fn bytes(q: &Qsl, index: usize) -> Vec<u8> {
        let (offset, len) = q.place(index).expect("loaded");
        // SAFETY: the test loads nothing during the borrow.
        unsafe { q.region.bytes(offset, len as usize) }
            .expect("inside")
            .to_vec()
    }

    fn own(q: &Qsl, index: usize) -> Vec<u8> {
        let mut b = vec![0; q.dataset.len(index).expect("there") as usize];
        q.dataset.read(index, &mut b).expect("read");
        b
    }

    #[test]
    fn samples_of_equal_length_lie_back_to_back() {
        let q = qsl(10, 100, 100, None);
        q.load(&[3, 7, 1]).expect("fits");
        let places: Vec<_> = [3, 7, 1].iter().map(|i| q.place(*i)).collect();
        assert_eq!(places, [Some((0, 100)), Some((100, 100)), Some((200, 100))]);
        assert_eq!(bytes(&q, 7), own(&q, 7));
        assert_eq!(q.place(0), None);
    }

    #[test]
    fn ragged_samples_keep_their_length_and_a_line_of_their_own() {
        let q = qsl(500, 1, 5000, None);
        let all: Vec<usize> = (0..500).collect();
        q.load(&all).expect("the region is for all of them");
        for i in all {
            assert_eq!(bytes(&q, i), own(&q, i));
            assert_eq!(q.place(i).expect("loaded").0 % ALIGN, 0);
        }
    }

    #[test]
    fn any_set_of_the_agreed_size_fits() {
        let q = qsl(64, 1, 4000, Some(8));
        let mut by_length: Vec<usize> = (0..64).collect();
        by_length.sort_by_key(|i| std::cmp::Reverse(q.dataset.len(*i)));
        q.load(&by_length[..8]).expect("the eight longest");
        q.unload(&by_length[..8]);
        assert_eq!(q.place(by_length[0]), None);
        q.load(&by_length[8..16]).expect("the room is free again");
        let error = q.load(&by_length[..8]).expect_err("sixteen do not fit");
        assert!(error.to_string().contains("performance_sample_count"));
    }

    #[test]
    fn a_sample_of_tokens_has_its_limit_in_front_and_all_of_them_fit() {
        let model = ModelSpec::of_tokens("m", 40, 8);
        let config = DatasetConfig::random(30, (4, 160));
        let dataset = Dataset::open(&config, &model).expect("sound");
        let q = made(dataset, &model, None, None).expect("memory");
        let all: Vec<usize> = (0..30).collect();
        q.load(&all).expect("the region is for all of them");
        for i in all {
            assert_eq!(bytes(&q, i), own(&q, i));
            let (offset, len) = q.limited_place(i).expect("tokens");
            // SAFETY: the test loads nothing during the borrow.
            let request = unsafe { q.region.bytes(offset, len as usize) }.expect("inside");
            let (block, payload) = request.split_at(OPTIONS_BYTES);
            let options = RequestOptions::decode(block).expect("sound");
            assert_eq!(options.token_limit, std::num::NonZeroU32::new(2));
            assert_eq!(payload, own(&q, i));
        }
        assert_eq!(qsl(1, 4, 4, None).limited_place(0), None, "no tokens");
    }

    #[test]
    fn a_sample_loaded_twice_is_there_until_it_is_unloaded_twice() {
        let q = qsl(4, 16, 16, Some(2));
        q.load(&[2, 2, 2, 1]).expect("two different ones");
        q.unload(&[2, 1, 2]);
        assert_eq!(bytes(&q, 2), own(&q, 2));
        q.unload(&[2]);
        assert_eq!(q.place(2), None);
        q.unload(&[2]);
        q.load(&[0, 3]).expect("all was free");
    }

    #[test]
    fn a_sample_that_is_not_there_is_an_error() {
        let q = qsl(4, 16, 16, None);
        let error = q.load(&[4]).expect_err("four samples");
        assert_eq!(
            error.to_string(),
            "cannot load sample 4: the data set has 4"
        );
    }

    #[test]
    fn a_sample_longer_than_the_input_is_refused() {
        let config = DatasetConfig::random(9, (1, 64));
        let dataset = Dataset::open(&config, &ModelSpec::opaque("m", 64, 8)).expect("sound");
        let model = ModelSpec::opaque("m", 2, 8);
        let error = made(dataset, &model, None, None)
            .err()
            .expect("too long")
            .to_string();
        assert!(error.contains("fits no slot"), "{error}");
    }
}
