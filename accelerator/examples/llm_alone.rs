//! Engine `llm` by itself, without a network: tokens per second at so many sequences at once.
//!
//! ```text
//! cargo run --release --example llm_alone -- MODEL TOKENS [THREADS [MAX_TOKENS [SEQUENCES...]]]
//! cargo run --release --example llm_alone -- .deps/models/smollm2-q8.onnx \
//!     .deps/models/capitals.tokens 2 20 1 8 16
//! ```
//!
//! TOKENS is a file of tokens (`docs/datasets.md`). As many prompts are at work as the engine
//! takes; the clock runs from the first to the end of the last.

use std::{
    cell::UnsafeCell,
    path::{Path, PathBuf},
    sync::{
        Arc,
        atomic::{AtomicU64, Ordering::Relaxed},
        mpsc::channel,
    },
    time::{Duration, Instant},
};

use accelerator::engine::{
    EngineKind, EngineParams, Sequence, create,
    streaming::{Outcome, TOKEN_BYTES},
};
use anyhow::{Context, Result, bail};
use qdl::{
    clock,
    config::LlmConfig,
    model::ModelSpec,
    serve::{Arrival, Finished, Origin, Part},
    wire::Stream,
};

/// Longest prompt and answer.
const MOST: usize = 512;

fn main() -> Result<()> {
    let args: Vec<String> = std::env::args().skip(1).collect();
    let [model, tokens, rest @ ..] = &args[..] else {
        bail!("llm_alone MODEL TOKENS [THREADS [MAX_TOKENS [SEQUENCES...]]]");
    };
    let rest: Vec<usize> = rest.iter().map(|n| n.parse()).collect::<Result<_, _>>()?;
    let (threads, most) = (
        rest.first().copied().unwrap_or(1),
        rest.get(1).copied().unwrap_or(20),
    );
    let prompts = read(Path::new(tokens)).context("not a file of tokens")?;
    let each = rest
        .get(2..)
        .filter(|n| !n.is_empty())
        .unwrap_or(&[1, 8, 16]);
    println!(
        "{} prompts, answers of {most} tokens, {threads} threads",
        prompts.len()
    );
    for sequences in each {
        measure(model.into(), &prompts, *sequences, threads, most)?;
    }
    Ok(())
}

fn measure(
    file: PathBuf,
    prompts: &[Box<[u8]>],
    sequences: usize,
    threads: usize,
    most: usize,
) -> Result<()> {
    let params = EngineParams {
        file: Some(file),
        spec: Some(ModelSpec::of_tokens("m", MOST, MOST)),
        ..EngineParams::new(EngineKind::Llm)
    };
    let params = params.with(|e| {
        e.intra_threads = threads;
        e.llm = Some(LlmConfig {
            sequences,
            min_tokens: most,
            max_tokens: Some(most),
            ..LlmConfig::default()
        });
    });
    let engine = create(&params)?;
    let streaming = engine.streaming().context("it does not batch by itself")?;
    streaming.start(Arc::new(|e| eprintln!("{e}")))?;
    let (ended, ends) = channel();
    let started = Instant::now();
    let (mut out, mut tokens, mut firsts) = (0, 0, Vec::new());
    let mut prompts_left = prompts.iter();
    loop {
        while out < sequences
            && let Some(prompt) = prompts_left.next()
        {
            out += 1;
            let asked = Arc::new(Asked::new(prompt));
            let (ended, kept) = (ended.clone(), asked.clone());
            let sequence = Sequence::new(asked.arrival(), MOST * TOKEN_BYTES, move |outcome| {
                // Nobody listens once the measurement is over.
                let _ = ended.send((outcome, kept.first_ns.load(Relaxed)));
            });
            streaming.submit(sequence);
        }
        if out == 0 {
            break;
        }
        let (outcome, first) = ends.recv_timeout(Duration::from_secs(60))?;
        let Outcome::Answered { tokens: more, .. } = outcome else {
            bail!("a prompt was refused");
        };
        (out, tokens) = (out - 1, tokens + more);
        firsts.push(first);
    }
    let seconds = started.elapsed().as_secs_f64();
    firsts.sort_unstable();
    println!(
        "{sequences:>3} at once: {:>6.1} tokens/s, first token p50 {:.0} ms, {:.1} s",
        tokens as f64 / seconds,
        firsts[firsts.len() / 2] as f64 / 1e6,
        seconds
    );
    streaming.stop(Duration::from_secs(10));
    Ok(())
}

/// The rows of a file of tokens, as bytes.
fn read(path: &Path) -> Option<Vec<Box<[u8]>>> {
    let bytes = std::fs::read(path).ok()?;
    let word = |at: usize| {
        let word = bytes.get(at..at + 8)?;
        usize::try_from(u64::from_le_bytes(word.try_into().ok()?)).ok()
    };
    let count = word(16).filter(|n| *n < bytes.len())?;
    let ids = 32 + 8 * count;
    let row = |i: usize| {
        let (from, to) = (ids + 4 * word(24 + 8 * i)?, ids + 4 * word(32 + 8 * i)?);
        Some(bytes.get(from..to)?.into())
    };
    (0..count).map(row).collect()
}

/// One prompt and the room for its answer.
struct Asked {
    input: Box<[u8]>,
    output: UnsafeCell<[u8; MOST * TOKEN_BYTES]>,
    started_ns: u64,
    /// From the start to the first token.
    first_ns: AtomicU64,
}

// SAFETY: the output is touched by the one sequence that there is.
unsafe impl Sync for Asked {}

impl Asked {
    fn new(prompt: &[u8]) -> Self {
        Asked {
            input: prompt.into(),
            output: UnsafeCell::new([0; MOST * TOKEN_BYTES]),
            started_ns: clock::now_ns(),
            first_ns: AtomicU64::new(0),
        }
    }

    fn arrival(self: &Arc<Self>) -> Arrival {
        let (input, output) = (self.input.as_ptr(), self.output.get().cast());
        let (len, room) = (self.input.len() as u32, (MOST * TOKEN_BYTES) as u32);
        // SAFETY: the origin owns both places for as long as it lives; there is one arrival of it.
        unsafe { Arrival::new(input, len, output, room, 0, self.started_ns, self.clone()) }
    }
}

impl Origin for Asked {
    fn respond(&self, _: &[Finished]) {}

    fn refuse(&self, _: u64, why: &str) {
        eprintln!("{why}");
    }

    fn part(&self, _: &Part) {
        let since = clock::now_ns().saturating_sub(self.started_ns);
        self.first_ns.store(since, Relaxed);
    }

    fn stream(&self) -> Stream {
        Stream::First
    }
}
