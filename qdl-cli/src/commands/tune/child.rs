//! Runs a trial: `frontend` as a child process, because LoadGen runs only once in a process.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use record::{RunFolder, RunRecord, timeline::Tick};
use tune::{Halt, RateKind, TrialLimit, TrialRecord, TrialRunner, TrialSetting};
use view::rate;

use super::{args::TuneArgs, yaml::Yaml};
use frontend::{KEEPS_UP, SERVER_QUERIES, interrupt};

/// The interval between two checks whether the child has ended.
const TICK: Duration = Duration::from_millis(10);
/// The time that an interrupted run has to end.
const GRACE: Duration = Duration::from_secs(15);
/// LoadGen's three generators, with bits that tell their seeds apart.
const SEEDS: [(&str, u64); 3] = [
    ("qsl_rng_seed", 0x51),
    ("sample_index_rng_seed", 0x1d),
    ("schedule_rng_seed", 0x5c),
];
/// Ratio of measured percentile to bound above which a trial is lengthened only if [`MOST_QUERIES`]
/// suffice: so near the bound, early stopping may ask for any number of queries.
const CLOSE: f64 = 0.8;
/// Maximum number of queries of a lengthened trial whose percentile is near the bound.
const MOST_QUERIES: u64 = 8 * SERVER_QUERIES;
/// Minimum length of a trial that shows whether the system keeps up, in latencies.
const LATENCIES: f64 = 2.0;

pub struct Runner<'a> {
    pub args: &'a TuneArgs,
    pub kind: RateKind,
    pub yaml: Yaml,
    /// The folder that the configuration's paths are relative to.
    pub base: PathBuf,
    /// Maximum wait of a trial for an accelerator; the accelerators are up already.
    pub patience: Duration,
}

impl TrialRunner for Runner<'_> {
    fn run(&mut self, setting: &TrialSetting, _: &str) -> Result<TrialRecord, Halt> {
        let began = Instant::now();
        let folder = if setting.full { "full" } else { "trial" };
        let folder = self.args.output.join(folder);
        let ended = self.child(&folder, setting);
        if interrupt::requested().is_some() {
            return Err(Halt::Interrupted);
        }
        // Exit code 2 means that the configuration does not run: the session drops the key's value.
        let refuses = |(status, _): &(ExitStatus, String)| status.code() == Some(2);
        let is_refused =
            !setting.full && !setting.knobs.is_empty() && ended.as_ref().is_ok_and(refuses);
        let record = ended.and_then(|(status, stderr)| match status.code() {
            Some(0 | 1) => self.read(&folder),
            code => {
                let code = code.map_or_else(|| status.to_string(), |c| format!("exit code {c}"));
                let last = stderr.lines().rfind(|l| l.starts_with("error:"));
                let last = last.or(stderr.lines().last()).unwrap_or("no message");
                bail!("{code}: {last}")
            }
        });
        let mut record = match record {
            Err(error) if is_refused => {
                let (reason, none) = (format!("{error:#}"), TrialRecord::default());
                TrialRecord { reason, ..none }
            }
            record => record.map_err(|error| Halt::Unmeasured(format!("{error:#}")))?,
        };
        record.cost_s = began.elapsed().as_secs_f64();
        Ok(record)
    }
}

impl Runner<'_> {
    /// Runs a trial; returns the child's exit status and standard error.
    fn child(&self, folder: &Path, setting: &TrialSetting) -> Result<(ExitStatus, String)> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let mut yaml = self.yaml.clone();
        for (key, value) in &setting.knobs {
            yaml.set(key, value)?;
        }
        let config = self.args.output.join("trial.yaml");
        yaml.write(&config)?;
        let stderr = folder.join("stderr.txt");
        let program = match &self.args.program {
            Some(program) => program.clone(),
            None => {
                let own = std::env::current_exe().context("the path of this program")?;
                own.with_file_name("frontend")
            }
        };
        let mut command = Command::new(program);
        command.arg("--config").arg(&config);
        if fs::canonicalize(&self.base).ok() != fs::canonicalize(&self.args.output).ok() {
            command.arg("--relative-to").arg(&self.base);
        }
        // Replace an earlier run: a trial that the journal lacks is measured again.
        command.arg("--force").arg("--output").arg(folder);
        command.args(["--mode", "performance", "--quiet"]);
        if !self.args.local {
            let patience = self.patience.as_millis().to_string();
            command.args(["--connect-ms", &patience]);
        }
        command.args(self.args.passed_on()).args(self.rate(setting));
        for (name, bits) in SEEDS {
            command
                .arg("--set")
                .arg(format!("{name}={}", setting.seed ^ bits));
        }
        command.stdin(Stdio::null()).stdout(Stdio::null());
        command.stderr(File::create(&stderr)?);
        let mut child = command.spawn().context("a trial cannot be started")?;
        let mut asked: Option<Instant> = None;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            match asked {
                None if interrupt::requested().is_some() => {
                    let id = libc::pid_t::try_from(child.id())?;
                    // SAFETY: a child that has not been waited for keeps its id. A terminal may
                    // have sent the child a signal already; the repeat changes nothing.
                    unsafe { libc::kill(id, libc::SIGTERM) };
                    asked = Some(Instant::now());
                }
                Some(since) if since.elapsed() > GRACE => child.kill()?,
                _ => {}
            }
            thread::sleep(TICK);
        };
        Ok((status, fs::read_to_string(&stderr).unwrap_or_default()))
    }

    fn rate(&self, setting: &TrialSetting) -> Vec<String> {
        let scenario = match self.kind {
            RateKind::Server => "server",
            RateKind::Offline => "offline",
        };
        let (rate, seconds) = (setting.rate, setting.seconds);
        let words = format!(
            "--scenario {scenario} --target-qps {rate} --duration-s {seconds} --samples {}",
            setting.samples
        );
        words.split(' ').map(str::to_owned).collect()
    }

    fn read(&self, folder: &Path) -> Result<TrialRecord> {
        let read = RunFolder::read(folder)?;
        let ticks = read
            .timeline
            .map_or_else(Vec::new, |timeline| timeline.ticks);
        of_run(&read.summary.run, &ticks).with_context(|| folder.display().to_string())
    }
}

/// Completed divided by issued samples, in the second half of the time with issued samples. In
/// this half a long answer alone lowers the ratio only if the trial is too short for it.
fn second_half(ticks: &[Tick]) -> f64 {
    let end = ticks.iter().rposition(|tick| tick.issued > 0);
    let issuing = &ticks[..end.map_or(0, |last| last + 1)];
    let half = issuing[issuing.len() / 2..].iter();
    let (issued, completed) = half.fold((0, 0), |(i, c), t| (i + t.issued, c + t.completed));
    completed as f64 / issued.max(1) as f64
}

fn of_run(run: &RunRecord, ticks: &[Tick]) -> Result<TrialRecord> {
    let loadgen = run.loadgen.as_ref();
    let loadgen = loadgen.context("LoadGen did not judge it")?;
    let mut valid = loadgen.valid.context("LoadGen did not judge it")? && run.valid != Some(false);
    let mut reason = match (valid, run.reasons.first()) {
        (false, Some(first)) => first.split("; ").next().unwrap_or_default().to_owned(),
        _ => String::new(),
    };
    let limits = loadgen.limits.iter().filter(|limit| limit.at_most);
    let limits = limits.filter_map(|limit| {
        let (name, bound) = (limit.name.clone(), limit.limit);
        limit.was.map(|was| TrialLimit { name, was, bound })
    });
    let limits: Vec<TrialLimit> = limits.collect();
    let mut longer = None;
    if let (true, Some(scheduled)) = (valid, loadgen.scheduled_per_s)
        && let Some(completed) = loadgen.completed_per_s
        && completed < KEEPS_UP * scheduled
        && second_half(ticks) < KEEPS_UP
    {
        valid = false;
        let (completed, of) = (rate(completed), rate(scheduled));
        reason = format!("{completed} of {of} samples/s were completed");
        let latency_s = loadgen.latency.map_or(0.0, |latency| latency.p99_us / 1e6);
        let needs = (LATENCIES * latency_s * scheduled) as u64;
        longer = Some(needs).filter(|needs| *needs > loadgen.queries.unwrap_or(0));
    }
    let early = loadgen.early_stopping.as_ref().filter(|early| !early.met);
    let unsure = early.and_then(|early| early.needs);
    let part = limits.iter().map(TrialLimit::part).fold(0.0, f64::max);
    let unsure = unsure.filter(|needs| part <= CLOSE || *needs <= MOST_QUERIES);
    Ok(TrialRecord {
        valid,
        reason,
        needs: longer.max(unsure).filter(|_| !valid && part <= 1.0),
        limits,
        achieved: run.per_s,
        limited_by: run.limits.line.clone(),
        ..TrialRecord::default()
    })
}

#[cfg(test)]
mod tests {
    use serde_json::{Value, json};

    use super::*;

    fn of_json(run: &Value, ticks: &[Tick]) -> Result<TrialRecord> {
        let run = serde_json::from_value(run.clone()).expect("a run");
        of_run(&run, ticks)
    }

    fn limit(name: &str, was: f64, limit: f64, at_most: bool) -> Value {
        json!({"name": name, "was": was, "limit": limit, "at_most": at_most, "met": false})
    }

    #[test]
    fn the_nearest_limit_on_latency_binds() {
        let ttft = limit("p99 TTFT", 100.0, 200.0, true);
        let tpot = limit("p99 TPOT", 30.0, 40.0, true);
        let limits = [ttft, tpot, limit("duration", 2e6, 1e6, false)];
        let loadgen = json!({"valid": true, "limits": limits});
        let summary = json!({"per_s": 7.5, "limits": {"line": "slots"}, "loadgen": loadgen});
        let record = of_json(&summary, &[]).expect("sound");
        let binds = record.binds().expect("two limits");
        assert_eq!((record.limits.len(), binds.name.as_str()), (2, "p99 TPOT"));
        assert_eq!((record.valid, record.achieved), (true, 7.5));
        assert_eq!(record.limited_by.as_str(), "slots");
        assert!(of_json(&json!({"loadgen": null}), &[]).is_err());
    }

    #[test]
    fn a_trial_needs_more_queries_only_where_its_bounds_are_kept() {
        for (part, needs, expected) in [
            (0.29, 459, Some(459)),
            (0.29, 90_000, Some(90_000)),
            (0.95, 1000, Some(1000)),
            (0.95, 90_000, None),
            (1.01, 459, None),
        ] {
            let limits = [limit("p99 latency", part, 1.0, true)];
            let early = json!({"met": false, "needs": needs});
            let mut loadgen = json!({"valid": false, "queries": 100, "limits": limits});
            loadgen["early_stopping"] = early;
            let record = of_json(&json!({"loadgen": loadgen}), &[]).expect("sound");
            assert_eq!(record.needs, expected, "{part} {needs}");
        }
    }

    #[test]
    fn a_trial_that_completes_below_95_percent_is_not_valid_and_says_so() {
        // Ticks of (issued, completed). A long answer is no backlog; a trial that is twice as long
        // shows the difference.
        let steady = [
            (100, 0),
            (100, 0),
            (100, 100),
            (100, 100),
            (0, 100),
            (0, 100),
        ];
        let backlog = [
            (100, 50),
            (100, 50),
            (100, 50),
            (100, 50),
            (0, 100),
            (0, 100),
        ];
        for (ticks, completed, latency_s, expected) in [
            (backlog, 96.0, 0.1, (true, None)),
            (backlog, 67.0, 0.1, (false, None)),
            (backlog, 67.0, 3.0, (false, Some(600))),
            (steady, 67.0, 2.0, (true, None)),
        ] {
            let ticks = ticks.map(|(issued, completed)| Tick {
                issued,
                completed,
                ..Tick::default()
            });
            let latency = json!({"p99_us": latency_s * 1e6});
            let loadgen = json!({"valid": true, "queries": 400, "scheduled_per_s": 100.0,
                "completed_per_s": completed, "latency": latency});
            let record = of_json(&json!({"loadgen": loadgen}), &ticks).expect("sound");
            assert_eq!(
                (record.valid, record.needs),
                expected,
                "{completed} {latency_s}"
            );
            let words = "67.0 of 100 samples/s were completed";
            assert_eq!(record.reason.is_empty(), record.valid);
            assert!(record.valid || record.reason == words, "{}", record.reason);
        }
    }

    #[test]
    fn a_trial_names_the_reason_that_no_limit_on_latency_has() {
        let limits = [limit("p99 latency", 0.03, 1.0, true)];
        let loadgen = json!({"valid": true, "limits": limits});
        let reasons = ["duration was 1 s of at least 3 s; raise --target-qps"];
        let run = json!({"valid": false, "reasons": reasons, "loadgen": loadgen});
        let record = of_json(&run, &[]).expect("sound");
        assert_eq!(record.text(), "INVALID: duration was 1 s of at least 3 s");
    }
}
