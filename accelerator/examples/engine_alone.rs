//! An engine by itself: as many threads as it has workers, each running one batch after the other
//! from memory that is registered with it. What the pipeline, LoadGen and a network add can be
//! compared with it.
//!
//! ```text
//! cargo run --release -p accelerator --example engine_alone -- CONFIG [SECONDS [SIZE[@US]...]]
//! ```
//!
//! CONFIG is an accelerator's; SIZE are batch sizes, `max_batch` without any. With `@US` no batch
//! begins sooner than so many microseconds after the one before it. One line of JSON for each size.

use std::{
    process::ExitCode,
    sync::{
        Arc, Barrier, Mutex, PoisonError,
        atomic::{AtomicBool, AtomicU64, Ordering::Relaxed},
    },
    thread,
    time::{Duration, Instant},
};

use accelerator::{
    engine::{self, Batch, Engine},
    node::engine_params,
};
use fabric::Region;
use qdl::{
    model::ModelSpec,
    serve::{Arrival, Finished, Origin},
};

/// Batches' worth of samples that each worker goes through in turn.
const ROTATE: usize = 3;

struct Nobody;

impl Origin for Nobody {
    fn respond(&self, _: &[Finished]) {}

    fn refuse(&self, _: u64, _: &str) {}
}

fn main() -> ExitCode {
    engine::tensorrt::build_if_asked();
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
        anyhow::bail!("usage: engine_alone CONFIG [SECONDS [SIZE[@US]...]]");
    };
    let seconds: f64 = rest.first().map_or(Ok(5.0), |s| s.parse())?;
    let config = qdl::config::load_accelerator(std::path::Path::new(config))?;
    let spec = config.model.spec();
    let file = config.model.file.as_deref();
    let params = engine_params(&config.engine, &config.model.name, file, spec.as_ref());
    let engine = engine::create(&params)?;
    let mut sizes = Vec::new();
    for s in rest.get(1..).unwrap_or_default() {
        let (size, apart) = s.split_once('@').unwrap_or((s, "0"));
        let size = size.parse::<usize>()?.clamp(1, params.engine.max_batch);
        sizes.push((size, Duration::from_secs_f64(apart.parse::<f64>()? / 1e6)));
    }
    if sizes.is_empty() {
        sizes.push((params.engine.max_batch, Duration::ZERO));
    }
    for (size, apart) in sizes {
        measure(&engine, params.engine.threads, size, apart, seconds)?;
    }
    Ok(())
}

fn measure(
    engine: &Arc<dyn Engine>,
    workers: usize,
    size: usize,
    apart: Duration,
    seconds: f64,
) -> anyhow::Result<()> {
    let model = engine.model();
    let sample = model.max_input_bytes().unwrap_or(1);
    let output = model.max_output_bytes().unwrap_or(1).next_multiple_of(64);
    let (stop, samples) = (AtomicBool::new(false), AtomicU64::new(0));
    let ready = Barrier::new(workers + 1);
    let next = Mutex::new(Instant::now());
    let took = thread::scope(|s| -> anyhow::Result<f64> {
        let mut threads = Vec::new();
        for index in 0..workers {
            let (stop, samples, ready, next) = (&stop, &samples, &ready, &next);
            threads.push(s.spawn(move || -> anyhow::Result<()> {
                let inputs = Arc::new(Region::new(sample * size * ROTATE)?);
                inputs.prefault();
                // SAFETY: nobody else knows the region yet.
                fill(model, unsafe { inputs.bytes_mut(0, inputs.len())? }, index);
                engine.memory(&inputs);
                let outputs = Region::new(output * size)?;
                let made = engine.worker(index).and_then(|mut worker| {
                    worker.warm_up(size)?;
                    worker.warm_up(size)?;
                    Ok(worker)
                });
                ready.wait();
                let mut worker = made?;
                let mut batch = Batch::with_capacity(size);
                let fixed = model.fixed_size().then_some(sample);
                let origin: Arc<dyn Origin> = Arc::new(Nobody);
                let mut turn = 0;
                while !stop.load(Relaxed) {
                    turn = (turn + 1) % ROTATE;
                    batch.fill(fixed, |arrivals| {
                        arrivals.extend((0..size).map(|i| {
                            let input = inputs.at((turn * size + i) * sample, sample);
                            let output = outputs.at(i * output, output);
                            let (Ok(input), Ok(output_at)) = (input, output) else {
                                unreachable!("both regions were made for this many");
                            };
                            // SAFETY: both regions outlive the batch, which is emptied before the
                            // next is filled; every sample has its own output.
                            unsafe {
                                Arrival::new(
                                    input,
                                    sample as u32,
                                    output_at,
                                    output_len(engine.as_ref()),
                                    i as u64,
                                    0,
                                    origin.clone(),
                                )
                            }
                        }));
                    });
                    wait_until(begin(next, apart));
                    worker.run(&mut batch)?;
                    batch.clear();
                    samples.fetch_add(size as u64, Relaxed);
                }
                Ok(())
            }));
        }
        ready.wait();
        let began = Instant::now();
        let before = samples.load(Relaxed);
        thread::sleep(Duration::from_secs_f64(seconds));
        let done = samples.load(Relaxed) - before;
        let took = began.elapsed().as_secs_f64();
        stop.store(true, Relaxed);
        for t in threads {
            t.join()
                .map_err(|_| anyhow::anyhow!("a worker panicked"))??;
        }
        Ok(done as f64 / took)
    })?;
    println!(
        "{{\"engine\": \"{}\", \"model\": \"{}\", \"batch\": {size}, \"workers\": {workers}, \"apart_us\": {}, \"samples_per_s\": {took:.0}, \"gpus\": {}}}",
        engine.name(),
        model.name,
        apart.as_micros(),
        serde_json::to_string(&engine.gpus())?
    );
    Ok(())
}

/// When the next batch begins: now, or so long after the one before it.
fn begin(next: &Mutex<Instant>, apart: Duration) -> Instant {
    let mut next = next.lock().unwrap_or_else(PoisonError::into_inner);
    let at = Instant::now().max(*next);
    *next = at + apart;
    at
}

/// Awake, as a sleep would be late.
fn wait_until(at: Instant) {
    while Instant::now() < at {
        std::hint::spin_loop();
    }
}

/// Random bytes; where elements are integers, zeros and ones, which every table of a model has.
/// Zeros alone would run faster than samples do.
fn fill(model: &ModelSpec, to: &mut [u8], seed: usize) {
    let mut x = 0x9E37_79B9_7F4A_7C15_u64 ^ ((seed as u64 + 1) << 32);
    let mut next = move || {
        x ^= x << 13;
        x ^= x >> 7;
        x ^= x << 17;
        x
    };
    let width = model.inputs.first().map_or(1, |t| t.dtype.bytes());
    for element in to.chunks_mut(width) {
        match element {
            [byte] => *byte = next() as u8,
            wider => wider[0] = next() as u8 & 1,
        }
    }
}

fn output_len(engine: &dyn Engine) -> u32 {
    let bytes = engine.model().max_output_bytes().unwrap_or(1);
    u32::try_from(bytes).unwrap_or(u32::MAX)
}
