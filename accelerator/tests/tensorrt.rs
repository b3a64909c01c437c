//! Engine `tensorrt`: each error at the start is one clear line with exit code 2. Tests named
//! `lean_` need a shim and a TensorRT that loads without a GPU; `cargo xtask tensorrt --check`
//! fetches both and runs these tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use qdl::testkit::assert_has;

/// Writes a model file of this name and a configuration with these keys of the engine; returns the
/// last line of the accelerator's error.
fn refused(name: &str, keys: &str, environment: &[(&str, &Path)]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join(name);
    fs::write(&model, "this is no model").expect("written");
    refused_with(folder.path(), &model, keys, environment)
}

fn refused_with(folder: &Path, model: &Path, keys: &str, environment: &[(&str, &Path)]) -> String {
    let config = folder.join("a.yaml");
    let text = format!(
        "node: a\ncontrol: {{listen: 127.0.0.1:0}}\nmodel: {{name: m, file: {}}}\n\
         engine: {{kind: tensorrt{keys}}}\nnics: [{{listen: 127.0.0.1:0}}]\n",
        model.display()
    );
    fs::write(&config, text).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_accelerator"));
    command
        .arg("--config")
        .arg(&config)
        .env("QDL_PLANS", folder);
    for (key, value) in environment {
        command.env(key, value);
    }
    let out = command.output().expect("the accelerator runs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    let last = said.lines().rfind(|l| l.starts_with("error: "));
    last.unwrap_or_else(|| panic!("no error: {said}"))
        .to_owned()
}

const NO_SHIM: [(&str, &str); 1] = [("QDL_TENSORRT_SHIM", "/nowhere/shim.so")];

fn no_shim() -> [(&'static str, &'static Path); 1] {
    NO_SHIM.map(|(k, v)| (k, Path::new(v)))
}

#[test]
fn without_the_shim() {
    let text = refused("m.plan", "", &no_shim());
    assert_has(
        &text,
        &["the shim over TensorRT was not found (looked for /nowhere/shim.so)"],
    );
    assert_has(&text, &["cargo xtask tensorrt --include DIR"]);
}

#[test]
fn a_shim_that_is_none() {
    let file = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let text = refused("m.plan", "", &[("QDL_TENSORRT_SHIM", &file)]);
    assert_has(&text, &["Cargo.toml: cannot be used by engine tensorrt"]);
}

#[test]
fn a_model_that_is_not_there() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = refused_with(folder.path(), Path::new("/nowhere/m.onnx"), "", &no_shim());
    assert!(text.contains("/nowhere/m.onnx: No such file"), "{text}");
}

#[test]
fn a_plan_has_its_precision() {
    let text = refused("m.plan", ", precision: int8", &no_shim());
    assert!(text.contains("engine.precision: "), "{text}");
    assert!(text.contains("is a plan"), "{text}");
}

#[test]
fn a_precision_that_is_none() {
    let folder = tempfile::tempdir().expect("a folder");
    let config = folder.path().join("a.yaml");
    let text = "node: a\ncontrol: {listen: 127.0.0.1:0}\nmodel: {name: m, file: m.onnx}\n\
                engine: {kind: tensorrt, precision: int4}\nnics: [{listen: 127.0.0.1:0}]\n";
    fs::write(&config, text).expect("written");
    let out = Command::new(env!("CARGO_BIN_EXE_accelerator"))
        .arg("--config")
        .arg(&config)
        .output()
        .expect("the accelerator runs");
    let said = String::from_utf8_lossy(&out.stderr);
    assert_eq!(out.status.code(), Some(2), "{said}");
    assert!(said.contains("int4") && said.contains("int8"), "{said}");
}

fn variable(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value
        .unwrap_or_else(|| panic!("{name} is set by `cargo xtask tensorrt --check`"))
        .into()
}

#[test]
#[ignore = "wants a shim: cargo xtask tensorrt --check"]
fn lean_no_library() {
    let folder = tempfile::tempdir().expect("a folder");
    let text = refused("m.plan", "", &[("QDL_TENSORRT", folder.path())]);
    assert_has(&text, &["TensorRT 11 was not found", "libnvinfer.so.11"]);
}

#[test]
#[ignore = "wants a shim: cargo xtask tensorrt --check"]
fn lean_a_library_that_is_no_tensorrt() {
    let other = variable("QDL_TENSORRT_SHIM");
    let text = refused("m.plan", &format!(", library: {}", other.display()), &[]);
    assert!(text.contains("is no TensorRT"), "{text}");
}

#[test]
#[ignore = "wants a shim: cargo xtask tensorrt --check"]
fn lean_a_library_of_another_version() {
    let other = variable("QDL_TENSORRT_OTHER");
    let text = refused("m.plan", "", &[("QDL_TENSORRT", &other)]);
    assert_has(
        &text,
        &["is TensorRT 8.6.1, and libqdl_tensorrt.so was compiled for 11.4.0"],
    );
}

/// The library loads; then the GPU is missing, or the file is no plan.
#[test]
#[ignore = "wants a shim and a TensorRT: cargo xtask tensorrt --check"]
fn lean_no_driver_or_no_plan() {
    for name in ["m.plan", "m.onnx"] {
        let text = refused(name, "", &[]);
        assert!(
            text.contains("there is no NVIDIA driver") || text.contains("model file"),
            "{text}"
        );
    }
}
