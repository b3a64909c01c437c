//! The state of the process's one run, and how a run is stopped.
//!
//! LoadGen's `AbortTest` only ends its logging threads. The thread in `StartTest` goes on issuing,
//! then waits forever for latencies that no thread records. A return from `StartTest` would end the
//! logging threads a second time, which ends the process. So call `AbortTest` only when that thread
//! can no longer return ([`State::end`]): inside a callback, and between loading and unloading
//! samples, the thread must pass this module first. After a stop the thread sleeps here until the
//! process ends, so memory behind a [`ResponseId`](crate::ResponseId) stays valid.

use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

use crate::error::LoadgenError;

/// How long a run waits for its issue threads; LoadGen waits as long.
pub(crate) const ISSUE_THREADS_COME_WITHIN: Duration = Duration::from_secs(10);
/// How long an issue thread waits for a run to begin.
const TEST_BEGINS_WITHIN: Duration = Duration::from_secs(60);

/// The reason why a test is stopped.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum Stop {
    Aborted(String),
    Panicked {
        place: &'static str,
        message: String,
    },
}

impl From<Stop> for LoadgenError {
    fn from(stop: Stop) -> Self {
        match stop {
            Stop::Aborted(reason) => LoadgenError::Aborted { reason },
            Stop::Panicked { place, message } => LoadgenError::Panicked { place, message },
        }
    }
}

/// The end of a run.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum End {
    /// `StartTest` returned, or threw the exception with this text.
    Returned(Result<(), String>),
    /// `StartTest` will never return; `AbortTest` may be called.
    Abandoned,
}

/// The state of the run.
#[derive(Debug, Default)]
pub(crate) struct State {
    /// A run has begun.
    began: bool,
    /// Samples are loaded: `StartTest` must unload them before it returns.
    loaded: bool,
    /// `StartTest` is inside a callback other than `issue_query`.
    inside: bool,
    /// The thread in `StartTest` sleeps for good.
    parked: bool,
    returned: Option<Result<(), String>>,
    stop: Option<Stop>,
    /// Number of issue threads that the run needs; `None` before a run begins.
    wanted: Option<u64>,
    came: u64,
    /// Issue threads may register.
    go: bool,
}

impl State {
    /// Enters a callback, or leaves it (`inside` is false). `loaded` says whether samples are
    /// loaded, if the callback changes that. Returns `false` if the thread must sleep for good.
    fn cross(&mut self, inside: bool, loaded: Option<bool>) -> bool {
        if self.stop.is_some() {
            self.parked = true;
            return false;
        }
        self.inside = inside;
        self.loaded = loaded.unwrap_or(self.loaded);
        true
    }

    /// The end of the run, if it has ended.
    fn end(&self) -> Option<End> {
        if let Some(result) = &self.returned {
            return Some(End::Returned(result.clone()));
        }
        let held = self.loaded || self.inside || self.parked;
        (self.stop.is_some() && held).then_some(End::Abandoned)
    }
}

/// The state of the process's one run, with its lock.
pub(crate) struct Control {
    state: Mutex<State>,
    changed: Condvar,
    /// Mirror of `stop.is_some()`, readable without the lock.
    stopping: AtomicBool,
}

/// The run of this process.
pub(crate) static CONTROL: Control = Control::new();

impl Control {
    const fn new() -> Self {
        let state = State {
            began: false,
            loaded: false,
            inside: false,
            parked: false,
            returned: None,
            stop: None,
            wanted: None,
            came: 0,
            go: false,
        };
        Self {
            state: Mutex::new(state),
            changed: Condvar::new(),
            stopping: AtomicBool::new(false),
        }
    }

    /// Locks the state. Ignores poison: every change of the state is a single step.
    fn lock(&self) -> MutexGuard<'_, State> {
        self.state.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Waits until `done` or the deadline, and returns the locked state.
    fn wait(&self, until: Instant, done: impl Fn(&State) -> bool) -> MutexGuard<'_, State> {
        let mut state = self.lock();
        while !done(&state) {
            let left = until.saturating_duration_since(Instant::now());
            if left.is_zero() {
                break;
            }
            state = self
                .changed
                .wait_timeout(state, left)
                .unwrap_or_else(PoisonError::into_inner)
                .0;
        }
        state
    }

    /// Begins the process's one run. Errors if a run has begun, or if the test is stopped.
    pub(crate) fn begin(&self) -> Result<(), LoadgenError> {
        let mut state = self.lock();
        if state.began {
            return Err(LoadgenError::SecondRun);
        }
        state.began = true;
        match state.stop.clone() {
            Some(stop) => Err(stop.into()),
            None => Ok(()),
        }
    }

    /// Waits until `wanted` issue threads have come, lets them register, and waits until LoadGen
    /// has all of them: LoadGen's own wait misses registrations. If threads are missing after
    /// `within`, stops the test; `release` frees threads that have registered or still register.
    pub(crate) fn gather_issue_threads(
        &self,
        wanted: u64,
        within: Duration,
        registered: impl Fn() -> usize,
        release: impl FnOnce(),
    ) -> Result<(), LoadgenError> {
        self.lock().wanted = Some(wanted);
        self.changed.notify_all();
        let until = Instant::now() + within;
        let mut state = self.wait(until, |state| state.came >= wanted || state.stop.is_some());
        let came = state.came;
        if came < wanted {
            let stop = state.stop.clone();
            let error = stop.map_or_else(|| too_few(wanted, came), LoadgenError::from);
            drop(state);
            self.stop(Stop::Aborted(error.to_string()));
            return Err(error);
        }
        state.go = true;
        drop(state);
        self.changed.notify_all();
        while (registered() as u64) < wanted {
            if Instant::now() > until {
                let error = too_few(wanted, registered() as u64);
                self.stop(Stop::Aborted(error.to_string()));
                release();
                return Err(error);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(())
    }

    /// On an issue thread: waits until the thread may register.
    pub(crate) fn join_as_issue_thread(&self) -> Result<(), LoadgenError> {
        let until = Instant::now() + TEST_BEGINS_WITHIN;
        let mut state = self.wait(until, |state| {
            state.wanted.is_some() || state.stop.is_some()
        });
        if let Some(stop) = state.stop.clone() {
            return Err(stop.into());
        }
        let Some(wanted) = state.wanted else {
            return Err(no_test());
        };
        if state.came >= wanted {
            return Err(LoadgenError::IssueThreads(
                "a thread more than server_num_issue_query_threads called \
                 register_issue_query_thread; that many may"
                    .to_owned(),
            ));
        }
        state.came += 1;
        drop(state);
        self.changed.notify_all();
        let until = Instant::now() + TEST_BEGINS_WITHIN;
        let state = self.wait(until, |state| state.go || state.stop.is_some());
        match state.stop.clone() {
            _ if state.go => Ok(()),
            Some(stop) => Err(stop.into()),
            None => Err(no_test()),
        }
    }

    /// Stops the test. The first reason is kept.
    pub(crate) fn stop(&self, stop: Stop) {
        let mut state = self.lock();
        state.stop.get_or_insert(stop);
        self.stopping.store(true, Ordering::Relaxed);
        drop(state);
        self.changed.notify_all();
    }

    /// Whether the test is stopped. A reader that sees the stop late issues one useless query.
    pub(crate) fn stopping(&self) -> bool {
        self.stopping.load(Ordering::Relaxed)
    }

    /// Enters a callback that `StartTest` waits for; `false` if the thread must sleep for good.
    pub(crate) fn enter(&self, loads: bool) -> bool {
        self.cross(true, loads.then_some(true))
    }

    /// Leaves the callback; `false` if the thread must sleep for good.
    pub(crate) fn leave(&self, unloads: bool) -> bool {
        self.cross(false, unloads.then_some(false))
    }

    fn cross(&self, inside: bool, loaded: Option<bool>) -> bool {
        let go_on = self.lock().cross(inside, loaded);
        if !go_on {
            self.changed.notify_all();
        }
        go_on
    }

    /// Records that `StartTest` returned, or threw the exception with this text.
    pub(crate) fn returned(&self, result: Result<(), String>) {
        self.lock().returned = Some(result);
        self.changed.notify_all();
    }

    /// Waits for the end of the run. A stop of the test ends the wait early.
    pub(crate) fn wait_for_end(&self) -> (End, Option<Stop>) {
        let mut state = self.lock();
        loop {
            if let Some(end) = state.end() {
                return (end, state.stop.clone());
            }
            state = self
                .changed
                .wait(state)
                .unwrap_or_else(PoisonError::into_inner);
        }
    }
}

fn too_few(wanted: u64, came: u64) -> LoadgenError {
    LoadgenError::IssueThreads(format!(
        "server_num_issue_query_threads is {wanted}, and {came} threads called \
         register_issue_query_thread within 10 s"
    ))
}

fn no_test() -> LoadgenError {
    let why = "register_issue_query_thread: no test that wants issue threads began within 60 s";
    LoadgenError::IssueThreads(why.to_owned())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::raw;

    fn stop() -> Option<Stop> {
        Some(Stop::Aborted("enough".to_owned()))
    }

    /// Letters: `l` loads samples, `u` unloads them, `n` enters another callback, `r` returns from
    /// one, `s` stops the test. A capital is a callback that must not return.
    #[test]
    fn a_stop_abandons_a_run_unless_start_test_may_return() {
        for (events, abandoned) in [
            ("lr", false),
            ("lrs", true),
            // Samples are unloaded: `StartTest` may return, and AbortTest would run concurrently.
            ("lrnus", false),
            // `StartTest` loads the next set instead, and sleeps for good.
            ("lrnusL", true),
            ("lrnsU", true),
            ("ns", true),
        ] {
            let mut state = State::default();
            for event in events.chars() {
                let goes_on = match event.to_ascii_lowercase() {
                    'l' => state.cross(true, Some(true)),
                    'n' => state.cross(true, None),
                    'r' => state.cross(false, None),
                    'u' => state.cross(false, Some(false)),
                    _ => {
                        state.stop = stop();
                        true
                    }
                };
                assert_eq!(goes_on, event.is_lowercase(), "{events}: {event}");
            }
            let end = abandoned.then_some(End::Abandoned);
            assert_eq!(state.end(), end, "{events}");
        }
    }

    #[test]
    fn a_run_that_returned_is_never_abandoned() {
        let state = State {
            returned: Some(Ok(())),
            stop: stop(),
            loaded: true,
            ..State::default()
        };
        assert_eq!(state.end(), Some(End::Returned(Ok(()))));
    }

    #[test]
    fn issue_threads_that_loadgen_has_are_let_go_where_one_does_not_come() {
        let control = Control::new();
        std::thread::scope(|scope| {
            let threads = [(); 2].map(|()| scope.spawn(|| control.join_as_issue_thread()));
            let mut let_go = false;
            let within = Duration::from_secs(2);
            let error = control.gather_issue_threads(2, within, || 1, || let_go = true);
            let error = error.unwrap_err().to_string();
            assert!(error.contains("is 2, and 1 threads"), "{error}");
            assert!(let_go, "it waits inside LoadGen for ever");
            for thread in threads {
                thread.join().unwrap().unwrap();
            }
        });
        // A thread that comes late does not wait.
        assert!(matches!(
            control.join_as_issue_thread(),
            Err(LoadgenError::Aborted { .. })
        ));
    }

    #[test]
    fn a_registered_thread_is_let_go() {
        let registered = std::thread::spawn(|| {
            let mut said = raw::Said::new();
            // SAFETY: `said` has the given size; no test runs or begins.
            unsafe { raw::lg_register_issue_query_thread(said.pointer(), said.size()) }
        });
        while raw::lg_registered_threads() == 0 {
            std::thread::yield_now();
        }
        raw::lg_end_issue_threads();
        assert_eq!(registered.join().unwrap(), 0);
    }

    #[test]
    fn one_issue_thread_too_many_is_turned_away() {
        let control = Control::new();
        std::thread::scope(|scope| {
            let first = scope.spawn(|| control.join_as_issue_thread());
            let none = || panic!("all came");
            let gathered = control.gather_issue_threads(1, ISSUE_THREADS_COME_WITHIN, || 1, none);
            gathered.unwrap();
            first.join().unwrap().unwrap();
        });
        let error = control.join_as_issue_thread().unwrap_err().to_string();
        assert!(error.starts_with("a thread more"), "{error}");
    }
}
