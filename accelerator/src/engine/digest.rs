//! `digest`: answers with a hash of the input, so that a test can prove that every response belongs
//! to its sample.

use std::{thread, time::Duration};

use qdl::{model::ModelSpec, serve::Arrival};
use xxhash_rust::xxh3::xxh3_64;

use super::{Batch, Engine, EngineError, EngineParams, Inline, Worker, batch::write_response};

/// The engine that hashes.
#[derive(Clone, Debug)]
pub struct Digest {
    model: ModelSpec,
    delay: Duration,
    inline: bool,
}

impl Digest {
    /// Bytes of a response.
    pub const OUTPUT_BYTES: usize = 8;

    /// Takes `model`, `max_input`, `delay_us` and `inline` from the parameters.
    pub fn new(params: &EngineParams) -> Self {
        Digest {
            model: ModelSpec::opaque(&params.model, params.max_input, Self::OUTPUT_BYTES),
            delay: params.delay(),
            inline: params.inline && params.engine.delay_us == 0,
        }
    }

    /// The response to a sample: XXH3, 64 bits with seed 0, little-endian.
    pub fn of(sample: &[u8]) -> [u8; Self::OUTPUT_BYTES] {
        xxh3_64(sample).to_le_bytes()
    }
}

impl Engine for Digest {
    fn name(&self) -> &'static str {
        "digest"
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn takes_any_bytes(&self) -> bool {
        true
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        Ok(Box::new(self.clone()))
    }

    fn inline(&self) -> Option<&dyn Inline> {
        self.inline.then_some(self as &dyn Inline)
    }
}

impl Worker for Digest {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        if !self.delay.is_zero() {
            thread::sleep(self.delay);
        }
        for i in 0..batch.len() {
            let digest = Self::of(batch.input(i));
            batch.write(i, &digest)?;
        }
        Ok(())
    }
}

impl Inline for Digest {
    fn answer(&self, arrival: &mut Arrival) -> Result<u32, EngineError> {
        let digest = Self::of(arrival.input());
        write_response(arrival, &digest)
    }
}
