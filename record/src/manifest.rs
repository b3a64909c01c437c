//! A run's manifest, `run.json`: command, nodes, and hashes of the run's input files and logs.
//! Copies of the input files lie in the folder `files`. The frontend writes both, `submission`
//! checks them.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{
    NodeFacts, PrefixCache,
    facts::{MachineIds, same_machine},
};

/// Name of the manifest's file.
pub const MANIFEST: &str = "run.json";
/// Name of the folder with copies of the run's input files.
pub const COPIES: &str = "files";

/// The content of `run.json`. A missing field gets its default, so older files stay readable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Manifest {
    /// Version of the file's format.
    pub format: u32,
    /// The frontend's command, word by word.
    pub command: Vec<String>,
    /// The frontend's version with the commit of its build, as `--version` prints it.
    pub built: String,
    /// The model's name in user.conf.
    pub model: String,
    /// LoadGen's name of the scenario.
    pub scenario: String,
    /// Whether the run was one process without a network (`--local`).
    pub local: bool,
    /// `tcp`, `ib`, `ofi`, several as `ib + tcp`, or `local` without a network.
    pub fabric: String,
    /// Reasons why the Network division does not permit the fabric, one a line.
    pub fabric_notes: Vec<String>,
    /// Number of connections that carried samples.
    pub connections: u64,
    /// LoadGen settings from sources other than user.conf and audit.config, as `--set
    /// min_query_count=7` or `loadgen.settings.min_duration = 0`.
    pub overrides: Vec<String>,
    /// The copies in the run's folder, by file name.
    pub files: BTreeMap<String, FileRecord>,
    /// SHA-256 of each LoadGen log at the end of the run, by file name.
    pub logs: BTreeMap<String, String>,
    /// SHA-256 of the accuracy log after the cut of MLCommons' truncate_accuracy_log.py.
    pub accuracy_cut: Option<String>,
    /// The frontend's exit code; `None` while the run goes on.
    pub exit: Option<u8>,
    /// Reason of the exit code.
    pub reason: String,
    /// The frontend's node, which runs LoadGen.
    pub frontend: NodeRecord,
    /// The accelerators' nodes, as each reports itself.
    pub accelerators: Vec<NodeRecord>,
    /// State of each engine's prefix cache, by node, for engines that can have one.
    pub prefix_caches: BTreeMap<String, PrefixCache>,
    /// Number of values that look like keys, masked in the command, the reason and the copies.
    pub masked: usize,
    /// Nodes without a description, with the reason.
    pub undescribed: BTreeMap<String, String>,
}

/// An input file of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileRecord {
    /// Path of the original.
    pub from: PathBuf,
    /// SHA-256 of the copy, in hexadecimal digits.
    pub sha256: String,
}

/// A node and its program. The fields have the names of the handshake's [`NodeFacts`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRecord {
    /// The node's name in the configuration.
    pub node: String,
    /// The machine's host name.
    pub host: String,
    /// Hash of the machine's id, if known.
    pub machine: Option<String>,
    /// Hash of the kernel's boot id, if known.
    pub boot: Option<String>,
    /// The program's version.
    pub version: String,
    /// The commit that the program was built from, if known.
    pub commit: Option<String>,
    /// Whether the sources differed from that commit, if known.
    pub dirty: Option<bool>,
    /// SHA-256 of the program's file, if known.
    pub program: Option<String>,
}

impl NodeRecord {
    /// Takes over the facts that a node reported.
    pub fn of(node: &str, facts: &NodeFacts) -> Self {
        NodeRecord {
            node: node.to_owned(),
            host: facts.host.clone(),
            machine: facts.machine.clone(),
            boot: facts.boot.clone(),
            version: facts.version.clone(),
            commit: facts.commit.clone(),
            dirty: facts.dirty,
            program: facts.program.clone(),
        }
    }

    /// Whether two nodes run on one machine; `None` if unknown.
    pub fn same_machine(&self, other: &NodeRecord) -> Option<bool> {
        same_machine(self.ids(), other.ids())
    }

    fn ids(&self) -> MachineIds<'_> {
        (&self.host, self.machine.as_deref(), self.boot.as_deref())
    }
}
