//! The server's process: its start, the wait until it is ready, its last words and its end. There
//! is none if the user starts the server.

use std::{
    path::{Path, PathBuf},
    sync::Mutex,
    thread,
    time::{Duration, Instant},
};

use record::secrets;

use fabric::os::lock;

use crate::{
    EngineError,
    child::{self, ExitStatus, Launch, Program, last_error, last_line},
    error::shorten,
    streaming::OnFatal,
};

/// Time to wait for the exit of the program after the server stops answering.
pub(super) const EXIT_SEEN: Duration = Duration::from_secs(3);
/// Interval of looks at a starting server, and at a program that may end.
const LOOK: Duration = Duration::from_millis(50);
/// Interval of log lines while the server is not ready.
const SAY: Duration = Duration::from_secs(10);

pub struct ServerProcess {
    /// The engine's name, for the names of keys.
    engine: &'static str,
    /// The server in messages.
    pub(super) name: String,
    log: PathBuf,
    /// Longest time from the start until the server is ready.
    pub(super) ready: Duration,
    /// Time from SIGTERM to SIGKILL.
    grace: Duration,
    program: Mutex<Option<Program>>,
}

impl ServerProcess {
    /// No process yet. `times`: the longest time until the server is ready, and from SIGTERM to
    /// SIGKILL.
    pub(super) fn new(
        engine: &'static str,
        name: String,
        log: &Path,
        [ready, grace]: [Duration; 2],
    ) -> Self {
        ServerProcess {
            engine,
            name,
            log: log.to_owned(),
            ready,
            grace,
            program: Mutex::default(),
        }
    }

    pub(super) fn error(&self, reason: &str) -> EngineError {
        EngineError::engine(format!("{}: {reason}", self.name))
    }

    /// Starts the program of `launch`, which has command, variables and place, with further
    /// variables from `env_file`. After [`Self::need`], the program's end calls `fatal`.
    /// Error text: the file of variables, the program or its log, and why.
    pub(super) fn start(
        &self,
        env_file: Option<&Path>,
        launch: Launch,
        fatal: Option<OnFatal>,
    ) -> Result<(), String> {
        let key = |name| format!("engine.{}.{name}", self.engine);
        let mut env = child::read_env(&key("env_file"), env_file)?;
        env.extend(launch.env);
        let launch = Launch {
            key: key("command"),
            log: self.log.clone(),
            grace: self.grace,
            env,
            ..launch
        };
        let words = secrets::mask_words(&launch.command).0.join(" ");
        tracing::info!("{}: {words}; its log is {}", self.name, self.log.display());
        let name = self.name.clone();
        let on_end = move |reason| {
            if let Some(fatal) = fatal {
                fatal(EngineError::engine(format!("{name}: {reason}")));
            }
        };
        *lock(&self.program) = Some(Program::start(launch, on_end)?);
        Ok(())
    }

    /// A handle that has the program's exit status once it has ended; `None` if the user starts
    /// the server.
    pub(super) fn exit(&self) -> Option<ExitStatus> {
        lock(&self.program).as_ref().map(|p| p.exit.clone())
    }

    /// See [`Program::need`].
    pub(super) fn need(&self) -> Result<(), String> {
        lock(&self.program).as_ref().map_or(Ok(()), Program::need)
    }

    /// Calls `step` now and then until it returns `None`: the server is ready. Before, it returns
    /// how far the server is.
    /// Error text: that of `step`; the program ended, or the server was not ready in time.
    pub(super) fn wait(
        &self,
        mut step: impl FnMut() -> Result<Option<String>, String>,
    ) -> Result<(), String> {
        let (began, mut said) = (Instant::now(), None);
        let exit = self.exit();
        while let Some(stage) = step()? {
            if let Some(exit) = exit.as_ref().and_then(ExitStatus::now) {
                return Err(self.add_last_error(format!("{exit} (before it was ready)")));
            }
            let log = exit.as_ref().map(|_| format!("; {}", self.last_line()));
            let (s, log) = (began.elapsed().as_secs(), log.unwrap_or_default());
            if began.elapsed() > self.ready {
                let key = format!("engine.{}.ready_s", self.engine);
                return Err(format!("not ready after {s} s ({stage}{log}): see {key}"));
            }
            if said.is_none_or(|at: Instant| at.elapsed() > SAY) {
                said = Some(Instant::now());
                tracing::info!("waiting for the server for {s} s: {stage}{log}");
            }
            thread::sleep(LOOK);
        }
        Ok(())
    }

    /// Adds the program's exit status, or the last line of its log, and the last error in its log.
    /// Waits up to [`EXIT_SEEN`] for the exit.
    pub(super) fn last_words(&self, reason: &str) -> String {
        let Some(exit) = self.exit() else {
            return reason.to_owned();
        };
        let until = Instant::now() + EXIT_SEEN;
        while exit.now().is_none() && Instant::now() < until {
            thread::sleep(LOOK);
        }
        self.add_last_error(match exit.now() {
            Some(exit) if exit == reason => exit,
            Some(exit) => format!("{reason}; {exit}"),
            None => format!("{reason}; {}", self.last_line()),
        })
    }

    fn last_line(&self) -> String {
        let line = shorten(&last_line(&self.log).unwrap_or_default());
        format!("the last line of its log {}: {line}", self.log.display())
    }

    /// Adds the last error of the log, unless the words have it.
    fn add_last_error(&self, words: String) -> String {
        let error = last_error(&self.log).map(|line| shorten(&line));
        match error.filter(|error| !words.contains(error)) {
            Some(error) => format!("{words}; the last error in it: {error}"),
            None => words,
        }
    }

    /// Ends the program, if there is one.
    pub(super) fn stop(&self) {
        let program = lock(&self.program).take();
        if let Some(program) = program
            && let Err(e) = program.stop(self.grace)
        {
            tracing::warn!("{}: {e}", self.name);
        }
    }
}
