//! Several ragged inputs: texts travel at their true length, and the accelerator pads them.

use crate::common::{TestFolder, accelerator, assert_has, fetched, free_ports, wire_and_local};

const LENGTH: usize = 48;

const MODEL: &str = "inputs: [\
    {name: input_ids, dtype: i64, shape: [48], ragged: true}, \
    {name: input_mask, dtype: i64, shape: [48], ragged: true}, \
    {name: segment_ids, dtype: i64, shape: [48], ragged: true}], \
    output: {name: span, dtype: i64, shape: [2]}";

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
    let [port] = free_ports();
    let file = model.display();
    let there = format!(
        "model: {{name: bert, file: {file}, {MODEL}}}\nengine: {{kind: onnx, max_batch: 4}}"
    );
    let _acc = accelerator(&place, &place.accelerator_of("acc", port, &there));
    // One slot: every text overwrites the one before it. With `--local` each runs alone, where it
    // was loaded.
    let here = format!(
        "model: {{name: bert, {MODEL}}}\ndataset: {dataset}\n\
         nics: [{{address: 127.0.0.1, connections: 1, slots: 1}}]\n\
         engine: {{kind: onnx, max_batch: 1}}\nmodel_file: {file}\n"
    );
    let config = place.frontend_of(&[port], &here);
    let answers = wire_and_local(&place, &config);
    assert_eq!(answers.len(), texts.len());
    let different: std::collections::HashSet<_> = answers.iter().map(|(_, hex)| hex).collect();
    assert!(different.len() > 60, "{} answers", different.len());
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
