//! Builds the two programs, and starts them as a user would.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::process::{Running, cargo, command_line, run, target};
use crate::setup::{self, Models, clear};

/// Limit for loading the model and warming up the engine.
const READY: Duration = Duration::from_secs(60);
/// Limit for a release build on two slow cores.
const BUILD: Duration = Duration::from_secs(3600);
const RUN: Duration = Duration::from_secs(300);

/// Cargo's profile for measurements: full optimisation.
pub const RELEASE: &str = "release";
/// Cargo's profile for a first look: builds in two thirds of `release`'s time.
const QUICK: &str = "quick";

/// Prints a command as a user would type it in the repository.
fn announce(root: &Path, command: &Command) {
    let prefix = format!("{}/", root.display());
    println!("$ {}", command_line(command).replace(&prefix, ""));
}

/// Builds the programs and `qdl` with cargo's `profile`, and returns their folder.
pub fn build(root: &Path, profile: &str) -> Result<PathBuf> {
    let mut command = cargo(root);
    command.args(["build", "--profile", profile, "--locked"]);
    // A configuration of cargo may name another folder.
    command.arg("--target-dir").arg(target(root));
    for package in ["frontend", "accelerator", "qdl-cli"] {
        command.args(["--package", package]);
    }
    let status = run("cargo build", &mut command, BUILD)?;
    if !status.success() {
        bail!("the programs do not build");
    }
    Ok(target(root).join(profile))
}

pub struct Accelerator {
    running: Running,
    /// The accelerator's line `ready: …`.
    pub ready: String,
}

impl Accelerator {
    /// Starts the accelerator and waits until it listens. Its output goes to `log`.
    pub fn start_in(command: &mut Command, log: &Path) -> Result<Self> {
        let file = File::create(log).with_context(|| format!("cannot write {}", log.display()))?;
        command.stdout(Stdio::piped()).stderr(file.try_clone()?);
        let mut running = Running::start("accelerator", command)?;
        let lines = lines(
            running
                .stdout()
                .context("accelerator: no standard output")?,
            file,
        );
        match wait_for_ready(&lines, Instant::now() + READY) {
            Ok(ready) => Ok(Self { running, ready }),
            Err(error) => {
                running.end();
                let wrote = std::fs::read_to_string(log).unwrap_or_default();
                Err(anyhow!("accelerator: {error}\n{}", wrote.trim_end()))
            }
        }
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

/// A demonstration: one accelerator, and runs of the frontend one after the other, each with its
/// own folder.
pub struct Demo<'a> {
    root: &'a Path,
    programs: PathBuf,
    folder: PathBuf,
    config: &'static str,
    accelerator: Accelerator,
}

impl<'a> Demo<'a> {
    /// Sets up, builds, and starts the accelerator with the first configuration. Empties `folder`
    /// first: all output goes there.
    pub fn start(
        root: &'a Path,
        folder: &str,
        serves: &str,
        [accelerator, config]: [&'static str; 2],
    ) -> Result<Self> {
        setup::run(root, Models::Digits)?;
        println!("\n== building the two programs");
        let programs = build(root, QUICK)?;
        println!("\n== accelerator: {serves}; its log is {folder}/accelerator.log");
        let folder = root.join(folder);
        clear(&folder)?;
        let mut command = Command::new(programs.join("accelerator"));
        command.args(["--config", accelerator]).current_dir(root);
        announce(root, &command);
        let log = folder.join("accelerator.log");
        let accelerator = Accelerator::start_in(&mut command, &log)?;
        println!("{}", accelerator.ready);
        Ok(Demo {
            root,
            programs,
            folder,
            config,
            accelerator,
        })
    }

    pub fn programs(&self) -> &Path {
        &self.programs
    }

    /// Runs the frontend once; returns the run's folder and whether LoadGen found it valid.
    pub fn run(&mut self, name: &str, about: &str, arguments: &str) -> Result<(PathBuf, bool)> {
        println!("\n== {name}: {about}");
        self.accelerator
            .check(&self.folder.join("accelerator.log"))?;
        let folder = self.folder.join(name);
        let mut command = Command::new(self.programs.join("frontend"));
        command.args(["--config", self.config]);
        command.args(arguments.split_whitespace());
        command.args(["--force", "--output"]).arg(&folder);
        command.current_dir(self.root);
        announce(self.root, &command);
        let status = run("frontend", &mut command, RUN)?;
        match status.code() {
            Some(0) => Ok((folder, true)),
            Some(1) => Ok((folder, false)),
            _ => bail!("the frontend failed: {status}"),
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
