//! `cargo xtask demo --llm`: runs a small language model over a network, from nothing.
//!
//! Like the demo of the digits, with token ids both ways. Two accuracy runs must give the same ids
//! for each question; then Offline and Server run with LoadGen's token latencies.

mod detail;

use std::path::Path;
use std::time::Instant;

use anyhow::{Context, Result, bail};
use serde::{Deserialize, Serialize};

use self::detail::{Percentiles, Run};
use super::accuracy::{self, Answers};
use super::other_accuracy;
use super::programs::Demo;
use crate::process::write_json;
use crate::setup;

const ACCELERATOR_CONFIG: &str = "configs/llm/accelerator.yaml";
const FRONTEND_CONFIG: &str = "configs/llm/frontend.yaml";
const MODEL: &str = "SmolLM2-135M-Instruct, 8-bit weights";
/// The script that writes and scores the questions.
const QUESTIONS: &str = "models/capitals.py";

const FOLDER: &str = "target/demo/llm";
const ACCURACY: &str = "--scenario offline --mode accuracy";
/// Each question once, without a minimum duration.
const OFFLINE: &str = "--scenario offline --mode performance --samples 248 --set min_duration=0";
const SERVER: &str = "--scenario server --mode performance";
/// Server's rate as a share of Offline's; the second applies if the first exceeds the limits.
const LOADS: [f64; 2] = [0.4, 0.2];

/// The output of `capitals.py score`.
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

/// The content of `target/demo/llm.json`.
#[derive(Serialize)]
struct Summary {
    model: &'static str,
    /// Number of questions in an accuracy run.
    samples: u64,
    /// Number of questions with the same ids over the network and locally.
    ids_equal: u64,
    /// Share of right answers over the network.
    accuracy: f64,
    accuracy_local: f64,
    runs: Vec<Run>,
}

/// Sets up, builds, runs, and compares the runs. Exit code 0 if nothing is wrong.
pub fn run(root: &Path) -> Result<i32> {
    let began = Instant::now();
    let configs = [ACCELERATOR_CONFIG, FRONTEND_CONFIG];
    let mut demo = Demo::start(root, FOLDER, MODEL, configs)?;
    let about = "every question once, over the wire";
    let (wire, _) = demo.run("accuracy", about, ACCURACY)?;
    let about = "the same in one process, with no network";
    let (local, _) = demo.run("accuracy-local", about, &format!("{ACCURACY} --local"))?;
    let (offline, _) = demo.run("offline", "all questions at once", OFFLINE)?;
    let offline = detail::read(&offline)?;
    let rate = offline.samples as f64 * offline.tokens_per_s / offline.tokens.max(1) as f64;
    let mut server = None;
    for load in LOADS {
        let arguments = format!("{SERVER} --target-qps {:.2}", rate * load);
        let about = "questions at random moments, first tokens at once";
        let (ran, _) = demo.run("server", about, &arguments)?;
        let ran = detail::read(&ran)?;
        let valid = ran.valid;
        server = Some(ran);
        if valid {
            break;
        }
    }
    let server = server.context("no Server run")?;
    drop(demo);

    let (over, beside) = (accuracy::read(&wire)?, accuracy::read(&local)?);
    let (score, score_local) = (score(root, &wire)?, score(root, &local)?);
    let summary = Summary {
        model: MODEL,
        samples: score.answers,
        ids_equal: equal(&over, &beside),
        accuracy: score.share(),
        accuracy_local: score_local.share(),
        runs: vec![offline, server],
    };
    write_json(&root.join("target/demo/llm.json"), &summary)?;
    let faults = faults(&summary, accuracy::difference(&over, &beside));
    close(&summary, &score, &faults, began.elapsed().as_secs_f64());
    Ok(i32::from(!faults.is_empty()))
}

/// Compares the answers in a run's accuracy log with the capitals, by script.
fn score(root: &Path, folder: &Path) -> Result<Score> {
    let (log, models) = (
        folder.join(loadgen_log::ACCURACY),
        root.join(".deps/models"),
    );
    let wrote = setup::script(root, QUESTIONS, &[Path::new("score"), &log, &models])?;
    let Some(line) = wrote.lines().rfind(|line| line.starts_with('{')) else {
        bail!("{QUESTIONS}: no score for {}", log.display());
    };
    serde_json::from_str(line).with_context(|| format!("{QUESTIONS}: {line}"))
}

/// Number of samples with the same bytes in both.
fn equal(wire: &Answers, local: &Answers) -> u64 {
    let same = wire
        .iter()
        .filter(|(index, ids)| local.get(index) == Some(ids));
    same.count() as u64
}

/// All faults of the runs.
fn faults(summary: &Summary, difference: Option<String>) -> Vec<String> {
    let accuracy = other_accuracy(summary.accuracy, summary.accuracy_local);
    let mut faults: Vec<String> = difference.into_iter().chain(accuracy).collect();
    // Random answers name 1 of 100 capitals; the exported model names 36.
    if summary.accuracy < 0.3 {
        faults.push(format!(
            "accuracy {}: the model is broken",
            summary.accuracy
        ));
    }
    for run in &summary.runs {
        if !run.valid {
            let name = run.scenario.to_ascii_lowercase();
            faults.push(format!(
                "{name}: LoadGen found the run invalid; see target/demo/llm/{name}/mlperf_log_summary.txt"
            ));
        }
    }
    faults
}

/// Prints the closing screen.
fn close(summary: &Summary, score: &Score, faults: &[String], seconds: f64) {
    let line = "-".repeat(86);
    let well = match faults {
        [] => "all well",
        _ => "NOT as it should be",
    };
    println!("\n{line}\n A language model over a wire: {well} in {seconds:.0} s\n{line}");
    println!(" model     {}", summary.model);
    println!(
        " ids       the same over the wire and in one process for {} of {} answers",
        summary.ids_equal, summary.samples
    );
    println!(
        " accuracy  {:.1} % of the capitals named over the wire, {:.1} % in one process",
        summary.accuracy * 100.0,
        summary.accuracy_local * 100.0
    );
    println!(
        "           {:.1} tokens an answer",
        score.tokens as f64 / score.answers.max(1) as f64
    );
    println!(
        "\n {:<9} {:>8} {:>8} {:>9} {:>17} {:>17} {:>9}   LoadGen",
        "scenario", "samples", "tokens", "tokens/s", "TTFT p50/p99 ms", "TPOT p50/p99 ms", "p99 s"
    );
    for run in &summary.runs {
        println!("{}", row(run));
    }
    for fault in faults {
        println!("\n ! {fault}");
    }
    println!("\n target/demo/llm.json          these figures");
    println!(" target/demo/llm/<run>/        LoadGen's own logs, summary.json, histograms");
    println!(
        "\n next: docs/llm.md; change {ACCELERATOR_CONFIG} (sequences, intra_threads) and run it again"
    );
    println!("{line}");
}

/// A run as a row of the table.
fn row(run: &Run) -> String {
    let ms = |p: Option<Percentiles>| match p {
        Some(p) => format!("{:.0} / {:.0}", p.p50 / 1e3, p.p99 / 1e3),
        None => "-".to_owned(),
    };
    format!(
        " {:<9} {:>8} {:>8} {:>9.1} {:>17} {:>17} {:>9.2}   {}",
        run.scenario,
        run.samples,
        run.tokens,
        run.tokens_per_s,
        ms(run.ttft_us),
        ms(run.tpot_us),
        run.latency_us.p99 / 1e6,
        if run.valid { "VALID" } else { "INVALID" }
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(valid: bool) -> Run {
        let p = |p50, p99| Percentiles { p50, p99 };
        Run {
            scenario: "Server".to_owned(),
            valid,
            samples: 64,
            tokens: 900,
            tokens_per_s: 40.25,
            ttft_us: Some(p(90_000.0, 250_000.0)),
            tpot_us: Some(p(30_000.0, 45_000.0)),
            latency_us: p(600_000.0, 1_250_000.0),
        }
    }

    fn summary(valid: bool) -> Summary {
        Summary {
            model: MODEL,
            samples: 248,
            ids_equal: 248,
            accuracy: 0.3629,
            accuracy_local: 0.3629,
            runs: vec![run(valid)],
        }
    }

    #[test]
    fn each_thing_that_can_be_wrong_is_named() {
        assert_eq!(faults(&summary(true), None), Vec::<String>::new());
        let one = |summary: &Summary, difference: Option<&str>, word: &str| {
            let found = faults(summary, difference.map(str::to_owned));
            assert!(found.len() == 1 && found[0].contains(word), "{found:?}");
        };
        one(&summary(false), None, "server: LoadGen");
        one(&summary(true), Some("sample 3"), "sample 3");
        let mut other = summary(true);
        other.accuracy_local = 0.3588;
        one(&other, None, "0.3588");
        (other.accuracy, other.accuracy_local) = (0.01, 0.01);
        one(&other, None, "broken");
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
        let row = row(&run(true));
        assert!(
            row.contains("90 / 250") && row.contains("1.25   VALID"),
            "{row}"
        );
    }
}
