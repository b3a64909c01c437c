//! The commands `qdl describe` and `accelerator describe`.

use std::{
    io::Write,
    path::{Path, PathBuf},
};

use clap::Parser;
use disk::FolderLock;

use crate::{
    describe::{Node, Role, form},
    error::{self, Error},
    layout::Name,
    manifest,
    round::{self, Round},
};

/// Describes this machine for a submission, as JSON; on the frontend with --config, all nodes of a
/// configuration. With --ask, writes an empty form for what no machine knows.
#[derive(Clone, Debug, Parser)]
pub struct DescribeArgs {
    /// This node's name in its configuration [default: the host name]
    #[arg(long, value_name = "NODE")]
    name: Option<String>,

    /// File to write; with --config, a folder [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,

    /// Configuration of the frontend: describe this node and all its accelerators, which must be
    /// running. Writes node-NAME.json for each node, and accelerator-NAME.yaml, the accelerator's
    /// configuration
    #[arg(short, long, value_name = "FILE", requires = "output",
          conflicts_with_all = ["ask", "name", "root"])]
    config: Option<PathBuf>,

    /// Write an empty form to fill in, instead of a description of this machine
    #[arg(long)]
    ask: bool,

    /// With --ask: list the models of this round in the form; a name in configs/rounds, or the path
    /// of a .yaml file
    #[arg(long, value_name = "ROUND", default_value = round::newest())]
    round: String,

    /// Read DIR/proc, DIR/sys and DIR/etc instead of this machine's, and addresses from
    /// DIR/addresses
    #[arg(long, value_name = "DIR", conflicts_with = "ask")]
    root: Option<PathBuf>,
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

/// Runs the command. `all` implements `--config`; only the frontend has it. Returns whether every
/// node is described.
///
/// # Errors
/// [`Error`]: the usage was wrong, or a file cannot be written.
pub fn describe(
    args: &DescribeArgs,
    role: Role,
    version: &str,
    all: Option<AskAll<'_>>,
) -> Result<bool, Error> {
    match (&args.config, all) {
        (Some(config), Some(all)) => every_node(args, config, all),
        (Some(_), None) => {
            let what = "--config is the frontend's: `qdl describe --config F.yaml`";
            Err(Error(what.to_owned()))
        }
        (None, _) => run(args, role, version),
    }
}

fn every_node(args: &DescribeArgs, config: &Path, all: AskAll<'_>) -> Result<bool, Error> {
    let folder = args.output.clone().unwrap_or_default();
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

fn run(args: &DescribeArgs, role: Role, version: &str) -> Result<bool, Error> {
    let text = if args.ask {
        let round = Round::find(&args.round)?;
        let fields = &round.measurements[..];
        let models: Vec<_> = round.models.keys().map(|m| (&**m, fields)).collect();
        form::blank(&models)
    } else {
        let node = match &args.root {
            None => Node::of_this_machine(role, version),
            Some(root) => Node::below(root, role, version),
        };
        let mut node = node.map_err(|e| Error(e.to_string()))?;
        node.node = args.name.clone().unwrap_or(node.node);
        let text = serde_json::to_string_pretty(&node).map_err(|e| Error(e.to_string()))?;
        text + "\n"
    };
    match &args.output {
        Some(path) => error::write(path, text)?,
        // Ignore a closed pipe.
        None => drop(std::io::stdout().write_all(text.as_bytes())),
    }
    Ok(true)
}
