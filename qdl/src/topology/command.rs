//! The command `topology`: prints this machine's topology or a configuration for it.

use std::{
    fs,
    path::{Path, PathBuf},
};

use super::{Addresses, Fabric, Topology, TopologyError, parse_addresses};

/// Program for which the command prints a configuration.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NodeProgram {
    /// The frontend.
    Frontend,
    /// The accelerator.
    Accelerator,
}

/// Output format.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub enum TopologyForm {
    /// A table.
    #[default]
    Matrix,
    /// The topology as JSON.
    Json,
    /// A configuration that runs on this machine, over this fabric.
    Yaml(Fabric),
}

/// Returns the output of the command for this machine, or for the machine below `root`.
///
/// # Errors
/// [`TopologyError`] if a part of the machine is unreadable; it names the part.
pub fn command(
    node: NodeProgram,
    form: TopologyForm,
    root: Option<&PathBuf>,
) -> Result<String, TopologyError> {
    let topology = match root {
        None => Topology::of_this_machine()?,
        Some(root) => Topology::below(root)?,
    };
    let fabric = match form {
        TopologyForm::Matrix => return Ok(topology.matrix()),
        TopologyForm::Json => {
            let text = serde_json::to_string_pretty(&topology).unwrap_or_default();
            return Ok(text + "\n");
        }
        TopologyForm::Yaml(fabric) => fabric,
    };
    let host = fs::read_to_string("/proc/sys/kernel/hostname").unwrap_or_default();
    let host = match (host.trim(), root) {
        ("", _) | (_, Some(_)) => "node",
        (host, None) => host,
    };
    // Two programs on one machine are two nodes, so each needs its own name.
    Ok(match node {
        NodeProgram::Frontend => topology.frontend_yaml(&format!("{host}-frontend"), fabric),
        NodeProgram::Accelerator => {
            topology.accelerator_yaml(&format!("{host}-accelerator"), fabric)
        }
    })
}

impl Topology {
    /// Reads the machine whose `sys` is below `root`, with the addresses in `root/addresses` if
    /// that file exists: lines of `INTERFACE ADDRESS,ADDRESS`.
    ///
    /// # Errors
    /// [`TopologyError`]: a required folder is missing, or a line of the addresses is malformed.
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
        let matrix = run(NodeProgram::Frontend, TopologyForm::Matrix);
        assert!(matrix.contains("wlp0s20f3") && matrix.contains("192.168.178.23"));
        let yaml = run(NodeProgram::Accelerator, TopologyForm::Yaml(Fabric::Auto));
        assert!(yaml.contains("listen: \"192.168.178.23:7410\""), "{yaml}");
        let yaml = run(NodeProgram::Frontend, TopologyForm::Yaml(Fabric::Tcp));
        assert!(yaml.contains("- address: 192.168.178.23"), "{yaml}");
        let json = run(NodeProgram::Frontend, TopologyForm::Json);
        let json: serde_json::Value = serde_json::from_str(&json).expect("JSON");
        assert_eq!(json["nics"][0]["name"], "wlp0s20f3", "{json}");
    }
}
