//! Fetches LoadGen's sources: MLCommons' source archive, unaltered.
//!
//! Two hashes are pinned. pip and this module both check the archive's hash. The hash of the
//! extracted tree replaces a stamp: each call hashes the files (half a megabyte), and extracts the
//! archive again if a file is missing, changed or added.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context, Result, bail};
use launch::run_quietly;
use sha2::{Digest, Sha256};

use super::{clear, deps, expect_sha256, make_folder, paths_in, python, remove_folder, sha256};

const VERSION: &str = "6.0.17";
/// SHA-256 of the source archive.
const ARCHIVE: &str = "a2e85d09e3cc0c606f89bfe1fbf97537c8b5b238ae0afbd923ad9c710fcf2ca8";
/// [`tree_hash`] of the archive's content.
const TREE: &str = "b0cde44b38c1a32293acb79d518f17e5cc2a943de7904b83cf0a7edfd4096cb9";
/// Limit for pip to fetch the archive over a slow line, and for setuptools to read its metadata.
const DEADLINE: Duration = Duration::from_secs(600);

/// Makes sure that `.deps/loadgen-VERSION/` contains LoadGen's sources as released.
pub fn ensure(root: &Path) -> Result<Option<String>> {
    let tree = deps(root).join(format!("loadgen-{VERSION}"));
    if tree_hash(&tree).is_ok_and(|hash| hash == TREE) {
        return Ok(None);
    }
    // The work folder is in .deps, so that the last step is a rename. Its fixed name lets the next
    // setup remove an incomplete folder.
    let work = deps(root).join("loadgen.partial");
    clear(&work)?;
    let archive = download(root, &work)?;
    expect_sha256(&archive, ARCHIVE, "the archive that was released")?;
    let extracted = work.join("tree");
    make_folder(&extracted)?;
    let mut tar = Command::new("tar");
    tar.args(["--extract", "--gzip", "--strip-components=1"]);
    tar.args(["--no-same-owner", "--no-same-permissions", "--file"]);
    tar.arg(&archive).arg("--directory").arg(&extracted);
    run_quietly("tar", &mut tar, DEADLINE)?;
    let found = tree_hash(&extracted)?;
    if found != TREE {
        bail!(
            "the files in {} have the hash {found}, and not {TREE}",
            archive.display()
        );
    }
    clear(&tree)?;
    std::fs::rename(&extracted, &tree)
        .with_context(|| format!("cannot write {}", tree.display()))?;
    remove_folder(&work)?;
    Ok(Some("fetched".to_owned()))
}

/// Fetches the archive into `work` with pip.
fn download(root: &Path, work: &Path) -> Result<PathBuf> {
    let pinned = format!("mlcommons-loadgen=={VERSION} --hash=sha256:{ARCHIVE}\n");
    // Take the archive: the wheel's library exports nothing to link. The packages that read the
    // archive's metadata come as wheels.
    let choices = ["--no-binary", "mlcommons-loadgen"];
    python::download(&interpreter(root)?, work, &pinned, &choices).context(
        "cannot fetch LoadGen's source archive; see that `pip download` reaches a package index from this machine, \
         then run `cargo xtask setup` again",
    )?;
    let archive = paths_in(work)?.find(|path| path.to_string_lossy().ends_with(".tar.gz"));
    archive.with_context(|| {
        format!(
            "pip said it was done, but left no .tar.gz in {}",
            work.display()
        )
    })
}

/// Path of a Python with pip: setup's own environment, else the machine's `python3`.
pub fn interpreter(root: &Path) -> Result<PathBuf> {
    let own = python::interpreter(root);
    for candidate in [own, PathBuf::from("python3")] {
        let mut ask = Command::new(&candidate);
        ask.args(["-m", "pip", "--version"]);
        if run_quietly("pip", &mut ask, Duration::from_secs(60)).is_ok() {
            return Ok(candidate);
        }
    }
    bail!(
        "no pip: neither {} nor python3 has it; run `apt-get install python3-venv`, then `cargo xtask setup` again",
        python::interpreter(root).display()
    );
}

/// SHA-256 over a line `HASH  PATH` per file, sorted by path, as `sha256sum` writes them.
fn tree_hash(tree: &Path) -> Result<String> {
    let mut files = Vec::new();
    list(tree, tree, &mut files)?;
    files.sort();
    let mut hash = Sha256::new();
    for name in files {
        hash.update(format!("{}  {name}\n", sha256(&[tree.join(&name)])?));
    }
    Ok(hex::encode(hash.finalize()))
}

fn list(tree: &Path, folder: &Path, files: &mut Vec<String>) -> Result<()> {
    for path in paths_in(folder)? {
        if path.symlink_metadata().is_ok_and(|data| data.is_dir()) {
            list(tree, &path, files)?;
        } else if let Ok(name) = path.strip_prefix(tree) {
            files.push(name.to_string_lossy().into_owned());
        }
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_tree_has_another_hash_when_anything_in_it_changes() {
        let folder = tempfile::tempdir().unwrap();
        let tree = folder.path();
        std::fs::create_dir(tree.join("sub")).unwrap();
        std::fs::write(tree.join("sub/a"), "a").unwrap();
        std::fs::write(tree.join("b"), "b").unwrap();
        let hash = tree_hash(tree).unwrap();
        assert_eq!(hash, tree_hash(tree).unwrap());
        std::fs::write(tree.join("sub/a"), "c").unwrap();
        assert_ne!(hash, tree_hash(tree).unwrap());
        std::fs::write(tree.join("sub/a"), "a").unwrap();
        std::fs::write(tree.join("more"), "").unwrap();
        assert_ne!(hash, tree_hash(tree).unwrap());
        std::fs::remove_file(tree.join("more")).unwrap();
        std::fs::rename(tree.join("b"), tree.join("c")).unwrap();
        assert_ne!(hash, tree_hash(tree).unwrap());
        let missing = tree_hash(Path::new("nowhere/at-all")).unwrap_err();
        assert!(missing.to_string().contains("nowhere/at-all"));
    }
}
