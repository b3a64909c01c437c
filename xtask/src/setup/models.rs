//! Writes models and data sets into `.deps/models` with this repository's scripts.

use std::path::Path;
use std::process::Command;
use std::time::Duration;

use anyhow::Result;
use launch::run_quietly;

use super::{deps, expect_outputs, is_stamped, make_folder, python, sha256, write_stamp};

/// Limit for a script: most take seconds, ResNet-50's takes a minute on a slow machine.
const DEADLINE: Duration = Duration::from_secs(900);

/// The digits network, its held-out images and their labels.
pub fn digits(root: &Path) -> Result<Option<String>> {
    let inputs = ["models/digits.py", "models/digits.onnx"];
    write(
        root,
        &inputs,
        &[],
        &["digits.onnx", "digits.samples.u8", "digits.labels.i64"],
    )
}

/// ResNet-50 v1.5 with seeded weights.
pub fn resnet50(root: &Path) -> Result<Option<String>> {
    write(root, &["models/resnet50.py"], &[], &["resnet50.onnx"])
}

/// A BERT of two narrow layers, for tests; 0.2 MB.
pub fn bert_tiny(root: &Path) -> Result<Option<String>> {
    write(root, &["models/bert.py"], &["--tiny"], &["bert-tiny.onnx"])
}

/// BERT-large with seeded weights; 1.3 GB.
pub fn bert(root: &Path) -> Result<Option<String>> {
    write(root, &["models/bert.py"], &[], &["bert.onnx"])
}

/// Runs the script `inputs[0]` with `arguments` and the folder, unless all `outputs` exist and come
/// from the current `inputs`.
pub(super) fn write(
    root: &Path,
    inputs: &[&str],
    arguments: &[&str],
    outputs: &[&str],
) -> Result<Option<String>> {
    let script = root.join(inputs[0]);
    let folder = deps(root).join("models");
    let stamp = folder.join(format!("{}.complete", outputs[0]));
    let mut hashed: Vec<_> = inputs.iter().map(|input| root.join(input)).collect();
    hashed.push(python::requirements(root));
    let wanted = format!("from {}\n", sha256(&hashed)?);
    if is_stamped(&stamp, &wanted) && outputs.iter().all(|output| folder.join(output).is_file()) {
        return Ok(None);
    }
    make_folder(&folder)?;
    let mut command = Command::new(python::interpreter(root));
    command.arg(&script).args(arguments).arg(&folder);
    command
        .env("PYTHONDONTWRITEBYTECODE", "1")
        .current_dir(root);
    run_quietly(inputs[0], &mut command, DEADLINE)?;
    expect_outputs(&folder, inputs[0], outputs)?;
    write_stamp(&stamp, &wanted)?;
    Ok(Some("written".to_owned()))
}
