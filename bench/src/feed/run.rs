//! One run: LoadGen, the frontend's code, stubbed NICs; and what came of it.

use std::{
    fs,
    path::Path,
    sync::{Arc, PoisonError},
    thread,
};

use anyhow::{Context, Result, bail, ensure};
use frontend::{completer::Completers, dataset::Dataset, exit::Verdict, qsl::Qsl, sut::Sut};
use loadgen_bridge::{
    LogSettings, Scenario as LoadgenScenario, TestSettings, register_issue_query_thread, run_test,
};
use qdl::{
    config::{FrontendConfig, parse_frontend},
    os::Near,
    stats::{FabricCounts, Live},
};
use serde::{Deserialize, Serialize};

use super::{
    Args, Scenario, cpu,
    far::{FarEnd, Feed},
    readings::{Between, Completing, Issuing, Kept},
};
/// Samples in the library: some megabytes, as nobody reads them.
const LIBRARY: usize = 64;
/// More than any thread issues, so that LoadGen is always late and never waits.
const ALWAYS_LATE: f64 = 20e6;

/// What one run came to.
#[derive(Clone, Debug, Serialize, Deserialize)]
pub struct Row {
    /// How queries came.
    pub scenario: Scenario,
    /// Stubbed NICs, each with a thread of its own, and queue pairs in all.
    pub nics: usize,
    /// See `nics`.
    pub connections: usize,
    /// Cores that the whole of it ran on.
    pub cores: usize,
    /// Bytes of a sample.
    pub bytes: usize,
    /// Samples posted, completed and recorded: the same number, or the run has failed.
    pub samples: u64,
    /// Of those a second, from the first query to the last completion.
    pub per_s: f64,
    /// What that is in Tbit/s of samples.
    pub tbit_s: f64,
    /// CPU time for each sample of those that issue and of the NIC threads, LoadGen's part of it
    /// and waiting for work included. What LoadGen does before and after its test is not.
    pub cpu_ns: f64,
    /// Threads that issue.
    pub issue: Vec<Between>,
    /// NIC threads, in the middle of the run.
    pub nic: Vec<Between>,
    /// For each sample.
    pub counts: Counts,
    /// Most samples in flight on one connection.
    pub in_flight_max: u64,
}

/// Counts for each sample.
#[derive(Clone, Copy, Debug, Default, Serialize, Deserialize)]
pub struct Counts {
    /// Work requests posted.
    pub work_requests: f64,
    /// Calls that posted them.
    pub doorbells: f64,
    /// Completions polled, of sends and of receives.
    pub completions: f64,
    /// Receives put back.
    pub receives: f64,
    /// Share that had to wait for a slot, or for a thread to post them.
    pub backlogged: f64,
    /// Times that a NIC thread went to sleep.
    pub sleeps: f64,
    /// Allocations of NIC threads in the middle of the run.
    pub nic_allocations: f64,
    /// Allocations of issue threads.
    pub issue_allocations: f64,
}

/// Runs so many samples with the first of each of the lists.
pub fn one(args: &Args, samples: u64) -> Result<Row> {
    let (scenario, nics) = (first(&args.scenarios)?, first(&args.nics)?);
    let cores = args.cores.first().copied().unwrap_or_else(cpu::cores);
    cpu::keep_to(cores)?;
    let config = config(args, nics)?;
    let verdict = Verdict::default();
    let dataset = Dataset::open(&config.dataset, &config.model, None)?;
    let near = Near::default();
    let qsl = Qsl::new(dataset, &config.model, None, near, None, verdict.clone())?;
    let qsl = Arc::new(qsl);
    let completers = Completers::new(Arc::new(Live::new(nics)), None, None);
    let (nic_threads, issue_threads) = (Kept::default(), Kept::default());
    let mut completer = |i| {
        let own = completers.make(i);
        Box::new(Completing::new(own, nic_threads.clone())) as _
    };
    let far = FarEnd {
        delay_ns: args.round_trip_us * 1000,
        response: args.response,
    };
    let feed = Arc::new(Feed::new(
        &config,
        qsl.region().clone(),
        far,
        &mut completer,
    )?);
    let sut = Arc::new(Sut::new(
        feed.clone(),
        qsl.clone(),
        None,
        verdict.clone(),
        completers.phases().clone(),
    ));
    let issuing = Arc::new(Issuing::new(sut.clone(), issue_threads.clone()));
    loadgen(args, scenario, samples, issuing, qsl)?;
    if let Some(failure) = verdict.failure() {
        bail!("{failure}");
    }
    let dispatcher = &feed.dispatcher;
    let counts = dispatcher.counts();
    dispatcher.stop();
    let left = completers.left();
    let recorded: u64 = left.iter().map(|l| l.recorder.completed()).sum();
    ensure!(
        counts.posted == counts.completed && counts.completed == recorded,
        "{} samples posted, {} completed, {recorded} recorded",
        counts.posted,
        counts.completed
    );
    let last_ns = left.iter().map(|l| l.last_ns).max().unwrap_or(0);
    let first_ns = sut.first_query_ns().context("no query came")?;
    let took_ns = last_ns.saturating_sub(first_ns).max(1);
    let per_s = recorded as f64 * 1e9 / took_ns as f64;
    let middle = (first_ns + took_ns / 5, last_ns - took_ns / 10);
    let between = |kept: &Kept, from, to| -> Vec<Between> {
        let all = kept.lock().unwrap_or_else(PoisonError::into_inner);
        all.iter().map(|r| Between::of(r, from, to)).collect()
    };
    let nic = between(&nic_threads, middle.0, middle.1);
    let issue = between(&issue_threads, 0, u64::MAX);
    let records = dispatcher.connection_records();
    let mut fabric = FabricCounts::default();
    for r in &records {
        fabric.add(&r.tx);
        fabric.add(&r.rx);
    }
    let each = |n: u64| n as f64 / recorded.max(1) as f64;
    let allocations = |of: &[Between]| Between::all(of, |b| b.allocations as f64);
    Ok(Row {
        scenario,
        nics,
        connections: records.len(),
        cores,
        bytes: args.bytes,
        samples: recorded,
        per_s,
        tbit_s: per_s * args.bytes as f64 * 8e-12,
        cpu_ns: Between::cpu_ns(&issue) + Between::cpu_ns(&nic),
        counts: Counts {
            work_requests: each(fabric.work_requests),
            doorbells: each(fabric.doorbells),
            completions: each(fabric.cqes),
            receives: each(fabric.receives),
            backlogged: each(counts.backlogged),
            sleeps: each(counts.sleeps),
            nic_allocations: allocations(&nic),
            issue_allocations: allocations(&issue),
        },
        issue,
        nic,
        in_flight_max: records.iter().map(|r| r.in_flight_max).max().unwrap_or(0),
    })
}

fn first<T: Copy>(list: &[T]) -> Result<T> {
    list.first().copied().context("an empty list")
}

/// A frontend's configuration as it would be written, with nothing said that need not be.
fn config(args: &Args, nics: usize) -> Result<FrontendConfig> {
    ensure!(
        (1..=verbs::stub::answering::MAX_DEVICES).contains(&nics),
        "--nics {nics}: 1 to {}",
        verbs::stub::answering::MAX_DEVICES
    );
    let (bytes, response) = (args.bytes, args.response);
    let more = match args.nic.as_str() {
        "" => String::new(),
        more => format!(", {more}"),
    };
    let nics: String = (0..nics)
        .map(|i| format!("  - {{device: feed{i}{more}}}\n"))
        .collect();
    let text = format!(
        "node: feed\naccelerators: [{{control: \"127.0.0.1:1\"}}]\nnics:\n{nics}\
         model: {{name: feed, inputs: [{{name: input, dtype: u8, shape: [{bytes}]}}], \
         output: {{name: output, dtype: u8, shape: [{response}]}}}}\n\
         dataset: {{kind: random, distribution: fixed, count: {LIBRARY}}}\n{}\n",
        args.config
    );
    Ok(parse_frontend(
        &text,
        "the configuration of feed",
        Path::new("."),
    )?)
}

/// LoadGen's test, with threads of ours to issue where they are asked for.
fn loadgen(
    args: &Args,
    scenario: Scenario,
    samples: u64,
    sut: Arc<Issuing>,
    qsl: Arc<Qsl>,
) -> Result<()> {
    let server = scenario != Scenario::Offline;
    let threads = if server { args.issue_threads } else { 0 };
    let settings = TestSettings {
        scenario: match server {
            true => LoadgenScenario::Server,
            false => LoadgenScenario::Offline,
        },
        server_target_qps: ALWAYS_LATE,
        server_target_latency_ns: u64::MAX / 4,
        server_coalesce_queries: scenario == Scenario::Coalesced,
        server_num_issue_query_threads: threads,
        min_query_count: samples.max(1),
        min_duration_ms: 0,
        ..TestSettings::default()
    };
    let outdir = std::env::temp_dir().join(format!("qdl-feed-{}", std::process::id()));
    let log = LogSettings {
        outdir: outdir.clone(),
        enable_trace: false,
        copy_summary_to_stdout: false,
        ..LogSettings::default()
    };
    let issuers: Vec<_> = (0..threads)
        .map(|i| {
            thread::Builder::new()
                .name(format!("issue-{i}"))
                .spawn(register_issue_query_thread)
        })
        .collect::<std::io::Result<_>>()?;
    let outcome = run_test(sut, qsl, &settings, &log, None);
    for issuer in issuers {
        let joined = issuer.join();
        ensure!(joined.is_ok(), "a thread that issues has panicked");
    }
    // Nothing of LoadGen's logs is of interest, but what it says went wrong.
    let _ = fs::remove_dir_all(&outdir);
    let outcome = outcome?;
    ensure!(
        outcome.errors == 0,
        "LoadGen logged errors: {:?}",
        outcome.detail.error_messages
    );
    Ok(())
}
