//! A run while it goes on: looked at twenty times a second until LoadGen's test ends.

use std::{
    sync::{
        Arc,
        mpsc::{self, Receiver, RecvTimeoutError, Sender},
    },
    thread,
    time::{Duration, Instant},
};

use ::report::SoFar;
use fabric::{clock::now_ns, os::thread_times, wire::Stream};
use loadgen_bridge::{LoadgenError, THREAD, TestOutcome, register_issue_query_thread, run_test};
use qdl::run::usage_of;
use record::{Figures, LossRecord};

use super::{Result, readings::Readings};
use crate::{
    accuracy::{Labels, Whose},
    backend::Backend,
    live::{Known, LiveView, Moment},
    loadgen::{completer::Completers, sut::Sut, tokens::Tokens},
    outcome::{meter::Meter, timeline::Gather},
    run::{
        exit::{ExitCode, Verdict},
        interrupt,
        progress::Progress,
        warm_up::WarmLibrary,
        watchdog::{AfterTheLast, Watchdog},
    },
    settings::Settings,
};

/// How often the run is looked at.
const TICK: Duration = Duration::from_millis(50);
/// How long LoadGen may take to return once its test was aborted.
const GRACE: Duration = Duration::from_secs(3);

/// A run that goes on.
pub(super) struct Watch {
    pub(super) backend: Arc<dyn Backend>,
    pub(super) sut: Arc<Sut>,
    pub(super) completers: Completers,
    /// Where answers are tokens.
    pub(super) tokens: Option<Arc<Tokens>>,
    /// Where answers are scored: the labels, and who answered.
    pub(super) labels: Option<(Labels, Arc<Whose>)>,
    /// The connections that answers come by.
    pub(super) connections: Vec<String>,
    /// Every engine counts them.
    pub(super) counted: bool,
    pub(super) stream: Stream,
    /// Faults of answers in tokens, and notes on them, that have been shown.
    pub(super) shown: [usize; 2],
    pub(super) verdict: Verdict,
    pub(super) progress: Progress,
    pub(super) throughput: Option<Readings>,
    pub(super) meter: Meter,
    pub(super) gather: Gather,
    /// Where it is shown while it goes on, and what is known of it for that.
    pub(super) live: Option<(LiveView, Known)>,
    pub(super) watchdog: Watchdog,
    pub(super) after_the_last: AfterTheLast,
    /// What had been lost when this node gave the run up by itself.
    pub(super) lost_before: Option<Vec<LossRecord>>,
    /// LoadGen rested after its last sample: nobody else did anything wrong.
    pub(super) rested: bool,
    pub(super) notes: Receiver<String>,
    pub(super) began: Instant,
}

impl Watch {
    /// LoadGen's test, watched until it ends. An error is one of the setup.
    pub(super) fn test(
        &mut self,
        settings: &Settings,
        qsl: Arc<WarmLibrary>,
    ) -> Result<Option<TestOutcome>> {
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

    /// One look: figures, notes, the watchdog, signals.
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
        let answered_all = outstanding == 0 && self.completers.phases().are_waited_for();
        if let Some(for_ns) = self.after_the_last.look(now, answered_all, loadgen_ran_ns) {
            let cause = format!(
                "LoadGen was given the answers to all {completed} samples, and its threads did \
                 nothing for {:.0} s: it has probably lost a record of one, or cannot write its \
                 logs (is there room where they go?); run it again (deadlines.watchdog_s; \
                 docs/architecture.md, What LoadGen may lose)",
                for_ns as f64 / 1e9
            );
            self.rested = true;
            self.bark(now, cause);
        }
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
            // The backend may know more about who it is.
            self.backend.abort(&cause);
            self.bark(now, cause);
        }
    }

    /// The run is given up for what the watchdog saw.
    fn bark(&mut self, now: u64, cause: String) {
        if let Some(first) = self.sut.first_query_ns() {
            let at_s = now.saturating_sub(first) as f64 / 1e9;
            self.gather.event(at_s, "watchdog", &cause);
        }
        self.verdict.fail(ExitCode::Lost, cause);
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
    pub(super) fn ending(&mut self) -> Option<LiveView> {
        let (completed, outstanding) = (self.backend.completed(), self.backend.outstanding());
        let last = self.moment(now_ns(), [completed + outstanding, completed]);
        let (view, _) = self.live.take()?;
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

/// CPU time of LoadGen's threads, where the system says.
fn loadgen_ran_ns() -> Option<u64> {
    let threads = thread_times();
    let own = threads.iter().filter(|t| t.name == THREAD);
    own.map(|t| t.ran_ns).reduce(|a, b| a + b)
}

/// Lets the threads that come from this one sleep punctually: LoadGen charges what its issue thread
/// oversleeps to the SUT.
fn quick_timers() {
    if !fabric::os::sleep_punctually() {
        tracing::debug!("PR_SET_TIMERSLACK was refused");
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn what_loadgen_throws_and_what_cannot_be_read_are_no_errors_of_the_setup() {
        assert!(broke_off(&LoadgenError::Exception("bad_alloc".to_owned())));
        assert!(!broke_off(&LoadgenError::SecondRun));
    }
}
