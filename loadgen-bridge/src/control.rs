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

use crate::error::LoadgenError;

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

#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) enum TestEnd {
    /// `StartTest` returned, or threw the exception with this text.
    Returned(Result<(), String>),
    /// `StartTest` will never return; `AbortTest` may be called.
    Abandoned,
}

#[derive(Debug, Default)]
pub(crate) struct State {
    began: bool,
    /// Samples are loaded: `StartTest` must unload them before it returns.
    loaded: bool,
    /// `StartTest` is inside a callback other than `issue_query`.
    inside: bool,
    /// The thread in `StartTest` sleeps for good.
    parked: bool,
    returned: Option<Result<(), String>>,
    stop: Option<Stop>,
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

    fn end(&self) -> Option<TestEnd> {
        if let Some(result) = &self.returned {
            return Some(TestEnd::Returned(result.clone()));
        }
        let held = self.loaded || self.inside || self.parked;
        (self.stop.is_some() && held).then_some(TestEnd::Abandoned)
    }
}

/// The state of the process's one run, with its lock.
pub(crate) struct Control {
    state: Mutex<State>,
    changed: Condvar,
    /// Mirror of `stop.is_some()`, readable without the lock.
    stopping: AtomicBool,
}

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
    pub(crate) fn wait_for_end(&self) -> (TestEnd, Option<Stop>) {
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

#[cfg(test)]
mod tests {
    use super::*;

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
            let end = abandoned.then_some(TestEnd::Abandoned);
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
        assert_eq!(state.end(), Some(TestEnd::Returned(Ok(()))));
    }
}
