//! An accelerator and frontends for measurements: release
//! builds, configurations of their own under `target/bench`.

use std::fs;
use std::net::TcpListener;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use crate::demo::programs::{Accelerator, Profile, build};
use crate::process::{self, Running};

/// For one run.
const RUN: Duration = Duration::from_secs(600);

/// What the two nodes are told.
pub struct Nodes<'a> {
    /// Names the folder.
    pub name: &'a str,
    /// `model` of the accelerator.
    pub accelerator_model: &'a str,
    /// `model` and `dataset` of the frontend, and what else it needs.
    pub frontend: &'a str,
    /// `engine` of both, which has to be the same.
    pub engine: &'a str,
    /// Connections between them.
    pub connections: usize,
}

/// The two nodes, the accelerator running.
pub struct Pair {
    root: PathBuf,
    program: PathBuf,
    config: PathBuf,
    folder: PathBuf,
    accelerator: Accelerator,
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

    /// A figure of the whole way of a sample, in microseconds: `p50`, `p99`, `mean`.
    pub fn total_us(&self, figure: &str) -> f64 {
        self.summary["stages"]["total"][format!("{figure}_us")]
            .as_f64()
            .unwrap_or(f64::NAN)
    }
}

/// A port that nobody uses at this moment.
fn port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

impl Pair {
    /// Builds the programs, writes the configurations, starts the accelerator.
    ///
    /// # Errors
    /// Whatever keeps the accelerator from being ready.
    pub fn start(root: &Path, nodes: &Nodes<'_>) -> Result<Self> {
        let release = build(root, Profile::Release)?;
        let folder = root.join("target/bench").join(nodes.name);
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let control = port()?;
        let accelerator = folder.join("accelerator.yaml");
        let config = folder.join("frontend.yaml");
        let engine = nodes.engine;
        fs::write(
            &accelerator,
            format!(
                "node: bench-accelerator\ncontrol: {{listen: \"127.0.0.1:{control}\"}}\nmodel: {}\nengine: {engine}\n\
                 nics: [{{listen: \"127.0.0.1:0\"}}]\n",
                nodes.accelerator_model
            ),
        )?;
        fs::write(
            &config,
            format!(
                "node: bench-frontend\naccelerators: [{{control: \"127.0.0.1:{control}\"}}]\n\
                 nics: [{{address: 127.0.0.1, connections: {}}}]\nengine: {engine}\n{}",
                nodes.connections, nodes.frontend
            ),
        )?;
        let running = Accelerator::start(
            root,
            &release.join("accelerator"),
            &accelerator.to_string_lossy(),
            &folder.join("accelerator.log"),
        )?;
        Ok(Pair {
            root: root.to_owned(),
            program: release.join("frontend"),
            config,
            folder,
            accelerator: running,
        })
    }

    /// Starts a frontend and leaves it running.
    ///
    /// # Errors
    /// It cannot be started.
    pub fn begin(&self, arguments: &[&str]) -> Result<Running> {
        Running::start(
            "frontend",
            &mut self.command(arguments, &self.folder.join("run")),
        )
    }

    /// The accelerator's process id.
    pub fn accelerator(&self) -> u32 {
        self.accelerator.id()
    }

    /// Where its runs leave their files.
    pub fn output(&self) -> PathBuf {
        self.folder.join("run")
    }

    fn command(&self, arguments: &[&str], out: &Path) -> Command {
        let mut command = Command::new(&self.program);
        command
            .arg("--config")
            .arg(&self.config)
            .args(arguments)
            .arg("--quiet")
            .arg("--output")
            .arg(out)
            .current_dir(&self.root)
            .stderr(Stdio::null());
        command
    }

    /// One run; a run that LoadGen finds invalid is no error.
    ///
    /// # Errors
    /// A run that came to no result.
    pub fn run(&self, arguments: &[&str]) -> Result<Ran> {
        let out = self.folder.join("run");
        let mut command = self.command(arguments, &out);
        let status = process::run("frontend", &mut command, RUN)?;
        if !matches!(status.code(), Some(0 | 1)) {
            bail!("{}: {status}", process::shown(&command));
        }
        let path = out.join("summary.json");
        let text =
            fs::read_to_string(&path).with_context(|| format!("cannot read {}", path.display()))?;
        Ok(Ran {
            valid: status.code() == Some(0),
            summary: serde_json::from_str(&text)?,
        })
    }
}

/// Writes the rows of a measurement.
///
/// # Errors
/// The file.
pub fn write(root: &Path, name: &str, rows: &[Value]) -> Result<()> {
    let path = root.join("target/bench").join(format!("{name}.json"));
    if let Some(folder) = path.parent() {
        fs::create_dir_all(folder)?;
    }
    let text = serde_json::to_string_pretty(rows)? + "\n";
    fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))?;
    println!("rows: target/bench/{name}.json");
    Ok(())
}

/// The middle one; of none, no number.
pub fn median(values: &mut [f64]) -> f64 {
    values.sort_by(f64::total_cmp);
    values.get(values.len() / 2).copied().unwrap_or(f64::NAN)
}
