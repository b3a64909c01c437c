//! A SUT that answers at once: what LoadGen and the bridge cost by themselves.
//!
//! `cargo run --release -p loadgen-bridge --example null_sut --
//! --scenario server --target-qps 500000 --duration-ms 5000`

use std::io::Write;
use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::sync::{Arc, OnceLock};
use std::thread;

use clap::{Parser, ValueEnum};
use loadgen_bridge::{
    Figure, LoadgenError, LogSettings, QuerySample, QuerySampleLibrary, QuerySampleResponse,
    ResponseId, Scenario, SystemUnderTest, TestMode, TestOutcome, TestSettings, Verdict, complete,
    register_issue_query_thread, run_test,
};

/// The frontend's allocator: LoadGen allocates for every sample.
#[global_allocator]
static ALLOCATOR: tikv_jemallocator::Jemalloc = tikv_jemallocator::Jemalloc;

#[derive(Clone, Copy, PartialEq, Eq, ValueEnum)]
enum Complete {
    /// Before `issue_query` returns.
    Inline,
    /// On another thread, which spins on a ring.
    Thread,
}

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
    /// Server: limit on the 99th percentile of latency, in milliseconds.
    #[arg(long, default_value_t = 10)]
    latency_ms: u64,
    /// Send every sample once and log the responses, without a measurement.
    #[arg(long)]
    accuracy: bool,
    /// Server: search the highest VALID rate, from --target-qps upwards.
    #[arg(long, conflicts_with = "accuracy")]
    find_peak: bool,
    /// Thread that completes samples.
    #[arg(long, value_enum, default_value = "inline")]
    complete: Complete,
    /// Language of the null SUT.
    #[arg(long, value_enum, default_value = "rust")]
    language: Language,
    /// Let LoadGen coalesce queries that are late.
    #[arg(long)]
    coalesce: bool,
    /// Server: number of registered issue threads; 0 uses LoadGen's own thread.
    #[arg(long, default_value_t = 0)]
    issue_threads: u64,
    /// Number of samples in the QSL.
    #[arg(long, default_value_t = 1024)]
    samples: usize,
    /// Size of each response, in bytes.
    #[arg(long, default_value_t = 8)]
    response_bytes: usize,
    /// Timer slack of LoadGen's thread, in nanoseconds; 0 keeps the kernel's 50 us.
    #[arg(long, default_value_t = 1)]
    timer_slack_ns: u64,
    /// Folder for the logs.
    #[arg(long, default_value = "target/null_sut")]
    outdir: PathBuf,
}

fn scenario(text: &str) -> Result<Scenario, String> {
    match text.to_ascii_lowercase().replace(['-', '_'], "").as_str() {
        "singlestream" => Ok(Scenario::SingleStream),
        "multistream" => Ok(Scenario::MultiStream),
        "server" => Ok(Scenario::Server),
        "offline" => Ok(Scenario::Offline),
        _ => Err("singlestream, multistream, server or offline".to_owned()),
    }
}

struct NullQsl {
    samples: usize,
}

impl QuerySampleLibrary for NullQsl {
    fn name(&self) -> String {
        "null QSL".to_owned()
    }
    fn total_sample_count(&self) -> usize {
        self.samples
    }
    fn performance_sample_count(&self) -> usize {
        self.samples
    }
    fn load_samples(&self, _: &[usize]) {}
    fn unload_samples(&self, _: &[usize]) {}
}

struct InlineSut {
    data: Vec<u8>,
}

impl SystemUnderTest for InlineSut {
    fn name(&self) -> String {
        "null SUT, Rust, inline".to_owned()
    }

    fn issue_query(&self, samples: &[QuerySample]) {
        let response = |sample: &QuerySample| QuerySampleResponse::new(sample.id, &self.data);
        if let [sample] = samples {
            // SAFETY: the sample was issued just now, and this is the only place that completes it.
            unsafe { complete(&[response(sample)]) };
            return;
        }
        let responses: Vec<_> = samples.iter().map(response).collect();
        // SAFETY: as above; each sample of a query appears once in it.
        unsafe { complete(&responses) };
    }

    fn flush_queries(&self) {}
}

const RING: usize = 1 << 16;
const BATCH: usize = 256;

/// Ids on their way to the completing thread. An id is
/// never zero, so a slot says by itself whether it is full.
struct Ring {
    slots: Box<[AtomicU64]>,
    head: AtomicUsize,
    done: AtomicBool,
}

struct ThreadSut {
    ring: Arc<Ring>,
    thread: OnceLock<thread::JoinHandle<()>>,
}

impl ThreadSut {
    fn start(data: Vec<u8>) -> Self {
        let slots = (0..RING).map(|_| AtomicU64::new(0)).collect();
        let ring = Arc::new(Ring {
            slots,
            head: AtomicUsize::new(0),
            done: AtomicBool::new(false),
        });
        let thread = OnceLock::new();
        let theirs = Arc::clone(&ring);
        thread.get_or_init(|| thread::spawn(move || complete_all(&theirs, &data)));
        Self { ring, thread }
    }
}

impl Drop for ThreadSut {
    fn drop(&mut self) {
        self.ring.done.store(true, Ordering::Release);
        if let Some(thread) = self.thread.take() {
            let _ = thread.join();
        }
    }
}

impl SystemUnderTest for ThreadSut {
    fn name(&self) -> String {
        "null SUT, Rust, other thread".to_owned()
    }

    fn issue_query(&self, samples: &[QuerySample]) {
        // One addition for all, so that several issue threads may come at once.
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

fn complete_all(ring: &Ring, data: &[u8]) {
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
            responses.push(QuerySampleResponse::new(id, data));
        }
        if !responses.is_empty() {
            // SAFETY: each id was taken out of its slot, and nobody else completes.
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
        mode: match (arguments.accuracy, arguments.find_peak) {
            (true, _) => TestMode::AccuracyOnly,
            (_, true) => TestMode::FindPeakPerformance,
            _ => TestMode::PerformanceOnly,
        },
        server_target_qps: arguments.target_qps,
        offline_expected_qps: arguments.target_qps,
        single_stream_expected_latency_ns: 1e9 / arguments.target_qps,
        multi_stream_expected_latency_ns: 1e9 / arguments.target_qps,
        server_target_latency_ns: arguments.latency_ms * 1_000_000,
        server_coalesce_queries: arguments.coalesce,
        server_num_issue_query_threads: arguments.issue_threads,
        min_duration_ms: arguments.duration_ms,
        ..TestSettings::default()
    };
    let log = LogSettings {
        outdir: arguments.outdir.clone(),
        enable_trace: false,
        ..LogSettings::default()
    };
    if arguments.timer_slack_ns != 0 {
        // SAFETY: PR_SET_TIMERSLACK takes a number and
        // touches no memory. LoadGen's thread inherits it.
        unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, arguments.timer_slack_ns) };
    }
    if let Language::Cpp = arguments.language {
        return cpp(arguments, &settings, &log);
    }
    let data = vec![0; arguments.response_bytes];
    let sut: Arc<dyn SystemUnderTest> = match arguments.complete {
        Complete::Inline => Arc::new(InlineSut { data }),
        Complete::Thread => Arc::new(ThreadSut::start(data)),
    };
    for _ in 0..arguments.issue_threads {
        thread::spawn(register_issue_query_thread);
    }
    run_test(
        sut,
        Arc::new(NullQsl {
            samples: arguments.samples,
        }),
        &settings,
        &log,
        None,
    )
}

#[cfg(feature = "bench")]
fn cpp(
    arguments: &Arguments,
    settings: &TestSettings,
    log: &LogSettings,
) -> Result<TestOutcome, LoadgenError> {
    let other_thread = arguments.complete == Complete::Thread;
    loadgen_bridge::null_sut_cpp(
        settings,
        log,
        arguments.samples,
        arguments.response_bytes,
        other_thread,
    )
}

#[cfg(not(feature = "bench"))]
fn cpp(_: &Arguments, _: &TestSettings, _: &LogSettings) -> Result<TestOutcome, LoadgenError> {
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
    let mut text = format!(
        "{verdict}: {figure}; p50 {} ns, p99 {} ns\nSUT {:?}; {} errors, {} warnings\n",
        outcome.latency_ns(0.5),
        outcome.latency_ns(0.99),
        outcome.sut_name,
        outcome.errors,
        outcome.warnings
    );
    for reason in outcome.reasons.iter().chain(&outcome.detail.error_messages) {
        text.push_str(&format!("  {reason}\n"));
    }
    // Whoever reads it may have seen enough and gone.
    let _ = std::io::stdout().write_all(text.as_bytes());
    if outcome.verdict == Verdict::Invalid {
        ExitCode::from(1)
    } else {
        ExitCode::SUCCESS
    }
}
