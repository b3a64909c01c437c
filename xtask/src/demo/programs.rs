//! The two programs, started as anyone would start them.

use std::fs::File;
use std::io::{BufRead, BufReader, Write};
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::sync::mpsc::{Receiver, RecvTimeoutError, channel};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, anyhow, bail};

use crate::process::{Running, cargo, run, run_quietly, shown};

/// For loading the model and warming the engine up.
const READY: Duration = Duration::from_secs(60);
/// For a release build of everything on two slow cores.
const BUILD: Duration = Duration::from_secs(3600);
/// For a run: ten seconds when all is well.
const RUN: Duration = Duration::from_secs(300);

/// How the programs are built.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Profile {
    /// For figures.
    Release,
    /// For a first look: in two thirds of the time.
    Quick,
}

impl Profile {
    /// Its name in `Cargo.toml`, and of its folder among what cargo builds.
    pub fn name(self) -> &'static str {
        match self {
            Profile::Release => "release",
            Profile::Quick => "quick",
        }
    }
}

/// Prints a command as one would type it in the repository.
fn announce(root: &Path, command: &Command) {
    let prefix = format!("{}/", root.display());
    println!("$ {}", shown(command).replace(&prefix, ""));
}

/// Where the programs and `qdl` lie, after building them.
pub fn build(root: &Path, profile: Profile) -> Result<PathBuf> {
    let arguments = [
        "build",
        "--profile",
        profile.name(),
        "--locked",
        "--package",
        "frontend",
        "--package",
        "accelerator",
        "--package",
        "qdl-cli",
    ];
    let status = run("cargo build", cargo(root).args(arguments), BUILD)?;
    if !status.success() {
        bail!("the programs do not build");
    }
    let mut ask = cargo(root);
    ask.args([
        "metadata",
        "--no-deps",
        "--offline",
        "--format-version",
        "1",
    ]);
    ask.stderr(Stdio::null());
    let metadata = run_quietly("cargo metadata", &mut ask, Duration::from_secs(60))?;
    // The object is one line; what cargo has to say besides stands on others.
    let object = metadata
        .lines()
        .find(|line| line.starts_with('{'))
        .unwrap_or_default();
    let metadata: serde_json::Value = serde_json::from_str(object).context("cargo metadata")?;
    let target = metadata["target_directory"]
        .as_str()
        .context("cargo metadata: no target_directory")?;
    Ok(Path::new(target).join(profile.name()))
}

/// An accelerator that serves.
pub struct Accelerator {
    running: Running,
    /// The line by which it said so.
    pub ready: String,
}

impl Accelerator {
    /// Starts it, and waits until it listens. What it writes goes to `log`.
    pub fn start(root: &Path, program: &Path, config: &str, log: &Path) -> Result<Self> {
        let mut command = Command::new(program);
        command.args(["--config", config]).current_dir(root);
        announce(root, &command);
        Self::start_command(&mut command, log)
    }

    /// Starts a command of the caller's own, and waits until it listens.
    pub fn start_in(command: &mut Command, log: &Path) -> Result<Self> {
        Self::start_command(command, log)
    }

    fn start_command(command: &mut Command, log: &Path) -> Result<Self> {
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

    /// Its process id.
    pub fn id(&self) -> u32 {
        self.running.id()
    }

    /// Whether it still runs; an error that shows its log when not.
    pub fn check(&mut self, log: &Path) -> Result<()> {
        match self.running.ended()? {
            None => Ok(()),
            Some(status) => bail!("the accelerator has ended: {status}; see {}", log.display()),
        }
    }
}

/// The lines that a program writes, each also written to a file.
fn lines(from: impl std::io::Read + Send + 'static, mut file: File) -> Receiver<String> {
    let (sender, receiver) = channel();
    std::thread::spawn(move || {
        for line in BufReader::new(from).lines().map_while(Result::ok) {
            // The log is for reading afterwards; the program is served on without it.
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

/// Runs the frontend once, with its folder under `folder`; true when LoadGen found the run valid.
pub fn frontend(
    root: &Path,
    program: &Path,
    config: &str,
    arguments: &[&str],
    folder: &Path,
) -> Result<bool> {
    let mut command = Command::new(program);
    command
        .args(["--config", config])
        .args(arguments)
        .args(["--force", "--output"])
        .arg(folder)
        .current_dir(root);
    announce(root, &command);
    let status = run("frontend", &mut command, RUN)?;
    match status.code() {
        Some(0) => Ok(true),
        Some(1) => Ok(false),
        _ => bail!("the frontend failed: {status}"),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn start(script: &str) -> Result<Accelerator> {
        let folder = tempfile::tempdir().unwrap();
        Accelerator::start_command(
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
