//! What a run leaves behind beside LoadGen's logs: `run.json`, and copies of the files it read, in
//! a folder `files` of their own, so that no file of the user's is ever replaced.
//!
//! A frontend writes it into the run's folder: [`Left::begin`] before anything is measured, so that
//! files that change meanwhile are kept as they were read, and [`Left::end`] when the logs are
//! whole. A tree is built from it, and compared with it.

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

/// The folder of the copies.
pub const FOLDER: &str = "files";
/// The file's name.
pub const FILE: &str = "run.json";
/// The copies: LoadGen's configurations, and this node's.
pub const USER_CONF: &str = "user.conf";
/// The copy of the audit.config, where there was one.
pub const AUDIT_CONFIG: &str = "audit.config";
/// The copy of the frontend's configuration.
pub const FRONTEND_YAML: &str = "frontend.yaml";
/// The copy of an accelerator's configuration, as it told it.
pub fn accelerator_yaml(node: &Name) -> String {
    format!("accelerator-{node}.yaml")
}
/// Whether a copy is an accelerator's configuration.
pub fn is_accelerator_yaml(name: &str) -> bool {
    name.starts_with("accelerator-") && name.ends_with(".yaml")
}
/// The description of a node, [`crate::describe::Node`].
pub fn node_json(node: &Name) -> String {
    format!("node-{node}.json")
}
/// This program's own summary.
pub const SUMMARY: &str = "summary.json";
/// What [`Left::format`] says.
const FORMAT: u32 = 1;

/// See the module. A field that a later version adds does not keep an older one from reading it.
#[derive(Clone, Debug, Default, PartialEq, Serialize, Deserialize)]
#[serde(default)]
pub struct Left {
    /// Of this file.
    pub format: u32,
    /// The command, word by word.
    pub command: Vec<String>,
    /// The model's name in user.conf.
    pub model: String,
    /// LoadGen's name of the scenario.
    pub scenario: String,
    /// No network: one process.
    pub local: bool,
    /// `tcp`, `ib` or `local`.
    pub fabric: String,
    /// Why the Network division would not permit it, a line each.
    pub fabric_notes: Vec<String>,
    /// Connections over which samples went.
    pub connections: u64,
    /// Settings of LoadGen that came from elsewhere than user.conf and audit.config, as
    /// `--set min_query_count=7`, `loadgen.settings.min_duration = 0`.
    pub overrides: Vec<String>,
    /// The copies in the run's folder, by their names there.
    pub files: BTreeMap<String, FileNote>,
    /// SHA-256 of LoadGen's logs when the run had ended, by their names.
    pub logs: BTreeMap<String, String>,
    /// SHA-256 of the accuracy log as MLCommons' truncate_accuracy_log.py cuts it.
    pub accuracy_cut: Option<String>,
    /// The program's exit code; none while it runs.
    pub exit: Option<u8>,
    /// Why it ended so.
    pub reason: String,
    /// The node of LoadGen.
    pub frontend: NodeNote,
    /// The others, as they said of themselves.
    pub accelerators: Vec<NodeNote>,
    /// Whether their engines keep prefixes across queries, of those that could.
    pub prefix_caches: BTreeMap<String, PrefixCache>,
    /// Nodes without a description, and why.
    pub undescribed: BTreeMap<String, String>,
}

/// A file that the run read.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FileNote {
    /// Where it lay.
    pub from: PathBuf,
    /// Its SHA-256, in hexadecimal digits.
    pub sha256: String,
}

/// A node and its program. The names of the fields are those that nodes tell each other.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct NodeNote {
    /// Its name in the configuration.
    pub node: String,
    /// The machine's host name.
    pub host: String,
    /// Hash of the machine's id.
    pub machine: Option<String>,
    /// Hash of its kernel's boot-id.
    pub boot: Option<String>,
    /// The program's release.
    pub version: String,
    /// The commit that it was built from.
    pub commit: Option<String>,
    /// True where that commit was not all that it was built from.
    pub dirty: Option<bool>,
    /// SHA-256 of the program's file.
    pub program: Option<String>,
}

impl NodeNote {
    /// What a node said of itself.
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

    /// Whether two nodes are on one machine; `None` where neither can be told.
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

    /// Writes what is known before the run into `folder`, with a copy of each file; `files` are
    /// names of copies and where the originals lie, `told` names and texts that nodes have told.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Write`].
    pub fn begin(
        mut self,
        folder: &Path,
        files: &[(&str, &Path)],
        told: &[(String, String)],
    ) -> Result<Self, Error> {
        self.format = FORMAT;
        let copies = folder.join(FOLDER);
        // An earlier run's copies are not this one's; who else has such a folder keeps it.
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

    /// Writes what is known when the run has ended.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Write`].
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

    /// Reads it from a folder; `None` where there is none.
    ///
    /// # Errors
    /// [`Error::Read`], [`Error::Content`].
    pub fn read(folder: &Path) -> Result<Option<Self>, Error> {
        let path = folder.join(FILE);
        if !path.exists() {
            return Ok(None);
        }
        error::read_json(&path).map(Some)
    }
}

/// What a run may have left in its folder, for whoever is to use the folder again.
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

/// A log as MLCommons' truncate_accuracy_log.py leaves it: its first and last 4096 bytes.
///
/// # Errors
/// [`Error::Read`].
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

/// The SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// [`Error::Read`].
pub fn sha256_of_file(path: &Path) -> Result<String, Error> {
    let hashed = os::sha256_of_file(path);
    hashed.map(|(hash, _)| hash).map_err(|source| Error::Read {
        path: path.to_owned(),
        source,
    })
}

/// The official audit.config files of a test: its own, and those of single models.
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
