//! An engine of your own in a pipeline: it answers a text in capitals. No network takes part.
//!
//! `cargo run -p engines --example own_engine`

use std::{
    error::Error,
    sync::{Arc, mpsc},
    time::Duration,
};

use engines::{
    Batch, Engine, EngineError, EngineKind, EngineParams, Worker,
    pipeline::{Options, Pipeline},
};
use fabric::{Region, clock::now_ns};
use qdl::{
    model::ModelSpec,
    serve::{Arrival, Finished, Origin, Service},
};

/// Bytes of a slot.
const SLOT: usize = 64;

/// The engine: threads share it.
struct Capitals(ModelSpec);

impl Engine for Capitals {
    fn name(&self) -> &'static str {
        "capitals"
    }

    fn model(&self) -> &ModelSpec {
        &self.0
    }

    fn worker(&self, _: usize) -> Result<Box<dyn Worker>, EngineError> {
        Ok(Box::new(CapitalsWorker))
    }
}

/// What one thread of the engine owns.
struct CapitalsWorker;

impl Worker for CapitalsWorker {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        (0..batch.len()).try_for_each(|i| batch.write(i, &batch.input(i).to_ascii_uppercase()))
    }
}

/// The connection of the samples: slots for texts, then as many for answers.
struct Slots(Region, mpsc::Sender<Finished>);

impl Origin for Slots {
    fn respond(&self, finished: &[Finished]) {
        // The receiver is gone only if `main` has failed.
        for one in finished {
            let _ = self.1.send(*one);
        }
    }

    fn refuse(&self, ticket: u64, why: &str) {
        eprintln!("sample {ticket} is refused: {why}");
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let mut model = ModelSpec::opaque("capitals", SLOT, SLOT);
    model.output.ragged = true;
    // The keys of `engine` that concern every engine: batches, threads, waiting.
    let params = EngineParams::new(EngineKind::Null).with(|engine| engine.max_batch = 4);
    let failed = |error| eprintln!("the engine failed: {error}");
    let pipeline = Pipeline::start(Arc::new(Capitals(model)), &Options::from(&params), failed)?;

    let texts = ["query", "dispatch", "library"];
    let (send, answers) = mpsc::channel();
    let slots = Arc::new(Slots(Region::new(2 * texts.len() * SLOT)?, send));
    let answer_offset = |i: usize| (texts.len() + i) * SLOT;
    let mut arrivals = Vec::new();
    for (i, text) in texts.iter().enumerate() {
        // SAFETY: the pipeline has not got the slot yet.
        unsafe { slots.0.store(i * SLOT, text.as_bytes())? };
        let (input, output) = (
            slots.0.at(i * SLOT, SLOT)?,
            slots.0.at(answer_offset(i), SLOT)?,
        );
        let len = text.len() as u32;
        // SAFETY: the slots differ, this thread leaves them alone until the answer, and `slots`
        // keeps the region.
        arrivals.push(unsafe {
            Arrival::new(
                input,
                len,
                output,
                SLOT as u32,
                i as u64,
                now_ns(),
                slots.clone(),
            )
        });
    }
    pipeline.arrived(&mut arrivals);
    for _ in texts {
        let answer = answers.recv_timeout(Duration::from_secs(20))?;
        let i = answer.ticket as usize;
        // SAFETY: the answer is complete, so no other thread uses the slot.
        let bytes = unsafe { slots.0.bytes(answer_offset(i), answer.len as usize)? };
        println!("{}: {}", texts[i], String::from_utf8_lossy(bytes));
    }
    pipeline.stop(Duration::from_secs(5))?;
    Ok(())
}
