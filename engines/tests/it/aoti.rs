//! Engine `aoti`: each error at the start is one clear line. One test runs a real package on the
//! CPU; it needs PyTorch and the packages of `models/export_aoti.py --device cpu`.

use std::{fs::File, io::Write, path::PathBuf};

use crate::common::{Samples, eventually, repository};
use engines::{
    EngineKind, EngineParams, create,
    pipeline::Options,
    pipelines::{self, Pipelines},
};
use qdl::{serve::Service, testkit::assert_has};
use zip::{CompressionMethod, ZipWriter, write::SimpleFileOptions};

const FOLDER: &str = "m/data/aotinductor/model/";
const DIGITS: &str = r#"{\"inputs\": [{\"name\": \"pixels\", \"dtype\": \"u8\", \"shape\": [64]}], \"output\": {\"name\": \"class\", \"dtype\": \"i64\", \"shape\": [1]}}"#;

fn archive(files: &[(&str, &str)]) -> (tempfile::TempDir, PathBuf) {
    let folder = tempfile::tempdir().expect("a folder");
    let path = folder.path().join("m.pt2");
    let mut zip = ZipWriter::new(File::create(&path).expect("a file"));
    let stored = SimpleFileOptions::default().compression_method(CompressionMethod::Stored);
    for (name, text) in files {
        zip.start_file(*name, stored).expect("an entry");
        zip.write_all(text.as_bytes()).expect("written");
    }
    zip.finish().expect("an archive");
    (folder, path)
}

fn package(device: &str, model: &str) -> (tempfile::TempDir, PathBuf) {
    let metadata = format!(r#"{{"AOTI_DEVICE_KEY": "{device}"{model}}}"#);
    archive(&[
        ("m/archive_format", "pt2"),
        (&format!("{FOLDER}a.wrapper.so"), "no library"),
        (&format!("{FOLDER}a.wrapper_metadata.json"), &metadata),
    ])
}

fn params(file: PathBuf) -> EngineParams {
    EngineParams {
        model: "m".into(),
        file: Some(file),
        ..EngineParams::new(EngineKind::Aoti)
    }
    // Hides any installed PyTorch.
    .with(|e| e.library = Some("/nowhere/torch/lib".into()))
}

/// Returns the only line of the error at the start.
fn refusal(params: &EngineParams) -> String {
    let text = create(params).err().expect("refused").to_string();
    assert!(!text.contains('\n'), "{text}");
    text
}

#[test]
fn a_package_that_is_none_is_named() {
    for (file, words) in [
        (
            concat!(env!("CARGO_MANIFEST_DIR"), "/Cargo.toml"),
            "is no package of PyTorch's",
        ),
        ("/nowhere/m.pt2", "/nowhere/m.pt2: No such file"),
        (env!("CARGO_MANIFEST_DIR"), "is not a file"),
    ] {
        assert_has(&refusal(&params(file.into())), &[words]);
    }
    let two = [
        ("m/data/aotinductor/a/1.so", ""),
        ("m/data/aotinductor/b/2.so", ""),
    ];
    for (files, words) in [
        (&[("m/data/weights/w", "1")][..], "holds no compiled model"),
        (&two, "holds 2 compiled models"),
    ] {
        let (_folder, path) = archive(files);
        assert_has(&refusal(&params(path)), &[words]);
    }
}

/// What the package says, before PyTorch is looked for; then PyTorch.
#[test]
fn a_package_that_does_not_say_enough_and_pytorch_that_is_not_there() {
    let model = format!(r#", "qdl.model": "{DIGITS}""#);
    let odd = r#", "qdl.model": "{\"inputs\": 7}""#;
    for (device, model, words) in [
        ("cpu", "", &["does not say what the model takes"][..]),
        ("mps", "", &["was compiled for `mps`"]),
        (
            "cpu",
            odd,
            &["its description of the model is not understood"],
        ),
        ("cpu", &model, &["/nowhere/torch/lib", "pip install torch"]),
    ] {
        let (_folder, path) = package(device, model);
        assert_has(&refusal(&params(path)), words);
    }
    // Without a driver it says so; with one, no machine has that GPU.
    let (_folder, path) = package("cuda", &model);
    let text = refusal(&params(path).with(|e| e.gpu = 4096));
    let either = ["no NVIDIA driver", "there is no GPU 4096"];
    assert!(either.iter().any(|e| text.contains(e)), "{text}");
}

/// `models/export_aoti.py --device cpu DIR digits`, then
/// `QDL_TORCH=.../torch/lib QDL_AOTI=DIR cargo test -p engines --test it -- --ignored aoti`.
#[test]
#[ignore = "takes PyTorch and packages compiled for this machine's CPU"]
fn digits_on_the_cpu_are_what_onnx_says() {
    let folder = std::env::var_os("QDL_AOTI")
        .map(PathBuf::from)
        .expect("QDL_AOTI");
    let root = repository();
    let pixels =
        std::fs::read(root.join(".deps/models/digits.samples.u8")).expect("cargo xtask setup");
    let places: Vec<_> = (0..pixels.len() / 64).map(|i| (i * 64, 64)).collect();
    let n = places.len();
    let mut classes = Vec::new();
    let package = folder.join("digits.pt2");
    // Two pipelines load the model twice in one process, as for two GPUs.
    for (kind, file, sizes, pipelines) in [
        (
            EngineKind::Onnx,
            &root.join("models/digits.onnx"),
            vec![],
            1,
        ),
        (EngineKind::Aoti, &package, vec![], 1),
        (EngineKind::Aoti, &package, vec![8, 64], 1),
        (EngineKind::Aoti, &package, vec![], 2),
    ] {
        let params = EngineParams {
            model: "digits".into(),
            file: Some(file.clone()),
            ..EngineParams::new(kind)
        };
        let params = params.with(|e| {
            e.batch_sizes = sizes;
            e.threads = 2;
        });
        let gpus: Vec<_> = (0..pipelines).collect();
        let engines = pipelines::create(&params, &gpus).unwrap_or_else(|e| panic!("{e}"));
        let pipelines = Pipelines::start(engines, &Options::from(&params), |e| panic!("{e}"))
            .unwrap_or_else(|e| panic!("{e}"));
        let samples = Samples::new(&pixels, places.clone(), 16, None);
        pipelines.arrived(&mut samples.arrivals(0..n));
        eventually("all answered", || samples.total() == n);
        for (gpu, pipeline) in pipelines.each() {
            let ran = pipeline.counters().samples;
            assert!(ran > 0, "pipeline {gpu} of {kind:?} ran nothing");
        }
        classes.push(
            (0..n)
                .map(|i| samples.output(i)[..8].to_vec())
                .collect::<Vec<_>>(),
        );
    }
    for others in &classes[1..] {
        assert_eq!(&classes[0], others);
    }
    println!("{n} samples, the same classes in {} ways", classes.len());
}
