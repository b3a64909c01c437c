//! A run's manifest, `run.json`: command, nodes, and hashes of the run's input files and logs.
//! Copies of the input files lie in the folder `files`. The frontend writes both, `submission`
//! checks them.

use std::{collections::BTreeMap, path::PathBuf};

use serde::{Deserialize, Serialize};

use super::{NodeFacts, PrefixCache, ServerVersion};

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
    /// Version of the server behind each engine, by node, for engines that know it.
    pub servers: BTreeMap<String, ServerVersion>,
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

/// A node and the facts that it reported. In JSON the facts' keys are beside the name.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeRecord {
    /// The node's name in the configuration.
    pub node: String,
    /// The node's facts about itself and its machine.
    #[serde(flatten)]
    pub facts: NodeFacts,
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_node_of_an_earlier_release_is_read_and_reads_back() {
        let earlier = r#"{"node": "a", "host": "h", "machine": null, "version": "0.1.0"}"#;
        let mut record: NodeRecord = serde_json::from_str(earlier).expect("a node");
        assert_eq!(
            (record.node.as_str(), record.facts.host.as_str()),
            ("a", "h")
        );
        record.facts.commit = Some("bea8f30".to_owned());
        let json = serde_json::to_string(&record).expect("JSON");
        assert_eq!(
            serde_json::from_str::<NodeRecord>(&json).expect("reads back"),
            record
        );
    }
}
