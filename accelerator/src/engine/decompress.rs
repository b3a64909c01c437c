//! Decompresses the samples of a batch into the worker's memory before the engine runs.
//!
//! At the start, each worker allocates and registers memory for one batch of the largest samples.
//! The decompressor refuses a sample before decompression if the size in its header is larger, or
//! not a length that the model can have.

use std::sync::Arc;

use fabric::{Region, clock};
use qdl::{
    compression::{self, ALIGN},
    model::{Lengths, ModelSpec},
    serve::Arrival,
};
pub use record::DecompressedUse as Decompressed;

use super::EngineError;

/// Offset and length of a decompressed sample, in bytes.
type Span = (usize, usize);

/// Decompresses batches into a memory region that the decompressor owns.
#[derive(Debug)]
pub struct Decompressor {
    /// The memory of the decompressed samples.
    pub region: Arc<Region>,
    largest: usize,
    /// Valid lengths of a decompressed sample; `None` if the engine takes any bytes.
    lengths: Option<Lengths>,
    places: Vec<Span>,
}

impl Decompressor {
    /// Makes a decompressor for batches of up to `max_batch` samples; `None` if samples are not
    /// compressed. `any`: the engine takes samples of any length. Call on the worker's thread, so
    /// that the memory is near this thread.
    ///
    /// # Errors
    /// [`EngineError::Decompress`]: the memory cannot be allocated.
    pub fn of(model: &ModelSpec, any: bool, max_batch: usize) -> Result<Option<Self>, EngineError> {
        if model.compression.is_none() {
            return Ok(None);
        }
        let largest = model.max_input_bytes().unwrap_or(usize::MAX);
        let region = Region::new(compression::room(largest, max_batch));
        let region = region.map_err(|e| EngineError::Decompress {
            reason: e.to_string(),
        })?;
        // Then a run has no page faults, and a lack of memory shows at the start.
        region.prefault();
        // A model without lengths cannot be served: its workers return the reason.
        let lengths = (!any).then(|| Lengths::of_inputs(model).ok()).flatten();
        Ok(Some(Decompressor {
            region: Arc::new(region),
            largest,
            lengths,
            places: Vec::with_capacity(max_batch),
        }))
    }

    /// Decompresses all samples. With `sample_bytes`, the decompressed samples are contiguous: one
    /// run. Otherwise each sample begins on a cache line.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] or [`EngineError::SampleSize`] for the first invalid sample.
    pub fn run(
        &mut self,
        arrivals: &[Arrival],
        sample_bytes: Option<usize>,
    ) -> Result<Decompressed, EngineError> {
        let began = clock::now_ns();
        let mut done = Decompressed::default();
        self.places.clear();
        let mut at = 0;
        for arrival in arrivals {
            let carried = arrival.input();
            let corrupt = |reason: String| EngineError::Corrupt { reason };
            let len = compression::decompressed_len(carried).map_err(|e| corrupt(e.to_string()))?;
            self.check(len)?;
            // SAFETY: `&mut self` excludes readers: a reader of bytes borrows the batch that owns
            // `self`, and an engine that reads by address is done when its `run` returns.
            let to = unsafe { self.region.bytes_mut(at, len) };
            // No error is expected: the region has room for a batch of the largest samples.
            let to = to.map_err(|e| EngineError::Decompress {
                reason: e.to_string(),
            })?;
            compression::decompress(carried, to).map_err(|e| corrupt(e.to_string()))?;
            self.places.push((at, len));
            done.samples += 1;
            done.from_bytes += carried.len() as u64;
            done.to_bytes += len as u64;
            at += match sample_bytes {
                Some(size) => size,
                None => len.next_multiple_of(ALIGN),
            };
        }
        done.took_us = clock::now_ns().saturating_sub(began) / 1_000;
        Ok(done)
    }

    fn check(&self, len: usize) -> Result<(), EngineError> {
        if len > self.largest {
            let largest = self.largest;
            return Err(EngineError::Corrupt {
                reason: format!("it says that it has {len} bytes, the largest has {largest}"),
            });
        }
        match &self.lengths {
            Some(taken) if taken.rows(len).is_none() => Err(EngineError::sample_size(taken, len)),
            _ => Ok(()),
        }
    }

    /// Address and length in bytes of decompressed sample `index` of the last batch.
    pub fn place(&self, index: usize) -> (usize, usize) {
        let (at, len) = self.places[index];
        (self.region.base() as usize + at, len)
    }

    /// The bytes of decompressed sample `index` of the last batch.
    pub fn sample(&self, index: usize) -> &[u8] {
        let (at, len) = self.places[index];
        // SAFETY: only `run` writes, and it takes `&mut self`.
        let bytes = unsafe { self.region.bytes(at, len) };
        bytes.expect("written a moment ago")
    }
}
