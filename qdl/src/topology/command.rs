//! What `topology` of the programs prints.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Addresses, Fabric, Topology, TopologyError, parse_addresses};

/// Whose configuration is printed.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Node {
    /// A frontend's.
    Frontend,
    /// An accelerator's.
    Accelerator,
}

/// What is printed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum Form {
    /// A table for people.
    #[default]
    Matrix,
    /// Everything that was read, as JSON.
    Json,
    /// A configuration that runs here; with `tcp` over sockets alone.
    Yaml {
        /// Also where there are RDMA devices.
        tcp: bool,
    },
}

/// What the command prints of this machine, or of the one below `root`.
///
/// # Errors
/// [`TopologyError`] says what of the machine cannot be read.
pub fn command(node: Node, form: Form, root: Option<&PathBuf>) -> Result<String, TopologyError> {
    let topology = match root {
        None => Topology::of_this_machine()?,
        Some(root) => Topology::below(root)?,
    };
    let fabric = match form {
        Form::Matrix => return Ok(topology.matrix()),
        Form::Json => {
            let text = serde_json::to_string_pretty(&topology).unwrap_or_default();
            return Ok(text + "\n");
        }
        Form::Yaml { tcp: true } => Fabric::Tcp,
        Form::Yaml { tcp: false } => Fabric::Auto,
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match (host.trim(), root) {
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

    #[test]
    fn a_tree_of_another_machine_is_shown_and_written_for() {
        let root = tempfile::tempdir().expect("a folder");
        machine::expand(machine::LAPTOP, root.path()).expect("laid out");
        let at = root.path().to_owned();
        let run = |node, form| command(node, form, Some(&at)).expect("shown");
        let matrix = run(Node::Frontend, Form::Matrix);
        assert!(matrix.contains("wlp0s20f3") && matrix.contains("192.168.178.23"));
        let yaml = run(Node::Accelerator, Form::Yaml { tcp: false });
        assert!(yaml.contains("listen: \"192.168.178.23:7410\""), "{yaml}");
        let yaml = run(Node::Frontend, Form::Yaml { tcp: true });
        assert!(yaml.contains("- address: 192.168.178.23"), "{yaml}");
        let json = run(Node::Frontend, Form::Json);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["nics"][0]["name"], "wlp0s20f3", "{json}");
    }

    #[test]
    fn this_machine_is_shown() {
        match command(Node::Accelerator, Form::Matrix, None) {
            Ok(text) => assert!(text.contains("NUMA"), "{text}"),
            // A container need not have it.
            Err(e) => assert!(!Path::new("/sys/devices").exists(), "{e}"),
        }
    }
}
