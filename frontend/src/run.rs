//! A run from the configuration to the exit code.
//!
//! * `watch` - monitors the run
//! * `readings` - throughput up to the last sample
//! * `end` - collects the data of a finished run

pub mod check;
mod clock;
mod end;
pub mod folder;
pub mod interrupt;
mod memory;
pub mod progress;
mod readings;
mod warm_up;
mod watch;
mod watchdog;

use std::{
    io::Write,
    path::{Path, PathBuf},
    sync::{Arc, atomic::AtomicBool, mpsc},
    time::{Instant, SystemTime},
};

use ::report::RunEnd;
use anyhow::Context;
use engines::{
    streaming::TOKEN_BYTES,
    tokens::{Answers, answer as pretended},
};
use fabric::{
    clock::now_ns,
    os::{Near, available_memory},
};
use frontend_config::{FrontendFile, Verify};
use loadgen_bridge::{Plan, QuerySampleLibrary, TestMode, log_may_be_outgrown};
use qdl::{
    config::Written,
    counters::Live,
    run::{frontend_crew, settle_connections},
    topology::{Topology, pinning_warnings, spell_out},
};
use record::Manifest;

use self::watch::Watch;
use crate::{
    accuracy::{AnswerOrigins, Labels},
    backend::{Backend, local, network::Network, sut::Sut},
    compliance,
    compliance::{guard::Guard, left},
    dataset::Dataset,
    live::{LiveRun, LiveView},
    loadgen::exit::{ExitCode, Failure, Verdict},
    loadgen::{
        completer::{self, Completers},
        meter::{Meter, RateWindow},
        qsl::Qsl,
        tokens::{self, Tokens},
        verify::Verifier,
    },
    outcome::{
        report::{self, FinishedRun},
        timeline::TimelineGatherer,
    },
    run::{
        folder::RunFolder,
        interrupt::Action,
        memory::Estimate,
        progress::Progress,
        warm_up::WarmLibrary,
        watchdog::{AfterTheLast, Watchdog},
    },
    settings::{Settings, cli::Args, own_settings},
};

/// Environment variable with the path of a checkout of mlcommons/inference.
const CHECKOUT: &str = "QDL_MLPERF_CHECKOUT";

type Result<T> = std::result::Result<T, anyhow::Error>;

/// Runs the test, writes the results, and returns the exit code. Error: nothing was measured.
pub fn run(args: &Args) -> Result<ExitCode> {
    let base = args.relative_to.as_deref();
    let mut config = FrontendFile::load(&args.config, base)?;
    let args = &with_audit_config(args, &config)?;
    let mut written = Written::read(&args.config)?;
    if !args.local {
        let (of, nics) = spell_out(&config.cluster.nics, false)?.into_iter().unzip();
        written.set_nic_entries(of);
        config.cluster.nics = nics;
        settle_connections(&mut config.cluster);
    }
    let file = config.clone();
    config.run.verify = args.verify.unwrap_or(config.run.verify);
    if let Some(ms) = args.warm_up_ms {
        config.cluster.warm_up.budget_ms = ms;
    }
    config.run.dataset.seed = args.seed.unwrap_or(config.run.dataset.seed);
    if args.connect_ms.is_some() {
        config.cluster.deadlines.connect_ms = args.connect_ms;
    }
    for warning in pinning_warnings(&config.cluster.nics) {
        tracing::warn!("{warning}");
    }
    let mut settings =
        Settings::build(args, &config.run.loadgen, &written, config.loadgen_model())?;
    let stream = tokens::default_stream(&config.cluster.model, &settings.runs);
    let stream = *config.cluster.stream.get_or_insert(stream);
    let dataset = Dataset::open(&config.run.dataset, &config.cluster.model)?;
    let labels = labels(&config, &settings, dataset.count())?;
    let origins = labels.as_ref();
    let origins = origins.map(|_| Arc::new(AnswerOrigins::new(dataset.count())));
    let verdict = Verdict::default();
    let tokens = tokens::sizes(&config.cluster.model);
    let tokens = tokens.map(|sizes| Arc::new(Tokens::new(sizes, &settings.runs)));
    let first = tokens.as_ref().is_some_and(|t| t.first);
    let verifier = verifier(&config, dataset.count(), first)?.map(Arc::new);
    let qsl = Arc::new(Qsl::new(
        dataset,
        &config.cluster.model,
        loaded(&config, &settings),
        near_nics(&config, args.local),
        verifier.clone(),
        verdict.clone(),
    )?);
    let plan = Plan::of(
        &settings.runs,
        qsl.total_sample_count(),
        qsl.performance_sample_count(),
    )
    .map_err(|error| settings.with_origin(error))?;
    let loaded_bytes = qsl.region().len() as u64;
    let estimate = Estimate::of(&plan, settings.runs.scenario, loaded_bytes);
    estimate
        .check(available_memory())
        .map_err(anyhow::Error::msg)?;
    let known = left::of_settings(args, &config, &settings);
    let mut guard = Guard::of_settings(args, &config, &settings, &qsl, known)?;
    let loaded = qsl.performance_sample_count();
    let own_settings = own_settings::records(args, &config, &file, &written, loaded);
    if args.check {
        // `--check` reads the labels whatever the mode.
        let mut accuracy = settings.clone();
        accuracy.runs.mode = TestMode::AccuracyOnly;
        let labels = self::labels(&config, &accuracy, qsl.total_sample_count())?.is_some();
        let planned = check::PlannedCheck {
            config: &config,
            settings: &settings,
            plan: &plan,
            qsl: &qsl,
            labels,
            uncounted: guard.lines().collect(),
            records: [settings.records(), own_settings].concat(),
        };
        return check::check(args, &planned);
    }
    let mut action = interrupt::hold();
    let place = Arc::new(RunFolder::take(&mut settings, args.force)?);
    let begun = Arc::downgrade(&place);
    let undo = move || begun.upgrade().iter().for_each(|place| place.undo());
    *action = Action::Undo(Box::new(undo));
    drop(action);
    let mut live_view = live_view(args, &config, &settings)?;
    let progress = Progress::new(settings.test.scenario.name().to_owned(), args.screen.quiet);
    if let Some((view, _)) = &live_view {
        progress.note(&view.note);
    }
    let memory = estimate.line(0, available_memory());
    progress.note(&format!("memory: {memory}"));
    for note in settings.provenance.notes() {
        progress.note(&note);
    }
    let live = Arc::new(if args.local {
        Live::new(local::completers(config.run.engine.as_ref()))
    } else {
        Live::new(frontend_crew(&config.cluster).nic_of.len())
    });
    let limits = completer::limits(&settings.runs);
    let mut completers = Completers::new(live, verifier.clone(), tokens.clone(), limits);
    completers.origins.clone_from(&origins);
    completers.quick = settings.target_qps().is_some_and(log_may_be_outgrown);
    let (note, notes) = mpsc::channel();
    let backend: Arc<dyn Backend> = if args.local {
        let inputs = qsl.region().clone();
        local::start(&config, inputs, &completers, &verdict, stream)?
    } else {
        let screen = progress.screen.clone();
        let show_waiting = move |line: &str| screen.note(line);
        Arc::new(Network::connect(
            &config,
            &qsl,
            &completers,
            &verdict,
            note.clone(),
            show_waiting,
        )?)
    };
    let engines = backend.engines();
    if settings.runs.use_token_latencies
        && let Err(refused) = tokens::check(&config.cluster.model, &engines)
    {
        backend.finish();
        return Err(refused);
    }
    let counted = engines.iter().all(|(_, e)| e.tokens);
    if let Some(tokens) = &tokens {
        tokens.set_connections(backend.connections());
    }
    let connections = backend.connections();
    let sut = Arc::new(Sut::new(
        backend.clone(),
        qsl.clone(),
        verifier.clone(),
        verdict.clone(),
        completers.phases.clone(),
        completers.live.clone(),
    ));

    let begin = || place.begin();
    let begun = left::begin(
        args,
        &config,
        &settings,
        backend.as_ref(),
        &mut guard,
        begin,
    );
    let left = match begun {
        Ok(left) => left,
        Err(error) => {
            backend.finish();
            return Err(error);
        }
    };
    if let Some((view, known)) = &mut live_view {
        known.first.fabric = backend.fabric().0;
        view.figures.begin(backend.clone(), completers.live.clone());
    }
    let library = WarmLibrary {
        qsl,
        backend: backend.clone(),
        verdict: verdict.clone(),
        notes: note,
        phases: completers.phases.clone(),
        done: AtomicBool::new(false),
    };
    let limit_ns = config
        .cluster
        .deadlines
        .watchdog_s
        .saturating_mul(1_000_000_000);
    let mut watch = Watch {
        backend,
        sut,
        completers,
        tokens,
        labels: labels.zip(origins),
        connections,
        counted,
        stream,
        shown: [0; 2],
        verdict,
        progress,
        throughput: None,
        meter: Meter::default(),
        rates: RateWindow::default(),
        gather: TimelineGatherer::default(),
        clocks: clock::ClockLog::default(),
        live: live_view,
        watchdog: Watchdog::new(limit_ns, now_ns()),
        after_the_last: AfterTheLast::new(limit_ns),
        lost_before: None,
        rested: false,
        notes,
        began: Instant::now(),
    };
    let started = SystemTime::now();
    *interrupt::hold() = Action::Note;
    let outcome = watch.test(&settings, Arc::new(library))?;
    if let Some(cause) = watch.interrupted_before_the_first_query() {
        watch.backend.finish();
        progress::say(&format!("error: {cause}: nothing was measured"));
        return Ok(ExitCode::Interrupted);
    }
    let live_view = watch.ending();
    let mut ended = watch.end(&config, &settings, outcome, started, verifier.as_deref());
    if let Some(view) = &live_view {
        view.figures.hold(ended.counted.system.ledger);
    }
    ended.counted.settings = own_settings;
    ended.counted.would_not_count = guard.lines().collect();
    let (mut code, mut over) = leave(args, &mut ended, &left);
    let folder = place.settle(code).map_err(|error| {
        progress::say(&format!("error: {error}"));
        code = code.max(ExitCode::Lost);
    });
    if let Some(page) = folder.ok().and_then(|folder| write_page(&folder)) {
        if !args.screen.quiet && !args.json {
            // Ignore the error: standard output may be closed.
            let _ = writeln!(std::io::stdout(), "{}", page.display());
        }
        over.page = Some(std::path::absolute(&page).unwrap_or(page));
    }
    if let Some(view) = live_view {
        view.end(over);
    }
    Ok(code)
}

/// Writes the run's page. The results are saved already, so a failure is only a warning.
fn write_page(folder: &Path) -> Option<PathBuf> {
    let written = ::report::write(folder);
    let warn = |error: &_| tracing::warn!("no page of this run: {error}");
    written.inspect_err(warn).ok()
}

/// Opens the page of `--live`, before the test starts.
fn live_view(
    args: &Args,
    config: &FrontendFile,
    settings: &Settings,
) -> Result<Option<(LiveView, LiveRun)>> {
    let Some(address) = args.live else {
        return Ok(None);
    };
    let known = LiveRun::new(&config.cluster.node, &settings.test, settings.target_qps());
    let view = LiveView::open(address, settings.folder(), known.first.clone())?;
    Ok(Some((view, known)))
}

/// Fills in the checkout's path and the file of `--compliance`.
fn with_audit_config(args: &Args, config: &FrontendFile) -> Result<Args> {
    let mut args = args.clone();
    let checkout = || std::env::var_os(CHECKOUT).map(Into::into);
    args.checker = args.checker.or_else(checkout);
    let models = [config.cluster.model.name.as_str(), config.loadgen_model()];
    if let Some(path) = compliance::audit_config(&args, &models)? {
        args.audit_config = Some(path);
    }
    Ok(args)
}

/// The verifier that the configuration requests; `first` is true if LoadGen gets first tokens.
fn verifier(config: &FrontendFile, samples: usize, first: bool) -> Result<Option<Verifier>> {
    match config.run.verify {
        Verify::None => Ok(None),
        Verify::Digest => Ok(Some(Verifier::new(samples, &config.cluster.model))),
        Verify::Tokens => {
            let answer = answer(config)?;
            Ok(Some(Verifier::tokens(samples, first, answer)))
        }
    }
}

/// The answer of the engine `tokens` to a prompt, under the configuration's `engine` settings.
fn answer(config: &FrontendFile) -> Result<impl Fn(&[i32]) -> Vec<i32> + Send + Sync + 'static> {
    let settings = config
        .run
        .engine
        .as_ref()
        .and_then(|e| e.tokens.clone())
        .unwrap_or_default();
    let room = config.cluster.model.max_output_bytes().unwrap_or(0) / TOKEN_BYTES;
    let answers = Answers::new(&settings, room).context("verify: tokens")?;
    Ok(move |prompt: &[i32]| pretended(prompt, &answers))
}

/// Writes and prints the report; returns the exit code and the end for the live page. A run whose
/// files cannot be written is lost.
fn leave(args: &Args, ended: &mut FinishedRun<'_>, left: &Manifest) -> (ExitCode, RunEnd) {
    let (mut summary, mut code) = ended.summary();
    let unwritten = ended.write(&summary, code, left).err();
    let unwritten = unwritten.map(|error| error.to_string());
    if let Some(cause) = unwritten.clone() {
        let lost = ExitCode::Lost;
        ended.failure.get_or_insert(Failure { code: lost, cause });
        (summary, code) = ended.summary();
        // Write what has room. The folder is marked INVALID since the run's start.
        let _ = ended.write(&summary, code, left);
    }
    if args.json {
        report::print_json(&summary);
    } else if !args.screen.quiet {
        let run = record::RunFolder {
            manifest: Some(left.clone()),
            ..record::RunFolder::of("", &summary, Some(ended.timeline.clone()))
        };
        let whole = args.screen.verbose > 0;
        report::print(&run, whole, args.screen.colors(&std::io::stdout()));
    }
    if let Some(cause) = unwritten.filter(|cause| *cause != summary.run.exit.reason) {
        progress::say(&format!("error: {cause}"));
    }
    if code > ExitCode::Good {
        progress::say(&format!("error: {}", summary.run.exit.reason));
    }
    let (_, word) = ::report::verdict(&summary.run);
    let over = RunEnd {
        code: code.code(),
        word: word.to_owned(),
        reason: summary.run.exit.reason,
        page: None,
    };
    (code, over)
}

/// Placement of the samples' memory: near the NICs, if there are any.
fn near_nics(config: &FrontendFile, local: bool) -> Near {
    if local {
        return Near::default();
    }
    // Without a topology from sysfs, memory is not bound.
    let topology = Topology::of_this_machine().unwrap_or_default();
    topology.near_nics(&config.cluster.nics)
}

/// Reads the labels, if configured and if the mode needs them.
fn labels(config: &FrontendFile, settings: &Settings, samples: usize) -> Result<Option<Labels>> {
    let wanted = settings.runs.mode.has_accuracy();
    let labels = config.run.dataset.labels.as_ref().filter(|_| wanted);
    let read = |labels| Labels::read(labels, samples, &config.cluster.model);
    labels.map(read).transpose()
}

/// Number of samples to load at a time: LoadGen's setting overrides the configuration.
fn loaded(config: &FrontendFile, settings: &Settings) -> Option<usize> {
    match settings.runs.performance_sample_count_override {
        0 => config.run.performance_sample_count,
        n => usize::try_from(n).ok(),
    }
}
