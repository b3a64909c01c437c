//! `qdl tune`: finds the highest rate at which runs are VALID, and the settings for that rate.
//!
//! * `args` - the command line
//! * `child` - a trial: a run of `frontend`, and the run's summary
//! * `yaml` - the configuration of a trial
//! * `journal` - the trials on disk
//!
//! The crate `tune` decides which trial comes next.

mod args;
mod child;
mod journal;
mod yaml;

use std::{fs, io::Write, path::Path};

use anyhow::{Context, Result, bail};
use disk::FolderLock;
use frontend_config::FrontendFile;
use loadgen_bridge::Scenario;
use qdl::config::{NicConfig, Written};
use serde_json::json;
use tune::{Halt, Knob, RateKind, Session, SessionPlan};

pub use self::args::TuneArgs;
use self::{args::Knobs, child::Runner, journal::Journal, yaml::Yaml};
use frontend::{
    ExitCode, SERVER_QUERIES,
    interrupt::{self, Action},
};

/// Runs the command. With `quiet`, the result goes only to the folder of `--output`.
pub fn command(args: &TuneArgs, quiet: bool) -> ExitCode {
    tune(args, quiet).unwrap_or_else(|error| {
        eprintln!("error: {error:#}");
        ExitCode::Setup
    })
}

fn tune(args: &TuneArgs, quiet: bool) -> Result<ExitCode> {
    let config = FrontendFile::load(&args.config, None)?;
    let (kind, key) = kind(args, &config)?;
    let yaml = Yaml::read(&args.config)?;
    let plan = plan(args, kind, key, config.cluster.nics.first(), &yaml)?;
    let output = || format!("--output {}", args.output.display());
    let _lock = FolderLock::take(&args.output).with_context(output)?;
    // Leave the budget out: a session may continue with another budget.
    let mut same = plan.clone();
    same.budget_s = 0.0;
    let head = json!({
        "tune": env!("CARGO_PKG_VERSION"), "configuration": fs::read_to_string(&args.config)?,
        "passed_on": args.passed_on(), "plan": format!("{same:?}"),
        "program": args.program,
        "user_conf": args.user_conf.as_ref().map(fs::read_to_string).transpose()?,
    });
    *interrupt::hold() = Action::Note;
    let parent = args.config.parent().unwrap_or(Path::new(""));
    // The parent of a bare file name is the working directory.
    let base = Path::new(".").join(parent);
    let mut runner = Runner {
        args,
        kind,
        yaml: yaml.clone(),
        base,
        patience: config.cluster.deadlines.step(),
    };
    let path = args.output.join("journal.jsonl");
    let mut journal = Journal::open(&path, &head, &mut runner, plan.budget_s)?;
    let mut session = Session::new(plan);
    session.go(&mut journal);
    let diff = diff(args, key, &session, &yaml)?;
    let path = args.output.join("tune.html");
    let note = match args.local {
        true => "",
        false => {
            "An accelerator's keys (`engine.max_batch`, `engine.threads`) were not tried: change \
             one, start the accelerator again, and tune again; or use `--local`."
        }
    };
    let page = report::tuning(&session, &args.config.to_string_lossy(), &diff, note);
    disk::write(&path, page).with_context(|| path.display().to_string())?;
    let mut lines = vec![session.line()];
    lines.extend(session.limit());
    lines.extend(diff);
    lines.push(format!("page: {}", path.display()));
    if !quiet {
        let _ = writeln!(std::io::stdout(), "{}", lines.join("\n"));
    }
    Ok(match session.halt {
        Some(Halt::Unmeasured(_)) => ExitCode::Setup,
        Some(Halt::Interrupted) => ExitCode::Interrupted,
        Some(Halt::Budget) | None if session.confirmed().is_some() => ExitCode::Good,
        Some(Halt::Budget) | None => ExitCode::Invalid,
    })
}

/// The kind of rate to search, and the field of LoadGen's settings that holds the rate.
fn kind(args: &TuneArgs, config: &FrontendFile) -> Result<(RateKind, &'static str)> {
    match args.scenario.or(config.run.loadgen.scenario) {
        Some(Scenario::Server) => Ok((RateKind::Server, "server_target_qps")),
        Some(Scenario::Offline) => Ok((RateKind::Offline, "offline_expected_qps")),
        Some(other) => bail!(
            "{} has no rate, it measures a latency: give --scenario server or offline",
            other.name()
        ),
        None => bail!("--scenario, or loadgen.scenario of the configuration, is missing"),
    }
}

fn plan(
    args: &TuneArgs,
    kind: RateKind,
    key: &str,
    nic: Option<&NicConfig>,
    yaml: &Yaml,
) -> Result<SessionPlan> {
    for value in [args.seconds, args.within, args.budget_min] {
        if !(value > 0.0 && value < 1e6) {
            bail!("--seconds, --within or --budget-min is {value}: it must be a number above 0");
        }
    }
    let (default, samples) = match kind {
        RateKind::Server => (100.0, SERVER_QUERIES),
        RateKind::Offline => (1000.0, 1),
    };
    let written = yaml.get(&format!("loadgen.settings.{key}"));
    let first = args.from.or(written.and_then(|w| w.parse().ok()));
    let first: f64 = first.unwrap_or(default);
    let least = args.least.unwrap_or(first / 1000.0).max(1e-3);
    let most = args.most.unwrap_or(first * 1e6);
    if !(least <= first && first <= most) {
        bail!("--from {first}: it is not between --least {least} and --most {most}");
    }
    let full = args.full_s.unwrap_or(10.0 * args.seconds);
    Ok(SessionPlan {
        kind,
        first,
        least,
        most,
        near: 1.0 + args.within / 100.0,
        seconds: args.seconds,
        samples: args.samples.unwrap_or(samples),
        full_seconds: (full > 0.0).then_some(full),
        budget_s: args.budget_min * 60.0,
        seed: args.seed,
        knobs: knobs(args, nic, yaml)?,
    })
}

/// A key of the built-in list, the key's default, and the values to try.
type Candidate = (String, String, String);

fn candidate(key: &str, default: &str, values: &str) -> Candidate {
    (key.to_owned(), default.to_owned(), values.to_owned())
}

/// The number of connections, by the key and with the usual number of the NIC's fabric.
fn connections(nic: &NicConfig) -> Candidate {
    let (facts, mut fabric) = (nic.facts(), nic.fabric.clone());
    let (key, usual) = (facts.connections_key, facts.connections_usual);
    let values = format!("1,{usual},{}", 2 * usual);
    match fabric.connections_mut() {
        Some(_) => candidate(&format!("nics[].{key}"), "auto", &format!("auto,{values}")),
        None => candidate(&format!("nics[].{key}"), &usual.to_string(), &values),
    }
}

fn knobs(args: &TuneArgs, nic: Option<&NicConfig>, yaml: &Yaml) -> Result<Vec<Knob>> {
    let built_in: Vec<Candidate> = match (args.knobs, args.local) {
        (Knobs::None, _) => return Ok(Vec::new()),
        (Knobs::Listed, _) => Vec::new(),
        // The engine runs in this process.
        (Knobs::Auto, true) => vec![candidate("engine.max_batch", "1", "1,8,32,128")],
        (Knobs::Auto, false) => [candidate("nics[].slots", "auto", "auto,32,128,512")]
            .into_iter()
            .chain(nic.map(connections))
            .chain([candidate("nic_threads", "auto", "auto,1,2,4")])
            .collect(),
    };
    for (key, _) in &args.knob {
        // Check that the file has a place for the key.
        let set = yaml.clone().set(key, "0");
        set.with_context(|| format!("--knob {key}"))?;
    }
    let listed = args.knob.iter();
    let listed = listed.map(|(key, values)| candidate(key, "default", values));
    let other = |c: &Candidate| args.knob.iter().all(|(key, _)| *key != c.0);
    let all = built_in.into_iter().filter(other).chain(listed);
    Ok(all
        .map(|(key, default, values)| Knob {
            now: yaml.get(&key).unwrap_or(default),
            key,
            values: values.split(',').map(|v| v.trim().to_owned()).collect(),
        })
        .collect())
}

/// Writes `tuned.yaml`, if the rate is confirmed. Returns the change to the configuration, line by
/// line.
fn diff(args: &TuneArgs, key: &str, session: &Session, yaml: &Yaml) -> Result<Vec<String>> {
    let tuned_yaml = args.output.join("tuned.yaml");
    let Some(rate) = session.confirmed() else {
        // Ignore the error: a session with a smaller budget need not have written the file.
        let _ = fs::remove_file(tuned_yaml);
        return Ok(Vec::new());
    };
    let written = Written::read(&args.config)?;
    let mut changes = session.changed();
    changes.insert(format!("loadgen.settings.{key}"), rate.to_string());
    let (mut diff, mut tuned) = (Vec::new(), yaml.clone());
    for (key, value) in &changes {
        tuned.set(key, value)?;
        let before = yaml.get(key);
        if before.as_ref() == Some(value) {
            continue;
        }
        if let Some(before) = before {
            let line = written.line(&key.replace("[]", "[0]"));
            let line = line.map_or(String::new(), |line| format!("   # line {line}"));
            diff.push(format!("- {key}: {before}{line}"));
        }
        diff.push(format!("+ {key}: {value}"));
    }
    tuned.write(&tuned_yaml)?;
    Ok(diff)
}
