//! `qdl demo --llm`: runs a small language model over a network, with token ids both ways.
//!
//! Accuracy runs over the network and locally must give the same ids per question; then Offline and
//! Server run with `use_token_latencies`.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use launch::{read_json, run_quietly, write_json};
use serde::Deserialize;
use serde_json::{Value, json};

use super::accuracy::{self, Answers};
use super::session::{DemoFiles, Session, sibling};
use super::{ACCURACY, head, invalid, other_accuracy, rows, verdict};

const ACCELERATOR_CONFIG: &str = "configs/llm/accelerator.yaml";
const FRONTEND_CONFIG: &str = "configs/llm/frontend.yaml";
const MODEL: &str = "SmolLM2-135M-Instruct, 8-bit weights";
const QUESTIONS: &str = "models/capitals.py";

/// The model's file, which an installation has from the extra `llm`.
const FILE: &str = ".deps/models/smollm2-q8.onnx";
const SCORING: Duration = Duration::from_secs(120);
/// Each question once, without a minimum duration.
const OFFLINE: &str = "--scenario offline --mode performance --samples 248 --set min_duration=0";
const SERVER: &str = "--scenario server --mode performance";
/// Server's rate as a share of Offline's; the second applies if the first exceeds the limits.
const LOADS: [f64; 2] = [0.4, 0.2];

#[derive(Deserialize)]
struct Score {
    answers: u64,
    right: u64,
    tokens: u64,
}

impl Score {
    fn share(&self) -> f64 {
        self.right as f64 / self.answers.max(1) as f64
    }
}

/// The figures of a run, from its `summary.json`; times in microseconds.
fn figures(folder: &Path) -> Result<Value> {
    let path = folder.join("summary.json");
    let summary = read_json(&path)?;
    let tokens = &summary["tokens"];
    if !tokens.is_object() {
        bail!("{}: no tokens", path.display());
    }
    let percentiles = |times: &Value| match times {
        Value::Null => Value::Null,
        times => json!({"p50": times["p50_us"], "p99": times["p99_us"]}),
    };
    // LoadGen measures no first tokens in Offline.
    let times = match summary["scenario"].as_str() {
        Some("Offline") => &Value::Null,
        _ => &tokens["times"],
    };
    Ok(json!({
        "scenario": summary["scenario"], "valid": summary["valid"], "samples": summary["samples"],
        "tokens": tokens["tokens"], "tokens_per_s": tokens["per_s"],
        "ttft_us": percentiles(&times["ttft"]), "tpot_us": percentiles(&times["tpot"]),
        "latency_us": percentiles(&summary["loadgen"]["latency"]),
    }))
}

/// Runs the model, and compares the runs. Returns exit code 0 without faults, else 1.
pub fn run(output: &Path) -> Result<i32> {
    let began = Instant::now();
    let install = "`pip install 'qdl[llm]'`, or run `cargo xtask demo --llm` in a checkout";
    let files = DemoFiles::find(FILE, install)?;
    let folder = output.join("llm");
    let configs = [ACCELERATOR_CONFIG, FRONTEND_CONFIG];
    let mut demo = Session::start(&folder, MODEL, &files, configs)?;
    let about = "every question once, over the wire";
    let (wire, _) = demo.run("accuracy", about, ACCURACY)?;
    let about = "the same in one process, with no network";
    let (local, _) = demo.run("accuracy-local", about, &format!("{ACCURACY} --local"))?;
    let (offline, _) = demo.run("offline", "all questions at once", OFFLINE)?;
    let offline = figures(&offline)?;
    let number = |field: &str| offline[field].as_f64().unwrap_or(0.0);
    let rate = number("samples") * number("tokens_per_s") / number("tokens").max(1.0);
    let mut server = None;
    for load in LOADS {
        let arguments = format!("{SERVER} --target-qps {:.2}", rate * load);
        let about = "questions at random moments, first tokens at once";
        let (folder, valid) = demo.run("server", about, &arguments)?;
        server = Some(figures(&folder)?);
        if valid {
            break;
        }
    }
    let server = server.context("no Server run")?;
    drop(demo);

    let (over, beside) = (accuracy::read(&wire)?, accuracy::read(&local)?);
    let (score, score_local) = (score(&files, &wire)?, score(&files, &local)?);
    let summary = json!({
        "model": MODEL, "samples": score.answers, "ids_equal": equal(&over, &beside),
        "accuracy": score.share(), "accuracy_local": score_local.share(),
        "runs": [offline, server],
    });
    write_json(&output.join("llm.json"), &summary)?;
    let faults = faults(&summary, accuracy::difference(&over, &beside), &folder);
    close(
        &summary,
        &score,
        &faults,
        began.elapsed().as_secs_f64(),
        output,
    );
    Ok(i32::from(!faults.is_empty()))
}

/// Scores the answers in a run's accuracy log with the script [`QUESTIONS`].
fn score(files: &DemoFiles, folder: &Path) -> Result<Score> {
    let log = folder.join(loadgen_log::ACCURACY);
    // An installation by pip has its Python beside the programs.
    let beside = sibling("python3")?;
    let python = if beside.is_file() {
        beside.as_path()
    } else {
        Path::new("python3")
    };
    let mut command = Command::new(python);
    command.arg(files.path(QUESTIONS)?).arg("score").arg(&log);
    command.arg(files.path(".deps/models")?);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let wrote = run_quietly(QUESTIONS, &mut command, SCORING)?;
    let Some(line) = wrote.lines().rfind(|line| line.starts_with('{')) else {
        bail!("{QUESTIONS}: no score for {}", log.display());
    };
    serde_json::from_str(line).with_context(|| format!("{QUESTIONS}: {line}"))
}

fn equal(wire: &Answers, local: &Answers) -> u64 {
    let same = wire
        .iter()
        .filter(|(index, ids)| local.get(index) == Some(ids));
    same.count() as u64
}

fn faults(summary: &Value, difference: Option<String>, folder: &Path) -> Vec<String> {
    let number = |field: &str| summary[field].as_f64().unwrap_or(f64::NAN);
    let accuracy = number("accuracy");
    let other = other_accuracy(accuracy, number("accuracy_local"));
    let mut faults: Vec<String> = difference.into_iter().chain(other).collect();
    // Random answers name 1 of 100 capitals; the exported model names 36.
    if accuracy < 0.3 {
        faults.push(format!("accuracy {accuracy}: the model is broken"));
    }
    let runs = summary["runs"].as_array().into_iter().flatten();
    for run in runs.filter(|run| run["valid"] != json!(true)) {
        let name = run["scenario"].as_str().unwrap_or_default();
        let name = name.to_ascii_lowercase();
        faults.push(invalid(folder, &name));
    }
    faults
}

fn close(summary: &Value, score: &Score, faults: &[String], seconds: f64, output: &Path) {
    let line = "-".repeat(86);
    head(&line, "A language model", faults, seconds);
    let number = |field: &str| summary[field].as_f64().unwrap_or(0.0);
    println!(
        " model     {MODEL}
 ids       the same over the wire and in one process for {} of {} answers
 accuracy  {:.1} % of the capitals named over the wire, {:.1} % in one process
           {:.1} tokens an answer",
        summary["ids_equal"],
        summary["samples"],
        number("accuracy") * 100.0,
        number("accuracy_local") * 100.0,
        score.tokens as f64 / score.answers.max(1) as f64
    );
    println!(
        "\n {:<9} {:>8} {:>8} {:>9} {:>17} {:>17} {:>9}   LoadGen",
        "scenario", "samples", "tokens", "tokens/s", "TTFT p50/p99 ms", "TPOT p50/p99 ms", "p99 s"
    );
    rows(summary, row, faults);
    println!(
        "
 {output}/llm.json               these figures
 {output}/llm/<run>/report.html  the page of a run; beside it LoadGen's own logs and summary.json

 next: change {output}/llm/accelerator.yaml (sequences, intra_threads), and start both programs by
       hand, in two terminals; another demo replaces these files
{line}",
        output = output.display()
    );
}

fn row(run: &Value) -> String {
    let number = |value: &Value| value.as_f64().unwrap_or(0.0);
    let ms = |times: &Value| match times {
        Value::Null => "-".to_owned(),
        times => format!(
            "{:.0} / {:.0}",
            number(&times["p50"]) / 1e3,
            number(&times["p99"]) / 1e3
        ),
    };
    format!(
        " {:<9} {:>8} {:>8} {:>9.1} {:>17} {:>17} {:>9.2}   {}",
        run["scenario"].as_str().unwrap_or_default(),
        number(&run["samples"]),
        number(&run["tokens"]),
        number(&run["tokens_per_s"]),
        ms(&run["ttft_us"]),
        ms(&run["tpot_us"]),
        number(&run["latency_us"]["p99"]) / 1e6,
        verdict(run["valid"] == json!(true))
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(accuracy: f64, local: f64, valid: bool) -> Value {
        let times = |p50: f64, p99: f64| json!({"p50": p50, "p99": p99});
        let run = json!({
            "scenario": "Server", "valid": valid, "samples": 64, "tokens": 900,
            "tokens_per_s": 40.25, "ttft_us": times(90e3, 250e3), "tpot_us": times(30e3, 45e3),
            "latency_us": times(600e3, 1250e3),
        });
        json!({"accuracy": accuracy, "accuracy_local": local, "runs": [run]})
    }

    #[test]
    fn each_thing_that_can_be_wrong_is_named() {
        let good = summary(0.3629, 0.3629, true);
        assert_eq!(faults(&good, None, Path::new("out")), [""; 0]);
        let one = |summary: &Value, difference: Option<&str>, word: &str| {
            let found = faults(summary, difference.map(str::to_owned), Path::new("out"));
            assert!(found.len() == 1 && found[0].contains(word), "{found:?}");
        };
        one(&summary(0.3629, 0.3629, false), None, "server: LoadGen");
        one(&good, Some("sample 3"), "sample 3");
        one(&summary(0.3629, 0.3588, true), None, "0.3588");
        one(&summary(0.01, 0.01, true), None, "broken");
    }

    #[test]
    fn equal_answers_are_counted_and_a_row_shows_milliseconds() {
        let answers = |of: &[(u64, &str)]| {
            of.iter()
                .map(|(i, ids)| (*i, ids.as_bytes().to_vec()))
                .collect::<Answers>()
        };
        let wire = answers(&[(0, "aa"), (1, "bb"), (2, "cc")]);
        assert_eq!(equal(&wire, &answers(&[(0, "aa"), (1, "bc")])), 1);
        let row = row(&summary(0.3629, 0.3629, true)["runs"][0]);
        assert!(
            row.contains("90 / 250") && row.contains("1.25   VALID"),
            "{row}"
        );
    }
}
