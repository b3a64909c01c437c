//! The two programs over loopback, and the most memory that each had.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
};

use anyhow::{Context, Result, bail, ensure};
use qdl::run::SlotNeeds;
use serde_json::Value;

use super::{Args, Measured, Row};

/// A port that nobody uses at this moment.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// A configuration with another port and number of samples.
pub fn rewritten(text: &str, control: u16, count: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        lines.push(match line.trim_start().split(':').next() {
            Some("control") => format!("control: {{listen: \"127.0.0.1:{control}\"}}"),
            Some("- control") => format!("{indent}- control: 127.0.0.1:{control}"),
            Some("- listen") => format!("{indent}- listen: 127.0.0.1:0"),
            Some("performance_sample_count") => String::new(),
            _ => match line.split_once("count: ") {
                Some((before, after)) if !before.contains('#') => {
                    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
                    format!("{before}count: {count}{rest}")
                }
                _ => line.to_owned(),
            },
        });
    }
    lines.join("\n")
}

/// What the programs say that they will take, of which the code itself is no part.
pub fn announced(row: &Row, m: &mut Measured) -> Result<()> {
    let needs = SlotNeeds::of(&row.config)?;
    let loaded = m.sample_bytes * row.count as u64;
    m.frontend_announced = loaded + needs.frontend_bytes() as u64;
    m.accelerator_announced = needs.accelerator_bytes() as u64;
    Ok(())
}

/// A program that ends with this.
struct Running(Child);

impl Running {
    /// Waits for it; the most memory it had, in bytes.
    fn end(mut self) -> Result<u64> {
        let id = libc::pid_t::try_from(self.0.id()).context("a process id")?;
        let mut status = 0;
        // SAFETY: all bytes zero is a usage.
        let mut usage: libc::rusage = unsafe { std::mem::zeroed() };
        // SAFETY: a child that nobody has waited for; both places are valid.
        let waited = unsafe { libc::wait4(id, &raw mut status, 0, &raw mut usage) };
        ensure!(waited == id, "wait4: {}", std::io::Error::last_os_error());
        // It is gone, and its id may be another's: nothing is sent to it any more.
        let _ = self.0.stdin.take();
        std::mem::forget(self);
        ensure!(status == 0, "it ended with status {status:#x}");
        Ok(usage.ru_maxrss as u64 * 1024)
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// One run; seconds from LoadGen's first sample to its last answer.
pub fn run(
    args: &Args,
    scratch: &Path,
    row: &Row,
    samples: usize,
    m: &mut Measured,
) -> Result<f64> {
    let mut accelerator = Command::new(args.programs.join("accelerator"));
    accelerator
        .args(["--quiet", "--once", "--config"])
        .arg(&row.accelerator)
        .stdout(Stdio::piped());
    let mut accelerator = Running(accelerator.spawn().context("accelerator")?);
    let said = accelerator.0.stdout.take().context("piped")?;
    let mut said = BufReader::new(said).lines();
    match said.next() {
        Some(Ok(line)) if line.starts_with("ready:") => {}
        other => bail!("the accelerator is not ready: {other:?}"),
    }
    let drained = std::thread::spawn(move || said.map_while(Result::ok).for_each(drop));
    let out = scratch.join("out");
    let mut frontend = Command::new(args.programs.join("frontend"));
    frontend
        .args(["--quiet", "--scenario", "offline", "--mode", "performance"])
        .args([
            "--set",
            "min_duration=0",
            "--set",
            "sample_concatenate_permutation=1",
        ])
        .args(["--samples", &samples.to_string()])
        .arg("--config")
        .arg(&row.frontend)
        .arg("--output")
        .arg(&out)
        .stdout(Stdio::null());
    let used = Running(frontend.spawn().context("frontend")?).end();
    let used = used.context("frontend")?;
    m.frontend_used = m.frontend_used.max(used);
    let used = accelerator.end().context("accelerator")?;
    m.accelerator_used = m.accelerator_used.max(used);
    let _ = drained.join();
    let text = std::fs::read_to_string(out.join("summary.json"))?;
    let summary: Value = serde_json::from_str(&text)?;
    let verified = &summary["verified"];
    m.compared = verified["compared"].as_u64().unwrap_or(0);
    ensure!(
        m.compared == samples as u64,
        "{} of {samples} answers were compared",
        m.compared
    );
    ensure!(verified["mismatches"] == 0, "wrong answers: {verified}");
    let seconds = summary["duration_s"].as_f64().unwrap_or(0.0);
    ensure!(seconds > 0.0, "summary.json has no duration_s");
    Ok(seconds)
}
