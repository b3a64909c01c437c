//! Libraries of engines `tensorrt` and `onnx`: each error at the start is one clear line with exit
//! code 2. Tests named
//! `lean_` need a shim and a TensorRT that loads without a GPU; `cargo xtask tensorrt --check`
//! fetches both and runs these tests.

use std::{
    fs,
    path::{Path, PathBuf},
    process::Command,
};

use qdl::testkit::assert_has;

/// A folder with a model file of this name (or one that is elsewhere), and the accelerator's last
/// error over it. `kind` is followed by the engine's other keys.
fn refused(name: &str, kind: &str, environment: &[(&str, &Path)]) -> String {
    let folder = tempfile::tempdir().expect("a folder");
    let model = folder.path().join(name);
    if !name.starts_with('/') {
        fs::write(&model, "this is no model").expect("written");
    }
    let config = folder.path().join("a.yaml");
    let text = format!(
        "node: a\ncontrol: {{listen: 127.0.0.1:0}}\nmodel: {{name: m, file: {}}}\n\
         engine: {{kind: {kind}}}\nnics: [{{listen: 127.0.0.1:0}}]\n",
        model.display()
    );
    fs::write(&config, text).expect("written");
    let mut command = Command::new(env!("CARGO_BIN_EXE_accelerator"));
    command.arg("--config").arg(&config);
    command.env("QDL_PLANS", folder.path());
    command.envs(environment.iter().copied());
    let out = command.output().expect("the accelerator runs");
    let said = String::from_utf8_lossy(&out.stderr).into_owned();
    assert_eq!(out.status.code(), Some(2), "{said}");
    let last = said.rfind("error: ");
    said[last.unwrap_or_else(|| panic!("no error: {said}"))..].to_owned()
}

#[test]
fn a_failed_start_names_the_cause() {
    let none = Path::new("/nowhere/shim.so");
    let other = Path::new(env!("CARGO_MANIFEST_DIR")).join("Cargo.toml");
    let (plan, absent) = ("m.plan", "/nowhere/m.onnx");
    for (model, kind, shim, words) in [
        (plan, "", none, "found (looked for /nowhere/shim.so)"),
        (plan, "", none, "cargo xtask tensorrt --include DIR"),
        (plan, "", &other, "Cargo.toml: cannot be used by engine"),
        (absent, "", none, "/nowhere/m.onnx: No such file"),
        (plan, ", precision: int8", none, "engine.precision: "),
        (plan, ", precision: int8", none, "is a plan"),
        ("m.onnx", ", precision: int4", none, "int4"),
    ] {
        let kind = format!("tensorrt{kind}");
        let text = refused(model, &kind, &[("QDL_TENSORRT_SHIM", shim)]);
        assert_has(&text, &[words]);
    }
}

#[test]
fn a_file_that_is_no_onnx_runtime_says_so() {
    let folder = env!("CARGO_MANIFEST_DIR");
    let model = format!("{folder}/../engines/tests/data/masked_sum.onnx");
    let text = refused(&model, &format!("onnx, library: {folder}/Cargo.toml"), &[]);
    assert_has(&text, &["Cargo.toml", "cargo xtask setup"]);
}

fn variable(name: &str) -> PathBuf {
    let value = std::env::var_os(name);
    value
        .unwrap_or_else(|| panic!("{name} is set by `cargo xtask tensorrt --check`"))
        .into()
}

#[test]
#[ignore = "wants a shim: cargo xtask tensorrt --check"]
fn lean_a_library_that_is_missing_another_or_of_another_version() {
    let folder = tempfile::tempdir().expect("a folder");
    let older = variable("QDL_TENSORRT_OTHER");
    let shim = variable("QDL_TENSORRT_SHIM");
    let other = format!("tensorrt, library: {}", shim.display());
    let version = "is TensorRT 8.6.1, and libqdl_tensorrt.so was compiled for 11.4.0";
    for (kind, library, words) in [
        (
            "tensorrt",
            Some(folder.path()),
            &["TensorRT 11 was not found", "libnvinfer.so.11"][..],
        ),
        (&other, None, &["is no TensorRT"]),
        ("tensorrt", Some(&older), &[version]),
    ] {
        let library = library.map(|path| ("QDL_TENSORRT", path));
        assert_has(&refused("m.plan", kind, library.as_slice()), words);
    }
}
