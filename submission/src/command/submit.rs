//! The command `qdl submit`.

use std::{collections::BTreeMap, io::Write, path::PathBuf};

use clap::Parser;

use super::{Outcome, say};
use crate::{
    build::{self, Material},
    describe::{Node, form::Form},
    error::{self, Error},
    layout::{Division, Tree},
    official::{Official, Ran},
    rehearsal::Rehearsal,
    round::Round,
    rules, table,
};

/// Puts runs into the folder that is handed in, and says what is missing.
///
/// It copies each run's logs to their place, writes what the round asks for beside them, calls
/// MLCommons' own verifiers, truncation and checker, and then looks at everything itself. Without
/// --runs it looks at a tree that is there.
///
/// Exit code 0: nothing is missing; 1: something is; 2: it could not do its work.
#[derive(Clone, Debug, Parser)]
pub struct SubmitArgs {
    /// Output folders of runs, or folders above them
    #[arg(long, value_name = "DIR", num_args = 1..)]
    runs: Vec<PathBuf>,

    /// The tree; below it comes DIVISION/SUBMITTER
    #[arg(short, long, alias = "out", value_name = "TREE")]
    output: PathBuf,

    /// Where it is handed in: the same runs have other fields and rules in each
    #[arg(long, value_enum, default_value_t)]
    division: Division,

    /// A checkout of mlcommons/inference; without it no script of theirs runs
    #[arg(long, value_name = "DIR")]
    checker: Option<PathBuf>,

    /// What no machine knows (`describe --ask` writes one to fill in)
    #[arg(long, value_name = "FILE")]
    form: PathBuf,

    /// A node's description, as `describe` of its program writes it; once for each node
    /// [default: what the runs' folders hold of their nodes]
    #[arg(long = "node", value_name = "FILE")]
    nodes: Vec<PathBuf>,

    /// An accelerator's configuration, where the run's folder has none; once for each
    #[arg(long = "accelerator", value_name = "NODE=FILE", value_parser = pair)]
    accelerators: Vec<(String, PathBuf)>,

    /// The source of the QDL, which is part of the submission
    #[arg(long = "src", value_name = "DIR")]
    source: Option<PathBuf>,

    /// It is a rehearsal: what it cannot have, and why, stands in this file
    /// (configs/rounds/rehearsal.yaml), and all else must be as in a submission
    #[arg(long, value_name = "FILE")]
    rehearsal: Option<PathBuf>,

    /// A round that is built in, or a file that ends in .yaml
    #[arg(long, value_name = "ROUND", default_value = "v6.1")]
    round: String,

    /// The Python that runs the official scripts; they want numpy and PyYAML
    #[arg(long, value_name = "FILE", default_value = "python3")]
    python: PathBuf,
}

fn pair(text: &str) -> Result<(String, PathBuf), String> {
    match text.split_once('=') {
        Some((node, file)) if !node.is_empty() => Ok((node.to_owned(), file.into())),
        _ => Err("expected NODE=FILE".to_owned()),
    }
}

/// Runs the command. With `quiet` it prints nothing if it finds nothing.
pub fn submit(args: &SubmitArgs, quiet: bool) -> Outcome {
    say(run(args, quiet))
}

fn run(args: &SubmitArgs, quiet: bool) -> Result<Outcome, Error> {
    let round = Round::find(&args.round)?;
    let form = Form::read(&args.form)?;
    form.of_round(&round).map_err(|what| Error::Content {
        path: args.form.clone(),
        what,
    })?;
    let official = args
        .checker
        .as_deref()
        .map(|c| Official::new(c, &args.python, &round))
        .transpose()?;
    if let Some(note) = official.as_ref().and_then(Official::note) {
        eprintln!("note: {note}");
    }
    let rehearsal = args.rehearsal.as_deref();
    let rehearsal = rehearsal.map(Rehearsal::read).transpose()?;
    let rehearsal = match args.checker {
        Some(_) => rehearsal,
        None => rehearsal.map(Rehearsal::without_checker),
    };
    let checkout = official.as_ref().map(Official::folder);
    let tree = Tree::new(&args.output, args.division, &form.submitter);
    let (mut scripts, mut of_runs) = (Vec::new(), Vec::new());
    if !args.runs.is_empty() {
        let empty = form.empty();
        if !empty.is_empty() {
            let all: Vec<_> = empty
                .iter()
                .map(|(f, m)| format!("\n   = fields.{f}: {m}"))
                .collect();
            let what = format!("the form leaves empty what only you know{}", all.concat());
            let path = args.form.clone();
            return Err(Error::Content { path, what });
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
    if let Some(official) = &official {
        scripts.push(official.check(&round, &tree)?);
    }
    let mut text = table::scripts(&round, &findings, &scripts);
    let unexpected = table::unexpected(&round, &findings, &scripts);
    // In a rehearsal the checker may fail on findings that the rehearsal expects.
    let expected = |ran: &Ran| ran.good || (ran.is_checker && rehearsal.is_some());
    let scripts_good = scripts.iter().all(expected) && unexpected == 0;
    let others = match &rehearsal {
        None => findings,
        Some(rehearsal) => {
            let (known, others) = rehearsal.apart(findings);
            text += &rehearsal.table(&known);
            others
        }
    };
    text += &table::page(&others);
    let good = others.is_empty() && scripts_good;
    if !(good && quiet) {
        // Ignore a closed pipe.
        let _ = std::io::stdout().write_all(text.as_bytes());
    }
    Ok(if good {
        Outcome::Good
    } else {
        Outcome::Findings
    })
}
