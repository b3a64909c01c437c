//! Measures an engine alone, as a baseline for the pipeline, LoadGen and a network. Each worker
//! thread runs one batch after the other, from memory that is registered with the engine.
//!
//! ```text
//! cargo run --release -p engines --example engine_alone -- CONFIG [SECONDS [SIZE...]]
//! ```
//!
//! CONFIG is an accelerator's configuration. Each SIZE is `[gpu:]SIZE[/STEP][@US]`, by default
//! `max_batch`. With `gpu:`, the slots are in GPU memory. With `/STEP`, a batch takes every STEPth
//! slot. With `@US`, a batch begins at least US microseconds after the previous one. The program
//! prints one line of JSON for each size. Its `answers` are one hash per worker; they do not depend
//! on where the slots are.

use std::{
    process::ExitCode,
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use anyhow::Context;
use engines::{Batch, Engine, EngineError, EngineParams, Worker};
use fabric::Region;
use qdl::{
    model::ModelSpec,
    serve::{Arrival, Finished, Origin},
};
use record::GpuRecord;
use serde_json::json;
use xxhash_rust::xxh3::xxh3_64;

/// Number of different batches that each worker runs in turn.
const ROTATE: usize = 3;

struct NoFrontend;

impl Origin for NoFrontend {
    fn respond(&self, _: &[Finished]) {}

    fn refuse(&self, _: u64, _: &str) {}
}

/// One measurement: a parsed SIZE argument.
struct Measurement {
    size: usize,
    /// Distance between two samples of a batch, in slots.
    step: usize,
    on_gpu: bool,
    apart: Duration,
}

impl Measurement {
    fn parse(word: &str, most: usize) -> anyhow::Result<Self> {
        let (on_gpu, rest) = match word.strip_prefix("gpu:") {
            Some(rest) => (true, rest),
            None => (false, word),
        };
        let (rest, apart) = rest.split_once('@').unwrap_or((rest, "0"));
        let (size, step) = rest.split_once('/').unwrap_or((rest, "1"));
        Ok(Measurement {
            size: size.parse::<usize>()?.clamp(1, most),
            step: step.parse::<usize>()?.max(1),
            on_gpu,
            apart: Duration::from_secs_f64(apart.parse::<f64>()? / 1e6),
        })
    }
}

fn main() -> ExitCode {
    engines::begin();
    match run(&std::env::args().collect::<Vec<_>>()) {
        Ok(()) => ExitCode::SUCCESS,
        Err(e) => {
            eprintln!("error: {e:#}");
            ExitCode::from(2)
        }
    }
}

fn run(args: &[String]) -> anyhow::Result<()> {
    let [_, config, rest @ ..] = args else {
        anyhow::bail!("usage: engine_alone CONFIG [SECONDS [[gpu:]SIZE[/STEP][@US]...]]");
    };
    let seconds: f64 = rest.first().map_or(Ok(5.0), |s| s.parse())?;
    let path = std::path::Path::new(config);
    let (config, engine) = engines::config::load_accelerator(path)?;
    let spec = config.model.spec();
    let file = config.model.file.as_deref();
    let params = EngineParams::of(&engine, &config.model.name, file, spec.as_ref());
    let engine = engines::create(&params)?;
    let largest = params.engine.max_batch.to_string();
    let words = rest.get(1..).filter(|words| !words.is_empty());
    for word in words.unwrap_or(std::slice::from_ref(&largest)) {
        let measurement = Measurement::parse(word, params.engine.max_batch)?;
        measure(&engine, params.engine.threads, &measurement, seconds)?;
    }
    Ok(())
}

fn measure(
    engine: &Arc<dyn Engine>,
    workers: usize,
    m: &Measurement,
    seconds: f64,
) -> anyhow::Result<()> {
    let (stop, samples) = (AtomicBool::new(false), AtomicU64::new(0));
    let ready = Barrier::new(workers + 1);
    let next = Mutex::new(Instant::now());
    let before = engine.gpus();
    let (rate, answers) = thread::scope(|s| -> anyhow::Result<_> {
        let mut threads = Vec::new();
        for index in 0..workers {
            let (stop, samples, ready, next) = (&stop, &samples, &ready, &next);
            threads.push(s.spawn(move || -> anyhow::Result<u64> {
                let made = Bench::new(engine.as_ref(), m, index);
                ready.wait();
                let mut bench = made?;
                let mut turn = 0;
                while !stop.load(Relaxed) {
                    turn = (turn + 1) % ROTATE;
                    bench.fill(turn);
                    wait_until(begin(next, m.apart));
                    bench.run()?;
                    samples.fetch_add(m.size as u64, Relaxed);
                }
                bench.answers()
            }));
        }
        ready.wait();
        let (began, first) = (Instant::now(), samples.load(Relaxed));
        thread::sleep(Duration::from_secs_f64(seconds));
        let done = samples.load(Relaxed) - first;
        let rate = done as f64 / began.elapsed().as_secs_f64();
        stop.store(true, Relaxed);
        let mut answers = Vec::new();
        for t in threads {
            let joined = t.join().ok().context("a worker panicked")?;
            answers.push(joined?);
        }
        Ok((rate, answers))
    })?;
    let gpus = engine.gpus().into_iter().zip(&before);
    let gpus: Vec<GpuRecord> = gpus.map(|(now, then)| now.since(then)).collect();
    let line = json!({
        "engine": engine.name(), "model": engine.model().name, "batch": m.size, "step": m.step,
        "slots": if m.on_gpu { "gpu" } else { "host" }, "workers": workers,
        "apart_us": m.apart.as_micros() as u64, "samples_per_s": rate.round() as u64,
        "answers": answers, "gpus": gpus,
    });
    println!("{line}");
    Ok(())
}

/// A worker, and the input and output slots of its samples.
struct Bench<'a> {
    of: &'a Measurement,
    worker: Box<dyn Worker>,
    batch: Batch,
    inputs: Arc<Region>,
    outputs: Region,
    origin: Arc<dyn Origin>,
    /// Bytes of a sample; `stride` is the distance of two outputs in bytes.
    sample: usize,
    stride: usize,
    /// Bytes of every sample, if the model has a fixed input size.
    fixed: Option<usize>,
}

impl<'a> Bench<'a> {
    fn new(engine: &dyn Engine, m: &'a Measurement, index: usize) -> anyhow::Result<Self> {
        let model = engine.model();
        let sample = model.max_input_bytes().unwrap_or(1);
        let stride = model.max_output_bytes().unwrap_or(1).next_multiple_of(64);
        let mut bytes = vec![0; sample * m.size * m.step * ROTATE];
        fill(model, &mut bytes, index);
        let inputs = match m.on_gpu {
            true => engine.slots(bytes.len())?,
            false => Arc::new(Region::new(bytes.len())?),
        };
        // SAFETY: no other code knows the region yet.
        unsafe { inputs.store(0, &bytes) }.map_err(anyhow::Error::msg)?;
        engine.memory(&inputs);
        let mut worker = engine.worker(index)?;
        worker.warm_up(m.size)?;
        worker.warm_up(m.size)?;
        Ok(Bench {
            of: m,
            worker,
            batch: Batch::new(m.size),
            inputs,
            outputs: Region::new(stride * m.size)?,
            origin: Arc::new(NoFrontend),
            sample,
            stride,
            fixed: model.fixed_size().then_some(sample),
        })
    }

    fn fill(&mut self, turn: usize) {
        let (sample, stride, on_gpu) = (self.sample, self.stride, self.inputs.device().is_some());
        self.batch.fill(self.fixed, |arrivals| {
            arrivals.extend((0..self.of.size).map(|i| {
                let at = (turn * self.of.size + i) * self.of.step * sample;
                let input = self.inputs.at(at, sample);
                let output = self.outputs.at(i * stride, stride);
                let (Ok(input), Ok(output)) = (input, output) else {
                    unreachable!("both regions were made for this many");
                };
                let (len, origin) = (sample as u32, self.origin.clone());
                // SAFETY: both regions outlive the batch's samples, which `run` clears before the
                // next `fill`. Every sample of the batch has its own output.
                unsafe { Arrival::new(input, len, output, stride as u32, i as u64, 0, origin) }
                    .on_device(on_gpu)
            }));
        });
    }

    fn run(&mut self) -> Result<(), EngineError> {
        self.worker.run(&mut self.batch)?;
        self.batch.clear();
        Ok(())
    }

    /// Runs every batch once; returns a hash of all answers.
    fn answers(&mut self) -> anyhow::Result<u64> {
        let mut hashes = Vec::new();
        for turn in 0..ROTATE {
            self.fill(turn);
            self.run()?;
            // SAFETY: the batch is done, so nothing writes the outputs.
            let bytes = unsafe { self.outputs.bytes(0, self.outputs.len()) }?;
            hashes.extend_from_slice(&xxh3_64(bytes).to_le_bytes());
        }
        Ok(xxh3_64(&hashes))
    }
}

/// Reserves the next begin time: now, or `apart` after the previous batch of any worker.
fn begin(next: &Mutex<Instant>, apart: Duration) -> Instant {
    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
    let at = Instant::now().max(*next);
    *next = at + apart;
    at
}

/// Spins until `at`: a sleep would end late.
fn wait_until(at: Instant) {
    while Instant::now() < at {
        std::hint::spin_loop();
    }
}

/// Fills `to`: elements of one byte are random, wider ones 0 or 1, an index that every table of a
/// model has. All zeros would run faster than real samples.
fn fill(model: &ModelSpec, to: &mut [u8], seed: usize) {
    let mut random = fastrand::Rng::with_seed(seed as u64);
    let width = model.inputs.first().map_or(1, |t| t.dtype.bytes());
    for element in to.chunks_mut(width) {
        match element {
            [byte] => *byte = random.u8(..),
            wider => wider[0] = random.u8(..2),
        }
    }
}
