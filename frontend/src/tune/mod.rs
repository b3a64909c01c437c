//! `frontend tune`: the highest rate that is VALID, and the knobs for it.
//!
//! * `args` - its command line
//! * `child` - a trial: a run of this same program, and its summary read
//! * `yaml` - the configuration of a trial
//! * `journal` - the trials on disk, so that a session can go on
//!
//! What is tried next and what is believed of it is the crate `tune`'s, which runs nothing itself.

mod args;
mod child;
mod journal;
mod yaml;

use std::{
    fs,
    io::Write,
    path::{Path, PathBuf},
};

use anyhow::{Context, Result, bail};
use clap::Parser;
use qdl::config::{self, Written};
use serde_json::json;
use tune::{
    Halt, Plan, Replay, Session, Tell, Trial,
    knobs::Knob,
    page::{self, Around},
    search::Goal,
};

use self::{
    args::{Knobs, TuneArgs},
    child::Runner,
    journal::Journal,
    yaml::Yaml,
};
use crate::{cli::Scenario, exit::ExitCode, interrupt};

/// Runs the command, where the command line is one of it.
pub fn command() -> Option<ExitCode> {
    let mut words = std::env::args_os().skip(1);
    if words.next()? != "tune" {
        return None;
    }
    let args = TuneArgs::parse_from(std::iter::once("frontend tune".into()).chain(words));
    Some(tune(&args).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::Setup
    }))
}

fn tune(args: &TuneArgs) -> Result<ExitCode> {
    let config = config::load_frontend(&args.config)?;
    let scenario = match (args.scenario, config.loadgen.scenario) {
        (Some(scenario), _) => scenario,
        (None, Some(scenario)) => of_config(scenario),
        (None, None) => bail!("--scenario, or loadgen.scenario of the configuration, is missing"),
    };
    let yaml = Yaml::read(&args.config)?;
    let mut plan = plan(args, scenario, &yaml)?;
    plan.knobs = knobs(args, &yaml, config.nics.iter().any(|n| n.device.is_some()))?;
    fs::create_dir_all(&args.session).with_context(|| args.session.display().to_string())?;
    let text = fs::read_to_string(&args.config)?;
    // The budget may be another when a session goes on; that of knobs says when they were left.
    let budget = (!plan.knobs.is_empty()).then_some(args.budget_min);
    let head = json!({
        "tune": env!("CARGO_PKG_VERSION"), "configuration": text, "passed_on": args.passed_on(),
        "scenario": format!("{scenario:?}"), "bound_ms": args.bound_ms, "seed": args.seed,
        "seconds": args.seconds, "samples": args.samples, "goal": format!("{:?}", plan.goal),
        "knobs": format!("{:?}", plan.knobs), "budget_min": budget,
    });
    let (journal, past) = Journal::open(&args.session.join("journal.jsonl"), &head)?;
    interrupt::listen();
    let parent = args.config.parent().unwrap_or(Path::new(""));
    let mut runner = Runner {
        args,
        scenario,
        yaml: yaml.clone(),
        // The folder of a bare name is this one.
        base: Path::new(".").join(parent),
    };
    let known = past.len();
    if known > 0 {
        eprintln!(
            "going on behind {known} trials of {}",
            args.session.display()
        );
    }
    let mut screen = Screen {
        journal,
        known,
        spent_s: 0.0,
        budget_s: plan.budget_s,
        failed: None,
    };
    let mut session = Session::new(plan);
    session.go(&mut Replay::new(past, &mut runner), &mut screen);
    let around = around(args, scenario, &session, &yaml)?;
    let pages = [
        ("tune.md", page::markdown(&session, &around)),
        ("tune.html", page::html(&session, &around)),
    ];
    for (name, text) in pages {
        let path = args.session.join(name);
        fs::write(&path, text).with_context(|| path.display().to_string())?;
    }
    let _ = writeln!(
        std::io::stdout(),
        "{}\n{}page: {}",
        session.line(),
        around
            .diff
            .iter()
            .map(|l| format!("{l}\n"))
            .collect::<String>(),
        args.session.join("tune.html").display()
    );
    if let Some(error) = screen.failed {
        return Err(error).context("the journal");
    }
    Ok(code(&session))
}

/// How the process ends.
fn code(session: &Session) -> ExitCode {
    match (&session.halt, &session.confirmed) {
        (Some(Halt::Unmeasured(_)), _) => ExitCode::Setup,
        (Some(Halt::Interrupted), _) => ExitCode::Interrupted,
        (_, Some(full)) if !full.valid => ExitCode::Invalid,
        _ if session.search.certified.is_none() => ExitCode::Invalid,
        _ => ExitCode::Good,
    }
}

fn of_config(scenario: config::Scenario) -> Scenario {
    match scenario {
        config::Scenario::SingleStream => Scenario::SingleStream,
        config::Scenario::MultiStream => Scenario::MultiStream,
        config::Scenario::Server => Scenario::Server,
        config::Scenario::Offline => Scenario::Offline,
    }
}

fn plan(args: &TuneArgs, scenario: Scenario, yaml: &Yaml) -> Result<Plan> {
    let (key, default, unit) = match scenario {
        Scenario::Server => ("server_target_qps", 100.0, "queries/s"),
        Scenario::Offline => ("offline_expected_qps", 1000.0, "samples/s to expect"),
        Scenario::MultiStream => ("multi_stream_samples_per_query", 8.0, "samples/query"),
        Scenario::SingleStream => {
            bail!("SingleStream has no rate to search for: it measures a latency")
        }
    };
    if scenario == Scenario::MultiStream && args.bound_ms.is_none() {
        bail!("LoadGen has no bound on MultiStream's latency: give one with --bound-ms");
    }
    for (flag, value) in [
        ("--seconds", args.seconds),
        ("--within", args.within),
        ("--budget-min", args.budget_min),
    ] {
        if !(value > 0.0 && value < 1e6) {
            bail!("{flag} {value}: a number above 0 is wanted");
        }
    }
    let written = yaml.get(&format!("loadgen.settings.{key}"));
    let first = args.from.or(written.and_then(|w| w.parse().ok()));
    let first: f64 = first.unwrap_or(default);
    let whole = scenario == Scenario::MultiStream;
    let floor = if whole { 1.0 } else { 1e-3 };
    let least = args.least.unwrap_or(first / 1000.0).max(floor);
    let most = args.most.unwrap_or(first * 1000.0);
    if !(least <= first && first <= most) {
        bail!("--from {first}: it is not between --least {least} and --most {most}");
    }
    let full = args.full_s.unwrap_or(10.0 * args.seconds);
    Ok(Plan {
        goal: Goal {
            least,
            most,
            whole,
            falling: scenario == Scenario::Offline,
            precision: args.within / 100.0,
            ..Goal::from(first)
        },
        seconds: args.seconds,
        full_seconds: (full > 0.0).then_some(full),
        budget_s: args.budget_min * 60.0,
        seed: args.seed,
        knobs: Vec::new(),
        unit: unit.to_owned(),
    })
}

/// A key, what it is where nothing is written, and what else it may be.
type Candidate = (&'static str, &'static str, &'static [&'static str]);

/// Knobs of this node.
const OWN: &[Candidate] = &[
    ("nics[].slots", "auto", &["auto", "32", "128", "512"]),
    ("nics[].completion.mode", "adaptive", &["adaptive", "event"]),
    ("nics[].completion.spin_us", "50", &["0", "50", "200"]),
    (
        "arbiter",
        "least_outstanding",
        &["least_outstanding", "round_robin"],
    ),
];
/// Those of a NIC without `device`, and with.
const TCP: Candidate = ("nics[].connections", "auto", &["auto", "1", "2", "4"]);
const IB: Candidate = ("nics[].queue_pairs", "4", &["1", "4", "8"]);
/// Knobs of an engine in this process. Its `threads` cost memory and GPUs: they are for --knob.
const LOCAL: &[Candidate] = &[
    ("engine.max_batch", "1", &["1", "8", "32", "128"]),
    ("engine.max_delay_us", "0", &["0", "200", "1000"]),
];

fn knobs(args: &TuneArgs, yaml: &Yaml, device: bool) -> Result<Vec<Knob>> {
    let mut knobs = Vec::new();
    let mut add = |key: &str, default: &str, values: Vec<String>| {
        let now = yaml.get(key).unwrap_or_else(|| default.to_owned());
        knobs.push(Knob {
            key: key.to_owned(),
            now,
            values,
        });
    };
    if args.knobs == Knobs::Auto {
        let list: Vec<&Candidate> = if args.local {
            LOCAL.iter().collect()
        } else {
            OWN.iter()
                .chain([if device { &IB } else { &TCP }])
                .collect()
        };
        for (key, default, values) in list {
            if !args.knob.iter().any(|(k, _)| k == key) {
                add(
                    key,
                    default,
                    values.iter().map(|v| (*v).to_owned()).collect(),
                );
            }
        }
    }
    if args.knobs != Knobs::None {
        for (key, values) in &args.knob {
            // Whatever stands there must be a place in the file.
            yaml.clone()
                .set(key, "0")
                .with_context(|| format!("--knob {key}"))?;
            add(
                key,
                "default",
                values.split(',').map(|v| v.trim().to_owned()).collect(),
            );
        }
    }
    Ok(knobs)
}

/// What the page says beside the session.
fn around(args: &TuneArgs, scenario: Scenario, session: &Session, yaml: &Yaml) -> Result<Around> {
    let written = Written::read(&args.config)?;
    let name = args
        .config
        .file_name()
        .unwrap_or_default()
        .to_string_lossy();
    let mut changes: Vec<(String, String)> = session.chosen.clone().into_iter().collect();
    if let Some(rate) = session.search.certified {
        let key = match scenario {
            Scenario::Offline => "offline_expected_qps",
            Scenario::MultiStream => "multi_stream_samples_per_query",
            Scenario::Server | Scenario::SingleStream => "server_target_qps",
        };
        changes.push((format!("loadgen.settings.{key}"), rate.to_string()));
    }
    let (mut diff, mut tuned) = (Vec::new(), yaml.clone());
    for (key, value) in &changes {
        tuned.set(key, value)?;
        let before = yaml.get(key);
        if before.as_deref() == Some(value) {
            continue;
        }
        if let Some(before) = before {
            let at = key.replace("[]", "[0]");
            let line = written
                .line(&at)
                .map_or(String::new(), |l| format!("   # line {l}"));
            diff.push(format!("- {key}: {before}{line}"));
        }
        diff.push(format!("+ {key}: {value}"));
    }
    if !diff.is_empty() {
        diff.insert(0, format!("--- {name}"));
        let file: PathBuf = args.session.join("tuned.yaml");
        tuned.write(&file)?;
    }
    let advice = if args.local {
        Vec::new()
    } else {
        vec![
            "The accelerators' own knobs (engine.max_batch, engine.max_delay_us, engine.threads, nics[].cpus) were left: \
             accelerators kept running. Where the line above names one of them, turn it there, start the accelerator \
             anew and tune again; with --local they are compared here."
                .to_owned(),
        ]
    };
    let what = match scenario {
        Scenario::Server | Scenario::SingleStream => {
            "The highest rate of queries at which nine Server runs in ten are VALID.".to_owned()
        }
        Scenario::MultiStream => format!(
            "The most samples in a query of MultiStream whose 99th percentile is within {} ms.",
            args.bound_ms.unwrap_or_default()
        ),
        Scenario::Offline => {
            "The lowest rate to expect at which nine Offline runs in ten are long enough."
                .to_owned()
        }
    };
    Ok(Around {
        config: name.into_owned(),
        what,
        diff,
        advice,
    })
}

/// A line for each trial, and the journal.
struct Screen {
    journal: Journal,
    /// Trials that are in the journal already.
    known: usize,
    spent_s: f64,
    budget_s: f64,
    failed: Option<anyhow::Error>,
}

impl Tell for Screen {
    fn trial(&mut self, trial: &Trial, believes: &str) {
        self.spent_s += trial.record.cost_s;
        if trial.number <= self.known {
            return;
        }
        if let Err(error) = self.journal.add(trial) {
            self.failed.get_or_insert(error);
        }
        let binds = trial.record.binds().map_or(String::new(), |l| {
            format!(
                "{} {:.0} % of its bound",
                l.name,
                100.0 * l.log_margin().exp()
            )
        });
        let word = if trial.record.valid {
            "VALID"
        } else {
            "INVALID"
        };
        let minutes = |s: f64| format!("{}:{:02}", (s / 60.0) as u64, (s % 60.0) as u64);
        eprintln!(
            "trial {:3}  {:7}  {:>10}  {word:7}  {binds:36}  believes: {believes}  [{} of {}]",
            trial.number,
            trial.why.word(),
            trial.setting.rate,
            minutes(self.spent_s),
            minutes(self.budget_s)
        );
    }

    fn note(&mut self, text: &str) {
        eprintln!("{text}");
    }
}
