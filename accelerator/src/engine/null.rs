//! The `null` engine: answers at once with zeros, to measure the cost of everything else.

use std::{thread, time::Duration};

use qdl::{model::ModelSpec, serve::Arrival};

use super::{
    ANY_INPUT, Batch, Engine, EngineError, EngineParams, Inline, Worker, batch::write_response,
};

/// The `null` engine.
#[derive(Clone, Debug)]
pub struct Null {
    model: ModelSpec,
    zeros: Vec<u8>,
    delay: Duration,
    inline: bool,
}

impl Null {
    /// Uses `model`, `spec` and `delay_us` of the parameters.
    pub fn new(params: &EngineParams) -> Self {
        let any = || ModelSpec::opaque(&params.model, ANY_INPUT, 8);
        let model = params.spec.clone().unwrap_or_else(any);
        Null {
            zeros: vec![0; model.max_output_bytes().unwrap_or(0)],
            model,
            delay: params.delay(),
            inline: params.engine.delay_us == 0,
        }
    }
}

impl Engine for Null {
    fn name(&self) -> &'static str {
        "null"
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

impl Worker for Null {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        if !self.delay.is_zero() {
            thread::sleep(self.delay);
        }
        for i in 0..batch.len() {
            batch.write(i, &self.zeros)?;
        }
        Ok(())
    }
}

impl Inline for Null {
    fn answer(&self, arrival: &mut Arrival) -> Result<u32, EngineError> {
        write_response(arrival, &self.zeros)
    }
}
