//! How many tokens and parts the engine `tokens` brings in a second with nothing behind it: what
//! is left of a core for the wire. `cargo run --release -p accelerator --example tokens_alone`.

use std::{
    sync::{
        Arc,
        atomic::{
            AtomicU64,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::{Duration, Instant},
};

use accelerator::{
    engine::{EngineKind, EngineParams, create},
    pipeline::{Options, Pipeline},
};
use qdl::{
    clock,
    config::TokensConfig,
    model::ModelSpec,
    serve::{Arrival, Finished, Origin, Part, Service},
    wire::Stream,
};

const SAMPLES: usize = 2_000;
/// Tokens of each prompt and answer.
const TOKENS: usize = 128;
const ROUNDS: usize = 5;

/// Counts parts, and does nothing with them.
struct Counts {
    stream: Stream,
    parts: AtomicU64,
}

impl Origin for Counts {
    fn part(&self, _: &Part) {
        self.parts.fetch_add(1, Relaxed);
    }
    fn respond(&self, finished: &[Finished]) {
        self.parts.fetch_add(finished.len() as u64, Relaxed);
    }
    fn refuse(&self, _: u64, why: &str) {
        eprintln!("refused: {why}");
    }
    fn stream(&self) -> Stream {
        self.stream
    }
}

fn params(sequences: usize) -> EngineParams {
    EngineParams {
        spec: Some(ModelSpec::of_tokens("m", TOKENS, TOKENS)),
        ..EngineParams::new(EngineKind::Tokens)
    }
    .with(|e| {
        e.tokens = Some(TokensConfig {
            sequences,
            min_tokens: TOKENS,
            ..TokensConfig::default()
        });
    })
}

/// The best of some rounds: tokens and parts a second.
fn measure(pipeline: &Pipeline, stream: Stream) -> (f64, f64) {
    let bytes = 4 * TOKENS as u32;
    let input = vec![7u8; bytes as usize];
    let mut outputs = vec![0u8; bytes as usize * SAMPLES];
    let counts = Arc::new(Counts {
        stream,
        parts: AtomicU64::new(0),
    });
    let mut best = (0.0, 0.0);
    for _ in 0..ROUNDS {
        let before = counts.parts.load(SeqCst);
        let arrival = |output: &mut [u8]| {
            let (output, now) = (output.as_mut_ptr(), clock::now_ns());
            // SAFETY: input and outputs outlive the round, each output is one arrival's alone, and
            // the next round begins when all of them have ended.
            unsafe { Arrival::new(input.as_ptr(), bytes, output, bytes, 0, now, counts.clone()) }
        };
        let mut all: Vec<_> = outputs
            .chunks_exact_mut(bytes as usize)
            .map(arrival)
            .collect();
        let begun = Instant::now();
        pipeline.arrived(&mut all);
        while !pipeline.idle() {
            std::thread::sleep(Duration::from_micros(100));
        }
        let per_s = |n: u64| n as f64 / begun.elapsed().as_secs_f64();
        let parts = counts.parts.load(SeqCst) - before;
        let round = (per_s((SAMPLES * TOKENS) as u64), per_s(parts));
        if round.0 > best.0 {
            best = round;
        }
    }
    best
}

fn main() -> Result<(), Box<dyn std::error::Error>> {
    println!(
        "{SAMPLES} answers of {TOKENS} tokens, no pretended time, the best of {ROUNDS} rounds"
    );
    for sequences in [1, 16, 256] {
        let params = params(sequences);
        let fail = |e| eprintln!("{e}");
        let pipeline = Pipeline::start(create(&params)?, &Options::from(&params), fail)?;
        for stream in [Stream::None, Stream::First, Stream::All] {
            let (tokens, parts) = measure(&pipeline, stream);
            let (tokens, parts) = (tokens / 1e6, parts / 1e6);
            println!(
                "{sequences:4} at once, {stream:5}: {tokens:6.2} M tokens/s, {parts:6.2} M parts/s"
            );
        }
        pipeline.stop(Duration::from_secs(1))?;
    }
    Ok(())
}
