//! `qdl demo`: runs LoadGen over a network, and prints the results.
//!
//! Two processes communicate by TCP on loopback. One accelerator serves all frontends. The frontend
//! runs five or six times, one process for each LoadGen run, each with a folder of its own. The
//! accuracy runs, over the network and with `--local`, must give the same bytes for each sample.

mod accuracy;
mod llm;
mod session;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};
use clap::Parser;
use disk::FolderLock;
use launch::{read_json, write_json};
use serde_json::{Value, json};

use self::session::{DemoFiles, Session};

const ACCELERATOR_CONFIG: &str = "configs/demo/accelerator.yaml";
const FRONTEND_CONFIG: &str = "configs/demo/frontend.yaml";
const MODEL: &str = ".deps/models/digits.onnx";

/// Runs handwritten digits over TCP on loopback: accuracy compared with --local, then Server and
/// Offline.
#[derive(Clone, Debug, Parser)]
pub struct DemoArgs {
    /// Run a small language model instead of the digits
    #[arg(long)]
    llm: bool,
    /// Folder for the runs; those of an earlier demo are replaced
    #[arg(short, long, value_name = "DIR", default_value = "qdl-demo")]
    output: PathBuf,
}

/// Runs the demo. Returns exit code 0 if all is well, 1 if a run or a comparison is not, else 2.
pub fn command(args: &DemoArgs) -> i32 {
    let lock = FolderLock::take(&args.output);
    let lock = lock.with_context(|| format!("--output {}", args.output.display()));
    let code = lock.and_then(|_lock| match args.llm {
        true => llm::run(&args.output),
        false => digits(&args.output),
    });
    code.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        2
    })
}

/// Every image once.
const ACCURACY: &str = "--scenario offline --mode accuracy";
const SERVER: &str = "--scenario server --mode performance --target-qps 2000 --duration-s 10";
/// Measures this machine's rate: LoadGen generates all samples of an Offline run in advance, from
/// the expected rate.
const PROBE: &str = "--scenario offline --mode performance --samples 300000 --set min_duration=0 \
                     --quiet";
const OFFLINE: &str = "--scenario offline --mode performance --duration-s 10";

/// Ratios of expected to measured rate, tried until Offline is VALID: the run must last 10 s.
const HEADROOM: [f64; 2] = [1.3, 2.0];

/// Fields of a run's `summary.json` that the demo's summary repeats.
const FIGURES: [&str; 8] = [
    "scenario",
    "mode",
    "fabric",
    "valid",
    "samples",
    "per_s",
    "target_qps",
    "stages",
];

struct DemoRun {
    /// Whether the frontend's exit code says that LoadGen found the run valid.
    valid: bool,
    summary: Value,
    folder: PathBuf,
}

impl DemoRun {
    fn number(&self, field: &str) -> Result<f64> {
        let number = self.summary[field].as_f64();
        number.with_context(|| format!("{}/summary.json: no {field}", self.folder.display()))
    }

    fn figures(&self) -> Value {
        let figure = |field: &str| (field.to_owned(), self.summary[field].clone());
        FIGURES.map(figure).into_iter().collect()
    }
}

/// Runs the digits, and compares the runs. Returns exit code 0 without faults, else 1.
fn digits(output: &Path) -> Result<i32> {
    let began = Instant::now();
    let files = DemoFiles::find(MODEL, "run `cargo xtask demo` in a checkout")?;
    let folder = output.join("digits");
    let configs = [ACCELERATOR_CONFIG, FRONTEND_CONFIG];
    let mut demo = Session::start(&folder, "serves the digits model", &files, configs)?;
    let mut one = |name: &str, about: &str, arguments: &str| -> Result<DemoRun> {
        let (folder, valid) = demo.run(name, about, arguments)?;
        let summary = read_json(&folder.join("summary.json"))?;
        Ok(DemoRun {
            valid,
            summary,
            folder,
        })
    };
    let wire = one("accuracy", "every image once, over the wire", ACCURACY)?;
    let about = "the same in one process, with no network";
    let local = one("accuracy-local", about, &format!("{ACCURACY} --local"))?;
    let server = one("server", "queries at random moments, 10 s", SERVER)?;
    let about = "300,000 samples, to see how many make 10 s";
    let mut rate = one("offline-probe", about, PROBE)?.number("per_s")?;
    let mut offline = None;
    for headroom in HEADROOM {
        let arguments = format!("{OFFLINE} --target-qps {:.0}", rate * headroom);
        let about = "all samples at once, at least 10 s of them";
        let ran = one("offline", about, &arguments)?;
        rate = rate.max(ran.number("per_s")?);
        let valid = ran.valid;
        offline = Some(ran);
        if valid {
            break;
        }
    }
    let offline = offline.context("no Offline run")?;
    let configs = demo.configs.clone();
    drop(demo);

    let answers = accuracy::read(&wire.folder)?;
    let difference = accuracy::difference(&answers, &accuracy::read(&local.folder)?);
    let summary = json!({
        "accuracy": wire.number("accuracy")?, "accuracy_local": local.number("accuracy")?,
        "name": wire.summary["name"], "name_round_trip_us": wire.number("name_round_trip_us")?,
        "runs": [wire.figures(), server.figures(), offline.figures()],
    });
    write_json(&output.join("summary.json"), &summary)?;
    let is_valid = |run: &DemoRun| run.valid && run.summary["valid"] == json!(true);
    let runs = [("server", &server), ("offline", &offline)];
    let runs = runs.map(|(name, run)| (name, is_valid(run)));
    let faults = faults(&summary, difference, &folder, &runs);
    close(
        &summary,
        answers.len(),
        &faults,
        began.elapsed().as_secs_f64(),
        (output, &configs),
    )?;
    Ok(i32::from(!faults.is_empty()))
}

/// A fault if the accuracy over the network differs from that in one process.
fn other_accuracy(wire: f64, local: f64) -> Option<String> {
    let text = || format!("accuracy {wire} over the wire, {local} with --local");
    (wire != local).then(text)
}

/// All faults of the runs; `performance` has each run's name and LoadGen's verdict.
fn faults(
    summary: &Value,
    difference: Option<String>,
    folder: &Path,
    performance: &[(&str, bool)],
) -> Vec<String> {
    let number = |field: &str| summary[field].as_f64().unwrap_or(f64::NAN);
    let accuracy = other_accuracy(number("accuracy"), number("accuracy_local"));
    let mut faults: Vec<String> = difference.into_iter().chain(accuracy).collect();
    let name = summary["name"].as_str().unwrap_or_default();
    if !name.contains("Network SUT") {
        faults.push(format!("the name \"{name}\" does not hold \"Network SUT\""));
    }
    for (name, _) in performance.iter().filter(|(_, valid)| !valid) {
        faults.push(invalid(folder, name));
    }
    faults
}

/// The fault of a run that LoadGen found invalid; its folder is `name` in `folder`.
fn invalid(folder: &Path, name: &str) -> String {
    let log = folder.join(name).join("mlperf_log_summary.txt");
    let log = log.display();
    format!("{name}: LoadGen found the run invalid; see {log}")
}

fn verdict(valid: bool) -> &'static str {
    if valid { "VALID" } else { "INVALID" }
}

fn head(line: &str, title: &str, faults: &[String], seconds: f64) {
    let well = match faults {
        [] => "all well",
        _ => "NOT as it should be",
    };
    println!("\n{line}\n {title} over a wire: {well} in {seconds:.0} s\n{line}");
}

fn rows(summary: &Value, row: impl Fn(&Value) -> String, faults: &[String]) {
    for run in summary["runs"].as_array().into_iter().flatten() {
        println!("{}", row(run));
    }
    for fault in faults {
        println!("\n ! {fault}");
    }
}

fn close(
    summary: &Value,
    images: usize,
    faults: &[String],
    seconds: f64,
    (output, [accelerator, frontend]): (&Path, &[PathBuf; 2]),
) -> Result<()> {
    let line = "-".repeat(78);
    let number = |field: &str| summary[field].as_f64().unwrap_or(0.0);
    let name = summary["name"].as_str().unwrap_or_default();
    head(&line, "LoadGen", faults, seconds);
    println!(
        " SUT       {name}
           asked for over the wire in {:.0} us
 accuracy  {:.2} % over the wire, {:.2} % in one process",
        number("name_round_trip_us"),
        number("accuracy") * 100.0,
        number("accuracy_local") * 100.0
    );
    if !faults.iter().any(|fault| fault.starts_with("sample")) {
        println!("           the same bytes for each of {images} images");
    }
    println!(
        "\n {:<10} {:<12} {:>10} {:>12} {:>12} {:>12}   LoadGen",
        "scenario", "mode", "samples", "samples/s", "network p50", "network p99"
    );
    rows(summary, row, faults);
    let output = output.display();
    let (accelerator, frontend) = (accelerator.display(), frontend.display());
    println!(
        "
 {output}/summary.json              these figures; every stage's percentiles
 {output}/digits/<run>/report.html  the page of a run; beside it LoadGen's own logs and summary.json

 next: start the two programs by hand, in two terminals, with these configurations:
         {} --config {accelerator}
         {} --config {frontend} --scenario server --target-qps 4000
       change a line (connections, slots, max_batch, max_delay_us), run again, and compare;
       another demo replaces these files
{line}",
        session::sibling("accelerator")?.display(),
        session::sibling("frontend")?.display(),
    );
    Ok(())
}

fn row(run: &Value) -> String {
    let text = |field: &str| run[field].as_str().unwrap_or_default();
    let number = |field: &str| run[field].as_f64().unwrap_or(0.0);
    let network = |figure| match run["stages"]["network"][figure].as_f64() {
        Some(us) => format!("{us:.0} us"),
        None => "-".to_owned(),
    };
    let verdict = match (text("mode"), run["valid"].as_bool()) {
        ("performance", valid) => verdict(valid == Some(true)),
        _ => "-",
    };
    format!(
        " {:<10} {:<12} {:>10} {:>12.0} {:>12} {:>12}   {verdict}",
        text("scenario"),
        text("mode"),
        number("samples"),
        number("per_s"),
        network("p50_us"),
        network("p99_us")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn summary(accuracy_local: f64, name: &str) -> Value {
        json!({"accuracy": 0.975, "accuracy_local": accuracy_local, "name": name})
    }

    #[test]
    fn a_fault_names_its_reason_and_a_good_demo_has_none() {
        let (good, out) = (summary(0.975, "Network SUT a"), Path::new("out"));
        assert_eq!(faults(&good, None, out, &[("server", true)]), [""; 0]);
        let broken = "sample 3".to_owned();
        for (found, word) in [
            (faults(&good, Some(broken), out, &[]), "sample 3"),
            (
                faults(&summary(0.974, "Network SUT a"), None, out, &[]),
                "0.974",
            ),
            (faults(&summary(0.975, "a"), None, out, &[]), "Network SUT"),
            (faults(&good, None, out, &[("server", false)]), "server"),
        ] {
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(word), "{found:?}");
        }
    }

    #[test]
    fn a_row_shows_the_network_and_the_verdict() {
        let row = |mode: &str, valid: bool| {
            row(&json!({
                "scenario": "Server", "mode": mode, "valid": valid, "samples": 20_000,
                "per_s": 1999.6, "stages": {"network": {"p50_us": 41.2, "p99_us": 90.0}},
            }))
        };
        let valid = row("performance", true);
        assert!(
            valid.contains("41 us") && valid.ends_with(" VALID"),
            "{valid}"
        );
        assert!(row("performance", false).ends_with("INVALID"));
        assert!(row("accuracy", true).ends_with('-'));
    }
}
