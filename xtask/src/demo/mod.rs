//! `cargo xtask demo`: runs LoadGen over a network, from nothing to a screen of results.
//!
//! Two processes communicate by TCP on loopback. One accelerator serves all frontends. The frontend
//! runs five or six times, one process for each LoadGen run, each with a folder under
//! `target/demo`. The accuracy runs, over the network and with `--local`, must give the same bytes
//! for each sample.

mod accuracy;
pub mod llm;
pub mod programs;
mod summary;

use std::path::{Path, PathBuf};
use std::time::Instant;

use anyhow::{Context, Result};

use self::programs::Demo;
use self::summary::{Figures, Run, Summary};

const FOLDER: &str = "target/demo";
const ACCELERATOR_CONFIG: &str = "configs/demo/accelerator.yaml";
const FRONTEND_CONFIG: &str = "configs/demo/frontend.yaml";

/// Every image once.
const ACCURACY: &str = "--scenario offline --mode accuracy";
const SERVER: &str = "--scenario server --mode performance --target-qps 2000 --duration-s 10";
/// Measures this machine's rate: LoadGen generates all samples of an Offline run in advance, and
/// needs the expected rate.
const PROBE: &str = "--scenario offline --mode performance --samples 300000 --set min_duration=0 \
                     --quiet";
const OFFLINE: &str = "--scenario offline --mode performance --duration-s 10";

/// An Offline run must last 10 s to be valid, so the expected rate exceeds the measured one.
const HEADROOM: [f64; 2] = [1.3, 2.0];

/// The result of a run.
struct Ran {
    valid: bool,
    run: Run,
    folder: PathBuf,
}

/// Sets up, builds, runs, and compares the runs. Exit code 0 if nothing is wrong.
pub fn run(root: &Path) -> Result<i32> {
    let began = Instant::now();
    let configs = [ACCELERATOR_CONFIG, FRONTEND_CONFIG];
    let mut demo = Demo::start(root, FOLDER, "serves the digits model", configs)?;
    let mut one = |name: &str, about: &str, arguments: &str| -> Result<Ran> {
        let (folder, valid) = demo.run(name, about, arguments)?;
        let run = summary::read(&folder)?;
        Ok(Ran { valid, run, folder })
    };
    let wire = one("accuracy", "every image once, over the wire", ACCURACY)?;
    let about = "the same in one process, with no network";
    let local = one("accuracy-local", about, &format!("{ACCURACY} --local"))?;
    let server = one("server", "queries at random moments, 10 s", SERVER)?;
    let about = "300,000 samples, to see how many make 10 s";
    let mut rate = one("offline-probe", about, PROBE)?.run.figures.per_s;
    let mut offline = None;
    for headroom in HEADROOM {
        let arguments = format!("{OFFLINE} --target-qps {:.0}", rate * headroom);
        let about = "all samples at once, at least 10 s of them";
        let ran = one("offline", about, &arguments)?;
        rate = rate.max(ran.run.figures.per_s);
        let valid = ran.valid;
        offline = Some(ran);
        if valid {
            break;
        }
    }
    let offline = offline.context("no Offline run")?;
    let programs = demo.programs().to_owned();
    drop(demo);

    let answers = accuracy::read(&wire.folder)?;
    let difference = accuracy::difference(&answers, &accuracy::read(&local.folder)?);
    let summary = Summary {
        accuracy: wire
            .run
            .accuracy
            .context("the accuracy run over the wire has no accuracy")?,
        accuracy_local: local
            .run
            .accuracy
            .context("the accuracy run with --local has no accuracy")?,
        name: wire.run.sut_name.clone(),
        name_round_trip_us: wire
            .run
            .name_round_trip_us
            .context("the run over the wire has no name_round_trip_us")?,
        runs: [&wire, &server, &offline]
            .map(|ran| ran.run.figures.clone())
            .into(),
    };
    summary::write(&root.join(FOLDER), &summary)?;
    let faults = faults(
        &summary,
        difference,
        &[("server", &server), ("offline", &offline)],
    );
    close(
        &summary,
        answers.len(),
        &faults,
        began.elapsed().as_secs_f64(),
        programs.strip_prefix(root).unwrap_or(&programs),
    );
    Ok(i32::from(!faults.is_empty()))
}

/// A fault if the accuracy over the network differs from that in one process.
fn other_accuracy(wire: f64, local: f64) -> Option<String> {
    let text = || format!("accuracy {wire} over the wire, {local} with --local");
    (wire != local).then(text)
}

/// All faults of the runs.
fn faults(
    summary: &Summary,
    difference: Option<String>,
    performance: &[(&str, &Ran)],
) -> Vec<String> {
    let accuracy = other_accuracy(summary.accuracy, summary.accuracy_local);
    let mut faults: Vec<String> = difference.into_iter().chain(accuracy).collect();
    if !summary.name.contains("Network SUT") {
        faults.push(format!(
            "the name \"{}\" does not hold \"Network SUT\"",
            summary.name
        ));
    }
    for (name, ran) in performance {
        if !ran.valid || ran.run.figures.valid != Some(true) {
            faults.push(format!("{name}: LoadGen found the run invalid; see target/demo/{name}/mlperf_log_summary.txt"));
        }
    }
    faults
}

/// Prints the closing screen.
fn close(summary: &Summary, images: usize, faults: &[String], seconds: f64, programs: &Path) {
    let (line, programs) = ("-".repeat(78), programs.display());
    println!("\n{line}");
    println!(
        " LoadGen over a wire: {} in {seconds:.0} s",
        if faults.is_empty() {
            "all well"
        } else {
            "NOT as it should be"
        }
    );
    println!("{line}");
    println!(" SUT       {}", summary.name);
    println!(
        "           asked for over the wire in {:.0} us",
        summary.name_round_trip_us
    );
    println!(
        " accuracy  {:.2} % over the wire, {:.2} % in one process",
        summary.accuracy * 100.0,
        summary.accuracy_local * 100.0
    );
    if !faults.iter().any(|fault| fault.starts_with("sample")) {
        println!("           the same bytes for each of {images} images");
    }
    println!(
        "\n {:<10} {:<12} {:>10} {:>12} {:>12} {:>12}   LoadGen",
        "scenario", "mode", "samples", "samples/s", "network p50", "network p99"
    );
    for run in &summary.runs {
        println!("{}", row(run));
    }
    for fault in faults {
        println!("\n ! {fault}");
    }
    println!("\n target/demo/summary.json      these figures; every stage's percentiles");
    println!(" target/demo/<run>/            LoadGen's own logs, summary.json, histograms");
    println!("\n next: change a line in {FRONTEND_CONFIG} or {ACCELERATOR_CONFIG}");
    println!(
        "       (connections, slots, max_batch, max_delay_us), run `cargo xtask demo` again, and compare;"
    );
    println!("       or start the two programs by hand, in two terminals:");
    println!("         {programs}/accelerator --config {ACCELERATOR_CONFIG}");
    println!(
        "         {programs}/frontend --config {FRONTEND_CONFIG} --scenario server --target-qps 4000"
    );
    println!("       figures that are to count want `cargo build --release`, which takes longer");
    println!("{line}");
}

/// A run as a row of the table.
fn row(run: &Figures) -> String {
    let network = |figure| match run.stage("network", figure) {
        Some(us) => format!("{us:.0} us"),
        None => "-".to_owned(),
    };
    let verdict = match (run.mode.as_str(), run.valid) {
        ("performance", Some(true)) => "VALID",
        ("performance", _) => "INVALID",
        _ => "-",
    };
    format!(
        " {:<10} {:<12} {:>10} {:>12.0} {:>12} {:>12}   {verdict}",
        run.scenario,
        run.mode,
        run.samples,
        run.per_s,
        network("p50_us"),
        network("p99_us")
    )
}

#[cfg(test)]
mod tests {
    use super::*;

    fn run(mode: &str, valid: bool) -> Ran {
        let stages = serde_json::json!({"network": {"p50_us": 41.2, "p99_us": 90.0}});
        let figures = Figures {
            scenario: "Server".to_owned(),
            mode: mode.to_owned(),
            fabric: "tcp".to_owned(),
            valid: (mode == "performance").then_some(valid),
            samples: 20_000,
            per_s: 1999.6,
            target_qps: Some(2000.0),
            stages: stages.as_object().unwrap().clone(),
        };
        let run = Run {
            sut_name: String::new(),
            name_round_trip_us: None,
            accuracy: None,
            figures,
        };
        Ran {
            valid,
            run,
            folder: PathBuf::new(),
        }
    }

    fn summary(accuracy_local: f64, name: &str) -> Summary {
        let (accuracy, name) = (0.975, name.to_owned());
        Summary {
            accuracy,
            accuracy_local,
            name,
            name_round_trip_us: 100.0,
            runs: Vec::new(),
        }
    }

    #[test]
    fn nothing_is_wrong_with_a_good_demo() {
        let found = faults(
            &summary(0.975, "Network SUT a"),
            None,
            &[("server", &run("performance", true))],
        );
        assert_eq!(found, Vec::<String>::new());
    }

    #[test]
    fn each_thing_that_can_be_wrong_is_named() {
        let one = |found: Vec<String>, word: &str| {
            assert_eq!(found.len(), 1, "{found:?}");
            assert!(found[0].contains(word), "{found:?}");
        };
        let good = summary(0.975, "Network SUT a");
        one(faults(&good, Some("sample 3".to_owned()), &[]), "sample 3");
        one(faults(&summary(0.974, "Network SUT a"), None, &[]), "0.974");
        one(faults(&summary(0.975, "a"), None, &[]), "Network SUT");
        one(
            faults(&good, None, &[("server", &run("performance", false))]),
            "server",
        );
    }

    #[test]
    fn a_row_shows_the_network_and_the_verdict() {
        let valid = row(&run("performance", true).run.figures);
        assert!(
            valid.contains("41 us") && valid.ends_with(" VALID"),
            "{valid}"
        );
        assert!(row(&run("performance", false).run.figures).ends_with("INVALID"));
        assert!(row(&run("accuracy", true).run.figures).ends_with('-'));
    }
}
