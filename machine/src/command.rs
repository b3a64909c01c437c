//! The command `describe` for this machine.

use std::{io::Write, path::PathBuf};

use crate::{Node, Role};

/// Describes this machine for a submission, as JSON.
#[derive(Clone, Debug, clap::Parser)]
// The frontend's command has these arguments and more, in a type of the same name.
#[group(skip)]
pub struct DescribeArgs {
    /// This node's name in its configuration [default: the host name]
    #[arg(long, value_name = "NODE")]
    name: Option<String>,

    /// File to write [default: standard output]
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Read DIR/proc, DIR/sys and DIR/etc instead of this machine's, and addresses from
    /// DIR/addresses
    #[arg(long, value_name = "DIR")]
    root: Option<PathBuf>,
}

impl DescribeArgs {
    /// Describes the machine as indented JSON.
    ///
    /// # Errors
    /// The topology cannot be read, or the description cannot be serialized; the text says why.
    pub fn describe(&self, role: Role, version: &str) -> Result<String, String> {
        let node = match &self.root {
            None => Node::of_this_machine(role, version),
            Some(root) => Node::below(root, role, version),
        };
        let mut node = node.map_err(|e| e.to_string())?;
        node.node = self.name.clone().unwrap_or(node.node);
        let text = serde_json::to_string_pretty(&node).map_err(|e| e.to_string())?;
        Ok(text + "\n")
    }

    /// Writes `text` to the output, and creates the folders above the file.
    ///
    /// # Errors
    /// The file cannot be written; the text names it.
    pub fn write(&self, text: &str) -> Result<(), String> {
        match &self.output {
            Some(path) => disk::write_below(path, text),
            None => {
                // Ignore a closed pipe.
                let _ = std::io::stdout().write_all(text.as_bytes());
                Ok(())
            }
        }
    }
}
