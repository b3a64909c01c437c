//! The two programs over loopback, and the most memory that each had.

use std::{
    io::{BufRead, BufReader},
    net::TcpListener,
    path::Path,
    process::{Child, Command, Stdio},
    thread::JoinHandle,
    time::Duration,
};

use anyhow::{Context, Result, bail, ensure};
use qdl::run::SlotNeeds;

use super::{Args, Measured, Row};

/// A port that nobody uses at this moment.
pub fn free_port() -> Result<u16> {
    Ok(TcpListener::bind("127.0.0.1:0")?.local_addr()?.port())
}

/// Where others have the cores for seconds, nobody is gone: this is no measurement of that.
const PATIENT: &str =
    "deadlines: {connect_ms: 30000, echo_timeout_ms: 10000, heartbeat_timeout_ms: 10000";

/// A configuration with another port and number of samples, and patience.
pub fn rewritten(text: &str, control: u16, count: usize) -> String {
    let mut lines = Vec::new();
    for line in text.lines() {
        let indent = &line[..line.len() - line.trim_start().len()];
        lines.push(match line.trim_start().split(':').next() {
            Some("control") => format!("control: {{listen: \"127.0.0.1:{control}\"}}"),
            Some("- control") => format!("{indent}- control: 127.0.0.1:{control}"),
            Some("- listen") => format!("{indent}- listen: 127.0.0.1:0"),
            Some("performance_sample_count" | "deadlines") => String::new(),
            _ => match line.split_once("count: ") {
                Some((before, after)) if !before.contains('#') => {
                    let rest = after.trim_start_matches(|c: char| c.is_ascii_digit());
                    format!("{before}count: {count}{rest}")
                }
                _ => line.to_owned(),
            },
        });
    }
    let frontends = match text.contains("\naccelerators:") {
        true => ", lost_ms: 15000}\n",
        false => "}\n",
    };
    lines.push(format!("{PATIENT}{frontends}"));
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
    /// Looks at the most memory it has had, in bytes, until it ends: what the kernel says of a
    /// child afterwards has what its parent held when it was started.
    fn watch(&self) -> JoinHandle<u64> {
        let path = format!("/proc/{}/status", self.0.id());
        std::thread::spawn(move || {
            let mut most = 0;
            // One that has ended and was not waited for has a file without that line.
            while let Some(now) = std::fs::read_to_string(&path).ok().and_then(high_water) {
                most = most.max(now);
                std::thread::sleep(LOOK);
            }
            most
        })
    }

    /// Waits for it.
    fn end(mut self) -> Result<()> {
        let status = self.0.wait()?;
        ensure!(status.success(), "it ended with {status}");
        Ok(())
    }
}

/// Between two looks at a program's memory.
const LOOK: Duration = Duration::from_millis(5);

/// `VmHWM` of /proc/PID/status, in bytes; nothing of a program that has ended.
fn high_water(status: impl AsRef<str>) -> Option<u64> {
    let line = status
        .as_ref()
        .lines()
        .find_map(|l| l.strip_prefix("VmHWM:"))?;
    let kib: u64 = line.split_whitespace().next()?.parse().ok()?;
    Some(kib * 1024)
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
        .args(["--force", "--output"])
        .arg(&out)
        .stdout(Stdio::null());
    let watched = accelerator.watch();
    let frontend = Running(frontend.spawn().context("frontend")?);
    let watching = frontend.watch();
    frontend.end().context("frontend")?;
    m.frontend_used = m.frontend_used.max(watching.join().unwrap_or(0));
    accelerator.end().context("accelerator")?;
    m.accelerator_used = m.accelerator_used.max(watched.join().unwrap_or(0));
    let _ = drained.join();
    let text = std::fs::read_to_string(out.join(record::SUMMARY))?;
    let record::Summary { run, .. } = serde_json::from_str(&text)?;
    let verified = run.verified.unwrap_or_default();
    m.compared = verified.compared;
    ensure!(
        m.compared == samples as u64,
        "{} of {samples} answers were compared",
        m.compared
    );
    ensure!(verified.mismatches == 0, "wrong answers: {verified:?}");
    let seconds = run.duration_s;
    ensure!(seconds > 0.0, "summary.json has no duration_s");
    Ok(seconds)
}
