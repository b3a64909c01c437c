//! One setting of both programs, tried: the accelerator runs for as long as it is tried.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::{Command, Stdio};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use serde_json::Value;

use super::works::{Kind, Settings, Work};
use crate::demo::programs::Accelerator;
use crate::process;

/// For one run.
const RUN: Duration = Duration::from_secs(120);
/// Samples in the data set: larger than any cache where they are images.
pub const SAMPLES: usize = 1024;

/// Where the programs are, where files go, and how long a run is.
pub struct Bench {
    pub programs: PathBuf,
    pub folder: PathBuf,
    pub seconds: f64,
}

/// A pair of programs with these settings.
pub struct Trial<'a> {
    bench: &'a Bench,
    work: &'a Work,
    config: PathBuf,
    out: PathBuf,
    _accelerator: Accelerator,
}

/// What a run came to.
#[derive(Clone, Copy, Debug, Default)]
pub struct Ran {
    /// LoadGen's word.
    pub valid: bool,
    /// Samples a second.
    pub per_s: f64,
    /// Connections of each NIC.
    pub connections: usize,
    /// CPU time of both programs for a gigabyte of samples, while LoadGen's clock ran, in seconds.
    pub cpu_s_per_gb: f64,
}

impl<'a> Trial<'a> {
    /// Starts the accelerator.
    ///
    /// # Errors
    /// Whatever keeps it from being ready.
    pub fn start(bench: &'a Bench, work: &'a Work, settings: &Settings) -> Result<Self> {
        let folder = bench.folder.join(work.name());
        fs::create_dir_all(&folder).with_context(|| folder.display().to_string())?;
        let accelerator = folder.join("accelerator.yaml");
        let config = folder.join("frontend.yaml");
        fs::write(&accelerator, accelerator_yaml(work, settings))?;
        let mut command = Command::new(bench.programs.join("accelerator"));
        command.arg("--config").arg(&accelerator);
        let running = Accelerator::start_in(&mut command, &folder.join("accelerator.log"))?;
        let control = control(&running.ready)?;
        fs::write(&config, frontend_yaml(work, settings, control))?;
        Ok(Trial {
            bench,
            work,
            config,
            out: folder.join("run"),
            _accelerator: running,
        })
    }

    /// One run at this rate; of Offline so many samples as that rate does in the time.
    ///
    /// # Errors
    /// It came to no result.
    pub fn run(&self, rate: f64) -> Result<Ran> {
        let _ = fs::remove_dir_all(&self.out);
        let mut command = Command::new(self.bench.programs.join("frontend"));
        command.arg("--config").arg(&self.config);
        let seconds = self.bench.seconds;
        match self.work.kind {
            Kind::Server => command
                .args(["--scenario", "server", "--set", "target_latency=10"])
                .arg(format!("--target-qps={rate:.0}"))
                .arg(format!("--duration-s={seconds}")),
            Kind::Offline => command
                .args(["--scenario", "offline", "--set", "min_duration=0"])
                .arg(format!("--samples={:.0}", (rate * seconds).max(1000.0))),
        };
        command
            .arg("--quiet")
            .arg("--output")
            .arg(&self.out)
            .stdout(Stdio::null())
            .stderr(fs::File::create(self.out.with_extension("stderr"))?);
        let status = process::run("frontend", &mut command, RUN)?;
        if !matches!(status.code(), Some(0 | 1)) {
            let said = fs::read_to_string(self.out.with_extension("stderr")).unwrap_or_default();
            bail!("frontend: {status}\n{}", said.trim_end());
        }
        let summary = read(&self.out.join("summary.json"))?;
        let per_s = summary["per_s"]
            .as_f64()
            .context("no rate in the summary")?;
        let samples = summary["samples"].as_f64().unwrap_or(0.0);
        let gigabytes = samples * self.work.bytes as f64 / 1e9;
        let lasted_us = samples / per_s * 1e6;
        Ok(Ran {
            valid: status.code() == Some(0),
            per_s,
            connections: summary["connections"].as_array().map_or(1, Vec::len) / self.work.rails,
            cpu_s_per_gb: cpu_s(&summary, lasted_us) / gigabytes,
        })
    }
}

/// CPU time of both programs' threads while LoadGen's clock ran, which was so long. The last
/// reading comes a little before the end: the rest is taken to be like what was read.
fn cpu_s(summary: &Value, lasted_us: f64) -> f64 {
    let of = |used: &Value| -> f64 {
        let threads = used["threads"].as_array().into_iter().flatten();
        let ran: f64 = threads.filter_map(|t| t["ran_us"].as_f64()).sum();
        let read_us = used["clock_us"].as_f64().unwrap_or(0.0);
        ran * (lasted_us / read_us).max(1.0)
    };
    let accelerators = summary["accelerators"].as_array().into_iter().flatten();
    let far: f64 = accelerators.map(|a| of(&a["used"])).sum();
    (of(&summary["evidence"]["node"]) + far) / 1e6
}

/// A file of JSON.
///
/// # Errors
/// It cannot be read, or is none.
pub fn read(path: &Path) -> Result<Value> {
    let text = fs::read_to_string(path).with_context(|| path.display().to_string())?;
    serde_json::from_str(&text).with_context(|| path.display().to_string())
}

fn keys(of: &[&str]) -> String {
    of.iter().map(|k| format!(", {k}")).collect()
}

fn lines(of: &[&str]) -> String {
    of.iter().map(|k| format!("{k}\n")).collect()
}

/// The address in `ready: node tried, control 127.0.0.1:7400, engine null, model tried`.
fn control(ready: &str) -> Result<&str> {
    ready
        .split(", ")
        .find_map(|word| word.strip_prefix("control "))
        .with_context(|| format!("no address in {ready:?}"))
}

fn accelerator_yaml(work: &Work, settings: &Settings) -> String {
    let nic = format!(
        "{{listen: \"127.0.0.1:0\"{}}}",
        keys(&settings.accelerator_nic)
    );
    format!(
        "node: tried\ncontrol: {{listen: \"127.0.0.1:0\"}}\nmemory_mib: 16384\n\
         model: {{name: tried, max_input_bytes: {}}}\nengine: {{kind: \"null\"}}\nnics: [{}]\n{}",
        work.bytes,
        vec![nic; work.rails].join(", "),
        lines(&settings.accelerator)
    )
}

fn frontend_yaml(work: &Work, settings: &Settings, control: &str) -> String {
    let connections = settings.connections.or(work.connections);
    let connections = connections.map(|n| format!(", connections: {n}"));
    let nic = format!(
        "{{address: 127.0.0.1{}{}}}",
        connections.unwrap_or_default(),
        keys(&settings.frontend_nic)
    );
    let top = lines(&settings.frontend);
    format!(
        "node: trying\naccelerators: [{{control: \"{control}\"}}]\n\
         model: {{name: tried, inputs: [{{name: input, dtype: u8, shape: [{}], ragged: true}}], \
         output: {{name: output, dtype: u8, shape: [8]}}}}\n\
         dataset: {{kind: random, distribution: fixed, count: {SAMPLES}}}\n\
         engine: {{kind: \"null\"}}\nnics: [{}]\n{top}",
        work.bytes,
        vec![nic; work.rails].join(", ")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_accelerator_says_where_it_listens() {
        let ready = "ready: node tried, control 127.0.0.1:7400, engine null, model tried";
        assert_eq!(control(ready).expect("an address"), "127.0.0.1:7400");
        assert!(control("ready: node tried").is_err());
    }

    #[test]
    fn what_was_not_read_is_taken_to_be_like_what_was() {
        let used = |ran: f64, clock: f64| {
            let threads = serde_json::json!([{"ran_us": ran}, {"ran_us": 1.0}]);
            serde_json::json!({"clock_us": clock, "threads": threads})
        };
        let summary = serde_json::json!({
            "evidence": {"node": used(3e6 - 1.0, 1e6)},
            "accelerators": [{"used": used(2e6 - 1.0, 3e6)}],
        });
        assert_eq!(cpu_s(&summary, 2e6), 6.0 + 2.0);
        let nothing = serde_json::json!({"evidence": {"node": used(0.0, 0.0)}});
        assert!(
            cpu_s(&nothing, 2e6).is_infinite(),
            "not as if it had taken nothing"
        );
    }

    #[test]
    fn settings_stand_where_a_user_would_write_them() {
        let work = Work {
            kind: Kind::Offline,
            rails: 2,
            connections: Some(3),
            bytes: 64,
        };
        let settings = Settings {
            frontend_nic: vec!["slots: 16"],
            accelerator_nic: vec!["completion: {mode: poll}"],
            frontend: vec!["doorbell_wait_us: 0"],
            accelerator: vec!["nic_threads: 1"],
            ..Settings::default()
        };
        let nic = "{address: 127.0.0.1, connections: 3, slots: 16}";
        let yaml = frontend_yaml(&work, &settings, "127.0.0.1:7");
        assert!(yaml.contains(&format!("nics: [{nic}, {nic}]\n")), "{yaml}");
        assert!(yaml.ends_with("\ndoorbell_wait_us: 0\n"), "{yaml}");
        let nic = "{listen: \"127.0.0.1:0\", completion: {mode: poll}}";
        let yaml = accelerator_yaml(&work, &settings);
        assert!(yaml.contains(&format!("nics: [{nic}, {nic}]\n")), "{yaml}");
        assert!(yaml.ends_with("\nnic_threads: 1\n"), "{yaml}");
    }
}
