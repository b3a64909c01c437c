//! A SUT that answers at once: the highest rate of LoadGen and the bridge in Server.
//!
//! `cargo run --release -p loadgen-bridge --example null_sut -- --target-qps 500000`

use std::path::PathBuf;
use std::process::ExitCode;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, AtomicUsize, Ordering};
use std::thread;

use clap::Parser;
use loadgen_bridge::{
    Figure, LoadgenError, LogSettings, QuerySample, QuerySampleLibrary, QuerySampleResponse,
    ResponseId, Scenario, SystemUnderTest, TestMode, TestOutcome, TestSettings, complete, run_test,
};

/// The frontend's allocator: LoadGen allocates for every sample.
#[global_allocator]
static ALLOCATOR: mimalloc::MiMalloc = mimalloc::MiMalloc;

/// Runs LoadGen over a null SUT, which completes samples without work.
#[derive(Parser)]
struct Arguments {
    /// Target rate, in queries per second.
    #[arg(long, default_value_t = 1000.0)]
    target_qps: f64,
    /// Minimum duration of the run, in milliseconds.
    #[arg(long, default_value_t = 1000)]
    duration_ms: u64,
    /// Folder for the logs.
    #[arg(long, default_value = "target/null_sut")]
    outdir: PathBuf,
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
        scenario: Scenario::Server,
        mode: TestMode::PerformanceOnly,
        server_target_qps: arguments.target_qps,
        server_target_latency_ns: LATENCY_NS,
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
    let sut = Arc::new(NullSut::start());
    run_test(sut, Arc::new(NullQsl), &settings, &log, None)
}

fn main() -> ExitCode {
    let outcome = match run(&Arguments::parse()) {
        Ok(outcome) => outcome,
        Err(error) => {
            eprintln!("null_sut: {error}");
            return ExitCode::from(2);
        }
    };
    if let Some(Figure::CompletedSamplesPerSecond(rate)) = outcome.figure {
        println!("{rate:.0} completed samples/s");
    }
    for reason in outcome.reasons.iter().chain(&outcome.detail.error_messages) {
        println!("  {reason}");
    }
    ExitCode::from(u8::from(!outcome.is_valid()))
}
