//! Writes models and data sets into `.deps/models` with this repository's scripts.

use std::path::Path;
use std::time::Duration;

use anyhow::{Result, bail};

use super::{deps, is_stamped, make_folder, python, sha256, write_stamp};

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

/// Runs the script `inputs[0]` with `arguments` and the folder, unless all `outputs` are current.
pub(super) fn write(
    root: &Path,
    inputs: &[&str],
    arguments: &[&str],
    outputs: &[&str],
) -> Result<Option<String>> {
    let stamp = format!("{}.complete", outputs[0]);
    unless_current(root, &stamp, inputs, "", outputs, |folder| {
        let arguments = arguments.iter().map(Path::new).chain([folder]);
        python::script(root, inputs[0], arguments, DEADLINE)?;
        Ok("written")
    })
}

/// Runs `work` with the folder of models, unless all `outputs` exist and come from the current
/// `inputs` and from `packages`.
pub(super) fn unless_current(
    root: &Path,
    stamp: &str,
    inputs: &[&str],
    packages: &str,
    outputs: &[&str],
    work: impl FnOnce(&Path) -> Result<&'static str>,
) -> Result<Option<String>> {
    let folder = deps(root).join("models");
    let stamp = folder.join(stamp);
    let mut hashed: Vec<_> = inputs.iter().map(|input| root.join(input)).collect();
    hashed.push(python::requirements(root));
    let wanted = format!("from {}{packages}\n", sha256(&hashed)?);
    let missing = || {
        outputs
            .iter()
            .map(|output| folder.join(output))
            .find(|path| !path.is_file())
    };
    if is_stamped(&stamp, &wanted) && missing().is_none() {
        return Ok(None);
    }
    make_folder(&folder)?;
    let done = work(&folder)?;
    if let Some(missing) = missing() {
        bail!("{} did not write {}", inputs[0], missing.display());
    }
    write_stamp(&stamp, &wanted)?;
    Ok(Some(done.to_owned()))
}
