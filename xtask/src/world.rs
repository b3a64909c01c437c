//! `cargo xtask world`: runs the world, as it is or with a planted fault, or processes.
//!
//! A planted fault is a few lines of `world/planted.txt`. They change a copy of the sources in
//! `target/world`, which is built there, and the world has to find the fault.

use std::fs;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail, ensure};

use crate::cargo;

const BUILD: Duration = Duration::from_secs(3600);
const RUN: Duration = Duration::from_secs(24 * 3600);

/// Folders of `qdl/src` whose coverage is reported.
const COVERED: [&str; 5] = [
    "dispatch",
    "serve",
    "connection",
    "run/life",
    "control/core",
];

/// Exit code of the program `world` for a broken invariant.
const BROKEN: i32 = 1;

#[derive(clap::Args)]
pub struct Args {
    /// First seed.
    #[arg(long, default_value_t = 0)]
    seed: u64,
    /// Seeds to try.
    #[arg(long, default_value_t = 10_000)]
    schedules: u64,
    /// Print the history of this plan, or of this seed.
    #[arg(long)]
    replay: Option<String>,
    /// Write the picture of docs/failover.md to this file.
    #[arg(long)]
    picture: Option<PathBuf>,
    /// Plant this fault of world/planted.txt in a copy of the sources; `all` plants each in turn.
    /// The exit code is 0 if the world finds it.
    #[arg(long)]
    planted: Option<String>,
    /// Build in release mode.
    #[arg(long)]
    release: bool,
    /// Print the lines of `qdl` that the schedules reach. The folder has the programs llvm-profdata
    /// and llvm-cov, of the LLVM version that `rustc -vV` states.
    #[arg(long, value_name = "FOLDER", conflicts_with_all = ["planted", "release"])]
    coverage: Option<PathBuf>,
    /// Instead of the world: schedules of faults to try with real programs over TCP, in network
    /// namespaces. Needs root. frontend/tests/processes/plans.rs has the faults.
    #[arg(long, conflicts_with_all = ["schedules", "replay", "planted", "release"])]
    processes: Option<u64>,
    /// With `--processes`: schedules at a time; most of them wait.
    #[arg(long, default_value_t = 8, requires = "processes")]
    at_once: u64,
    /// With `--processes`: the plan of each schedule, instead of seeds.
    #[arg(long, requires = "processes")]
    plan: Option<String>,
}

/// A fault to plant.
struct Planted {
    name: String,
    sentence: String,
    file: PathBuf,
    /// Lines that go, and lines that take their place.
    pairs: Vec<(Vec<String>, Vec<String>)>,
}

/// Runs the world. The exit code is 1 if an invariant is broken, or a planted fault is not found.
pub fn run(root: &Path, args: &Args) -> Result<i32> {
    if let Some(schedules) = args.processes {
        return run_processes(root, args, schedules);
    }
    let Some(name) = &args.planted else {
        let target = match &args.coverage {
            Some(_) => root.join("target/coverage"),
            None => cargo::target(root),
        };
        let code = run_in(root, &target, args)?;
        if let Some(tools) = &args.coverage {
            report_coverage(root, &target, tools)?;
        }
        return Ok(code);
    };
    let text = fs::read_to_string(root.join("world/planted.txt")).context("world/planted.txt")?;
    let mut all = parse(&text)?;
    if name != "all" {
        all.retain(|p| p.name == *name);
        ensure!(!all.is_empty(), "world/planted.txt has no fault `{name}`");
    }
    let tree = root.join("target/world/tree");
    let target = root.join("target/world/build");
    let mut missed = Vec::new();
    for planted in all {
        println!("planted: {}: {}", planted.name, planted.sentence);
        copy_sources(root, &tree)?;
        let file = tree.join(&planted.file);
        let text = fs::read_to_string(&file).with_context(|| file.display().to_string())?;
        fs::write(&file, plant(&text, &planted)?)?;
        if run_in(&tree, &target, args)? == 0 {
            missed.push(planted.name);
        }
    }
    if !missed.is_empty() {
        println!("not found: {}", missed.join(", "));
    }
    Ok(i32::from(!missed.is_empty()))
}

/// Builds the world from the sources in `root`, and runs it.
fn run_in(root: &Path, target: &Path, args: &Args) -> Result<i32> {
    let mut build = cargo::cargo(root);
    build.args(["build", "--locked", "--package", "world"]);
    build.env("CARGO_TARGET_DIR", target);
    let profile_file = target.join("world.profraw");
    if args.coverage.is_some() {
        build.env("RUSTFLAGS", "-Cinstrument-coverage");
        // Programs of the build are instrumented, too.
        build.env("LLVM_PROFILE_FILE", target.join("build.profraw"));
    }
    if args.release {
        build.arg("--release");
    }
    let status = launch::run("cargo build", &mut build, BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    let profile = if args.release { "release" } else { "debug" };
    let mut world = Command::new(target.join(profile).join("world"));
    world.env("LLVM_PROFILE_FILE", profile_file);
    match (&args.replay, &args.picture) {
        (Some(plan), _) => world.args(["--replay", plan]),
        (None, Some(file)) => world.arg("--picture").arg(file),
        (None, None) => world
            .args(["--seed", &args.seed.to_string()])
            .args(["--schedules", &args.schedules.to_string()]),
    };
    let status = launch::run("world", &mut world, RUN)?;
    match status.code() {
        Some(code) if code == 0 || code == BROKEN => Ok(code),
        // A step that does not end is a broken invariant, too.
        Some(3) => Ok(BROKEN),
        _ => bail!("world: {status}"),
    }
}

/// Prints the lines that the last run has reached, by folder and file.
fn report_coverage(root: &Path, target: &Path, tools: &Path) -> Result<()> {
    let [raw, merged] = ["world.profraw", "world.profdata"].map(|name| target.join(name));
    let mut merge = Command::new(tools.join("llvm-profdata"));
    merge
        .args(["merge", "--sparse", "-o"])
        .args([&merged, &raw]);
    let status = launch::run("llvm-profdata", &mut merge, BUILD)?;
    ensure!(status.success(), "llvm-profdata: {status}");
    for folder in COVERED {
        println!("\nqdl/src/{folder}");
        let mut report = Command::new(tools.join("llvm-cov"));
        report.args([
            "report",
            "--show-region-summary=0",
            "--show-branch-summary=0",
        ]);
        report.arg("--instr-profile").arg(&merged);
        report.arg(target.join("debug/world"));
        report.arg(root.join("qdl/src").join(folder));
        let status = launch::run("llvm-cov", &mut report, BUILD)?;
        ensure!(status.success(), "llvm-cov: {status}");
    }
    Ok(())
}

/// Builds the programs, and runs schedules of faults with them.
fn run_processes(root: &Path, args: &Args, schedules: u64) -> Result<i32> {
    // Both commands name the test: cargo would build what it needs again, with fewer features.
    let mut build = cargo::cargo(root);
    build.args(["build", "--workspace", "--locked", "--bin", "accelerator"]);
    build.args(["--test", "processes"]);
    let status = launch::run("cargo build", &mut build, BUILD)?;
    ensure!(status.success(), "cargo build: {status}");
    let mut test = cargo::cargo(root);
    test.args(["test", "--workspace", "--locked", "--test", "processes"]);
    test.args(["--", "--ignored", "--nocapture"]);
    test.env("QDL_SCHEDULES", schedules.to_string());
    test.env("QDL_SCHEDULE_SEED", args.seed.to_string());
    test.env("QDL_SCHEDULES_AT_ONCE", args.at_once.to_string());
    if let Some(plan) = &args.plan {
        test.env("QDL_PLAN", plan);
    }
    let status = launch::run("processes", &mut test, RUN)?;
    Ok(status.code().unwrap_or(BROKEN))
}

/// Copies the workspace's sources. Leaves unchanged files alone, so that cargo builds the changes.
fn copy_sources(root: &Path, to: &Path) -> Result<()> {
    let listed = Command::new("git")
        .args(["ls-files", "--cached", "--others", "--exclude-standard"])
        .current_dir(root)
        .output()
        .context("git ls-files")?;
    ensure!(listed.status.success(), "git ls-files: {}", listed.status);
    for file in String::from_utf8(listed.stdout)?.lines() {
        let (from, to) = (root.join(file), to.join(file));
        let Ok(text) = fs::read(&from) else {
            continue;
        };
        if fs::read(&to).is_ok_and(|before| before == text) {
            continue;
        }
        let folder = to.parent().context("a file without a folder")?;
        fs::create_dir_all(folder).with_context(|| folder.display().to_string())?;
        fs::write(&to, text).with_context(|| to.display().to_string())?;
    }
    Ok(())
}

fn parse(text: &str) -> Result<Vec<Planted>> {
    let entries = text.split("\n\n").map(|entry| {
        let lines = entry.lines();
        let lines: Vec<_> = lines
            .filter(|l| !l.is_empty() && !l.starts_with('#'))
            .collect();
        (!lines.is_empty()).then_some(lines)
    });
    entries.flatten().map(|lines| parse_entry(&lines)).collect()
}

fn parse_entry(lines: &[&str]) -> Result<Planted> {
    let [head, file, changes @ ..] = lines else {
        bail!("a planted fault has a name, a file and lines: {lines:?}");
    };
    let (name, sentence) = head
        .split_once(": ")
        .with_context(|| format!("{head}: no name"))?;
    let mut pairs: Vec<(Vec<String>, Vec<String>)> = Vec::new();
    for line in changes {
        match (line.split_at_checked(2), pairs.last_mut()) {
            (Some(("- ", old)), Some((olds, news))) if news.is_empty() => olds.push(old.to_owned()),
            (Some(("- ", old)), _) => pairs.push((vec![old.to_owned()], Vec::new())),
            (Some(("+ ", new)), Some((_, news))) => news.push(new.to_owned()),
            _ => bail!("{name}: a line begins with `- ` or `+ `, and a `- ` comes first: {line}"),
        }
    }
    Ok(Planted {
        name: name.to_owned(),
        sentence: sentence.to_owned(),
        file: file.into(),
        pairs,
    })
}

/// The text with the fault in it.
fn plant(text: &str, planted: &Planted) -> Result<String> {
    let mut lines: Vec<&str> = text.lines().collect();
    for (old, new) in &planted.pairs {
        let is_here = |at: &usize| {
            let found = lines[*at..].iter().map(|l| l.trim());
            found.take(old.len()).eq(old.iter().map(|l| l.trim()))
        };
        let found: Vec<_> = (0..lines.len()).filter(is_here).collect();
        let [at] = found[..] else {
            let (name, n, file) = (&planted.name, found.len(), planted.file.display());
            bail!(
                "{name}: {file} has {n} places like `{}`, not 1",
                old.join(" ")
            );
        };
        lines.splice(at..at + old.len(), new.iter().map(String::as_str));
    }
    Ok(lines.join("\n") + "\n")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_planted_fault_finds_its_lines_in_the_sources() {
        let root = crate::repository();
        let text = fs::read_to_string(root.join("world/planted.txt")).expect("there");
        let all = parse(&text).expect("sound");
        assert!(all.len() >= 15, "{} planted faults", all.len());
        for planted in all {
            let source = fs::read_to_string(root.join(&planted.file)).expect("a source");
            let changed = plant(&source, &planted).expect("its lines");
            assert_ne!(changed, source, "{}", planted.name);
        }
    }
}
