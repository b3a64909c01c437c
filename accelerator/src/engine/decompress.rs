//! Compressed samples of a batch, decompressed into the worker's own memory in front of the engine.
//!
//! Each worker has memory for one batch of the largest samples, made and registered at the start,
//! so that no sample can ask for more: one that says that it is larger, or of a length that the
//! model cannot have, is refused before a byte of it is made.

use std::sync::Arc;

use fabric::{Region, clock};
use qdl::{
    compression::{self, ALIGN},
    model::ModelSpec,
    serve::Arrival,
};

use serde::Serialize;

use super::{EngineError, Lengths, lengths};

/// Where one decompressed sample lies: offset and bytes.
type Place = (usize, usize);

/// See the module.
#[derive(Debug)]
pub struct Decompressor {
    region: Arc<Region>,
    largest: usize,
    /// None where the engine takes any bytes.
    lengths: Option<Lengths>,
    places: Vec<Place>,
}

/// What decompressing a batch took.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize)]
pub struct Decompressed {
    /// Samples.
    pub samples: u64,
    /// Bytes of them as they were carried.
    pub from_bytes: u64,
    /// Bytes of them as the engine reads them.
    pub to_bytes: u64,
    /// Nanoseconds.
    pub ns: u64,
}

impl Decompressed {
    /// Adds another batch's, or worker's.
    pub fn add(&mut self, o: &Decompressed) {
        self.samples += o.samples;
        self.from_bytes += o.from_bytes;
        self.to_bytes += o.to_bytes;
        self.ns += o.ns;
    }
}

impl Decompressor {
    /// For batches of up to `max_batch` samples of this model; nothing where its samples are not
    /// compressed. `any`: the engine takes samples of any length. Called on the worker's thread,
    /// near which its memory comes to lie.
    ///
    /// # Errors
    /// [`EngineError::Decompress`] where there is no memory.
    pub fn of(model: &ModelSpec, any: bool, max_batch: usize) -> Result<Option<Self>, EngineError> {
        if model.compression.is_none() {
            return Ok(None);
        }
        let largest = model.max_input_bytes().unwrap_or(usize::MAX);
        let region = Region::new(compression::room(largest, max_batch));
        let region = region.map_err(|e| EngineError::Decompress {
            reason: e.to_string(),
        })?;
        // Nobody waits for its pages in mid-run, and what was announced is what is taken.
        region.prefault();
        // A model that has none cannot be served: its workers say why.
        let lengths = (!any).then(|| Lengths::of_inputs(model).ok()).flatten();
        Ok(Some(Decompressor {
            region: Arc::new(region),
            largest,
            lengths,
            places: Vec::with_capacity(max_batch),
        }))
    }

    /// The memory that samples come to lie in.
    pub fn region(&self) -> &Arc<Region> {
        &self.region
    }

    /// Decompresses all of them: back to back where each is of `sample_bytes`, so that they are one
    /// run, else each on a cache line of its own.
    ///
    /// # Errors
    /// [`EngineError::Corrupt`] and [`EngineError::SampleSize`] for the first that is no sample of
    /// the model's.
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
            // SAFETY: `&mut self`, and whoever reads a batch's bytes borrows the batch that owns
            // this. An engine that reads them otherwise is done with a batch when it returns.
            let to = unsafe { self.region.bytes_mut(at, len) };
            // The region is for a batch of the largest.
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
        done.ns = clock::now_ns().saturating_sub(began);
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
            Some(taken) if taken.rows(len).is_none() => Err(lengths::refusal(taken, len)),
            _ => Ok(()),
        }
    }

    /// Address and bytes of a sample of the last batch.
    pub fn place(&self, index: usize) -> (usize, usize) {
        let (at, len) = self.places[index];
        (self.region.base() as usize + at, len)
    }

    /// A sample of the last batch.
    pub fn sample(&self, index: usize) -> &[u8] {
        let (at, len) = self.places[index];
        // SAFETY: written by `run`, which takes `&mut self`, and by nobody else.
        let bytes = unsafe { self.region.bytes(at, len) };
        bytes.expect("written a moment ago")
    }
}
