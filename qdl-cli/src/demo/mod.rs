//! `qdl demo`: runs LoadGen over a network, and compares the answers with those of one process.
//!
//! Two processes communicate by TCP on loopback. One accelerator serves all frontends. The frontend
//! runs four to six times, one process for each LoadGen run, each with a folder of its own. The
//! accuracy runs, over the network and with `--local`, must give the same bytes for each sample.
//! With `--gateway`, OpenAI's API takes LoadGen's place.

mod accuracy;
mod gateway;
mod session;

use std::{
    path::{Path, PathBuf},
    process::Command,
    time::{Duration, Instant},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use disk::FolderLock;
use launch::{read_json, run_quietly};
use serde_json::Value;

use self::session::{DemoFiles, Session, sibling};

/// Runs handwritten digits over TCP on loopback: accuracy compared with --local, then Server and
/// Offline.
#[derive(Clone, Debug, Parser)]
pub struct DemoArgs {
    /// Run a small language model instead of the digits
    #[arg(long)]
    llm: bool,
    /// Ask a small language model in text, through a gateway with OpenAI's API, and show the answer
    /// as it comes
    #[arg(long, conflicts_with = "llm")]
    gateway: bool,
    /// Folder for the runs; those of an earlier demo are replaced
    #[arg(short, long, value_name = "DIR", default_value = "qdl-demo")]
    output: PathBuf,
}

/// Runs the demo. Returns exit code 0 if all is well, 1 if a run or a comparison is not, else 2.
pub fn command(args: &DemoArgs) -> i32 {
    let lock = FolderLock::take(&args.output);
    let lock = lock.with_context(|| format!("--output {}", args.output.display()));
    let code = lock.and_then(|_lock| match (args.llm, args.gateway) {
        (true, _) => language_model(&args.output),
        (_, true) => gateway::command(&args.output),
        _ => digits(&args.output),
    });
    code.unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        2
    })
}

/// Every sample once.
const ACCURACY: &str = "--scenario offline --mode accuracy";

/// Runs the digits. Returns exit code 0 without faults, else 1.
fn digits(output: &Path) -> Result<i32> {
    let files = DemoFiles::find(
        ".deps/models/digits.onnx",
        "run `cargo xtask demo` in a checkout",
    )?;
    let configs = [
        "configs/demo/accelerator.yaml",
        "configs/demo/frontend.yaml",
    ];
    let mut demo = Demo::start(output.join("digits"), "the digits model", &files, configs)?;
    demo.compare()?;
    let server = "--scenario server --mode performance --target-qps 2000 --duration-s 10";
    demo.run("server", "queries at random moments, 10 s", server)?;
    // LoadGen generates all samples of an Offline run in advance, from the expected rate.
    let probe = "--scenario offline --mode performance --samples 300000 --set min_duration=0 \
                 --quiet";
    let about = "300,000 samples, to see how many make 10 s";
    let rate = demo.run("offline-probe", about, probe)?;
    let offline = "--scenario offline --mode performance --duration-s 10";
    let about = "all samples at once, at least 10 s of them";
    demo.run_at(("offline", about, offline), rate, [1.3, 2.0])?;
    Ok(demo.close())
}

const QUESTIONS: &str = "models/capitals.py";
const SCORING: Duration = Duration::from_secs(120);

/// Runs a small language model with `use_token_latencies`. Returns exit code 0 without faults, else
/// 1.
fn language_model(output: &Path) -> Result<i32> {
    let install = "`pip install 'qdl[llm]'`, or run `cargo xtask demo --llm` in a checkout";
    let files = DemoFiles::find(".deps/models/smollm2-q8.onnx", install)?;
    let configs = ["configs/llm/accelerator.yaml", "configs/llm/frontend.yaml"];
    let model = "SmolLM2-135M-Instruct, 8-bit weights";
    let mut demo = Demo::start(output.join("llm"), model, &files, configs)?;
    demo.compare()?;
    let share = score(&files, &demo.folder.join("accuracy"))?;
    println!("\n{:.1} % of the capitals were named", 100.0 * share);
    // Random answers name 1 of 100 capitals; the exported model names 36.
    if share < 0.3 {
        demo.faults
            .push("the model is broken: it names too few capitals".to_owned());
    }
    let offline = "--scenario offline --mode performance --samples 248 --set min_duration=0";
    let rate = demo.run("offline", "all questions at once", offline)?;
    let server = "--scenario server --mode performance";
    let about = "questions at random moments, first tokens at once";
    demo.run_at(("server", about, server), rate, [0.4, 0.2])?;
    Ok(demo.close())
}

/// The share of right answers in a run's accuracy log, by the script [`QUESTIONS`].
fn score(files: &DemoFiles, folder: &Path) -> Result<f64> {
    let log = folder.join(loadgen_log::ACCURACY);
    // An installation by pip has its Python beside the programs.
    let beside = sibling("python3")?;
    let python = match beside.is_file() {
        true => beside.as_path(),
        false => Path::new("python3"),
    };
    let mut command = Command::new(python);
    command.arg(files.path(QUESTIONS)?).arg("score").arg(&log);
    command.arg(files.path(".deps/models")?);
    command.env("PYTHONDONTWRITEBYTECODE", "1");
    let wrote = run_quietly(QUESTIONS, &mut command, SCORING)?;
    let Some(line) = wrote.lines().rfind(|line| line.starts_with('{')) else {
        bail!("{QUESTIONS}: no score for {}", log.display());
    };
    let score: Value =
        serde_json::from_str(line).with_context(|| format!("{QUESTIONS}: {line}"))?;
    let number = |key: &str| score[key].as_f64();
    let (right, answers) = number("right").zip(number("answers")).context(QUESTIONS)?;
    Ok(right / answers.max(1.0))
}

struct Demo {
    began: Instant,
    folder: PathBuf,
    session: Session,
    /// Each run's name, and whether LoadGen found it valid.
    runs: Vec<(String, bool)>,
    faults: Vec<String>,
}

impl Demo {
    fn start(folder: PathBuf, serves: &str, files: &DemoFiles, from: [&str; 2]) -> Result<Self> {
        Ok(Demo {
            began: Instant::now(),
            session: Session::start(&folder, serves, files, from)?,
            folder,
            runs: Vec::new(),
            faults: Vec::new(),
        })
    }

    /// Compares the answers over the network with those in one process.
    fn compare(&mut self) -> Result<()> {
        let about = "every sample once, over the wire";
        let (wire, _) = self.session.run("accuracy", about, ACCURACY)?;
        let about = "the same in one process, with no network";
        let local = format!("{ACCURACY} --local");
        let (local, _) = self.session.run("accuracy-local", about, &local)?;
        let (wire, local) = (accuracy::read(&wire)?, accuracy::read(&local)?);
        match accuracy::difference(&wire, &local) {
            None => println!("\nthe same bytes for each of {} samples", wire.len()),
            Some(difference) => self.faults.push(difference),
        }
        Ok(())
    }

    /// Runs the frontend once; returns samples per second.
    fn run(&mut self, name: &str, about: &str, arguments: &str) -> Result<f64> {
        let (folder, valid) = self.session.run(name, about, arguments)?;
        self.runs.retain(|(known, _)| known != name);
        self.runs.push((name.to_owned(), valid));
        let summary = read_json(&folder.join("summary.json"))?;
        let rate = summary["per_s"].as_f64();
        rate.with_context(|| format!("{}/summary.json: no per_s", folder.display()))
    }

    /// Runs at a share of `rate`: the second share if the run is not VALID with the first.
    fn run_at(
        &mut self,
        (name, about, arguments): (&str, &str, &str),
        mut rate: f64,
        shares: [f64; 2],
    ) -> Result<()> {
        for share in shares {
            let arguments = format!("{arguments} --target-qps {:.2}", rate * share);
            rate = rate.max(self.run(name, about, &arguments)?);
            if self.runs.last().is_some_and(|(_, valid)| *valid) {
                break;
            }
        }
        Ok(())
    }

    /// Prints the verdicts, and what to do next. Returns exit code 0 without faults, else 1.
    fn close(mut self) -> i32 {
        for (name, _) in self.runs.iter().filter(|(_, valid)| !valid) {
            let log = self.folder.join(name).join("mlperf_log_summary.txt");
            let fault = format!(
                "{name}: LoadGen found the run invalid; see {}",
                log.display()
            );
            self.faults.push(fault);
        }
        let line = "-".repeat(78);
        let well = match self.faults.is_empty() {
            true => "all well",
            false => "NOT as it should be",
        };
        let seconds = self.began.elapsed().as_secs();
        println!("\n{line}\n LoadGen over a wire: {well} in {seconds} s\n{line}");
        for (name, valid) in &self.runs {
            let word = if *valid { "VALID" } else { "INVALID" };
            let page = self.folder.join(name).join("report.html");
            println!(" {name:14} {word:8} {}", page.display());
        }
        for fault in &self.faults {
            println!("\n ! {fault}");
        }
        let [accelerator, frontend] = &self.session.configs;
        println!(
            "
 next: start both programs by hand, in two terminals, with these configurations:
         accelerator --config {}
         frontend --config {} --scenario server
       change a line (connections, slots, max_batch, max_delay_us), run again, and compare the
       runs with `qdl report`; another demo replaces these files
{line}",
            accelerator.display(),
            frontend.display(),
        );
        i32::from(!self.faults.is_empty())
    }
}
