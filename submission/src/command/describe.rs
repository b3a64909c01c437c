//! The command `qdl describe`.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::Parser;
use disk::FolderLock;
use machine::{Node, Role};

use crate::{
    describe::form,
    error::{self, Error},
    layout::Name,
    manifest,
    round::{self, Round},
};

/// Describes this machine for a submission, as JSON; on the frontend with --config, all nodes of a
/// configuration. With --ask, writes an empty form for what no machine knows.
#[derive(Clone, Debug, Parser)]
pub struct DescribeArgs {
    #[command(flatten)]
    machine: machine::DescribeArgs,

    /// Configuration of the frontend: describe this node and all its accelerators, which must be
    /// running. Writes into the folder OUTPUT: node-NAME.json for each node, and
    /// accelerator-NAME.yaml, the accelerator's configuration
    #[arg(short, long, value_name = "FILE", requires = "output",
          conflicts_with_all = ["ask", "name", "root"])]
    config: Option<PathBuf>,

    /// Write an empty form to fill in, instead of a description of this machine
    #[arg(long, conflicts_with = "root")]
    ask: bool,

    /// With --ask: list the models of this round in the form; a name in configs/rounds, or the path
    /// of a .yaml file
    #[arg(long, value_name = "ROUND", default_value = round::newest())]
    round: String,
}

/// A node's answer to `describe`.
pub struct NodeAnswer {
    /// The node's name in the configuration.
    pub node: String,
    /// The node's machine as JSON of [`Node`], with an accelerator's configuration; else why the
    /// node gave none.
    pub said: Result<(String, Option<String>), String>,
}

/// Asks all nodes of a frontend's configuration, the frontend included.
pub type AskAll<'a> = &'a dyn Fn(&Path) -> Result<Vec<NodeAnswer>, String>;

/// Runs the command; `all` implements `--config`. Returns whether every node is described.
///
/// # Errors
/// [`Error`]: the usage was wrong, or a file cannot be written.
pub fn describe(args: &DescribeArgs, version: &str, all: AskAll<'_>) -> Result<bool, Error> {
    match &args.config {
        Some(config) => every_node(args, config, all),
        None => run(args, version),
    }
}

fn every_node(args: &DescribeArgs, config: &Path, all: AskAll<'_>) -> Result<bool, Error> {
    let folder = args.machine.output.clone().unwrap_or_default();
    let answers = all(config).map_err(Error)?;
    let _lock = FolderLock::take(&folder).map_err(Error::write(&folder))?;
    let mut good = true;
    for answer in answers {
        let said = answer.said.and_then(|(machine, yaml)| {
            let role = match yaml {
                None => Role::Frontend,
                Some(_) => Role::Accelerator,
            };
            Ok((Node::of_session(&machine, role, &answer.node)?, yaml))
        });
        let (node, yaml) = match said {
            Ok(said) => said,
            Err(why) => {
                eprintln!("error: {} is not described: {why}", answer.node);
                good = false;
                continue;
            }
        };
        let name = Name::new(&answer.node).map_err(Error)?;
        let path = folder.join(manifest::node_json(&name));
        error::write_json(&path, &node)?;
        // Ignore a closed pipe.
        let _ = writeln!(std::io::stdout(), "{}", path.display());
        if let Some(yaml) = yaml {
            let path = folder.join(manifest::accelerator_yaml(&name));
            error::write(&path, yaml)?;
            let _ = writeln!(std::io::stdout(), "{}", path.display());
        }
    }
    Ok(good)
}

fn run(args: &DescribeArgs, version: &str) -> Result<bool, Error> {
    let text = if args.ask {
        let round = Round::find(&args.round)?;
        let fields = &round.measurements[..];
        let models: Vec<_> = round.models.keys().map(|m| (&**m, fields)).collect();
        form::blank(&models)
    } else {
        let described = args.machine.describe(Role::Frontend, version);
        described.map_err(Error)?
    };
    args.machine.write(&text).map_err(Error)?;
    Ok(true)
}
