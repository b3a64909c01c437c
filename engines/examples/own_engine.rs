//! An engine of your own: its answer is the number of bits that are set in a sample. The pipeline
//! makes batches of samples, which lie in memory that the program has already.
//!
//! `cargo run -p engines --example own_engine`

use std::{error::Error, num::NonZeroUsize, ptr::NonNull, sync::Arc, sync::mpsc, time::Duration};

use engines::{
    Batch, Engine, EngineError, EngineKind, EngineParams, Worker,
    pipeline::{Options, Pipeline},
};
use fabric::Region;
use qdl::{
    model::ModelSpec,
    serve::{Arrival, Finished, Origin, Service},
};

/// The loaded model: samples of 4 bytes, answers of 4 bytes.
struct Bits(ModelSpec);

impl Engine for Bits {
    fn name(&self) -> &'static str {
        "bits"
    }

    fn model(&self) -> &ModelSpec {
        &self.0
    }

    fn worker(&self, _index: usize) -> Result<Box<dyn Worker>, EngineError> {
        Ok(Box::new(BitCounter))
    }
}

/// Has what one thread needs to run batches: here nothing.
struct BitCounter;

impl Worker for BitCounter {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        for i in 0..batch.len() {
            let bits: u32 = batch.input(i).iter().map(|byte| byte.count_ones()).sum();
            batch.write(i, &bits.to_le_bytes())?;
        }
        Ok(())
    }
}

/// Stands for a connection: passes on the numbers of answered samples.
struct Answered(mpsc::Sender<u64>);

impl Origin for Answered {
    fn respond(&self, finished: &[Finished]) {
        for sample in finished {
            // The receiver is gone only if `main` has failed.
            let _ = self.0.send(sample.ticket);
        }
    }

    fn refuse(&self, ticket: u64, why: &str) {
        eprintln!("sample {ticket}: {why}");
    }
}

pub(crate) fn main() -> Result<(), Box<dyn Error>> {
    let engine = Arc::new(Bits(ModelSpec::opaque("bits", 4, 4)));
    // The keys `max_batch`, `max_delay_us` and `threads` of `engine`.
    let options = Options::from(&EngineParams::new(EngineKind::Null).with(|e| e.max_batch = 4));
    let pipeline = Pipeline::start(engine, &options, |error| eprintln!("{error}"))?;

    let samples: Arc<[u8]> = (0..32).collect();
    let base = NonNull::from(&*samples).cast();
    let len = NonZeroUsize::new(samples.len()).ok_or("there are samples")?;
    // SAFETY: `samples` owns the memory until the region is dropped, and nothing writes it.
    let inputs = Arc::new(unsafe { Region::of_host(base, len, Box::new(samples)) });
    let outputs = Region::new(32)?;
    pipeline.memory(&inputs);

    let (send, answered) = mpsc::channel();
    let origin: Arc<dyn Origin> = Arc::new(Answered(send));
    let mut arrivals = Vec::new();
    for ticket in 0..8 {
        let offset = ticket as usize * 4;
        let (input, output) = (inputs.at(offset, 4)?, outputs.at(offset, 4)?);
        // SAFETY: both regions outlive the pipeline's work, and no two samples share an output.
        let arrival = unsafe { Arrival::new(input, 4, output, 4, ticket, 0, origin.clone()) };
        arrivals.push(arrival);
    }
    pipeline.arrived(&mut arrivals);
    for _ in 0..8 {
        let ticket = answered.recv_timeout(Duration::from_secs(20))?;
        // SAFETY: the sample is answered, so the pipeline no longer writes the output.
        let answer = unsafe { outputs.bytes(ticket as usize * 4, 4) }?;
        println!("sample {ticket}: {} bits", answer[0]);
    }
    pipeline.stop(Duration::from_secs(5))?;
    Ok(())
}
