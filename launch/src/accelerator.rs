//! The program `accelerator`, or another that says when it is ready.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::Path;
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::Running;

/// Limit for loading the model and warming up the engine.
const READY: Duration = Duration::from_secs(60);

/// A running accelerator, which ends on drop.
pub struct Accelerator {
    running: Running,
    /// The accelerator's line `ready: …`.
    pub ready: String,
}

impl Accelerator {
    /// Starts the accelerator and waits until it listens. Its output goes to `log`.
    pub fn start_in(command: &mut Command, log: &Path) -> Result<Self> {
        Self::start_named("accelerator", command, log)
    }

    /// As [`Self::start_in`], for a program with this name in its errors.
    pub fn start_named(name: &str, command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(Stdio::piped()).stderr(file.try_clone()?);
        let mut running = Running::start(name, command)?;
        let lines = lines(
            running
                .stdout()
                .with_context(|| format!("{name}: no standard output"))?,
            file,
        );
        match wait_for_ready(&lines, Instant::now() + READY) {
            Ok(ready) => Ok(Self { running, ready }),
            Err(error) => {
                running.end();
                let wrote = std::fs::read_to_string(log).unwrap_or_default();
                Err(anyhow!("{name}: {error}\n{}", wrote.trim_end()))
            }
        }
    }

    /// Ends the program, and waits for its end.
    pub fn end(&mut self) {
        self.running.end();
    }

    /// Errors with the path of the log if the accelerator has ended.
    pub fn check(&mut self, log: &Path) -> Result<()> {
        match self.running.try_status()? {
            None => Ok(()),
            Some(status) => bail!("the accelerator has ended: {status}; see {}", log.display()),
        }
    }
}

/// Copies a program's output to `file`, and returns its lines through a channel.
fn lines(from: impl std::io::Read + Send + 'static, mut file: File) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // Ignore a failed write: the program still runs without the log.
            let _ = writeln!(file, "{line}");
            let _ = sender.send(line);
        }
    });
    receiver
}

fn wait_for_ready(lines: &Receiver<String>, until: Instant) -> Result<String> {
    loop {
        match lines.recv_timeout(until.saturating_duration_since(Instant::now())) {
            Ok(line) if line.starts_with("ready:") => return Ok(line),
            Ok(_) => {}
            Err(RecvTimeoutError::Timeout) => bail!("not ready after {} s", READY.as_secs()),
            Err(RecvTimeoutError::Disconnected) => bail!("it ended before it was ready"),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Result<Accelerator> {
        let folder = tempfile::tempdir().unwrap();
        Accelerator::start_in(
            Command::new("sh").args(["-c", script]),
            &folder.path().join("log"),
        )
    }

    #[test]
    fn ready_is_the_line_that_says_so() {
        let accelerator = start("echo hello; echo 'ready: node a'; exec sleep 600").unwrap();
        assert_eq!(accelerator.ready, "ready: node a");
    }

    #[test]
    fn an_accelerator_that_ends_early_shows_why() {
        let error = start("echo 'port 7400 is taken' >&2; exit 2")
            .err()
            .unwrap()
            .to_string();
        assert!(
            error.contains("port 7400 is taken") && error.contains("before it was ready"),
            "{error}"
        );
    }
}
