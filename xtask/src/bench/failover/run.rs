//! Runs the two programs over the rails, and changes rails during the run.

use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use serde_json::{Value, json};

use super::net::Rails;
use super::trace::Trace;
use super::{RAILS, SAMPLE};
use crate::demo::programs::Accelerator;
use crate::namespaces::Side;
use crate::process::Running;

/// Period of reading the rails' byte counters.
const EVERY: Duration = Duration::from_millis(100);
/// Time beyond the run's seconds, for LoadGen's start and end.
const MORE: Duration = Duration::from_secs(30);

/// A change of a rail.
#[derive(Clone, Copy, Debug)]
pub enum Act {
    /// Sets the rail's rate, in Mbit/s.
    Mbit(usize, u32),
    /// Takes the rail's link at the frontend down or up.
    Link(usize, bool),
    /// Cuts the rail silently, or heals it.
    Silent(usize, bool),
}

impl Act {
    pub fn cut(k: usize, silent: bool) -> Self {
        if silent {
            Act::Silent(k, true)
        } else {
            Act::Link(k, false)
        }
    }

    pub fn heal(k: usize, silent: bool) -> Self {
        if silent {
            Act::Silent(k, false)
        } else {
            Act::Link(k, true)
        }
    }

    fn do_it(self, rails: &Rails) -> Result<()> {
        match self {
            Act::Mbit(k, mbit) => rails.shape(k, mbit),
            Act::Link(k, up) => rails.link_up(k, up),
            Act::Silent(k, silent) => rails.silent(k, silent),
        }
    }
}

/// The plan of a run.
pub struct Plan<'a> {
    pub name: &'a str,
    pub arbiter: &'a str,
    /// Indices of the rails used.
    pub nics: &'a [usize],
    /// Changes, each with its time in seconds after the warm-up.
    pub acts: &'a [(f64, Act)],
    pub seconds: f64,
}

/// The result of a run.
pub struct Outcome {
    pub trace: Trace,
    pub summary: Value,
    /// Samples of the rails' byte counters, with their time in seconds.
    bytes: Vec<(f64, Vec<u64>)>,
}

/// Programs, rails and folder of the runs.
pub struct Setup<'a> {
    pub programs: &'a Path,
    pub rails: &'a Rails,
    pub folder: PathBuf,
}

/// Short for a silent rail, long for a slow one.
const DEADLINES: &str =
    "deadlines: {connect_ms: 5000, lost_ms: 4000, echo_interval_ms: 25, echo_timeout_ms: 150}\n";

impl Setup<'_> {
    fn frontend_yaml(&self, plan: &Plan<'_>) -> String {
        let nic = |k: &usize| {
            let address = self.rails.net.address(Side::Frontend, *k);
            format!("  - {{address: {address}, connections: 2, slots: 4}}\n")
        };
        let nics: String = plan.nics.iter().map(nic).collect();
        format!(
            "node: front\nauth: none\n\
             model: {{name: digest, inputs: [{{name: input, dtype: u8, shape: [{SAMPLE}], ragged: true}}], \
             output: {{name: output, dtype: u8, shape: [8]}}}}\n\
             dataset: {{kind: random, count: 256, seed: 3, min_bytes: {SAMPLE}, max_bytes: {SAMPLE}, distribution: fixed}}\n\
             verify: digest\narbiter: {}\n{DEADLINES}\
             accelerators: [{{control: \"{}:7400\"}}]\nnics:\n{nics}",
            plan.arbiter,
            self.rails.net.address(Side::Accelerator, self.rails.count)
        )
    }

    fn accelerator_yaml(&self, plan: &Plan<'_>) -> String {
        let nic = |k: &usize| {
            let address = self.rails.net.address(Side::Accelerator, *k);
            format!("  - {{listen: \"{address}:7410\"}}\n")
        };
        let nics: String = plan.nics.iter().map(nic).collect();
        format!(
            "node: acc\nauth: none\ncontrol: {{listen: \"{}:7400\"}}\n\
             model: {{name: digest, max_input_bytes: {SAMPLE}}}\nengine: {{kind: digest}}\nnics:\n{nics}",
            self.rails.net.address(Side::Accelerator, self.rails.count)
        )
    }

    /// Restores every rail.
    pub fn heal(&self) -> Result<()> {
        for k in 0..self.rails.count {
            self.rails.link_up(k, true)?;
            // Adding an existing address fails, which is harmless; a missing address returns.
            let _ = self.rails.silent(k, false);
        }
        // A connection lost in the warm-up would end the run.
        self.rails.wait_up()
    }

    /// Runs both programs once.
    ///
    /// # Errors
    /// A program failed or did not end.
    pub fn run(&self, plan: &Plan<'_>) -> Result<Outcome> {
        let folder = self.folder.join(plan.name);
        std::fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let put = |name: &str, text: String| {
            let path = folder.join(name);
            std::fs::write(&path, text).map(|()| path)
        };
        let accelerator = put("accelerator.yaml", self.accelerator_yaml(plan))?;
        let frontend = put("frontend.yaml", self.frontend_yaml(plan))?;
        let log = folder.join("accelerator.log");
        let mut command = self
            .rails
            .net
            .command(Side::Accelerator, &self.programs.join("accelerator"));
        command.arg("--config").arg(accelerator);
        let mut serving = Accelerator::start_in(&mut command, &log)?;
        let out = folder.join("out");
        let mut command = self
            .rails
            .net
            .command(Side::Frontend, &self.programs.join("frontend"));
        let (seconds, rate) = (plan.seconds.to_string(), super::load().to_string());
        command
            .arg("--config")
            .arg(frontend)
            .args(["--force", "--output"])
            .arg(&out);
        command.args([
            "--scenario",
            "server",
            "--target-qps",
            &rate,
            "--duration-s",
            &seconds,
        ]);
        command.args([
            "--set",
            "target_latency=30000",
            "--set",
            "enable_trace=true",
        ]);
        let said = std::fs::File::create(folder.join("frontend.log"))?;
        command.stdout(said.try_clone()?).stderr(said);
        let mut running = Running::start("frontend", &mut command)?;
        let bytes = self.watch(plan, &mut running, &folder.join("frontend.log"))?;
        serving.check(&log)?;
        drop(serving);
        let path = out.join("summary.json");
        let text = std::fs::read_to_string(&path).with_context(|| {
            let log = folder.join("frontend.log");
            std::fs::read_to_string(log).unwrap_or_default()
        })?;
        Ok(Outcome {
            trace: Trace::read(&out.join("mlperf_log_trace.json"))?,
            summary: serde_json::from_str(&text)?,
            bytes,
        })
    }

    /// Samples the rails' byte counters until the frontend ends, and makes the planned changes.
    fn watch(
        &self,
        plan: &Plan<'_>,
        running: &mut Running,
        log: &Path,
    ) -> Result<Vec<(f64, Vec<u64>)>> {
        let began = Instant::now();
        let warm = || std::fs::read_to_string(log).is_ok_and(|said| said.contains(" warmed "));
        let (mut since, mut bytes, mut acts) = (None, Vec::new(), plan.acts.iter());
        let mut next = acts.next();
        let limit = Duration::from_secs_f64(plan.seconds) + MORE;
        while running.ended()?.is_none() {
            ensure!(began.elapsed() < limit, "the frontend does not end");
            let now = self.rails.bytes()?;
            if since.is_none() && warm() {
                since = Some(Instant::now());
            }
            let Some(since) = since else {
                std::thread::sleep(Duration::from_millis(20));
                continue;
            };
            bytes.push((since.elapsed().as_secs_f64(), now));
            let until = Instant::now() + EVERY;
            while let Some((at, act)) = next
                && since + Duration::from_secs_f64(*at) <= until
            {
                let at = since + Duration::from_secs_f64(*at);
                std::thread::sleep(at.saturating_duration_since(Instant::now()));
                act.do_it(self.rails)?;
                next = acts.next();
            }
            std::thread::sleep(until.saturating_duration_since(Instant::now()));
        }
        Ok(bytes)
    }
}

impl Outcome {
    fn bytes_at(&self, at: f64) -> Vec<u64> {
        let before = self.bytes.iter().rev().find(|(t, _)| *t <= at);
        let found = before.or(self.bytes.first());
        found.map_or_else(|| vec![0; RAILS], |(_, b)| b.clone())
    }

    /// Megabytes on each rail between two times.
    pub fn mbytes(&self, from: f64, to: f64) -> Vec<f64> {
        let (a, b) = (self.bytes_at(from), self.bytes_at(to));
        let each = a.iter().zip(&b).map(|(a, b)| (b - a) as f64 / 1e6);
        each.map(|m| (m * 10.0).round() / 10.0).collect()
    }

    /// Seconds after `from` until the rail carries 80 % of an even share for half a second.
    pub fn back_at(&self, rail: usize, from: f64) -> Option<f64> {
        let mut at = from;
        while at + 0.5 <= self.bytes.last()?.0 {
            let (a, b) = (self.bytes_at(at), self.bytes_at(at + 0.5));
            let carried = |k: usize| (b[k] - a[k]) as f64;
            let all: f64 = (0..RAILS).map(carried).sum();
            if all > 0.0 && carried(rail) >= 0.8 * all / RAILS as f64 {
                return Some(at - from);
            }
            at += 0.1;
        }
        None
    }

    /// Times and kinds of each rail's changes of state, for policies by health.
    pub fn changes(&self) -> Vec<Value> {
        let rails = self.summary["rails"]
            .as_array()
            .cloned()
            .unwrap_or_default();
        rails
            .iter()
            .map(|r| json!({"rail": r["name"], "changes": r["changes"]}))
            .collect()
    }
}
