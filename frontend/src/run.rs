//! A run from the first look at the configuration to the exit code.

use std::{
    path::{Path, PathBuf},
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant, SystemTime},
};

use ::report::{Over, SoFar};
use accelerator::engine::{
    streaming::TOKEN_BYTES,
    tokens::{Answers, answer as pretended},
};
use anyhow::Context;
use loadgen_bridge::{LoadgenError, TestMode, TestOutcome, register_issue_query_thread, run_test};
use qdl::{
    clock::now_ns,
    config::{self, FrontendConfig, NicConfig, Written},
    os::{Near, available_memory, thread_times},
    run::{pinning_warnings, usage_of},
    stats::{Accuracy, Figures, Live, Recorder, SystemRecord, Throughput},
    topology::{Topology, spell_out},
    wire::Stream,
};

use crate::{
    accuracy::{self, Labels, Whose},
    backend::Backend,
    check,
    cli::{Args, Verify},
    completer::Completers,
    compliance,
    dataset::Dataset,
    exit::{ExitCode, Verdict},
    flight::Dumps,
    guard::Guard,
    interrupt, left,
    live::{Known, LiveView, Moment, Place},
    local,
    memory::Estimate,
    meter::Meter,
    network::Network,
    own_settings,
    phases::{self, Share},
    progress::Progress,
    qsl::Qsl,
    report::{self, Ended, TokenEnd},
    settings::Settings,
    sut::Sut,
    timeline::{self, Gather},
    tokens::{self, Tokens},
    verify::Verifier,
    warm_up::WarmLibrary,
    watchdog::Watchdog,
};

/// How often the run is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long LoadGen may take to return once its test was aborted.
const GRACE: Duration = Duration::from_secs(3);

/// Where a checkout of mlcommons/inference is.
const CHECKOUT: &str = "QDL_MLPERF_CHECKOUT";

type Result<T> = std::result::Result<T, anyhow::Error>;

/// Runs, reports, and says how the process is to end.
/// An error is one of the setup: nothing was measured.
///
/// # Errors
/// Whatever keeps the run from beginning.
pub fn run(args: &Args) -> Result<ExitCode> {
    let mut config = match &args.relative_to {
        Some(base) => config::load_frontend_from(&args.config, base)?,
        None => config::load_frontend(&args.config)?,
    };
    let args = &with_audit_config(args, &config)?;
    let mut written = Written::read(&args.config)?;
    if !args.local {
        let (of, nics) = spell_out(&config.nics, false)?.into_iter().unzip();
        written.spelled_out(of);
        config.nics = nics;
    }
    let file = config.clone();
    if let Some(verify) = args.verify {
        config.verify = match verify {
            Verify::None => config::Verify::None,
            Verify::Digest => config::Verify::Digest,
            Verify::Tokens => config::Verify::Tokens,
        };
    }
    if let Some(ms) = args.warm_up_ms {
        config.warm_up.budget_ms = ms;
    }
    for warning in pinning_warnings(&config.nics) {
        tracing::warn!("{warning}");
    }
    let settings = Settings::build(args, &config.loadgen, &written, config.loadgen_model())?;
    let stream = tokens::default_stream(&config.model, &settings.test);
    let stream = *config.stream.get_or_insert(stream);
    let dataset = Dataset::open(&config.dataset, &config.model, args.seed)?;
    let labels = labels(&config, &settings, dataset.count())?;
    let whose = labels.is_some().then(|| Whose::new(dataset.count()));
    let whose = whose.map(Arc::new);
    let verdict = Verdict::default();
    let tokens = tokens::sizes(&config.model);
    let tokens = tokens.map(|sizes| Arc::new(Tokens::new(sizes, &settings.test)));
    let first = tokens.as_ref().is_some_and(|t| t.first);
    let verifier = verifier(&config, dataset.count(), first)?.map(Arc::new);
    let qsl = Arc::new(Qsl::new(
        dataset,
        &config.model,
        loaded(&config, &settings),
        near_nics(&config, args.local),
        verifier.clone(),
        verdict.clone(),
    )?);
    settings.test.check(qsl.total(), qsl.performance_count())?;
    let mut guard = Guard::of_settings(args, &config, &settings, &qsl)?;
    if args.check {
        // Labels are read whatever the mode.
        let mut accuracy = settings.clone();
        accuracy.test.mode = TestMode::AccuracyOnly;
        let labels = self::labels(&config, &accuracy, qsl.total())?.is_some();
        return check::check(args, &config, &settings, &qsl, labels, guard.lines());
    }
    let mut live_view = live_view(args, &config, &settings)?;
    report::clear(&settings)?;
    let progress = Progress::new(settings.test.scenario.name().to_owned(), args.quiet)
        .notes_alone(args.live == Some(Place::Terminal));
    if let Some(note) = live_view.iter().find_map(|(view, _)| view.note.as_ref()) {
        progress.note(note);
    }
    let loaded_bytes = qsl.region().len() as u64;
    let estimate = Estimate::of(&settings.test, qsl.total(), loaded_bytes);
    progress.note(&estimate.line(available_memory()));
    for note in settings.provenance.notes() {
        progress.note(&note);
    }
    let loaded = qsl.performance_count();
    let own_settings = own_settings::records(args, &config, &file, &written, loaded);

    let rails = if args.local {
        local::completers(&config)
    } else {
        config.nics.len()
    };
    let live = Arc::new(Live::new(rails));
    let completers = Completers::new(live, verifier.clone(), tokens.clone());
    let completers = completers.noting(whose.clone());
    interrupt::listen();
    let dumps = Dumps::new(args.record, settings.folder(), &config.node);
    let (note, notes) = mpsc::channel();
    let backend: Arc<dyn Backend> = if args.local {
        let inputs = qsl.region().clone();
        local::start(&config, inputs, &completers, &verdict, stream)?
    } else {
        Arc::new(Network::connect(
            &config,
            &qsl,
            &completers,
            &verdict,
            note.clone(),
        )?)
    };
    let engines = backend.engines();
    if settings.test.use_token_latencies
        && let Err(refused) = tokens::check(&config.model, &engines)
    {
        backend.finish();
        return Err(refused.into());
    }
    let counted = engines.iter().all(|(_, e)| e.tokens);
    if let Some(tokens) = &tokens {
        tokens.come_from(backend.connections());
    }
    let connections = backend.connections();
    let sut = Sut::new(
        backend.clone(),
        qsl.clone(),
        verifier.clone(),
        verdict.clone(),
        completers.phases().clone(),
    );
    let sut = Arc::new(sut.beginning(completers.live().clone()));

    let begun = guard
        .hear(&config.node, backend.as_ref())
        .and_then(|()| left::begin(args, &config, &settings, backend.as_ref()));
    let left = match begun {
        Ok(left) => left,
        Err(error) => {
            backend.finish();
            return Err(error);
        }
    };
    let phases = completers.phases().clone();
    if let Some((_, known)) = &mut live_view {
        known.over(backend.fabric().0);
    }
    let library = WarmLibrary::new(qsl, backend.clone(), verdict.clone(), note, phases);
    let mut watch = Watch {
        backend,
        sut,
        completers,
        tokens,
        labels: labels.zip(whose),
        connections,
        counted,
        stream,
        shown: [0; 2],
        verdict,
        progress,
        throughput: None,
        meter: Meter::default(),
        gather: Gather::default(),
        dumps,
        live: live_view,
        watchdog: Watchdog::new(
            config.deadlines.watchdog_s.saturating_mul(1_000_000_000),
            now_ns(),
        ),
        notes,
        began: Instant::now(),
    };
    let started = SystemTime::now();
    let outcome = watch.test(&settings, Arc::new(library))?;
    let live_view = watch.ending();
    let mut ended = watch.end(&config, &settings, outcome, started, verifier.as_deref());
    ended.own_settings = own_settings;
    ended.would_not_count = guard.lines().collect();
    let (mut code, mut over) = leave(args, &ended);
    match left.end(settings.folder(), code.code(), &over.reason) {
        Ok(()) => over.page = write_page(settings.folder()),
        Err(error) => {
            eprintln!("error: {error}");
            code = code.max(ExitCode::Setup);
        }
    }
    if let Some(view) = live_view {
        view.end(over);
    }
    Ok(code)
}

/// Writes the run's page. Its figures are safe by now: a page that cannot be drawn changes nothing
/// about it.
fn write_page(folder: &Path) -> Option<PathBuf> {
    match ::report::write(folder) {
        Ok(path) => Some(std::path::absolute(&path).unwrap_or(path)),
        Err(error) => {
            tracing::warn!("no page of this run: {error}");
            None
        }
    }
}

/// Where the run is shown, if somebody wants it; before there is anything to show.
fn live_view(
    args: &Args,
    config: &FrontendConfig,
    settings: &Settings,
) -> Result<Option<(LiveView, Known)>> {
    let Some(place) = args.live else {
        return Ok(None);
    };
    let nics = if args.local {
        let threads = 0..local::completers(config);
        threads.map(|i| format!("thread {i}")).collect()
    } else {
        config.nics.iter().map(NicConfig::label).collect()
    };
    let target = settings.target_qps();
    let known = Known::new(&config.node, &settings.test, target, nics);
    let view = LiveView::open(place, config, known.nothing())?;
    Ok(Some((view, known)))
}

/// The same with the file that `--compliance` stands for.
fn with_audit_config(args: &Args, config: &FrontendConfig) -> Result<Args> {
    let mut args = args.clone();
    let checkout = || std::env::var_os(CHECKOUT).map(Into::into);
    args.checker = args.checker.or_else(checkout);
    let models = [config.model.name.as_str(), config.loadgen_model()];
    if let Some(path) = compliance::audit_config(&args, &models)? {
        args.audit_config = Some(path);
    }
    Ok(args)
}

/// What compares responses with their samples, where the configuration wants it; `first`: first
/// tokens are reported.
fn verifier(config: &FrontendConfig, samples: usize, first: bool) -> Result<Option<Verifier>> {
    match config.verify {
        config::Verify::None => Ok(None),
        config::Verify::Digest => Ok(Some(Verifier::new(samples, &config.model))),
        config::Verify::Tokens => {
            let answer = answer(config)?;
            Ok(Some(Verifier::tokens(samples, first, answer)))
        }
    }
}

/// The engine `tokens` as a function of its prompt, with the settings of `engine`.
fn answer(config: &FrontendConfig) -> Result<impl Fn(&[i32]) -> Vec<i32> + Send + Sync + 'static> {
    let engine = config.engine.as_ref();
    let settings = engine.and_then(|e| e.tokens.clone()).unwrap_or_default();
    let room = config.model.max_output_bytes().unwrap_or(0) / TOKEN_BYTES;
    let answers = Answers::new(&settings, room).context("verify: tokens")?;
    Ok(move |prompt: &[i32]| pretended(prompt, &answers))
}

/// Prints and writes the report; the exit code, and what it came to in words.
fn leave(args: &Args, ended: &Ended<'_>) -> (ExitCode, Over) {
    let (summary, mut code) = ended.summary();
    if !args.quiet {
        report::print(&summary);
    }
    if let Err(error) = ended.write(&summary, code) {
        eprintln!("error: {error}");
        code = code.max(ExitCode::Setup);
    }
    if code > ExitCode::Good {
        eprintln!("error: {}", summary.run.exit.reason);
    }
    let word = match summary.run.valid {
        Some(true) => "VALID",
        Some(false) if code > ExitCode::Invalid => "FAILED",
        Some(false) => "INVALID",
        None => "COMPLETE",
    };
    let over = Over {
        code: code.code(),
        word: word.to_owned(),
        reason: summary.run.exit.reason,
        page: None,
    };
    (code, over)
}

/// Where samples are sent from: near the NICs, where there are any.
fn near_nics(config: &FrontendConfig, local: bool) -> Near {
    if local {
        return Near::default();
    }
    // What sysfs does not say is not known, and nothing is bound.
    let topology = Topology::of_this_machine().unwrap_or_default();
    topology.near_nics(&config.nics)
}

/// Labels, where there are some and the mode asks for them.
fn labels(config: &FrontendConfig, settings: &Settings, samples: usize) -> Result<Option<Labels>> {
    // An audit.config may make LoadGen run another mode.
    let wanted = settings.test.mode.has_accuracy() || settings.audit.is_some();
    let labels = config.dataset.labels.as_ref().filter(|_| wanted);
    let read = |labels| Labels::read(labels, samples, &config.model);
    Ok(labels.map(read).transpose()?)
}

/// Samples that LoadGen will hold loaded: what its settings say goes before the configuration.
fn loaded(config: &FrontendConfig, settings: &Settings) -> Option<usize> {
    match settings.test.performance_sample_count_override {
        0 => config.performance_sample_count,
        n => usize::try_from(n).ok(),
    }
}

/// Readings of the throughput up to the last sample: what comes after it is LoadGen's own time.
struct Readings {
    now: Throughput,
    now_ns: u64,
    completed: u64,
    /// Before the last reading.
    before: Throughput,
}

impl Readings {
    fn new(first_ns: u64) -> Self {
        Readings {
            now: Throughput::new(first_ns),
            now_ns: first_ns,
            completed: 0,
            before: Throughput::new(first_ns),
        }
    }

    fn read(&mut self, now_ns: u64, completed: u64, outstanding: u64) {
        if outstanding > 0 || completed != self.completed {
            self.before.clone_from(&self.now);
            self.now.sample(now_ns, completed);
            (self.now_ns, self.completed) = (now_ns, completed);
        }
    }

    /// The last sample came at `last_ns`, perhaps a moment before the last reading.
    fn end(self, last_ns: u64, completed: u64) -> Throughput {
        let mut throughput = if last_ns < self.now_ns {
            self.before
        } else {
            self.now
        };
        throughput.sample(last_ns, completed);
        throughput
    }
}

/// A run that goes on.
struct Watch {
    backend: Arc<dyn Backend>,
    sut: Arc<Sut>,
    completers: Completers,
    /// Where answers are tokens.
    tokens: Option<Arc<Tokens>>,
    /// Where answers are scored: the labels, and who answered.
    labels: Option<(Labels, Arc<Whose>)>,
    /// The connections that answers come by.
    connections: Vec<String>,
    /// Every engine counts them.
    counted: bool,
    stream: Stream,
    /// Faults of answers in tokens, and notes on them, that have been shown.
    shown: [usize; 2],
    verdict: Verdict,
    progress: Progress,
    throughput: Option<Readings>,
    meter: Meter,
    gather: Gather,
    dumps: Dumps,
    /// Where it is shown while it goes on, and what is known of it for that.
    live: Option<(LiveView, Known)>,
    watchdog: Watchdog,
    notes: Receiver<String>,
    began: Instant,
}

impl Watch {
    /// LoadGen's test, watched until it ends. An error is one of the setup.
    fn test(&mut self, settings: &Settings, qsl: Arc<WarmLibrary>) -> Result<Option<TestOutcome>> {
        for _ in 0..settings.test.server_num_issue_query_threads {
            thread::Builder::new().name("issue".to_owned()).spawn(|| {
                quick_timers();
                // What keeps it from issuing keeps the test from beginning, which says so.
                let _ = register_issue_query_thread();
            })?;
        }
        self.gather.before(&self.backend.readings());
        let (done, result) = mpsc::channel();
        let (sut, own) = (self.sut.clone(), settings.clone());
        thread::Builder::new()
            .name("start-test".to_owned())
            .spawn(move || start_test(sut, qsl, &own, &done))?;
        let mut aborted: Option<Instant> = None;
        let result = loop {
            match result.recv_timeout(TICK) {
                Ok(result) => break Some(result),
                Err(RecvTimeoutError::Disconnected) => break None,
                Err(RecvTimeoutError::Timeout) => {}
            }
            self.look();
            match (aborted, self.verdict.failure()) {
                (None, Some(failure)) => {
                    self.backend.abort(&failure.cause);
                    aborted = Some(Instant::now());
                }
                (Some(since), _) if since.elapsed() > GRACE => {
                    self.progress
                        .note("LoadGen does not return from its aborted test; ending without it");
                    break None;
                }
                _ => {}
            }
        };
        self.look();
        match result {
            Some(Ok(outcome)) => Ok(Some(outcome)),
            Some(Err(_)) if self.verdict.failure().is_some() => Ok(None),
            Some(Err(error)) if broke_off(&error) => {
                self.verdict.fail(ExitCode::Lost, error.to_string());
                Ok(None)
            }
            Some(Err(error)) => Err(error.into()),
            None => {
                self.verdict.fail(ExitCode::Lost, "LoadGen did not return");
                Ok(None)
            }
        }
    }

    /// One look: figures, notes, the watchdog, signals.
    fn look(&mut self) {
        for note in self.notes.try_iter() {
            self.progress.note(&note);
        }
        let first_ns = self.sut.first_query_ns().unwrap_or(0);
        if let Some(line) = self.dumps.look(first_ns, &self.connections) {
            self.progress.note(&line);
        }
        if let Some(signal) = interrupt::requested() {
            let after = self.began.elapsed().as_secs_f64();
            self.verdict.fail(
                ExitCode::Interrupted,
                format!("interrupted by {signal} {after:.1} s into the run"),
            );
        }
        if let Some(found) = self.tokens.as_ref().map(|t| t.findings()) {
            for (words, shown) in [found.faults, found.notes].iter().zip(&mut self.shown) {
                let new = words.iter().skip(*shown);
                new.for_each(|line| self.progress.note(line));
                *shown = words.len();
            }
        }
        let (now, completed) = (now_ns(), self.backend.completed());
        let outstanding = self.backend.outstanding();
        let figures = self.completers.live().figures();
        if let Some(first) = self.sut.first_query_ns() {
            let throughput = self.throughput.get_or_insert_with(|| Readings::new(first));
            throughput.read(now, completed, outstanding);
            if outstanding > 0 || throughput.now_ns == now {
                let counts = [completed + outstanding, completed];
                self.gather
                    .look([first, now], counts, &self.backend.readings());
            }
            let (gather, issue) = (&mut self.gather, self.sut.issue_threads().all());
            let read = || {
                let threads = thread_times();
                gather.threads(now, &threads, &issue);
                usage_of(&threads, &issue, self.backend.nic_use())
            };
            self.meter.look(outstanding > 0, read);
            self.progress
                .show(now, &figures, &throughput.now, outstanding);
        } else {
            let before = self.backend.readings();
            // A run that began meanwhile has samples of its own among these.
            if self.sut.first_query_ns().is_none() {
                self.gather.before(&before);
            }
        }
        self.show(now, &figures, [completed + outstanding, completed]);
        // A long answer whose tokens come is no stall.
        let moved = completed.saturating_add(figures.parts);
        if let Some(stalled) = self.watchdog.look(now, moved, outstanding) {
            let nothing = match self.stream {
                Stream::None => "no sample",
                Stream::First | Stream::All => "no sample, and no token of one,",
            };
            let cause = format!(
                "{nothing} came back for {:.0} s, with {} outstanding ({:.1} s into the run); gave up \
                 (deadlines.watchdog_s)",
                stalled.for_ns as f64 / 1e9,
                stalled.outstanding,
                self.began.elapsed().as_secs_f64()
            );
            if let Some(first) = self.sut.first_query_ns() {
                let at_s = now.saturating_sub(first) as f64 / 1e9;
                self.gather.event(at_s, "watchdog", &cause);
            }
            // The backend may know more about who it is.
            self.backend.abort(&cause);
            self.verdict.fail(ExitCode::Lost, cause);
        }
    }

    /// A moment of the run, for those who look on; `None` before its first query.
    fn moment(&self, now: u64, counts: [u64; 2]) -> Option<SoFar> {
        let (first, (_, known)) = self.sut.first_query_ns().zip(self.live.as_ref())?;
        let at = [first, now];
        let node = &known.nothing().node;
        let moment = Moment {
            at,
            counts,
            connections: (&self.connections, self.gather.connections()),
            timeline: self.gather.so_far(node, at, self.backend.happened()),
        };
        Some(known.so_far(moment, self.completers.live()))
    }

    /// Shows the run to those who look on, once a second.
    fn show(&mut self, now: u64, figures: &Figures, counts: [u64; 2]) {
        let Some((view, known)) = &mut self.live else {
            return;
        };
        known.count(now, figures, counts[1]);
        if let Some(first) = self.sut.first_query_ns() {
            self.gather.latencies([first, now], self.completers.live());
        }
        if view.due() {
            // Where nothing is outstanding at any look nobody has read them for long.
            let issue = self.sut.issue_threads().all();
            self.gather.threads(now, &thread_times(), &issue);
            let so_far = self.moment(now, counts);
            if let Some((view, known)) = &self.live {
                view.show(so_far.unwrap_or_else(|| known.nothing()));
            }
        }
    }

    /// Everything was answered: those who look on hear of it, and of the run's end by what is
    /// returned.
    fn ending(&mut self) -> Option<LiveView> {
        let (completed, outstanding) = (self.backend.completed(), self.backend.outstanding());
        let last = self.moment(now_ns(), [completed + outstanding, completed]);
        let (view, _) = self.live.take()?;
        view.ending(last);
        Some(view)
    }

    /// Stops everything and gathers what is known.
    fn end<'a>(
        mut self,
        config: &'a FrontendConfig,
        settings: &'a Settings,
        outcome: Option<TestOutcome>,
        started: SystemTime,
        verifier: Option<&Verifier>,
    ) -> Ended<'a> {
        let mut system = self.backend.finish();
        for note in self.notes.try_iter().chain(system.notes.iter().cloned()) {
            self.progress.note(&note);
        }
        let found = self.tokens.as_ref().map(|t| t.findings());
        let found = found.unwrap_or_default();
        system.notes.extend(found.notes.iter().cloned());
        if let Some(line) = self
            .dumps
            .end(self.sut.first_query_ns().unwrap_or(0), &self.connections)
        {
            self.progress.note(&line);
        }
        let mut left = self.completers.left();
        let latencies: Vec<_> = left.iter_mut().map(|l| l.recorder.take_ticks()).collect();
        let last_ns = left.iter().map(|l| l.last_ns).max().unwrap_or(0);
        let first_ns = self.sut.first_query_ns().unwrap_or(last_ns);
        let throughput = self
            .throughput
            .take()
            .unwrap_or_else(|| Readings::new(first_ns))
            .end(last_ns, system.ledger.answered);
        let sum = |of: fn(&Recorder) -> u64| left.iter().map(|l| of(&l.recorder)).sum();
        let carried = (sum(Recorder::bytes_out), sum(Recorder::bytes_in));
        let (accuracy, mut accuracy_note) = self.accuracy(&mut system, outcome.as_ref());
        let scored = outcome.as_ref().and_then(|o| o.detail.mode());
        let scored = scored.unwrap_or(settings.test.mode).has_accuracy();
        if self.labels.is_none() && scored {
            accuracy_note = Some(accuracy::no_figure(config.dataset.kind));
        }
        // Counts that are no engine's own are not shown.
        let counts = self.tokens.as_ref().filter(|_| self.counted);
        let tokens = counts.map(|t| TokenEnd {
            stream: self.stream,
            measured: t.measured,
            first_tokens: t.first.then(|| left.iter().map(|l| l.first_tokens).sum()),
            parts_taken: sum(Recorder::parts_taken),
            found,
        });
        self.progress.clear();
        let phases = self.completers.phases();
        let gathered = phases.end(left.into_iter().map(Share::from));
        let histograms = phases.total(&gathered);
        let ran = outcome.as_ref();
        let said = ran.map_or(&[][..], |o| &o.detail.phases);
        let mode = ran.and_then(|o| o.detail.mode());
        let timeline = self.gather.end(&timeline::End {
            node: &config.node,
            answered: system.ledger.answered,
            system: &system,
            latencies: &latencies.iter().collect::<Vec<_>>(),
            first_ns,
            last_ns,
            phases: phases::begun(&gathered, said, mode.unwrap_or(settings.test.mode)),
        });
        Ended {
            node: &config.node,
            settings,
            outcome,
            failure: self.verdict.failure(),
            fabric: self.backend.fabric(),
            system,
            histograms,
            phases: gathered,
            own_settings: Vec::new(),
            would_not_count: Vec::new(),
            carried,
            throughput,
            name: self.sut.name_answer(),
            used: self.meter.used(),
            accuracy,
            accuracy_note,
            verified: verifier.map(Verifier::findings),
            tokens,
            timeline,
            started,
            duration: Duration::from_nanos(last_ns.saturating_sub(first_ns)),
        }
    }

    /// Right answers in LoadGen's log, each accelerator's in its record, and what is odd of them.
    /// Labels that do not fit the log are an error of the run.
    fn accuracy(
        &self,
        system: &mut SystemRecord,
        outcome: Option<&TestOutcome>,
    ) -> (Option<Accuracy>, Option<String>) {
        let (Some((labels, whose)), Some(outcome)) = (&self.labels, outcome) else {
            return (None, None);
        };
        // What audit.config says goes before what was asked for: a performance run logs answers
        // too, and their share that is right is no accuracy.
        let mode = outcome.detail.mode().filter(|m| m.has_accuracy());
        let Some(mode) = mode else {
            return (None, None);
        };
        let sampled = ["accuracy_log_probability", "accuracy_log_sampling_target"];
        let sampled = sampled.map(|name| outcome.detail.effective_number(name));
        if mode == TestMode::SubmissionRun && sampled.iter().flatten().any(|n| *n > 0.0) {
            let note = "no figure: the performance phase logged some of its answers too, random \
                 repeats; run --mode accuracy, or without accuracy_log_probability and \
                 accuracy_log_sampling_target";
            return (None, Some(note.to_owned()));
        }
        let scores = match labels.score(&outcome.files.accuracy, whose) {
            Ok(scores) => scores,
            Err(error) => {
                self.verdict.fail(ExitCode::Setup, error.to_string());
                return (None, None);
            }
        };
        let by = accuracy::by_accelerator(&scores.by_connection, &self.connections);
        for a in &mut system.accelerators {
            a.accuracy = by.get(&a.node).copied();
        }
        let all = scores.all.accuracy();
        let unreadable = (all.unreadable > 0).then(|| {
            let (n, of) = (all.unreadable, all.answers);
            format!("{n} of {of} answers name no class: not whole, or scores that are NaN")
        });
        (Some(all), unreadable.or_else(|| accuracy::odd_one(&by)))
    }
}

fn start_test(
    sut: Arc<Sut>,
    qsl: Arc<WarmLibrary>,
    settings: &Settings,
    done: &Sender<std::result::Result<TestOutcome, LoadgenError>>,
) {
    quick_timers();
    let result = run_test(
        sut,
        qsl,
        &settings.test,
        &settings.log,
        settings.audit.as_deref(),
    );
    // Nobody waits any more for a test that took too long to end.
    let _ = done.send(result);
}

/// True of errors that may come when samples have been on their way: such a run is lost, and leaves
/// a folder that says so. The others keep a test from beginning.
fn broke_off(error: &LoadgenError) -> bool {
    matches!(
        error,
        LoadgenError::Panicked { .. }
            | LoadgenError::Aborted { .. }
            | LoadgenError::Exception(_)
            | LoadgenError::Result { .. }
    )
}

/// Lets the threads that come from this one sleep precisely: LoadGen charges what its issue thread
/// oversleeps to the SUT, and the system's default adds 50 us to every sleep.
fn quick_timers() {
    // SAFETY: PR_SET_TIMERSLACK takes a number and touches no memory.
    let set = unsafe { libc::prctl(libc::PR_SET_TIMERSLACK, 1 as libc::c_ulong, 0, 0, 0) };
    if set != 0 {
        tracing::debug!("PR_SET_TIMERSLACK was refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn readings_end_with_the_last_sample() {
        let mut r = Readings::new(0);
        r.read(SECOND, 100, 3);
        r.read(2 * SECOND, 200, 0);
        // LoadGen works on its logs for a minute.
        r.read(62 * SECOND, 200, 0);
        let report = r.end(2 * SECOND - 50, 200).report();
        assert_eq!(report.completed, 200);
        assert!(report.duration_s < 2.0 && report.duration_s > 1.9);
    }

    #[test]
    fn what_loadgen_throws_and_what_cannot_be_read_are_no_errors_of_the_setup() {
        assert!(broke_off(&LoadgenError::Exception("bad_alloc".to_owned())));
        assert!(!broke_off(&LoadgenError::SecondRun));
    }

    #[test]
    fn a_stall_shows() {
        let mut r = Readings::new(0);
        r.read(SECOND, 100, 3);
        (2..5).for_each(|s| r.read(s * SECOND, 100, 3));
        let report = r.end(5 * SECOND, 103).report();
        assert_eq!(report.per_second, [100, 0, 0, 0, 3]);
    }
}
