//! The files that a run leaves beside LoadGen's logs: its manifest, `run.json`, and copies of the
//! run's input files in the folder `files`, where they replace no file of the user's.
//!
//! The frontend calls [`begin`] before the measurement, so the copies show the files as the run
//! read them, and [`end`] when the logs are complete. `build` copies the manifest into a tree, and
//! `rules` compares the tree with the manifest.

use std::{
    fs,
    io::{Read, Seek, SeekFrom},
    path::{Path, PathBuf},
};

use fabric::os;
use machine::Role;
use record::{COPIES, FileRecord, MANIFEST, Manifest, NodeRecord, secrets};

use crate::{
    error::{self, Error},
    layout::{self, Name},
};

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
/// The accelerator of which a copy is the configuration, by the copy's name.
pub(crate) fn node_of_yaml(file: &str) -> Option<Name> {
    let node = file.strip_prefix("accelerator-")?.strip_suffix(".yaml")?;
    Name::new(node).ok()
}
/// Name of the file with a node's description, [`machine::Node`].
pub fn node_json(node: &Name) -> String {
    format!("node-{node}.json")
}
/// Current value of [`Manifest::format`].
const FORMAT: u32 = 1;

/// All nodes with their roles, the frontend first.
pub(crate) fn nodes(manifest: &Manifest) -> impl Iterator<Item = (Role, &NodeRecord)> {
    let accelerators = manifest.accelerators.iter();
    let accelerators = accelerators.map(|node| (Role::Accelerator, node));
    std::iter::once((Role::Frontend, &manifest.frontend)).chain(accelerators)
}

/// Writes the manifest into `folder` before the run, with a copy of each file. `files` pairs the
/// copy's name with the original's path; `sent` pairs the names and texts of files from nodes.
///
/// # Errors
/// An original cannot be read, or a file cannot be written.
pub fn begin(
    mut manifest: Manifest,
    folder: &Path,
    files: &[(&str, &Path)],
    sent: &[(String, String)],
) -> Result<Manifest, Error> {
    manifest.format = FORMAT;
    (manifest.command, manifest.masked) = secrets::mask_words(&manifest.command);
    let copies = folder.join(COPIES);
    // Delete copies only beside a manifest: without one, the folder `files` is the user's.
    if folder.join(MANIFEST).is_file() {
        for old in layout::files(&copies) {
            let path = copies.join(old);
            fs::remove_file(&path).map_err(Error::write(&path))?;
        }
    }
    let mut masked = 0;
    let mut record = |name: &str, from: PathBuf| {
        let sha256 = sha256_of_file(&copies.join(name))?;
        let file = FileRecord { from, sha256 };
        manifest.files.insert(name.to_owned(), file);
        Ok(())
    };
    for (name, from) in files {
        match *name {
            FRONTEND_YAML => masked += copy_masked(from, &copies.join(name))?,
            _ => error::copy(from, &copies.join(name))?,
        }
        record(name, from.to_path_buf())?;
    }
    for (name, text) in sent {
        if node_of_yaml(name).is_some() {
            // A node of an earlier release masks nothing.
            let own = secrets::mask(text).with_count();
            masked += own.matches(secrets::MASK).count();
            error::write(&copies.join(name), own)?;
        } else {
            error::write(&copies.join(name), text)?;
        }
        record(name, PathBuf::from("sent by the node"))?;
    }
    manifest.masked += masked;
    error::write_json(&folder.join(MANIFEST), &manifest)?;
    Ok(manifest)
}

/// Copies a configuration without the values that look like keys; returns the number of those.
pub(crate) fn copy_masked(from: &Path, to: &Path) -> Result<usize, Error> {
    let masked = secrets::mask(&error::read(from)?);
    let count = masked.count;
    error::write(to, masked.with_count())?;
    Ok(count)
}

/// Adds the logs' hashes, exit code and reason to the manifest at the end of the run.
///
/// # Errors
/// A log cannot be read, or the manifest cannot be written.
pub fn end(mut manifest: Manifest, folder: &Path, exit: u8, reason: &str) -> Result<(), Error> {
    for name in LOGS {
        let path = folder.join(name);
        if path.is_file() {
            let hash = sha256_of_file(&path)?;
            manifest.logs.insert(name.to_owned(), hash);
        }
    }
    let log = folder.join(loadgen_log::ACCURACY);
    if log.is_file() {
        manifest.accuracy_cut = Some(os::sha256_of(&cut(&log)?));
    }
    manifest.exit = Some(exit);
    let reason = secrets::mask(reason);
    (manifest.reason, manifest.masked) = (reason.text, manifest.masked + reason.count);
    error::write_json(&folder.join(MANIFEST), &manifest)
}

/// LoadGen's logs.
pub(crate) const LOGS: [&str; 3] = [
    loadgen_log::SUMMARY,
    loadgen_log::DETAIL,
    loadgen_log::ACCURACY,
];

/// Reads the manifest in a folder; `None` if there is none.
pub(crate) fn read(folder: &Path) -> Result<Option<Manifest>, Error> {
    let path = folder.join(MANIFEST);
    if !path.exists() {
        return Ok(None);
    }
    error::read_json(&path).map(Some)
}

/// Paths that a run may have left in `folder`, for a caller that empties it. Some may not exist.
pub fn files(folder: &Path) -> impl Iterator<Item = PathBuf> {
    let copies = folder.join(COPIES);
    let of_node = |name: &String| {
        node_of_yaml(name).is_some() || name.starts_with("node-") && name.ends_with(".json")
    };
    let nodes: Vec<_> = layout::files(&copies).into_iter().filter(of_node).collect();
    let own = [USER_CONF, AUDIT_CONFIG, FRONTEND_YAML].map(str::to_owned);
    let names = own.into_iter().chain(nodes);
    names
        .map(move |name| copies.join(name))
        .chain([folder.join(MANIFEST)])
}

/// Cuts a log as MLCommons' truncate_accuracy_log.py does: its first and last 4096 bytes remain.
pub(crate) fn cut(path: &Path) -> Result<Vec<u8>, Error> {
    const SHOWN: u64 = 4096;
    let mut file = loadgen_log::open_file(path).map_err(Error::read(path))?;
    let size = file.metadata().map_err(Error::read(path))?.len();
    let mut text = Vec::new();
    let mut read = |from: u64, text: &mut Vec<u8>| {
        file.seek(SeekFrom::Start(from))?;
        (&mut file).take(SHOWN).read_to_end(text)
    };
    read(0, &mut text).map_err(Error::read(path))?;
    if size >= SHOWN {
        text.extend(b"\n\n...\n\n");
        read(size - SHOWN, &mut text).map_err(Error::read(path))?;
    }
    Ok(text)
}

/// SHA-256 of a file, in hexadecimal digits.
///
/// # Errors
/// The file cannot be read.
pub fn sha256_of_file(path: &Path) -> Result<String, Error> {
    let hashed = os::sha256_of_file(path);
    hashed.map(|(hash, _)| hash).map_err(Error::read(path))
}

/// Paths of a test's official audit.config files: the test's own, and those for single models.
pub(crate) fn audit_configs(checker: &Path, test: &Name) -> Vec<PathBuf> {
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
        let sent = [("accelerator-a.yaml".to_owned(), "node: a\n".to_owned())];
        let manifest = begin(Manifest::default(), &folder, &[(USER_CONF, &source)], &sent);
        let kept = files(&folder).filter(|p| p.is_file());
        assert_eq!(kept.count(), 3, "what a later run takes away");
        fs::write(&source, "changed").expect("written");
        fs::write(folder.join(loadgen_log::DETAIL), "abc").expect("written");
        end(manifest.expect("begun"), &folder, 1, "INVALID").expect("ended");
        let manifest = read(&folder).expect("read").expect("there");
        assert_eq!((manifest.exit, manifest.format), (Some(1), FORMAT));
        let hash = |path: &Path| sha256_of_file(path).expect("a hash");
        let own = &manifest.files[USER_CONF].sha256;
        assert_eq!(*own, hash(&folder.join(COPIES).join(USER_CONF)));
        assert_ne!(*own, hash(&source));
        let log = (loadgen_log::DETAIL.to_owned(), os::sha256_of(b"abc"));
        assert_eq!(manifest.logs, [log].into());
    }
}
