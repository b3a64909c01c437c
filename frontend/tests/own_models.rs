//! A user's model with several inputs and outputs and a fixed batch, and labels in i32. The test
//! fails without the files that `cargo xtask setup` fetches. `own_model.rs` has NumPy files.

mod common;

use std::path::PathBuf;

use common::{Running, TestFolder, accelerator, assert_has, fetched, free_ports, repository};
use serde_json::Value;

const ACCURACY: [&str; 4] = ["--scenario", "offline", "--mode", "accuracy"];
const SAMPLES: usize = 60;
/// Tensors of the detector, with the class as first output.
const TENSORS: &str = "\
    inputs: [{name: bias, dtype: f32, shape: []}, {name: pixels, dtype: u8, shape: [4]}], \
    output: {name: class, dtype: i64, shape: []}, \
    other_outputs: [{name: boxes, dtype: f32, shape: [2, 4]}, \
    {name: scores, dtype: f32, shape: [4]}]";

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

/// The detector's samples, each its bias and its pixels.
fn samples() -> Vec<u8> {
    let bias = |i: usize| (i as f32 * 0.5).to_le_bytes();
    (0..SAMPLES)
        .flat_map(|i| [bias(i), sample(i).0].concat())
        .collect()
}

/// Returns i32 labels; `wrong` of them differ from the model's class.
fn labels(wrong: usize) -> Vec<u8> {
    let label = |i: usize| (sample(i).1 + i32::from(i < wrong)) % 4;
    (0..SAMPLES).flat_map(|i| label(i).to_le_bytes()).collect()
}

fn detector(place: &TestFolder, node: &str, file: &str, port: u16) -> Running {
    let file = model(file);
    let file = file.display();
    let body = format!(
        "model: {{name: detect, file: {file}, {TENSORS}}}\nengine: {{kind: onnx, max_batch: 16}}"
    );
    accelerator(place, &place.accelerator_of(node, port, &body))
}

#[test]
fn several_outputs_of_two_accelerators_are_scored_for_each() {
    let place = TestFolder::new();
    let [a, b] = free_ports();
    place.write("samples", samples());
    place.write("labels", labels(6));
    let _a = detector(&place, "acc-a", "detect.onnx", a);
    let _b = detector(&place, "acc-b", "detect_of_4.onnx", b);
    let body = format!(
        "model: {{name: detect, {TENSORS}}}\n\
         dataset: {{kind: raw, samples: samples, labels: {{file: labels, dtype: i32}}}}\n\
         model_files: any\nnics: [{{address: 127.0.0.1, connections: 2}}]\n\
         engine: {{kind: onnx}}\nmodel_file: {}\n",
        model("detect.onnx").display()
    );
    let config = place.frontend_of(&[a, b], &body);
    let ended = place.run(&config, "wire", &ACCURACY).with_code(0);
    let s = place.summary("wire");
    assert_eq!(s["accuracy"], 0.9);
    assert_eq!(s["labelled"]["right"], 54);
    assert_eq!(s["labelled"]["answers"], 60);
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
    let local = [&ACCURACY[..], &["--local"]].concat();
    place.run(&config, "out", &local).with_code(0);
    assert_eq!(place.answers("wire"), place.answers("out"));
    assert_eq!(place.answers("wire")[0].1.len(), 2 * (8 + 32 + 16));
}
