//! A trial is a run of this same program: LoadGen runs once in a process.

use std::{
    fs::{self, File},
    path::{Path, PathBuf},
    process::{Command, ExitStatus, Stdio},
    thread,
    time::{Duration, Instant},
};

use anyhow::{Context, Result};
use serde_json::Value;
use tune::{Halt, Limit, Record, Setting, System, Why};

use super::{args::TuneArgs, yaml::Yaml};
use crate::{cli::Scenario, interrupt};

/// How often a trial is looked at.
const TICK: Duration = Duration::from_millis(10);
/// A run that was told to end has so long.
const GRACE: Duration = Duration::from_secs(15);
/// The bits of a seed of LoadGen's that tell its three generators apart.
const SEEDS: [(&str, u64); 3] = [
    ("qsl_rng_seed", 0x51),
    ("sample_index_rng_seed", 0x1d),
    ("schedule_rng_seed", 0x5c),
];

/// Runs trials.
pub struct Runner<'a> {
    pub args: &'a TuneArgs,
    pub scenario: Scenario,
    pub yaml: Yaml,
    /// The folder that the configuration's paths are relative to.
    pub base: PathBuf,
}

impl System for Runner<'_> {
    fn run(&mut self, why: Why, setting: &Setting) -> Result<Record, Halt> {
        if interrupt::requested().is_some() {
            return Err(Halt::Interrupted);
        }
        let began = Instant::now();
        let folder = if why == Why::Confirm { "full" } else { "trial" };
        let folder = self.args.session.join(folder);
        let unmeasured = |e: anyhow::Error| Halt::Unmeasured(format!("{e:#}"));
        let (status, said) = self.child(&folder, setting).map_err(unmeasured)?;
        match status.code() {
            Some(0 | 1) => {}
            _ if interrupt::requested().is_some() => return Err(Halt::Interrupted),
            Some(130) => return Err(Halt::Interrupted),
            code => {
                let code = code.map_or_else(|| status.to_string(), |c| format!("exit code {c}"));
                let last = said.lines().rfind(|l| l.starts_with("error:"));
                let last = last.or(said.lines().last()).unwrap_or("it said nothing");
                return Err(Halt::Unmeasured(format!("{code}: {last}")));
            }
        }
        let mut record = self.read(&folder).map_err(unmeasured)?;
        record.cost_s = began.elapsed().as_secs_f64();
        Ok(record)
    }
}

impl Runner<'_> {
    /// One run; its standard error.
    fn child(&self, folder: &Path, setting: &Setting) -> Result<(ExitStatus, String)> {
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        let mut yaml = self.yaml.clone();
        for (key, value) in &setting.knobs {
            yaml.set(key, value)?;
        }
        let config = self.args.session.join("trial.yaml");
        yaml.write(&config)?;
        let said = folder.join("stderr.txt");
        let program = match &self.args.program {
            Some(program) => program.clone(),
            None => std::env::current_exe().context("this program's own file")?,
        };
        let mut command = Command::new(program);
        command.arg("--config").arg(&config);
        if fs::canonicalize(&self.base).ok() != fs::canonicalize(&self.args.session).ok() {
            command.arg("--relative-to").arg(&self.base);
        }
        command.arg("--output").arg(folder);
        command.args(["--mode", "performance", "--quiet"]);
        command.args(self.args.passed_on());
        command.args(self.rate(setting));
        for (name, bits) in SEEDS {
            // LoadGen's own generators are different ones, and so are their seeds.
            let seed = setting.seed ^ bits;
            command.arg("--set").arg(format!("{name}={seed}"));
        }
        command
            .stdin(Stdio::null())
            .stdout(Stdio::null())
            .stderr(File::create(&said)?);
        let mut child = command.spawn().context("a trial cannot be started")?;
        let mut told: Option<Instant> = None;
        let status = loop {
            if let Some(status) = child.try_wait()? {
                break status;
            }
            match told {
                None if interrupt::requested().is_some() => {
                    let id = libc::pid_t::try_from(child.id())?;
                    // SAFETY: a child that has not been waited for keeps its id. From a terminal it
                    // has the signal already: a second one ends it at once, which is as well.
                    unsafe { libc::kill(id, libc::SIGTERM) };
                    told = Some(Instant::now());
                }
                Some(since) if since.elapsed() > GRACE => child.kill()?,
                _ => {}
            }
            thread::sleep(TICK);
        };
        Ok((status, fs::read_to_string(&said).unwrap_or_default()))
    }

    /// The flags that say the rate.
    fn rate(&self, setting: &Setting) -> Vec<String> {
        let (rate, seconds) = (setting.rate, setting.seconds);
        let (name, least) = match self.scenario {
            Scenario::Server => ("server", self.args.samples),
            Scenario::MultiStream => ("multi-stream", self.args.samples),
            Scenario::SingleStream => ("single-stream", self.args.samples),
            Scenario::Offline => ("offline", 1),
        };
        let mut words = vec!["--scenario".to_owned(), name.to_owned()];
        match self.scenario {
            Scenario::MultiStream => {
                words.extend(["--set".to_owned(), format!("samples_per_query={rate}")]);
            }
            _ => words.extend(["--target-qps".to_owned(), rate.to_string()]),
        }
        words.extend(["--duration-s".to_owned(), seconds.to_string()]);
        words.extend(["--samples".to_owned(), least.to_string()]);
        words
    }

    /// What the run left behind.
    fn read(&self, folder: &Path) -> Result<Record> {
        let path = folder.join("summary.json");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let summary: Value = serde_json::from_str(&text)?;
        record(&summary, self.scenario, self.args.bound_ms)
            .with_context(|| path.display().to_string())
    }
}

/// The record of a run, from its summary.
fn record(summary: &Value, scenario: Scenario, bound_ms: Option<f64>) -> Result<Record> {
    let loadgen = &summary["loadgen"];
    let mut valid = loadgen["valid"]
        .as_bool()
        .context("LoadGen did not judge it")?;
    let mut limits = Vec::new();
    for limit in loadgen["limits"].as_array().into_iter().flatten() {
        let (Some(was), Some(bound)) = (limit["was"].as_f64(), limit["limit"].as_f64()) else {
            continue;
        };
        let name = limit["name"].as_str().unwrap_or_default().to_owned();
        let at_most = limit["at_most"].as_bool().unwrap_or(false);
        match scenario {
            // Its one query has to last; the longer it lasts, the further from the limit.
            Scenario::Offline if name == "duration" => limits.push(Limit {
                name,
                was: bound,
                bound: was,
            }),
            _ if at_most => limits.push(Limit { name, was, bound }),
            _ => {}
        }
    }
    if let (Scenario::MultiStream, Some(bound)) = (scenario, bound_ms) {
        let was = loadgen["latency"]["p99_us"].as_f64();
        let was = was.context("it has no 99th percentile")?;
        let bound = bound * 1000.0;
        valid &= was <= bound;
        limits.push(Limit {
            name: "p99 query latency".to_owned(),
            was,
            bound,
        });
    }
    Ok(Record {
        valid,
        limits,
        achieved: summary["per_s"].as_f64().unwrap_or(0.0),
        limited_by: summary["limits"]["line"]
            .as_str()
            .unwrap_or_default()
            .to_owned(),
        ..Record::default()
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use serde_json::json;

    #[test]
    fn limits_on_latency_are_margins_and_others_are_not() {
        let limit = |name: &str, was: f64, limit: f64, at_most: bool| json!({"name": name, "was": was, "limit": limit, "at_most": at_most});
        let summary = json!({
            "per_s": 7.5,
            "limits": {"line": "slots: all are in use"},
            "loadgen": {
                "valid": true,
                "latency": {"p99_us": 3000.0},
                "limits": [
                    limit("p99 TTFT", 100.0, 200.0, true),
                    limit("p99 TPOT", 30.0, 40.0, true),
                    limit("duration", 2e6, 1e6, false),
                ],
            },
        });
        let of = |scenario, bound| record(&summary, scenario, bound).expect("sound");
        let server = of(Scenario::Server, None);
        let binds = server.binds().expect("two limits");
        assert_eq!((server.limits.len(), binds.name.as_str()), (2, "p99 TPOT"));
        assert_eq!((server.achieved, server.valid), (7.5, true));
        assert_eq!(server.limited_by, "slots: all are in use");
        let offline = of(Scenario::Offline, None);
        let duration = offline.limits.iter().find(|l| l.name == "duration");
        assert!((duration.expect("one").log_margin() - 0.5_f64.ln()).abs() < 1e-12);
        assert!(of(Scenario::MultiStream, Some(4.0)).valid);
        assert!(!of(Scenario::MultiStream, Some(2.0)).valid);
        assert!(record(&json!({"loadgen": null}), Scenario::Server, None).is_err());
    }
}
