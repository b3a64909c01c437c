//! User models and data: several inputs and outputs, a fixed batch, NumPy files, and labels of
//! every type. The tests fail without the files that `cargo xtask setup` fetches.

mod common;

use std::{
    io::{Cursor, Write},
    path::{Path, PathBuf},
};

use common::{Ended, Place, Running, accelerator, assert_has, fetched, free_ports, repository};
use serde_json::Value;

const ACCURACY: [&str; 4] = ["--scenario", "offline", "--mode", "accuracy"];
const SAMPLES: usize = 60;
/// Tensors of the detector, with the class as first output.
const CLASS_FIRST: &str = "\
    inputs: [{name: bias, dtype: f32, shape: []}, {name: pixels, dtype: u8, shape: [4]}], \
    output: {name: class, dtype: i64, shape: []}, \
    other_outputs: [{name: boxes, dtype: f32, shape: [2, 4]}, \
    {name: scores, dtype: f32, shape: [4]}]";
/// Tensors of the detector, with the scores as first output.
const SCORES_FIRST: &str = "\
    inputs: [{name: bias, dtype: f32, shape: []}, {name: pixels, dtype: u8, shape: [4]}], \
    output: {name: scores, dtype: f32, shape: [4]}, \
    other_outputs: [{name: class, dtype: i64, shape: []}, \
    {name: boxes, dtype: f32, shape: [2, 4]}]";

fn model(name: &str) -> PathBuf {
    let _ = fetched("models/digits.onnx");
    repository().join("accelerator/tests/data").join(name)
}

/// Returns the pixels of sample `i` and the class that the model computes from them.
fn sample(i: usize) -> ([u8; 4], i32) {
    let pixels = [7, 13, 29, 5].map(|p| (i * p % 200) as u8);
    let most = pixels.iter().max();
    let class = pixels.iter().position(|p| Some(p) == most).expect("one");
    (pixels, class as i32)
}

/// Returns a `.npy` file as NumPy writes it.
fn npy(code: &str, shape: &str, bytes: &[u8]) -> Vec<u8> {
    let text = format!("{{'descr': '{code}', 'fortran_order': False, 'shape': ({shape}), }}\n");
    let mut all = b"\x93NUMPY\x01\x00".to_vec();
    all.extend((text.len() as u16).to_le_bytes());
    all.extend(text.as_bytes());
    all.extend(bytes);
    all
}

fn pixels() -> Vec<u8> {
    (0..SAMPLES).flat_map(|i| sample(i).0).collect()
}

fn biases() -> Vec<u8> {
    let bias = |i: usize| (i as f32 * 0.5).to_le_bytes();
    (0..SAMPLES).flat_map(bias).collect()
}

/// Returns a `.npz` file with the detector's two inputs.
fn npz() -> Vec<u8> {
    let mut zip = zip::ZipWriter::new(Cursor::new(Vec::new()));
    let stored =
        zip::write::SimpleFileOptions::default().compression_method(zip::CompressionMethod::Stored);
    for (name, array) in [
        (
            "pixels.npy",
            npy("|u1", &format!("{SAMPLES}, 4"), &pixels()),
        ),
        ("bias.npy", npy("<f4", &format!("{SAMPLES},"), &biases())),
    ] {
        zip.start_file(name, stored).expect("in memory");
        zip.write_all(&array).expect("in memory");
    }
    zip.finish().expect("in memory").into_inner()
}

/// Returns i32 labels; `wrong` of them differ from the model's class.
fn labels(wrong: usize) -> Vec<u8> {
    let label = |i: usize| (sample(i).1 + i32::from(i < wrong)) % 4;
    (0..SAMPLES).flat_map(|i| label(i).to_le_bytes()).collect()
}

/// Writes a frontend with the detector's `tensors` and a data set.
fn frontend(place: &Place, file: &str, tensors: &str, data: &str, ports: &[u16]) -> PathBuf {
    let ports = ports.iter().chain(ports.is_empty().then_some(&1));
    let controls: Vec<_> = ports
        .map(|p| format!("{{control: \"127.0.0.1:{p}\"}}"))
        .collect();
    place.write(
        "frontend.yaml",
        format!(
            "node: front\nmodel: {{name: detect, {tensors}}}\ndataset: {{kind: raw, {data}}}\n\
             accelerators: [{}]\nmodel_files: any\nnics: [{{address: 127.0.0.1, connections: 2}}]\n\
             engine: {{kind: onnx}}\nmodel_file: {}\n",
            controls.join(", "),
            model(file).display()
        ),
    )
}

fn detector(place: &Place, node: &str, file: &str, tensors: &str, port: u16) -> Running {
    let config = place.write(
        &format!("{node}.yaml"),
        format!(
            "node: {node}\ncontrol: {{listen: \"127.0.0.1:{port}\"}}\n\
             model: {{name: detect, file: {}, {tensors}}}\nengine: {{kind: onnx, max_batch: 16}}\n\
             nics: [{{listen: \"127.0.0.1:0\"}}]\n",
            model(file).display()
        ),
    );
    accelerator(place, &config)
}

fn local(place: &Place, config: &Path) -> Ended {
    let arguments = [&ACCURACY[..], &["--local"]].concat();
    place.run(config, "out", &arguments)
}

/// Checks that the run did not start; returns its error line.
fn refused(ended: &Ended) -> &str {
    assert_eq!(ended.code, Some(2), "{}{}", ended.stdout, ended.stderr);
    ended.error()
}

#[test]
fn several_outputs_of_two_accelerators_are_scored_for_each() {
    let place = Place::new();
    let [a, b] = free_ports();
    let samples = place.write("detect.npz", npz());
    let labels = place.write("labels.npy", npy("<i4", &format!("{SAMPLES},"), &labels(6)));
    let data = format!(
        "samples: {}, labels: {}",
        samples.display(),
        labels.display()
    );
    let _a = detector(&place, "acc-a", "detect.onnx", CLASS_FIRST, a);
    let _b = detector(&place, "acc-b", "detect_of_4.onnx", CLASS_FIRST, b);
    let config = frontend(&place, "detect.onnx", CLASS_FIRST, &data, &[a, b]);
    let ended = place.run(&config, "wire", &ACCURACY).with_code(0);
    let s = place.summary("wire");
    assert_eq!(s["accuracy"], 0.9);
    assert_eq!(
        (&s["labelled"]["right"], &s["labelled"]["answers"]),
        (&54.into(), &60.into())
    );
    let count = |of: &str| -> u64 {
        let all = s["accelerators"].as_array().expect("a list");
        let own = |a: &Value| a["accuracy"][of].as_u64().unwrap_or(0);
        all.iter().map(own).sum()
    };
    assert_eq!((count("right"), count("answers")), (54, 60));
    assert_has(&ended.stdout, &["accuracy     90.000 %: 54 of 60"]);
    assert!(
        ["acc-a", "acc-b"].iter().any(|acc| {
            let line = format!("             {acc} ");
            ended
                .stdout
                .lines()
                .any(|l| l.starts_with(&line) && l.contains(" %: "))
        }),
        "{}",
        ended.stdout
    );
    // A run with `--local` gives the same answers, since its engine packs outputs the same way.
    let ended = local(&place, &config);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(place.answers("wire"), place.answers("out"));
    assert_eq!(place.answers("wire")[0].1.len(), 2 * (8 + 32 + 16));
}

/// Regression: i32 labels were read as f32, the type of the output, and gave an accuracy of 21.3 %.
#[test]
fn labels_in_int32_for_scores_in_f32_are_read_as_said_or_refused() {
    let place = Place::new();
    let samples = place.write("detect.npz", npz());
    let labels = place.write("labels.i32", labels(6));
    let plain = format!(
        "samples: {}, labels: {}",
        samples.display(),
        labels.display()
    );
    let config = frontend(&place, "detect.onnx", SCORES_FIRST, &plain, &[]);
    let ended = local(&place, &config);
    let line = refused(&ended);
    assert_has(
        line,
        &[
            "labels.i32: 240 bytes are no labels of i64 for 60 samples",
            "`labels: {file: labels.i32, dtype: i32}`",
        ],
    );
    let said =
        |dtype: &str| plain.replace("labels: ", &format!("labels: {{dtype: {dtype}, file: ")) + "}";
    let config = frontend(&place, "detect.onnx", SCORES_FIRST, &said("i32"), &[]);
    let ended = local(&place, &config);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    assert_eq!(place.summary("out")["accuracy"], 0.9);
    let config = frontend(&place, "detect.onnx", SCORES_FIRST, &said("f32"), &[]);
    let ended = local(&place, &config);
    assert!(
        refused(&ended).contains("which is not whole"),
        "{}",
        ended.stderr
    );
}

/// Regression: the header of a `.npy` file was sent as samples.
#[test]
fn a_npy_is_its_array_and_no_raw_bytes() {
    let place = Place::new();
    let one = "inputs: [{name: x, dtype: i64, shape: [3]}], \
               output: {name: total, dtype: i64, shape: []}";
    let words: Vec<u8> = (0..30i64).flat_map(i64::to_le_bytes).collect();
    // As raw bytes, the file would hold 13.5 samples.
    let samples = place.write("words.npy", npy("<i8", "10, 3", &words));
    let data = format!("samples: {}", samples.display());
    let config = frontend(&place, "scalar.onnx", one, &data, &[]);
    let ended = local(&place, &config);
    assert_eq!(ended.code, Some(0), "{}{}", ended.stdout, ended.stderr);
    let want = (0..10u64).map(|i| {
        let total = 9 * i as i64 + 3;
        let hex = total.to_le_bytes().map(|b| format!("{b:02X}")).concat();
        (i, hex)
    });
    let answers: Vec<_> = place.answers("out");
    assert_eq!(answers, want.collect::<Vec<_>>());
    // Without labels there is no accuracy, and the output says so.
    let s = place.summary("out");
    assert_eq!(s["accuracy"], Value::Null);
    assert_has(
        &ended.stdout,
        &["accuracy     no figure: the data set has no `labels`"],
    );

    let other = place.write("other.npy", npy("<i4", "10, 3", &words[..120]));
    let data = format!("samples: {}", other.display());
    let config = frontend(&place, "scalar.onnx", one, &data, &[]);
    let ended = local(&place, &config);
    let line = refused(&ended);
    assert_has(
        line,
        &["other.npy: it is int32 (10, 3)", "int64 (N, 3) is wanted"],
    );
    let image = place.write("image.raw", [&b"\x89PNG\r\n\x1a\n"[..], &[0; 40]].concat());
    let data = format!("samples: {}", image.display());
    let config = frontend(&place, "scalar.onnx", one, &data, &[]);
    let ended = local(&place, &config);
    assert!(
        refused(&ended).contains("image.raw: it is a PNG image"),
        "{}",
        ended.stderr
    );
}
