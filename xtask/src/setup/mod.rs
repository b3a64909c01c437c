//! `cargo xtask setup`: fetches into `.deps` what the programs need and the repository does not
//! contain.
//!
//! Each kind of dependency has one file. apt and pip fetch everything by package name, with the
//! machine's configuration. A step does nothing if its result exists. Most results have a stamp,
//! written last, that equals the hash of the step's inputs.

mod apt;
mod llm;
mod loadgen;
mod models;
mod onnxruntime;
mod python;

use std::fs::{File, TryLockError};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use sha2::{Digest, Sha256};

pub use loadgen::interpreter;
pub use python::{command as python, download, unpack_wheels};

/// Maximum time to wait for another setup of the same checkout.
const OTHER_SETUP: Duration = Duration::from_secs(1800);

#[derive(Clone, Copy, PartialEq, Eq, clap::ValueEnum)]
pub enum Models {
    /// Handwritten digits, and a tiny BERT for tests.
    Digits,
    /// Digits and ResNet-50 v1.5 with seeded weights.
    Resnet50,
    /// Digits and BERT-large with seeded weights, 1.3 GB.
    Bert,
    /// All of these models.
    All,
}

/// Folder of fetched files: `.deps` in the repository.
fn deps(root: &Path) -> PathBuf {
    root.join(".deps")
}

/// Runs all steps, and prints a line for each.
pub fn run(root: &Path, models: Models) -> Result<()> {
    let began = Instant::now();
    let _one_at_a_time = sources(root)?;
    packages(root)?;
    step("Python packages of tests", || python::of_tests(root))?;
    step("tiny BERT model", || models::bert_tiny(root))?;
    step("tiny language model", || llm::tiny(root))?;
    language_model(root)?;
    if matches!(models, Models::Resnet50 | Models::All) {
        step("ResNet-50 v1.5 model", || models::resnet50(root))?;
    }
    if matches!(models, Models::Bert | Models::All) {
        step("BERT-large model", || models::bert(root))?;
    }
    println!(
        "setup: all there, in {:.1} s",
        began.elapsed().as_secs_f64()
    );
    Ok(())
}

/// Runs the steps without which nothing builds. The returned lock keeps other setups away.
pub fn sources(root: &Path) -> Result<File> {
    let folder = deps(root);
    make_folder(&folder)?;
    let one_at_a_time = lock(&folder.join("setup.lock"))?;
    step("compiler, python3-venv", apt::ensure)?;
    step("Python with pip", || python::environment(root))?;
    step("LoadGen", || loadgen::ensure(root))?;
    Ok(one_at_a_time)
}

/// Runs the steps without which the digits do not run; a build may run at the same time.
fn packages(root: &Path) -> Result<()> {
    step("Python packages", || python::ensure(root))?;
    step(&format!("ONNX Runtime {}", onnxruntime::VERSION), || {
        onnxruntime::ensure(root)
    })?;
    step("digits model and data", || models::digits(root))
}

/// Runs the steps of the demo that need no build.
pub fn for_demo(root: &Path, llm: bool) -> Result<()> {
    packages(root)?;
    if llm {
        language_model(root)?;
    }
    Ok(())
}

/// The small language model, its questions, and its tokenizer for a gateway.
fn language_model(root: &Path) -> Result<()> {
    step("SmolLM2-135M and questions", || llm::ensure(root))?;
    step("SmolLM2's tokenizer", || llm::tokenizer(root))
}

/// Runs a step, and prints its name, result and duration. The step returns what it fetched or
/// wrote; `None` if its result existed.
fn step(name: &str, work: impl FnOnce() -> Result<Option<String>>) -> Result<()> {
    let began = Instant::now();
    let done = work();
    let took = began.elapsed().as_secs_f64();
    let result = match &done {
        Ok(None) => "there",
        Ok(Some(what)) => what,
        Err(_) => "FAILED",
    };
    // One write: cargo may print at the same time.
    println!("setup: {name:<30} {result:<30} {took:>6.1} s");
    done.map(|_| ()).with_context(|| format!("setup: {name}"))
}

/// Locks the file `path` until the returned file is dropped: concurrent setups would overwrite each
/// other's files.
fn lock(path: &Path) -> Result<File> {
    let file = File::create(path).with_context(|| format!("cannot write {}", path.display()))?;
    let until = Instant::now() + OTHER_SETUP;
    let mut waits = false;
    while let Err(error) = file.try_lock() {
        let path = path.display();
        if let TryLockError::Error(error) = error {
            return Err(error).with_context(|| format!("lock {path}"));
        }
        ensure!(
            Instant::now() < until,
            "another setup has held {path} for too long"
        );
        if !std::mem::replace(&mut waits, true) {
            println!("setup: another setup of this checkout is running; waiting for it");
        }
        std::thread::sleep(Duration::from_millis(200));
    }
    Ok(file)
}

/// Empties a folder, or creates it, so that files of an earlier run cannot pass for new ones.
pub fn clear(folder: &Path) -> Result<()> {
    if folder.exists() {
        remove_folder(folder)?;
    }
    make_folder(folder)
}

fn make_folder(folder: &Path) -> Result<()> {
    std::fs::create_dir_all(folder).with_context(|| format!("cannot make {}", folder.display()))
}

fn remove_folder(folder: &Path) -> Result<()> {
    std::fs::remove_dir_all(folder).with_context(|| format!("cannot remove {}", folder.display()))
}

pub fn paths_in(folder: &Path) -> Result<impl Iterator<Item = PathBuf>> {
    let entries =
        std::fs::read_dir(folder).with_context(|| format!("cannot read {}", folder.display()))?;
    Ok(entries.filter_map(|entry| Some(entry.ok()?.path())))
}

/// Errors unless the SHA-256 of `file` is `wanted`; `what` says what the file should be.
pub fn expect_sha256(file: &Path, wanted: &str, what: &str) -> Result<()> {
    let found = sha256(&[file.to_owned()])?;
    let file = file.display();
    ensure!(
        found == wanted,
        "{file} has SHA-256 {found}, and not {wanted}: not {what}"
    );
    Ok(())
}

/// SHA-256 over the concatenated files, in hex.
pub fn sha256(files: &[PathBuf]) -> Result<String> {
    let mut hash = Sha256::new();
    for file in files {
        hash.update(
            std::fs::read(file).with_context(|| format!("cannot read {}", file.display()))?,
        );
    }
    Ok(hex::encode(hash.finalize()))
}

/// Whether the stamp's text equals `wanted`.
pub fn is_stamped(stamp: &Path, wanted: &str) -> bool {
    std::fs::read_to_string(stamp).is_ok_and(|found| found == wanted)
}

/// Writes the stamp of a successful step.
pub fn write_stamp(stamp: &Path, wanted: &str) -> Result<()> {
    std::fs::write(stamp, wanted).with_context(|| format!("cannot write {}", stamp.display()))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_hash_is_that_of_the_files_in_order() {
        let folder = tempfile::tempdir().unwrap();
        let (a, b) = (folder.path().join("a"), folder.path().join("b"));
        std::fs::write(&a, "a").unwrap();
        std::fs::write(&b, "bc").unwrap();
        let abc = "ba7816bf8f01cfea414140de5dae2223b00361a396177a9cb410ff61f20015ad";
        assert_eq!(sha256(&[a.clone(), b.clone()]).unwrap(), abc);
        assert_ne!(sha256(&[b, a]).unwrap(), abc);
        let error = sha256(&[PathBuf::from("nowhere/at-all")]).unwrap_err();
        assert!(error.to_string().contains("nowhere/at-all"));
    }

    #[test]
    fn a_stamp_of_other_inputs_does_not_count() {
        let folder = tempfile::tempdir().unwrap();
        let stamp = folder.path().join("stamp");
        assert!(!is_stamped(&stamp, "one"));
        write_stamp(&stamp, "one").unwrap();
        assert!(is_stamped(&stamp, "one"));
        assert!(!is_stamped(&stamp, "two"));
    }

    #[test]
    fn the_lock_is_free_again_when_its_holder_is_gone() {
        let folder = tempfile::tempdir().unwrap();
        let path = folder.path().join("lock");
        drop(lock(&path).unwrap());
        let held = lock(&path).unwrap();
        let other = File::create(&path).unwrap();
        assert!(matches!(other.try_lock(), Err(TryLockError::WouldBlock)));
        drop(held);
        // Another test may start a program now, which keeps the file open until its exec.
        drop(lock(&path).unwrap());
    }
}
