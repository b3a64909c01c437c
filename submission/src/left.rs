//! The record that a run leaves beside LoadGen's logs: `run.json`, and copies of the run's input
//! files in the folder `files`, where they replace no file of the user's.
//!
//! The frontend writes the record. [`Left::begin`] runs before the measurement, so the copies show
//! the files as the run read them. [`Left::end`] runs when the logs are complete. [`crate::build`]
//! copies the record into a tree, and [`crate::rules`] compares the tree with it.

use std::{
    collections::BTreeMap,
    fs::{self, File},
    io::{self, Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use fabric::os;
use record::{MachineIds, NodeFacts, PrefixCache};
use serde::{Deserialize, Serialize};

use crate::{
    describe::Role,
    error::{self, Error},
    layout::{self, Name},
};

/// Name of the folder with the copies.
pub const FOLDER: &str = "files";
/// Name of the record's file.
pub const FILE: &str = "run.json";
/// Name of the copy of user.conf.
pub const USER_CONF: &str = "user.conf";
/// Name of the copy of audit.config, if the run has one.
pub const AUDIT_CONFIG: &str = "audit.config";
/// Name of the copy of the frontend's configuration.
pub const FRONTEND_YAML: &str = "frontend.yaml";
/// Name of the copy of an accelerator's configuration, which the accelerator sends.
pub fn accelerator_yaml(node: &Name) -> String {
    format!("accelerator-{node}.yaml")
}
/// Whether a copy is an accelerator's configuration, by its name.
pub fn is_accelerator_yaml(name: &str) -> bool {
    name.starts_with("accelerator-") && name.ends_with(".yaml")
}
/// Name of the file with a node's description, [`crate::describe::Node`].
pub fn node_json(node: &Name) -> String {
    format!("node-{node}.json")
}
/// Name of the frontend's own summary.
pub const SUMMARY: &str = "summary.json";
/// Current value of [`Left::format`].
const FORMAT: u32 = 1;

/// The content of `run.json`. A missing field gets its default, so older files stay readable.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Left {
    /// Version of the file's format.
    pub format: u32,
    /// The frontend's command, word by word.
    pub command: Vec<String>,
    /// The model's name in user.conf.
    pub model: String,
    /// LoadGen's name of the scenario.
    pub scenario: String,
    /// Whether the run was one process without a network (`--local`).
    pub local: bool,
    /// `tcp`, `ib` or `local`.
    pub fabric: String,
    /// Reasons why the Network division does not permit the fabric, one a line.
    pub fabric_notes: Vec<String>,
    /// Number of connections that carried samples.
    pub connections: u64,
    /// LoadGen settings from sources other than user.conf and audit.config, as `--set
    /// min_query_count=7` or `loadgen.settings.min_duration = 0`.
    pub overrides: Vec<String>,
    /// The copies in the run's folder, by file name.
    pub files: BTreeMap<String, FileNote>,
    /// SHA-256 of each LoadGen log at the end of the run, by file name.
    pub logs: BTreeMap<String, String>,
    /// SHA-256 of the accuracy log after the cut of MLCommons' truncate_accuracy_log.py.
    pub accuracy_cut: Option<String>,
    /// The frontend's exit code; `None` while the run goes on.
    pub exit: Option<u8>,
    /// Reason of the exit code.
    pub reason: String,
    /// The frontend's node, which runs LoadGen.
    pub frontend: NodeNote,
    /// The accelerators' nodes, as each reports itself.
    pub accelerators: Vec<NodeNote>,
    /// State of each engine's prefix cache, by node, for engines that can have one.
    pub prefix_caches: BTreeMap<String, PrefixCache>,
    /// Nodes without a description, with the reason.
    pub undescribed: BTreeMap<String, String>,
}

/// An input file of the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileNote {
    /// Path of the original.
    pub from: PathBuf,
    /// SHA-256 of the copy, in hexadecimal digits.
    pub sha256: String,
}

/// A node and its program. The fields have the names of the handshake's [`NodeFacts`].
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeNote {
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

impl NodeNote {
    /// Makes a note from the facts that a node reported.
    pub fn of(node: &str, facts: &NodeFacts) -> Self {
        NodeNote {
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
    pub fn same_machine(&self, other: &NodeNote) -> Option<bool> {
        self.ids().same(&other.ids())
    }

    fn ids(&self) -> MachineIds<'_> {
        MachineIds {
            host: &self.host,
            machine: self.machine.as_deref(),
            boot: self.boot.as_deref(),
        }
    }
}

impl Left {
    /// All nodes, the frontend first.
    pub fn nodes(&self) -> impl Iterator<Item = (Role, &NodeNote)> {
        let accelerators = self.accelerators.iter().map(|n| (Role::Accelerator, n));
        std::iter::once((Role::Frontend, &self.frontend)).chain(accelerators)
    }

    /// Writes the record into `folder` before the run, with a copy of each file. `files` holds
    /// names of copies and paths of originals; `told` holds names and texts of files that nodes
    /// sent.
    ///
    /// # Errors
    /// [`Error::Read`]: an original cannot be read. [`Error::Write`]: a file cannot be
    /// written.
    pub fn begin(
        mut self,
        folder: &Path,
        files: &[(&str, &Path)],
        told: &[(String, String)],
    ) -> Result<Self, Error> {
        self.format = FORMAT;
        let copies = folder.join(FOLDER);
        // Delete copies only beside an earlier run's record: a folder `files` without it is the
        // user's.
        if folder.join(FILE).is_file() {
            for old in layout::files(&copies) {
                let path = copies.join(old);
                fs::remove_file(&path).map_err(|source| Error::Write { path, source })?;
            }
        }
        let mut note = |name: &str, from: PathBuf| {
            let sha256 = sha256_of_file(&copies.join(name))?;
            self.files
                .insert(name.to_owned(), FileNote { from, sha256 });
            Ok(())
        };
        for (name, from) in files {
            error::copy(from, &copies.join(name))?;
            note(name, from.to_path_buf())?;
        }
        for (name, text) in told {
            error::write(&copies.join(name), text)?;
            note(name, PathBuf::from("told by the node"))?;
        }
        error::write_json(&folder.join(FILE), &self)?;
        Ok(self)
    }

    /// Adds the logs' hashes, exit code and reason to the record at the end of the run.
    ///
    /// # Errors
    /// [`Error::Read`]: a log cannot be read. [`Error::Write`]: the record cannot be
    /// written.
    pub fn end(mut self, folder: &Path, exit: u8, reason: &str) -> Result<(), Error> {
        for name in [
            loadgen_log::SUMMARY,
            loadgen_log::DETAIL,
            loadgen_log::ACCURACY,
        ] {
            let path = folder.join(name);
            if path.is_file() {
                self.logs.insert(name.to_owned(), sha256_of_file(&path)?);
            }
        }
        let log = folder.join(loadgen_log::ACCURACY);
        if log.is_file() {
            self.accuracy_cut = Some(os::sha256_of(&cut(&log)?));
        }
        self.exit = Some(exit);
        self.reason = reason.to_owned();
        error::write_json(&folder.join(FILE), &self)
    }

    /// Reads the record of a run's folder; `None` if there is none.
    ///
    /// # Errors
    /// [`Error::Read`]: the file cannot be read. [`Error::Content`]: the file is no valid
    /// record.
    pub fn read(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        error::read_json(&path).map(Some)
    }
}

/// Paths that a run may have left in `folder`, for a caller that empties it. Some may not exist.
pub fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let copies = folder.join(FOLDER);
    let of_node = |name: &String| {
        is_accelerator_yaml(name) || name.starts_with("node-") && name.ends_with(".json")
    };
    let nodes: Vec<_> = layout::files(&copies).into_iter().filter(of_node).collect();
    let own = [USER_CONF, AUDIT_CONFIG, FRONTEND_YAML].map(str::to_owned);
    let names = own.into_iter().chain(nodes);
    names
        .map(move |name| copies.join(name))
        .chain([folder.join(FILE)])
}

/// Cuts a log as MLCommons' truncate_accuracy_log.py does: its first and last 4096 bytes remain.
///
/// # Errors
/// [`Error::Read`]: the log cannot be read.
pub fn cut(path: &Path) -> Result<Vec<u8>, Error> {
    const SHOWN: u64 = 4096;
    let failed = |source: io::Error| Error::Read {
        path: path.to_owned(),
        source,
    };
    let mut file = File::open(path).map_err(failed)?;
    let size = file.metadata().map_err(failed)?.len();
    let mut text = Vec::new();
    let mut read = |from: u64, text: &mut Vec<u8>| {
        file.seek(SeekFrom::Start(from))?;
        (&mut file).take(SHOWN).read_to_end(text)
    };
    read(0, &mut text).map_err(failed)?;
    if size >= SHOWN {
        text.extend(b"\n\n...\n\n");
        read(size - SHOWN, &mut text).map_err(failed)?;
    }
    Ok(text)
}

/// SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// [`Error::Read`]: the file cannot be read.
pub fn sha256_of_file(path: &Path) -> Result<String, Error> {
    let hashed = os::sha256_of_file(path);
    hashed.map(|(hash, _)| hash).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// Paths of a test's official audit.config files: the test's own, and those for single models.
pub fn audit_configs(checker: &Path, test: &Name) -> Vec<PathBuf> {
    let folder = checker.join("compliance").join(test);
    let own = folder.join(AUDIT_CONFIG);
    let models = layout::folders(&folder);
    let models = models.iter().map(|m| folder.join(m).join(AUDIT_CONFIG));
    std::iter::once(own)
        .chain(models)
        .filter(|p| p.is_file())
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_run_keeps_its_files_as_they_were_when_it_began() {
        let place = tempfile::tempdir().expect("a folder");
        let (source, folder) = (place.path().join("u.conf"), place.path().join("out"));
        fs::write(&source, "*.Server.target_qps = 3\n").expect("written");
        let left = Left {
            model: "llama3_1-8b".to_owned(),
            ..Left::default()
        };
        let told = [(
            accelerator_yaml(&Name::new("a").expect("a name")),
            "node: a\n".to_owned(),
        )];
        let left = left
            .begin(&folder, &[(USER_CONF, &source)], &told)
            .expect("begun");
        let kept = files(&folder).filter(|p| p.is_file());
        assert_eq!(kept.count(), 3, "what a later run takes away");
        fs::write(&source, "changed").expect("written");
        fs::write(folder.join(loadgen_log::DETAIL), "abc").expect("written");
        left.end(&folder, 1, "INVALID").expect("ended");
        let left = Left::read(&folder).expect("read").expect("there");
        assert_eq!((left.exit, left.format), (Some(1), FORMAT));
        let note = &left.files[USER_CONF];
        assert_eq!(
            note.sha256,
            sha256_of_file(&folder.join(FOLDER).join(USER_CONF)).expect("a hash")
        );
        assert_ne!(note.sha256, sha256_of_file(&source).expect("a hash"));
        assert_eq!(
            left.logs[loadgen_log::DETAIL],
            "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad"
        );
        assert_eq!(left.logs.len(), 1);
    }
}
