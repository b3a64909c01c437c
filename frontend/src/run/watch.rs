//! Monitors a run twenty times per second until LoadGen's test ends.

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use ::report::SoFar;
use fabric::{
    clock::now_ns,
    os::{ThreadTime, thread_times},
    wire::Stream,
};
use loadgen_bridge::{LoadgenError, THREAD, TestOutcome, run_test};
use qdl::run::usage;
use record::{ISSUE, LossRecord};

use super::{Result, readings::Readings};
use crate::{
    accuracy::{AnswerOrigins, Labels},
    backend::{Backend, sut::Sut},
    live::{LiveRun, LiveView, RunMoment},
    loadgen::exit::{ExitCode, Verdict},
    loadgen::{
        completer::Completers,
        meter::{Meter, RateWindow},
        tokens::Tokens,
    },
    outcome::timeline::TimelineGatherer,
    run::{
        clock::{self, ClockLog},
        interrupt,
        progress::Progress,
        warm_up::WarmLibrary,
        watchdog::{AfterTheLast, Watchdog},
    },
    settings::Settings,
};

/// Interval between looks at the run.
const TICK: Duration = Duration::from_millis(50);
/// Maximum time for LoadGen to return from an aborted test.
const GRACE: Duration = Duration::from_secs(3);

pub(super) struct Watch {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) sut: Arc<Sut>,
    pub(super) completers: Completers,
    pub(super) tokens: Option<Arc<Tokens>>,
    /// Labels and the answering connections, if answers are scored.
    pub(super) labels: Option<(Labels, Arc<AnswerOrigins>)>,
    pub(super) connections: Vec<String>,
    /// True if every engine counts tokens.
    pub(super) counted: bool,
    pub(super) stream: Stream,
    /// Number of faults of token answers, and of notes on them, shown so far.
    pub(super) shown: [usize; 2],
    pub(super) verdict: Verdict,
    pub(super) progress: Progress,
    pub(super) throughput: Option<Readings>,
    pub(super) meter: Meter,
    pub(super) rates: RateWindow,
    pub(super) gather: TimelineGatherer,
    pub(super) clocks: ClockLog,
    pub(super) live: Option<(LiveView, LiveRun)>,
    pub(super) watchdog: Watchdog,
    pub(super) after_the_last: AfterTheLast,
    /// Losses at the time when this node aborted the run.
    pub(super) lost_before: Option<Vec<LossRecord>>,
    /// True if LoadGen's threads rested after the last sample: the backend is not at fault.
    pub(super) rested: bool,
    pub(super) notes: Receiver<String>,
    pub(super) began: Instant,
}

impl Watch {
    /// Runs LoadGen's test and monitors the test until its end. An error means that the test did
    /// not start.
    pub(super) fn test(
        &mut self,
        settings: &Settings,
        qsl: Arc<WarmLibrary>,
    ) -> Result<Option<TestOutcome>> {
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
                    if failure.code != ExitCode::Lost {
                        self.lost_before = Some(self.backend.happened().1);
                    }
                    if !self.rested {
                        self.backend.abort(&failure.cause);
                    }
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

    /// Cause of an interruption before the first query.
    pub(super) fn interrupted_before_the_first_query(&self) -> Option<String> {
        let failure = self.verdict.failure()?;
        let early = self.sut.first_query_ns().is_none();
        (failure.code == ExitCode::Interrupted && early).then_some(failure.cause)
    }

    /// Reads counters, notes and signals once, and asks the watchdogs.
    fn look(&mut self) {
        for note in self.notes.try_iter() {
            self.progress.note(&note);
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
        let figures = self.completers.live.figures();
        self.rates.add(now, [completed, figures.tokens]);
        if let Some(first) = self.sut.first_query_ns() {
            let throughput = self.throughput.get_or_insert_with(|| Readings::new(first));
            throughput.read(now, completed, outstanding);
            if outstanding > 0 || throughput.now_ns == now {
                let counts = [completed + outstanding, completed, figures.tokens];
                self.gather
                    .look([first, now], counts, &self.backend.readings());
            }
            let (gather, issue) = (&mut self.gather, self.sut.issue_threads());
            let read = || {
                let threads = named_threads(&issue);
                gather.threads(now, &threads);
                usage(&threads, self.backend.nic_use())
            };
            self.meter.look(outstanding > 0, read);
            let rates = self.rates.rates();
            self.progress.show(now, &figures, rates, outstanding);
        } else {
            let before = self.backend.readings();
            // If the run began meanwhile, drop the readings: they contain the run's first samples.
            if self.sut.first_query_ns().is_none() {
                self.gather.before(&before);
            }
        }
        self.show(now, [completed + outstanding, completed]);
        // A long answer is no stall while its tokens are made, sent or not.
        let moved = completed + figures.parts + self.backend.steps();
        let answered_all = outstanding == 0 && self.completers.phases.are_waited_for();
        let runs = self.sut.first_query_ns().is_some() && !answered_all;
        if let Some(now) = clock::clocks() {
            self.clocks.look(now, runs);
        }
        if let Some(for_ns) = self.after_the_last.look(now, answered_all, loadgen_ran_ns) {
            let cause = format!(
                "LoadGen was given the answers to all {completed} samples, and its threads did \
                 nothing for {:.0} s: it has probably lost a record of one, or cannot write its \
                 logs (is there room where they go?); run it again (deadlines.watchdog_s; \
                 docs/architecture.md, What LoadGen may lose)",
                for_ns as f64 / 1e9
            );
            self.rested = true;
            self.fail_stalled(now, cause);
        }
        // The node of a server that is away says when it is overdue.
        let stalled = match self.backend.waits_for_server() {
            true => 0,
            false => outstanding,
        };
        if let Some(for_ns) = self.watchdog.look(now, moved, stalled) {
            let cause = format!(
                "no sample came back for {:.0} s, nor a token of one, and no engine made a token or \
                 ran a batch, with {outstanding} outstanding ({:.1} s into the run); gave up \
                 (deadlines.watchdog_s)",
                for_ns as f64 / 1e9,
                self.began.elapsed().as_secs_f64()
            );
            // Abort first: the backend may fail the run with a cause that names the peer.
            self.backend.abort(&cause);
            self.fail_stalled(now, cause);
        }
    }

    fn fail_stalled(&mut self, now: u64, cause: String) {
        if let Some(first) = self.sut.first_query_ns() {
            let at_s = now.saturating_sub(first) as f64 / 1e9;
            self.gather.event(at_s, "watchdog", &cause);
        }
        self.verdict.fail(ExitCode::Lost, cause);
    }

    /// Returns the state for the live page; `None` before the first query.
    fn moment(&self, now: u64, counts: [u64; 2]) -> Option<SoFar> {
        let (first, (_, known)) = self.sut.first_query_ns().zip(self.live.as_ref())?;
        let at = [first, now];
        let node = &known.first.node;
        let moment = RunMoment {
            at,
            counts,
            rates: self.rates.rates(),
            connections: (&self.connections, self.gather.connections()),
            timeline: self.gather.so_far(node, at, self.backend.happened()),
        };
        Some(known.so_far(moment, &self.completers.live))
    }

    /// Updates the live page, once per second.
    fn show(&mut self, now: u64, counts: [u64; 2]) {
        let Some((view, _)) = &mut self.live else {
            return;
        };
        if let Some(first) = self.sut.first_query_ns() {
            self.gather.latencies([first, now], &self.completers.live);
        }
        if view.due() {
            // The meter reads the threads only while samples are outstanding.
            let issue = self.sut.issue_threads();
            self.gather.threads(now, &named_threads(&issue));
            let so_far = self.moment(now, counts);
            if let Some((view, known)) = &self.live {
                view.show(so_far.unwrap_or_else(|| known.first.clone()));
            }
        }
    }

    /// Shows that all samples are answered. Returns the live page for the end of the run.
    pub(super) fn ending(&mut self) -> Option<LiveView> {
        let (completed, outstanding) = (self.backend.completed(), self.backend.outstanding());
        let last = self.moment(now_ns(), [completed + outstanding, completed]);
        let (view, _) = self.live.take()?;
        view.figures.hold(self.backend.figures().0);
        view.ending(last);
        Some(view)
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
    // Ignore the error: after the grace period the receiver is gone.
    let _ = done.send(result);
}

/// Whether the error can occur after samples were issued: the run is then lost, and its folder is
/// marked INVALID. All other errors prevent the start of a test.
fn broke_off(error: &LoadgenError) -> bool {
    matches!(
        error,
        LoadgenError::Panicked { .. }
            | LoadgenError::Aborted { .. }
            | LoadgenError::Exception(_)
            | LoadgenError::Result { .. }
    )
}

/// CPU time of this process's threads. LoadGen's issue threads, of which `issue` are the ids, have
/// the process's name; here they are called [`ISSUE`].
fn named_threads(issue: &[u64]) -> Vec<ThreadTime> {
    let mut threads = thread_times();
    let unnamed = threads.iter_mut().filter(|t| issue.contains(&t.id));
    unnamed.for_each(|t| t.name = ISSUE.to_owned());
    threads
}

/// CPU time of LoadGen's threads in nanoseconds, if the system reports it.
fn loadgen_ran_ns() -> Option<u64> {
    let threads = thread_times();
    let own = threads.iter().filter(|t| t.name == THREAD);
    own.map(|t| t.ran_ns).reduce(|a, b| a + b)
}

/// Sets the timer slack of this thread and of its later threads to the minimum: LoadGen charges its
/// issue thread's late wake-ups to the SUT.
fn quick_timers() {
    if !fabric::os::sleep_punctually() {
        tracing::debug!("PR_SET_TIMERSLACK was refused");
    }
}
