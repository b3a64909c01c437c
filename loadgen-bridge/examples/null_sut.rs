//! A SUT that answers at once: what LoadGen and the bridge cost by themselves.
//!
//! `cargo run --release -p loadgen-bridge --example null_sut --
//! --scenario server --target-qps 500000 --duration-ms 5000`

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use clap::{Parser, ValueEnum};
use loadgen_bridge::{
    Figure, LoadgenError, LogSettings, QuerySample, QuerySampleLibrary, QuerySampleResponse,
    ResponseId, Scenario, SystemUnderTest, TestMode, TestOutcome, TestSettings, Verdict, complete,
    run_test,
};

/// The frontend's allocator: LoadGen allocates for every sample.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Clone, Copy, ValueEnum)]
enum Language {
    /// Through the bridge.
    Rust,
    /// The same SUT without the bridge (feature `bench`).
    Cpp,
}

/// Runs LoadGen over a null SUT, which completes samples without work.
#[derive(Parser)]
struct Arguments {
    /// LoadGen's scenario: how queries arrive.
    #[arg(long, default_value = "server", value_parser = scenario)]
    scenario: Scenario,
    /// Target rate, in queries per second; in Offline, samples per second.
    #[arg(long, default_value_t = 1000.0)]
    target_qps: f64,
    /// Minimum duration of the run, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// Language of the null SUT.
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// Let LoadGen coalesce queries that are late.
    #[arg(long)]
    coalesce: bool,
    /// Folder for the logs.
    #[arg(long, default_value = "target/null_sut")]
    outdir: PathBuf,
}

fn scenario(text: &str) -> Result<Scenario, String> {
    let named = |s: &Scenario| s.name().eq_ignore_ascii_case(text);
    let found = Scenario::ALL.into_iter().find(named);
    found.ok_or_else(|| "singlestream, multistream, server or offline".to_owned())
}

const SAMPLES: usize = 1024;
const RESPONSE_BYTES: usize = 8;
/// Server: limit on the 99th percentile of latency, in nanoseconds.
const LATENCY_NS: u64 = 10_000_000;

struct NullQsl;

impl QuerySampleLibrary for NullQsl {
    fn name(&self) -> String {
        "null QSL".to_owned()
    }
    fn total_sample_count(&self) -> usize {
        SAMPLES
    }
    fn performance_sample_count(&self) -> usize {
        SAMPLES
    }
    fn load_samples(&self, _: &[usize]) {}
    fn unload_samples(&self, _: &[usize]) {}
}

const RING: usize = 1 << 16;
const BATCH: usize = 256;

/// Ids on their way to the completing thread. An id is never zero, which marks a free slot.
struct Ring {
    slots: Box<[AtomicU64]>,
    head: AtomicUsize,
    done: AtomicBool,
}

/// A SUT that completes samples on another thread, which spins on a ring.
struct NullSut {
    ring: Arc<Ring>,
    thread: Option<thread::JoinHandle<()>>,
}

impl NullSut {
    fn start() -> Self {
        let ring = Arc::new(Ring {
            slots: (0..RING).map(|_| AtomicU64::new(0)).collect(),
            head: AtomicUsize::new(0),
            done: AtomicBool::new(false),
        });
        let theirs = Arc::clone(&ring);
        let thread = Some(thread::spawn(move || complete_all(&theirs)));
        Self { ring, thread }
    }
}

impl Drop for NullSut {
    fn drop(&mut self) {
        self.ring.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl SystemUnderTest for NullSut {
    fn name(&self) -> String {
        "null SUT, Rust, other thread".to_owned()
    }

    fn issue_query(&self, samples: &[QuerySample]) {
        let first = self.ring.head.fetch_add(samples.len(), Ordering::Relaxed);
        for (i, sample) in samples.iter().enumerate() {
            let slot = &self.ring.slots[(first + i) % RING];
            while slot.load(Ordering::Acquire) != 0 {
                thread::yield_now();
            }
            slot.store(sample.id.to_bits(), Ordering::Release);
        }
    }

    fn flush_queries(&self) {}
}

fn complete_all(ring: &Ring) {
    let data = [0; RESPONSE_BYTES];
    let mut responses = Vec::with_capacity(BATCH);
    let mut tail = 0;
    loop {
        while responses.len() < BATCH {
            let slot = &ring.slots[tail % RING];
            let bits = slot.load(Ordering::Acquire);
            if bits == 0 {
                break;
            }
            slot.store(0, Ordering::Release);
            tail += 1;
            // SAFETY: only `issue_query` puts numbers there, and they are ids' bits.
            let id = unsafe { ResponseId::from_bits(bits) };
            responses.push(QuerySampleResponse::new(id, &data));
        }
        if !responses.is_empty() {
            // SAFETY: each id was taken out of its slot, and only this thread completes.
            unsafe { complete(&responses) };
            responses.clear();
        } else if ring.done.load(Ordering::Acquire) {
            return;
        } else {
            thread::yield_now();
        }
    }
}

fn run(arguments: &Arguments) -> Result<TestOutcome, LoadgenError> {
    let settings = TestSettings {
        scenario: arguments.scenario,
        mode: TestMode::PerformanceOnly,
        server_target_qps: arguments.target_qps,
        offline_expected_qps: arguments.target_qps,
        single_stream_expected_latency_ns: 1e9 / arguments.target_qps,
        multi_stream_expected_latency_ns: 1e9 / arguments.target_qps,
        server_target_latency_ns: LATENCY_NS,
        server_coalesce_queries: arguments.coalesce,
        min_duration_ms: arguments.duration_ms,
        ..TestSettings::default()
    };
    let log = LogSettings {
        outdir: arguments.outdir.clone(),
        enable_trace: false,
        ..LogSettings::default()
    };
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory. LoadGen's thread inherits the
    // slack of 1 ns.
    unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1) };
    match arguments.language {
        Language::Cpp => cpp(&settings, &log),
        Language::Rust => {
            let sut = Arc::new(NullSut::start());
            run_test(sut, Arc::new(NullQsl), &settings, &log, None)
        }
    }
}

#[cfg(feature = "bench")]
fn cpp(settings: &TestSettings, log: &LogSettings) -> Result<TestOutcome, LoadgenError> {
    loadgen_bridge::null_sut_cpp(settings, log, SAMPLES, RESPONSE_BYTES)
}

#[cfg(not(feature = "bench"))]
fn cpp(_: &TestSettings, _: &LogSettings) -> Result<TestOutcome, LoadgenError> {
    eprintln!("the null SUT in C++ wants --features bench");
    std::process::exit(2);
}

fn main() -> ExitCode {
    let outcome = match run(&Arguments::parse()) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("null_sut: {error}");
            return ExitCode::from(2);
        }
    };
    let verdict = match outcome.verdict {
        Verdict::Valid => "VALID",
        Verdict::Invalid => "INVALID",
        Verdict::NotJudged => "not judged",
    };
    let figure = match outcome.figure {
        Some(Figure::CompletedSamplesPerSecond(rate)) => format!("{rate:.0} completed samples/s"),
        Some(Figure::SamplesPerSecond(rate)) => format!("{rate:.0} samples/s"),
        Some(Figure::Latency { percentile, ns }) => format!("{percentile}th percentile {ns} ns"),
        None => "no figure".to_owned(),
    };
    let mut text = format!("{verdict}: {figure}\n");
    for reason in outcome.reasons.iter().chain(&outcome.detail.error_messages) {
        text.push_str(&format!("  {reason}\n"));
    }
    // The reader of the pipe may have ended.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if outcome.verdict == Verdict::Invalid {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}
