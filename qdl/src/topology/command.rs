//! `accelerator topology` and `frontend topology`: the same command of both programs.

use std::{
    ffi::OsString,
    fs,
    path::{Path, PathBuf},
};

use super::{Addresses, Fabric, Topology, TopologyError, parse_addresses};

/// Whose configuration `--yaml` writes.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A frontend's.
    Frontend,
    /// An accelerator's.
    Accelerator,
}

/// What went wrong with the command.
#[derive(Debug, thiserror::Error)]
pub enum CommandError {
    /// Its words.
    #[error("`{word}` is not known here\n{}", help(*node))]
    Usage {
        /// What is not understood.
        word: String,
        /// Whose command it was given to.
        node: Node,
    },
    /// The machine.
    #[error(transparent)]
    Topology(#[from] TopologyError),
}

fn help(node: Node) -> String {
    let program = match node {
        Node::Frontend => "frontend",
        Node::Accelerator => "accelerator",
    };
    format!("Usage: {program} topology [--yaml] [--tcp] [--root DIR]\n\n{HELP}")
}

const HELP: &str = "\
Prints what this machine is made of, as far as moving samples goes: how near its NICs and GPUs are to each other, and
which NICs serve which GPU.

  --yaml      print a configuration that starts this program on this machine, with every usable NIC
  --tcp       with --yaml: sockets on every interface that has an address, also where there are RDMA devices
  --root DIR  read DIR/sys instead of /sys, and addresses from DIR/addresses (lines of `INTERFACE ADDRESS,ADDRESS`)
  --help      this
";

/// What a user asks for.
#[derive(Debug, Default, PartialEq, Eq)]
struct Asked {
    yaml: bool,
    tcp: bool,
    help: bool,
    root: Option<PathBuf>,
}

fn parse(node: Node, words: impl IntoIterator<Item = OsString>) -> Result<Asked, CommandError> {
    let wrong = |word: &str| CommandError::Usage {
        word: word.to_owned(),
        node,
    };
    let mut asked = Asked::default();
    let mut words = words.into_iter();
    while let Some(word) = words.next() {
        let text = word.to_string_lossy();
        match &*text {
            "--yaml" => asked.yaml = true,
            "--tcp" => asked.tcp = true,
            "--help" | "-h" => asked.help = true,
            "--root" => match words.next() {
                Some(root) => asked.root = Some(root.into()),
                None => return Err(wrong("--root without a folder")),
            },
            other => match other.strip_prefix("--root=") {
                Some(root) => asked.root = Some(root.into()),
                None => return Err(wrong(other)),
            },
        }
    }
    Ok(asked)
}

/// What the command prints, given the words behind `topology`.
///
/// # Errors
/// [`CommandError`] says which word, or what of the machine cannot be read.
pub fn command(
    node: Node,
    words: impl IntoIterator<Item = OsString>,
) -> Result<String, CommandError> {
    let asked = parse(node, words)?;
    if asked.help {
        return Ok(help(node));
    }
    let topology = match &asked.root {
        None => Topology::of_this_machine()?,
        Some(root) => Topology::below(root)?,
    };
    if !asked.yaml {
        return Ok(topology.matrix());
    }
    let fabric = if asked.tcp { Fabric::Tcp } else { Fabric::Auto };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match (host.trim(), &asked.root) {
        ("", _) | (_, Some(_)) => "node",
        (host, None) => host,
    };
    // Both programs on one machine are two nodes.
    Ok(match node {
        Node::Frontend => topology.frontend_yaml(&format!("{host}-frontend"), fabric),
        Node::Accelerator => topology.accelerator_yaml(&format!("{host}-accelerator"), fabric),
    })
}

impl Topology {
    /// The machine whose `sys` lies below `root`, with the addresses in `root/addresses` where that
    /// file is there: lines of `INTERFACE ADDRESS,ADDRESS`.
    ///
    /// # Errors
    /// [`TopologyError`]: a folder that must be there is not, or a line of the addresses is wrong.
    pub fn below(root: &Path) -> Result<Self, TopologyError> {
        let file = root.join("addresses");
        let Ok(text) = fs::read_to_string(&file) else {
            return Topology::read(root, &Addresses::new());
        };
        Topology::read(root, &parse_addresses(&text)?)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::machine;

    fn run(node: Node, words: &[&str]) -> Result<String, String> {
        command(node, words.iter().map(OsString::from)).map_err(|e| e.to_string())
    }

    #[test]
    fn a_tree_of_another_machine_is_shown_and_written_for() {
        let root = tempfile::tempdir().expect("a folder");
        machine::expand(machine::LAPTOP, root.path()).expect("laid out");
        let at = format!("--root={}", root.path().display());
        let matrix = run(Node::Frontend, &[&at]).expect("shown");
        assert!(matrix.contains("wlp0s20f3") && matrix.contains("192.168.178.23"));
        let yaml = run(Node::Accelerator, &["--yaml", &at]).expect("written");
        assert!(yaml.contains("listen: \"192.168.178.23:7410\""), "{yaml}");
        let yaml = run(Node::Frontend, &["--yaml", "--tcp", &at]).expect("written");
        assert!(yaml.contains("- address: 192.168.178.23"), "{yaml}");
    }

    #[test]
    fn words_it_does_not_know_are_named() {
        for (words, what) in [
            (&["--yml"][..], "`--yml`"),
            (&["--root"], "--root without"),
            (&["--root", "/nowhere"], "/nowhere"),
        ] {
            let error = run(Node::Frontend, words).expect_err("wrong");
            assert!(error.contains(what), "{error}");
        }
        for (node, usage) in [
            (Node::Frontend, "Usage: frontend topology"),
            (Node::Accelerator, "Usage: accelerator topology"),
        ] {
            let help = run(node, &["-h"]).expect("help");
            assert!(help.starts_with(usage) && help.contains("--yaml"), "{help}");
            let error = run(node, &["--yml"]).expect_err("wrong");
            assert!(error.contains(usage), "{error}");
        }
    }

    #[test]
    fn this_machine_is_shown() {
        match run(Node::Accelerator, &[]) {
            Ok(text) => assert!(text.contains("NUMA"), "{text}"),
            // A container need not have it.
            Err(e) => assert!(e.contains("sysfs") && !has_sysfs(), "{e}"),
        }
    }

    fn has_sysfs() -> bool {
        Path::new("/sys/devices").exists()
    }
}
