//! `frontend describe` and `accelerator describe`.

use std::{ffi::OsString, io::Write, path::PathBuf};

use clap::Parser;

use super::{Outcome, Said, say};
use crate::{
    describe::{Node, form},
    error::{self, Error},
    round::Round,
};

/// Describes this machine for a submission, or writes the form for what no machine knows.
#[derive(Clone, Debug, Parser)]
#[command(name = "describe", max_term_width = 100)]
struct Args {
    /// The node's name in its configuration [default: the host name]
    #[arg(long, value_name = "NODE")]
    name: Option<String>,

    /// Where it goes [default: the screen]
    #[arg(long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Write a form to fill in, not this machine
    #[arg(long)]
    ask: bool,

    /// The round whose models the form has
    #[arg(long, value_name = "ROUND", default_value = "v6.1")]
    round: String,

    /// Read DIR/proc, DIR/sys and DIR/etc, and addresses from DIR/addresses
    #[arg(long, value_name = "DIR", conflicts_with = "ask")]
    root: Option<PathBuf>,
}

/// Runs the command; `role` is `frontend` or `accelerator`, `words` those behind `describe`.
pub fn describe(role: &str, version: &str, words: impl IntoIterator<Item = OsString>) -> Outcome {
    let words = std::iter::once(OsString::from(format!("{role} describe"))).chain(words);
    let args = Args::try_parse_from(words).map_err(Said::from);
    say(args.and_then(|args| run(&args, role, version)))
}

fn run(args: &Args, role: &str, version: &str) -> Result<Outcome, Said> {
    let text = if args.ask {
        let round = Round::find(&args.round)?;
        let fields = &round.measurements[..];
        let models: Vec<_> = round.models.keys().map(|m| (m.as_str(), fields)).collect();
        form::blank(&models)
    } else {
        let node = match &args.root {
            None => Node::of_this_machine(role, version),
            Some(root) => Node::below(root, role, version),
        };
        let mut node = node.map_err(|e| Error::Usage(e.to_string()))?;
        node.node = args.name.clone().unwrap_or(node.node);
        let text = serde_json::to_string_pretty(&node).map_err(|e| Error::Usage(e.to_string()))?;
        text + "\n"
    };
    match &args.output {
        Some(path) => error::write(path, text)?,
        // Nobody may be reading any more.
        None => drop(std::io::stdout().write_all(text.as_bytes())),
    }
    Ok(Outcome::Good)
}
