//! An accelerator and frontends for measurements, configurations of their own under `target/bench`;
//! the null SUT beside them; and what measurements write.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use serde::Serialize;
use serde_json::Value;

use crate::demo::programs::Accelerator;
use crate::process;

/// For one run.
const RUN: Duration = Duration::from_secs(600);

/// The two nodes, the accelerator running.
pub struct Pair {
    root: PathBuf,
    program: PathBuf,
    config: PathBuf,
    /// Where its runs leave their files.
    out: PathBuf,
    /// It serves for as long as this lives.
    _accelerator: Accelerator,
}

/// What a run came to.
pub struct Ran {
    /// LoadGen's word.
    pub valid: bool,
    /// `summary.json`.
    pub summary: Value,
}

impl Ran {
    /// Samples per second.
    pub fn per_s(&self) -> f64 {
        self.summary["per_s"].as_f64().unwrap_or(0.0)
    }
}

/// A port that nobody uses at this moment.
fn port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Pair {
    /// Of the programs in a folder: writes the configurations of accelerator and frontend, made for
    /// a control address, into another, and starts the accelerator.
    ///
    /// # Errors
    /// Whatever keeps the accelerator from being ready.
    pub fn start(
        root: &Path,
        programs: &Path,
        folder: &Path,
        configs: impl FnOnce(&str) -> [String; 2],
    ) -> Result<Self> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let [accelerator, config] =
            ["accelerator.yaml", "frontend.yaml"].map(|name| folder.join(name));
        let texts = configs(&format!("127.0.0.1:{}", port()?));
        for (path, text) in [&accelerator, &config].into_iter().zip(texts) {
            fs::write(path, text).with_context(|| path.display().to_string())?;
        }
        let mut command = Command::new(programs.join("accelerator"));
        command.arg("--config").arg(&accelerator).current_dir(root);
        Ok(Pair {
            root: root.to_owned(),
            program: programs.join("frontend"),
            config,
            out: folder.join("run"),
            _accelerator: Accelerator::start_in(&mut command, &folder.join("accelerator.log"))?,
        })
    }

    fn errors(&self) -> PathBuf {
        self.out.with_extension("stderr")
    }

    fn command(&self, arguments: &[&str]) -> Result<Command> {
        // The summary of an earlier run must not be taken for this one's.
        let _ = fs::remove_dir_all(&self.out);
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(&self.config)
            .args(arguments)
            .arg("--quiet")
            .args(["--force", "--output"])
            .arg(&self.out)
            .current_dir(&self.root)
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.errors())?);
        Ok(command)
    }

    /// One run; a run that LoadGen finds invalid is no error.
    ///
    /// # Errors
    /// A run that came to no result.
    pub fn run(&self, arguments: &[&str]) -> Result<Ran> {
        let mut command = self.command(arguments)?;
        let status = process::run("frontend", &mut command, RUN)?;
        if !matches!(status.code(), Some(0 | 1)) {
            let said = fs::read_to_string(self.errors()).unwrap_or_default();
            let command = process::shown(&command);
            bail!("{command}: {status}\n{}", said.trim_end());
        }
        Ok(Ran {
            valid: status.code() == Some(0),
            summary: read(&self.out.join("summary.json"))?,
        })
    }
}

/// Builds the null SUT; where it lies.
pub fn null_sut(root: &Path) -> Result<PathBuf> {
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked"]);
    build.args(["--package", "loadgen-bridge", "--example", "null_sut"]);
    build.args(["--features", "bench"]);
    let status = process::run("cargo build", &mut build, super::BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(process::target(root).join("release/examples/null_sut"))
}

/// Runs the null SUT; whether LoadGen calls it valid, and its figure.
pub fn null_run(program: &Path, arguments: &[&str], out: &Path) -> Result<(bool, f64)> {
    let mut command = Command::new(program);
    command.args(arguments).arg("--outdir").arg(out);
    let (status, text) = process::run_copying("null_sut", &mut command, RUN, false)?;
    if !matches!(status.code(), Some(0 | 1)) {
        bail!("{}: {status}\n{text}", process::shown(&command));
    }
    let line = text.lines().next().unwrap_or_default();
    let figure = line.split(": ").nth(1).and_then(|l| l.split(' ').next());
    let rate = figure.and_then(|f| f.parse().ok());
    let rate = rate.with_context(|| format!("null_sut: no figure in {text:?}"))?;
    Ok((status.code() == Some(0), rate))
}

/// Reads a file of JSON.
///
/// # Errors
/// It cannot be read, or is none.
pub fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

/// The folder of the results, made where it is missing.
///
/// # Errors
/// It cannot be made.
pub fn results(root: &Path) -> Result<PathBuf> {
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder)
}

/// Writes the results of a measurement.
///
/// # Errors
/// The file.
pub fn write(root: &Path, name: &str, rows: &(impl Serialize + ?Sized)) -> Result<()> {
    let path = results(root)?.join(format!("{name}.json"));
    let text = serde_json::to_string_pretty(rows)? + "\n";
    fs::write(&path, text).with_context(|| path.display().to_string())?;
    println!("rows: target/bench/{name}.json");
    Ok(())
}

/// The middle one; of none, no number.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
