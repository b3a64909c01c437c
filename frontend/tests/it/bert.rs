//! Several ragged inputs: texts travel at their true length, and the accelerator pads them.

use std::{
    path::{Path, PathBuf},
    process::Command,
};

use crate::common::{
    Running, TestFolder, accelerator, assert_has, fetched, free_ports, repository, wire_and_local,
};

const LENGTH: usize = 48;

const MODEL: &str = "inputs: [\
    {name: input_ids, dtype: i64, shape: [48], ragged: true}, \
    {name: input_mask, dtype: i64, shape: [48], ragged: true}, \
    {name: segment_ids, dtype: i64, shape: [48], ragged: true}], \
    output: {name: span, dtype: i64, shape: [2]}";

/// Runs each text alone in ONNX Runtime, padded to the model's length: the reference without slots,
/// batches or a network. Arguments: the model, and a file with `count` texts, each its length as
/// i64 and three rows.
const ASK: &str = "
import sys, numpy, onnxruntime
session = onnxruntime.InferenceSession(sys.argv[1], providers=['CPUExecutionProvider'])
words = numpy.fromfile(sys.argv[2], dtype='<i8')
at = 0
while at < len(words):
    rows = int(words[at])
    text = numpy.zeros((3, 1, 48), dtype=numpy.int64)
    text[:, 0, :rows] = words[at + 1 : at + 1 + 3 * rows].reshape(3, rows)
    at += 1 + 3 * rows
    feeds = dict(zip(('input_ids', 'input_mask', 'segment_ids'), text))
    print(session.run(['span'], feeds)[0].astype('<i8').tobytes().hex().upper())
";

/// Distinct texts, of falling and then rising length; each row is a column of the sample.
fn texts() -> Vec<Vec<[u64; 3]>> {
    let mut rng = fastrand::Rng::with_seed(1);
    let mut text = |rows: usize| {
        (0..rows)
            .map(|i| [rng.u64(..1000), 1, u64::from(2 * i >= rows)])
            .collect()
    };
    let lengths = (0..120).map(|i| if i % 2 == 0 { LENGTH } else { 1 + i % 20 });
    lengths.map(&mut text).collect()
}

/// The columns of a text one after the other, as in a slot.
fn packed(text: &[[u64; 3]]) -> Vec<u8> {
    let columns = (0..3).flat_map(|c| text.iter().map(move |row| row[c]));
    columns.flat_map(u64::to_le_bytes).collect()
}

/// Writes and starts an accelerator and a frontend for BERT. `max_batch` is the limit of the
/// accelerator's batches, then that of runs with `--local`.
fn nodes(
    place: &TestFolder,
    model: &Path,
    dataset: &str,
    nic: &str,
    max_batch: [usize; 2],
) -> (Running, PathBuf) {
    let [port] = free_ports();
    let [over_the_wire, local] = max_batch;
    let file = model.display();
    let there = format!(
        "model: {{name: bert, file: {file}, {MODEL}}}\n\
         engine: {{kind: onnx, max_batch: {over_the_wire}}}"
    );
    let acc = place.accelerator_of("acc", port, &there);
    let here = format!(
        "model: {{name: bert, {MODEL}}}\ndataset: {dataset}\n\
         nics: [{{address: 127.0.0.1, {nic}}}]\n\
         engine: {{kind: onnx, max_batch: {local}}}\nmodel_file: {file}\n"
    );
    let config = place.frontend_of(&[port], &here);
    (accelerator(place, &acc), config)
}

#[test]
fn a_short_text_after_a_long_one_in_the_same_slot_gets_its_own_answer() {
    let model = fetched("models/bert-tiny.onnx");
    let place = TestFolder::new();
    let texts = texts();
    let samples = place.write(
        "samples",
        texts.iter().flat_map(|t| packed(t)).collect::<Vec<_>>(),
    );
    let lengths = place.write(
        "lengths",
        texts
            .iter()
            .flat_map(|t| (packed(t).len() as u32).to_le_bytes())
            .collect::<Vec<_>>(),
    );
    let dataset = format!(
        "{{kind: raw, samples: {}, lengths: {}}}",
        samples.display(),
        lengths.display()
    );
    // One slot: every text overwrites the one before it.
    let (_acc, config) = nodes(&place, &model, &dataset, "connections: 1, slots: 1", [4, 4]);
    let answers = wire_and_local(&place, &config);

    let words: Vec<u8> = texts
        .iter()
        .flat_map(|t| [(t.len() as u64).to_le_bytes().to_vec(), packed(t)].concat())
        .collect();
    let asked = Command::new(repository().join(".deps/venv/bin/python"))
        .args(["-c", ASK])
        .arg(&model)
        .arg(place.write("texts", words))
        .output()
        .expect("Python runs");
    assert!(
        asked.status.success(),
        "{}",
        String::from_utf8_lossy(&asked.stderr)
    );
    let right: Vec<_> = String::from_utf8_lossy(&asked.stdout)
        .lines()
        .enumerate()
        .map(|(i, hex)| (i as u64, hex.to_owned()))
        .collect();
    assert_eq!(right.len(), texts.len());
    let different: std::collections::HashSet<_> = right.iter().map(|(_, hex)| hex).collect();
    assert!(different.len() > 60, "{} answers", different.len());
    assert_eq!(answers, right);
}

#[test]
fn an_engine_that_fails_in_mid_run_is_no_error_of_the_setup() {
    let model = fetched("models/bert-tiny.onnx");
    let place = TestFolder::new();
    // Most of these words are outside the model's vocabulary.
    let body = format!(
        "model: {{name: bert, {MODEL}}}\n\
         dataset: {{kind: tokens, count: 100, min_len: 2, vocab: 1000000}}\n\
         nics: [{{address: 127.0.0.1}}]\n\
         engine: {{kind: onnx, max_batch: 1}}\nmodel_file: {}\n",
        model.display()
    );
    let config = place.frontend_of(&[], &body);
    let arguments = ["--local", "--scenario", "offline", "--mode", "accuracy"];
    let ended = place.run(&config, "out", &arguments).with_code(3);
    assert_has(
        &ended.stderr,
        &["error: sample ", "was refused three times", "engine onnx"],
    );
    let s = place.summary("out");
    assert_eq!(s["valid"], false);
    assert_eq!(s["exit"]["code"], 3);
    assert!(place.path("out").join("INVALID").is_file());
}
