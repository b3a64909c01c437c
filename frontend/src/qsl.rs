//! LoadGen's query sample library: samples are loaded straight into the memory they are sent from.
//!
//! One [`Region`] holds all loaded samples, one behind the other. With
//! `qsl: registered` the fabric sends from it, and with `qsl: staged` it is
//! copied from. It is made once, large enough for whatever LoadGen may hold
//! loaded at a time, because a fabric registers it before the test begins.
//!
//! LoadGen loads, issues and unloads in this order, so a sample's
//! place does not change while one of it is outstanding.

use std::sync::{
    Arc, Mutex, PoisonError,
    atomic::{AtomicU32, AtomicU64, Ordering},
};

use loadgen_bridge::QuerySampleLibrary;
use qdl::{
    fabric::{Region, RegionError},
    model::ModelSpec,
    os::Near,
};

use crate::{
    dataset::{Dataset, DatasetError},
    exit::{ExitCode, Verdict},
    verify::Verifier,
};

/// Samples of differing lengths begin on a cache line of their own, which suits every element type.
/// Those of equal length lie back to back, so that neighbours can be run where they lie.
const ALIGN: usize = 64;

/// A library that cannot be made, or a sample that cannot be loaded.
#[derive(Debug, thiserror::Error)]
pub enum QslError {
    /// The data set's file.
    #[error(transparent)]
    Dataset(#[from] DatasetError),
    /// Memory for the samples.
    #[error(
        "memory for {samples} loaded samples: {source}; set performance_sample_count to a smaller number"
    )]
    Memory {
        /// How many it was for.
        samples: usize,
        /// Why there is none.
        source: RegionError,
    },
    /// LoadGen asked for a sample that is not there, or for more than fit.
    #[error("cannot load sample {index}: {why}")]
    Load {
        /// Which.
        index: usize,
        /// Why.
        why: String,
    },
    /// A sample that the model cannot take.
    #[error(
        "sample {index} of the data set has {bytes} bytes and fits no slot, the model's input has {largest} at most: \
         set its `shape` on every node to what the longest sample needs"
    )]
    TooLong {
        /// Which.
        index: usize,
        /// Its bytes.
        bytes: u32,
        /// Bytes of the model's input.
        largest: usize,
    },
}

/// Where a sample lies. `len` is 0 while it is not loaded.
#[derive(Debug, Default)]
struct Place {
    offset: AtomicU64,
    len: AtomicU32,
}

#[derive(Debug, Default)]
struct Loaded {
    /// Bytes of the region that are taken.
    used: usize,
    /// How often each sample is loaded: LoadGen may load one several times.
    times: Vec<u32>,
    /// Sum of `times`.
    total: usize,
}

/// See the module.
#[derive(Debug)]
pub struct Qsl {
    dataset: Dataset,
    region: Arc<Region>,
    places: Box<[Place]>,
    near: Near,
    performance_count: usize,
    loaded: Mutex<Loaded>,
    verifier: Option<Arc<Verifier>>,
    verdict: Verdict,
}

impl Qsl {
    /// Over a data set. `performance_count` samples may be loaded at a time (`None`: all), and lie
    /// near the NICs.
    ///
    /// # Errors
    /// [`QslError`].
    pub fn new(
        dataset: Dataset,
        model: &ModelSpec,
        performance_count: Option<usize>,
        near: Near,
        verifier: Option<Arc<Verifier>>,
        verdict: Verdict,
    ) -> Result<Self, QslError> {
        let total = dataset.count();
        let largest = model.max_input_bytes().unwrap_or(usize::MAX);
        for index in 0..total {
            let bytes = dataset.len(index).unwrap_or(0);
            if bytes as usize > largest {
                return Err(QslError::TooLong {
                    index,
                    bytes,
                    largest,
                });
            }
            if dataset.equal_len().is_some() {
                break;
            }
        }
        let performance_count = performance_count.unwrap_or(total).clamp(1, total);
        let bytes = capacity(&dataset, performance_count);
        let region = Region::on_nodes(bytes, &near.nodes);
        let region = region.map_err(|source| QslError::Memory {
            samples: performance_count,
            source,
        })?;
        Ok(Qsl {
            near,
            region: Arc::new(region),
            places: (0..total).map(|_| Place::default()).collect(),
            performance_count,
            loaded: Mutex::new(Loaded {
                times: vec![0; total],
                ..Loaded::default()
            }),
            dataset,
            verifier,
            verdict,
        })
    }

    /// The memory that samples lie in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Where a loaded sample lies in the region: offset and length in bytes.
    pub fn place(&self, index: usize) -> Option<(usize, u32)> {
        let place = self.places.get(index)?;
        match place.len.load(Ordering::Acquire) {
            0 => None,
            len => Some((place.offset.load(Ordering::Relaxed) as usize, len)),
        }
    }

    /// Samples loaded at a time.
    pub fn performance_count(&self) -> usize {
        self.performance_count
    }

    /// Samples of the data set.
    pub fn total(&self) -> usize {
        self.dataset.count()
    }

    fn load(&self, indices: &[usize]) -> Result<(), QslError> {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        let align = stride_of(&self.dataset);
        for &index in indices {
            let fail = |why: String| QslError::Load { index, why };
            let len = self
                .dataset
                .len(index)
                .ok_or_else(|| fail(format!("the data set has {}", self.total())))?;
            loaded.total += 1;
            loaded.times[index] += 1;
            if loaded.times[index] > 1 {
                continue;
            }
            let (offset, bytes) = (loaded.used, len as usize);
            // SAFETY: bytes from `used` on belong to no loaded sample, so nobody reads them: a
            // sample is published in `places` only below.
            let to = unsafe { self.region.bytes_mut(offset, bytes) }.map_err(|e| {
                fail(format!(
                    "{e}; set performance_sample_count to as many as LoadGen loads"
                ))
            })?;
            self.dataset.read(index, to)?;
            if let Some(verifier) = &self.verifier {
                verifier.loaded(index, to);
            }
            loaded.used += bytes.next_multiple_of(align);
            let place = &self.places[index];
            place.offset.store(offset as u64, Ordering::Relaxed);
            place.len.store(len, Ordering::Release);
        }
        Ok(())
    }

    fn unload(&self, indices: &[usize]) {
        let mut loaded = self.loaded.lock().unwrap_or_else(PoisonError::into_inner);
        for &index in indices {
            let Some(times) = loaded.times.get_mut(index).filter(|t| **t > 0) else {
                continue;
            };
            *times -= 1;
            if *times == 0 {
                self.places[index].len.store(0, Ordering::Release);
            }
            loaded.total -= 1;
        }
        // LoadGen unloads a set whole before it loads the next.
        if loaded.total == 0 {
            loaded.used = 0;
        }
    }
}

fn stride_of(dataset: &Dataset) -> usize {
    if dataset.equal_len().is_some() {
        1
    } else {
        ALIGN
    }
}

/// Bytes for the `count` longest samples.
fn capacity(dataset: &Dataset, count: usize) -> usize {
    if let Some(len) = dataset.equal_len() {
        return (len as usize).saturating_mul(count);
    }
    let mut lengths: Vec<usize> = (0..dataset.count())
        .filter_map(|i| dataset.len(i))
        .map(|len| (len as usize).next_multiple_of(ALIGN))
        .collect();
    lengths.sort_unstable_by(|a, b| b.cmp(a));
    lengths.into_iter().take(count).sum()
}

impl QuerySampleLibrary for Qsl {
    fn name(&self) -> String {
        self.dataset.name().to_owned()
    }

    fn total_sample_count(&self) -> usize {
        self.total()
    }

    fn performance_sample_count(&self) -> usize {
        self.performance_count
    }

    fn load_samples(&self, indices: &[usize]) {
        // Where memory cannot be bound to a node, it comes to lie near the cores that touch it
        // first.
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
    use qdl::config::DatasetConfig;

    use super::*;

    fn qsl(count: usize, min: usize, max: usize, loaded: Option<usize>) -> Qsl {
        let config = DatasetConfig::random(count, (min, max));
        let model = ModelSpec::opaque("m", max, 8);
        let dataset = Dataset::open(&config, &model, None).expect("sound");
        Qsl::new(
            dataset,
            &model,
            loaded,
            Near::default(),
            None,
            Verdict::default(),
        )
        .expect("memory")
    }

    fn bytes(q: &Qsl, index: usize) -> Vec<u8> {
        let (offset, len) = q.place(index).expect("loaded");
        // SAFETY: the test loads nothing meanwhile.
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
        let dataset = Dataset::open(&config, &ModelSpec::opaque("m", 64, 8), None).expect("sound");
        let model = ModelSpec::opaque("m", 2, 8);
        let made = Qsl::new(
            dataset,
            &model,
            None,
            Near::default(),
            None,
            Verdict::default(),
        );
        assert!(matches!(made, Err(QslError::TooLong { .. })));
    }
}
