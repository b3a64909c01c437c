//! The frontend's summary of a run, and the demo's summary of all runs.

use std::path::Path;

use anyhow::{Context, Result};
use serde::{Deserialize, Serialize};
use serde_json::{Map, Value};

/// The fields of a run's `summary.json` that the demo reads.
#[derive(Deserialize)]
pub struct Run {
    /// The SUT's name with all nodes, as LoadGen logged it.
    #[serde(default, rename = "name")]
    pub sut_name: String,
    /// Time to ask every node for its name, in microseconds.
    #[serde(default)]
    pub name_round_trip_us: Option<f64>,
    /// Share of right answers; only in accuracy mode.
    #[serde(default)]
    pub accuracy: Option<f64>,
    /// The fields that the demo's summary repeats.
    #[serde(flatten)]
    pub figures: Figures,
}

/// The fields of a run's summary that the demo's summary repeats.
#[derive(Clone, Serialize, Deserialize)]
pub struct Figures {
    /// LoadGen's name of the scenario.
    pub scenario: String,
    /// `performance` or `accuracy`.
    pub mode: String,
    /// The fabric that carried the samples.
    pub fabric: String,
    /// LoadGen's verdict; `None` in accuracy mode.
    pub valid: Option<bool>,
    /// Number of completed samples.
    pub samples: u64,
    /// Samples per second.
    pub per_s: f64,
    /// LoadGen's target, in queries per second.
    pub target_qps: Option<f64>,
    /// Percentiles of each stage, in microseconds.
    pub stages: Map<String, Value>,
}

impl Figures {
    /// A percentile of a stage, in microseconds.
    pub fn stage(&self, stage: &str, figure: &str) -> Option<f64> {
        self.stages.get(stage)?.get(figure)?.as_f64()
    }
}

/// The content of `target/demo/summary.json`.
#[derive(Serialize)]
pub struct Summary {
    /// Accuracy over the network.
    pub accuracy: f64,
    /// Accuracy in one process.
    pub accuracy_local: f64,
    /// The SUT's name.
    pub name: String,
    /// Time to ask for the name, in microseconds.
    pub name_round_trip_us: f64,
    /// All runs over the network, except the probe.
    pub runs: Vec<Figures>,
}

/// Reads `summary.json` in the folder of a run.
pub fn read(folder: &Path) -> Result<Run> {
    let path = folder.join("summary.json");
    let text = std::fs::read_to_string(&path)
        .with_context(|| format!("cannot read {}", path.display()))?;
    serde_json::from_str(&text).with_context(|| format!("{}", path.display()))
}

/// Writes `summary.json` in the demo's folder.
pub fn write(folder: &Path, summary: &Summary) -> Result<()> {
    let path = folder.join("summary.json");
    let text = serde_json::to_string_pretty(summary)? + "\n";
    std::fs::write(&path, text).with_context(|| format!("cannot write {}", path.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    const RUN: &str = r#"{"scenario":"Server","mode":"performance","fabric":"tcp","valid":true,"samples":20000,
        "per_s":1999.5,"target_qps":2000.0,"name":"Network SUT: a","name_round_trip_us":120.5,
        "stages":{"network":{"p50_us":40.0,"p99_us":90.5}},"something_else":[1,2]}"#;

    #[test]
    fn a_run_is_read_and_its_figures_are_repeated() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(folder.path().join("summary.json"), RUN).unwrap();
        let run = read(folder.path()).unwrap();
        assert_eq!(run.figures.stage("network", "p99_us"), Some(90.5));
        assert_eq!(run.figures.stage("network", "p12_us"), None);
        let summary = Summary {
            accuracy: 0.975,
            accuracy_local: 0.975,
            name: run.sut_name,
            name_round_trip_us: run.name_round_trip_us.unwrap(),
            runs: vec![run.figures],
        };
        write(folder.path(), &summary).unwrap();
        let text = std::fs::read_to_string(folder.path().join("summary.json")).unwrap();
        let expected: Value = serde_json::json!({
            "accuracy": 0.975, "accuracy_local": 0.975, "name": "Network SUT: a", "name_round_trip_us": 120.5,
            "runs": [{"scenario": "Server", "mode": "performance", "fabric": "tcp", "valid": true, "samples": 20000,
                "per_s": 1999.5, "target_qps": 2000.0, "stages": {"network": {"p50_us": 40.0, "p99_us": 90.5}}}],
        });
        assert_eq!(serde_json::from_str::<Value>(&text).unwrap(), expected);
    }

    #[test]
    fn a_summary_without_a_figure_names_the_file_and_the_field() {
        let folder = tempfile::tempdir().unwrap();
        std::fs::write(
            folder.path().join("summary.json"),
            RUN.replace("per_s", "per_z"),
        )
        .unwrap();
        let error = format!("{:#}", read(folder.path()).err().unwrap());
        assert!(
            error.contains("summary.json") && error.contains("per_s"),
            "{error}"
        );
    }
}
