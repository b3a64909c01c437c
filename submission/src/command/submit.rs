//! The command `qdl submit`.

use std::{collections::BTreeMap, io::Write, path::PathBuf};

use clap::Parser;
use disk::FolderLock;
use machine::Node;

use crate::{
    build::{self, Material},
    describe::form::Form,
    error::{self, Error},
    layout::{Division, Tree},
    official::{Official, ScriptResult},
    round::{self, Round},
    rules, table,
};

/// Builds the submission tree from runs, checks it, and lists what is missing.
///
/// `submit` copies the logs of each run, writes the files that the round requires, and runs
/// MLCommons' verifiers, log truncation and checker (with --checker). Then it checks the tree
/// itself, by docs/rules.md. Without --runs it only checks an existing tree.
///
/// Exit code 0: nothing is missing; 1: something is missing; 2: the command could not do its work.
#[derive(Clone, Debug, Parser)]
pub struct SubmitArgs {
    /// Run folders, or folders that contain run folders
    #[arg(long, value_name = "DIR", num_args = 1..)]
    runs: Vec<PathBuf>,

    /// Root folder of the tree; the files go to TREE/DIVISION/SUBMITTER
    #[arg(short, long, value_name = "TREE")]
    output: PathBuf,

    /// Division of the submission; required fields and rules differ between divisions
    #[arg(long, value_enum, default_value_t)]
    division: Division,

    /// Checkout of mlcommons/inference; without it, no official script runs
    #[arg(long, value_name = "DIR")]
    checker: Option<PathBuf>,

    /// Filled-in form for what no machine knows (`qdl describe --ask` writes an empty one)
    #[arg(long, value_name = "FILE")]
    form: PathBuf,

    /// Description of a node, as `describe` writes it; repeatable, once for each node [default: the
    /// descriptions in the run folders]
    #[arg(long = "node", value_name = "FILE")]
    nodes: Vec<PathBuf>,

    /// Configuration of the accelerator NODE, if the run folder has none; repeatable
    #[arg(long = "accelerator", value_name = "NODE=FILE", value_parser = pair)]
    accelerators: Vec<(String, PathBuf)>,

    /// Folder of the QDL's source code, which is part of the submission
    #[arg(long = "src", value_name = "DIR")]
    source: Option<PathBuf>,

    /// Round: its name in configs/rounds, or the path of a .yaml file
    #[arg(long, value_name = "ROUND", default_value = round::newest())]
    round: String,

    /// Python with numpy and PyYAML, for the official scripts
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
}

fn pair(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((node, file)) if !node.is_empty() => Ok((node.to_owned(), file.into())),
        _ => Err("expected NODE=FILE".to_owned()),
    }
}

/// Runs the command. With `quiet` it prints nothing if it finds nothing. Returns whether nothing is
/// missing.
///
/// # Errors
/// [`Error`]: the usage was wrong, or a file cannot be read or written.
pub fn submit(args: &SubmitArgs, quiet: bool) -> Result<bool, Error> {
    let round = Round::find(&args.round)?;
    let form = Form::read(&args.form)?;
    form.of_round(&round).map_err(Error::content(&args.form))?;
    let official = args.checker.as_deref();
    let official = official.map(|checker| Official::new(checker, &args.python, &round));
    let official = official.transpose()?;
    let checkout = official.as_ref().map(|o| &*o.checker);
    let tree = Tree::new(&args.output, args.division, &form.submitter);
    let (mut scripts, mut of_runs) = (Vec::new(), Vec::new());
    let builds = !args.runs.is_empty();
    let lock = builds.then(|| FolderLock::take(&args.output));
    let _lock = lock.transpose().map_err(Error::write(&args.output))?;
    if builds {
        let empty = form.empty();
        if !empty.is_empty() {
            let all = empty.iter().map(|(f, m)| format!("\n   = fields.{f}: {m}"));
            let all: String = all.collect();
            let what = format!("the form leaves empty what only you know{all}");
            return Err(Error::content(&args.form)(what));
        }
        let wanted: Vec<_> = form.models.keys().map(String::as_str).collect();
        let (runs, notes) = build::find(&args.runs, &round, &wanted, checkout)?;
        for note in notes {
            eprintln!("note: {note}");
        }
        let nodes: Vec<Node> = match &args.nodes[..] {
            [] => build::nodes(&runs)?,
            named => named
                .iter()
                .map(|p| error::read_json(p))
                .collect::<Result<_, _>>()?,
        };
        let configurations: BTreeMap<_, _> = args.accelerators.iter().cloned().collect();
        let material = Material {
            round: &round,
            division: args.division,
            form: &form,
            nodes: &nodes,
            configurations: &configurations,
            source: args.source.clone(),
            runs: &runs,
        };
        let built = build::build(&material, &args.output)?;
        of_runs = rules::check_runs(&material, &tree);
        if let Some(official) = &official {
            scripts.extend(official.verify(&round, &built, &form.accuracy_scripts)?);
            scripts.push(official.truncate(&built)?);
        }
    }
    let mut findings = rules::check(&tree, &round, checkout);
    findings.append(&mut of_runs);
    // The scripts have just run: their lines say what failed.
    for finding in findings
        .iter_mut()
        .filter(|f| !scripts.is_empty() && f.make == rules::SCRIPTS)
    {
        finding.make.clear();
    }
    // The checker waits for ever for the writer of a pipe, which is a finding.
    let is_pipe = |f: &rules::RuleFinding| f.what.starts_with("it is no plain file");
    let checks = official.filter(|_| !findings.iter().any(is_pipe));
    if let Some(official) = &checks {
        scripts.push(official.check(&round, &tree)?);
    }
    let mut text = table::scripts(&scripts);
    // A rehearsal breaks rules that the checker has too.
    let is_rehearsal = !round.cannot_have.is_empty();
    let expected = |ran: &ScriptResult| ran.good || (ran.is_checker && is_rehearsal);
    let scripts_good = scripts.iter().all(expected);
    let excuse = |f: &rules::RuleFinding| round.excuse(f.rule.id, args.checker.is_some());
    let (known, others): (Vec<_>, Vec<_>) = findings.into_iter().partition(|f| excuse(f).is_some());
    if is_rehearsal {
        text += &table::excused(known.iter().filter_map(|f| Some((f.rule.id, excuse(f)?))));
    }
    text += &table::page(&others, table::no_finding(&scripts, scripts_good));
    let good = others.is_empty() && scripts_good;
    if !(good && quiet) {
        // Ignore a closed pipe.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    Ok(good)
}
