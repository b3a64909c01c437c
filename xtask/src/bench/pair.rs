//! An accelerator and frontends for measurements, with configurations under `target/bench`; the
//! null SUT; and the files of results.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};
use launch::Accelerator;
use serde::Serialize;
use serde_json::Value;

use crate::process::{self, read_json, write_json};

const RUN: Duration = Duration::from_secs(600);

/// A running accelerator, and the frontend's program and configuration.
pub struct Pair {
    root: PathBuf,
    program: PathBuf,
    config: PathBuf,
    out: PathBuf,
    /// The accelerator serves while this field lives.
    _accelerator: Accelerator,
}

pub struct RunResult {
    pub valid: bool,
    pub summary: Value,
}

impl RunResult {
    pub fn per_s(&self) -> f64 {
        self.summary["per_s"].as_f64().unwrap_or(0.0)
    }
}

fn port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Pair {
    /// Writes the configurations of accelerator and frontend into `folder`, and starts the
    /// accelerator. `programs` is the programs' folder; `configs` makes both configurations for a
    /// control address.
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

    /// Runs the frontend once. A run that LoadGen finds invalid is no error.
    pub fn run(&self, arguments: &[&str]) -> Result<RunResult> {
        // Remove an earlier run's summary, which could pass for this run's.
        let _ = fs::remove_dir_all(&self.out);
        let errors = self.out.with_extension("stderr");
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(&self.config)
            .args(arguments)
            .args(["--quiet", "--force", "--output"])
            .arg(&self.out)
            .current_dir(&self.root)
            .stdout(Stdio::null())
            .stderr(fs::File::create(&errors)?);
        let status = process::run("frontend", &mut command, RUN)?;
        if !matches!(status.code(), Some(0 | 1)) {
            let said = fs::read_to_string(errors).unwrap_or_default();
            let command = process::command_line(&command);
            bail!("{command}: {status}\n{}", said.trim_end());
        }
        Ok(RunResult {
            valid: status.code() == Some(0),
            summary: read_json(&self.out.join("summary.json"))?,
        })
    }
}

pub fn null_sut(root: &Path) -> Result<PathBuf> {
    let mut build = process::cargo(root);
    build.args(["build", "--release", "--locked"]);
    build.args(["--package", "loadgen-bridge", "--example", "null_sut"]);
    let status = process::run("cargo build", &mut build, super::BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    Ok(process::target(root).join("release/examples/null_sut"))
}

/// Runs the null SUT; returns whether LoadGen calls the run valid.
pub fn null_run(program: &Path, arguments: &[&str], out: &Path) -> Result<bool> {
    let mut command = Command::new(program);
    command.args(arguments).arg("--outdir").arg(out);
    let (status, text) = process::run_copying("null_sut", &mut command, RUN, false)?;
    if !matches!(status.code(), Some(0 | 1)) {
        bail!("{}: {status}\n{text}", process::command_line(&command));
    }
    Ok(status.code() == Some(0))
}

/// The file of a measurement's results. Creates its folder if it is missing.
pub fn results(root: &Path, name: &str) -> Result<PathBuf> {
    let folder = root.join("target/bench");
    fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
    Ok(folder.join(format!("{name}.json")))
}

pub fn write(root: &Path, name: &str, rows: &(impl Serialize + ?Sized)) -> Result<()> {
    write_json(&results(root, name)?, rows)?;
    println!("rows: target/bench/{name}.json");
    Ok(())
}

/// The median (upper of two); NaN for no values.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
