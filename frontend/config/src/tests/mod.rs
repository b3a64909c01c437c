//! Tests of the keys of a run, and of the errors of invalid ones.

mod reference;

use std::path::Path;

use loadgen_log::Scenario;
use qdl::testkit::{assert_has, config::*};

use super::*;

fn frontend(text: &str) -> Result<FrontendFile, ConfigError> {
    FrontendFile::parse(text, "f.yaml", Path::new("/base"))
}

#[test]
fn what_is_left_out_has_its_default() {
    // The test of `docs/configuration.md` has the defaults of the other keys.
    let c = good(frontend(&format!("{FRONTEND}{REST}")));
    assert_eq!(c.run.loadgen.output_dir(), Path::new("results"));
    assert_eq!(c.loadgen_model(), "m");
    let dataset = &c.run.dataset;
    assert_eq!(*dataset, DatasetConfig::new(DatasetKind::Random));
    assert_eq!(dataset.bytes(&c.cluster.model), (1, 4));
    let distribution = dataset.distribution(&c.cluster.model);
    assert_eq!(distribution, SizeDistribution::LogUniform);
}

#[test]
fn a_key_of_no_crate_is_unknown() {
    assert_refused(
        |key| frontend(&format!("{FRONTEND}{REST}{key}: 1\n")),
        "arbitre => f.yaml:9:1: unknown key `arbitre`
         arbitre => did you mean `arbiter`?
         datasets => did you mean `dataset`?",
    );
}

#[test]
fn keys_of_a_run_that_must_agree_with_others() {
    assert_problems(
        |keys| frontend(&format!("{FRONTEND}{REST}{keys}\n")),
        "performance_sample_count: 1025 == 9:27 performance_sample_count is 1025, the data set \
         has 1024 samples
         verify: tokens == 9:9 `verify: tokens` expects tokens, the model's output is o: u8[8]
         engine: {kind: onnx, delay_us: 4} == 9:16 engine `onnx` needs a model file; \
         9:22 engine `onnx` has no `delay_us`",
    );
    assert_refused(
        |keys| {
            frontend(&changed(
                &format!("{FRONTEND}{REST}"),
                &format!("{{kind: random}} -> {keys}"),
            ))
        },
        "{kind: random, vocab: 7} => a data set of kind `random` has no `vocab`
         {kind: random, count: 0} => count is 0
         {count: 4} => the key `kind` is missing",
    );
}

#[test]
fn every_frontend_in_configs_is_sound() {
    let is_of_a_frontend = |name: &str| name.starts_with("frontend");
    each_in_configs(is_of_a_frontend, |name, text| {
        good(FrontendFile::parse(text, name, &configs()));
    });
}

#[test]
fn a_model_of_fixed_size_gets_samples_of_that_size() {
    let fixed = format!("{FRONTEND}{REST}").replace(", ragged: true", "");
    let c = good(frontend(&fixed));
    assert_eq!(c.run.dataset.bytes(&c.cluster.model), (4, 4));
    let distribution = c.run.dataset.distribution(&c.cluster.model);
    assert_eq!(distribution, SizeDistribution::Fixed);
    let log = fixed.replace(
        "{kind: random}",
        "{kind: random, distribution: log_uniform}",
    );
    assert_eq!(
        problems(frontend(&log)),
        ["6:1 samples of 1 to 4 bytes do not fit the model, which takes 4 bytes and no fewer"]
    );
}

#[test]
fn texts_have_the_length_of_the_models_rows() {
    let bert = format!("{FRONTEND}{REST}")
        .replace(
            "dtype: u8, shape: [4], ragged",
            "dtype: i64, shape: [48], ragged",
        )
        .replace("{kind: random}", "{kind: tokens, min_len: 2}");
    let c = good(frontend(&bert));
    let d = &c.run.dataset;
    assert_eq!((d.kind, d.count, d.seed), (DatasetKind::Tokens, 1024, 1));
    assert_eq!((d.min_len, d.max_len(&c.cluster.model)), (2, 48));
    assert_eq!(d.vocab, 30_522);
    let problem = |from: &str, to: &str| problems(frontend(&bert.replace(from, to))).join("; ");
    let long = problem("min_len: 2", "max_len: 49");
    assert!(long.contains("max_len is 49"), "{long}");
    let bytes = problem("i64", "u8");
    assert!(bytes.contains("ragged rows of i64"), "{bytes}");
    let prompts = good(frontend(&bert.replace("i64", "i32")));
    assert_eq!(prompts.run.dataset.max_len(&prompts.cluster.model), 48);
    let foreign = problem("min_len: 2", "min_bytes: 2");
    assert_has(&foreign, &["of kind `tokens` has no `min_bytes`"]);
}

#[test]
fn settings_are_text_and_paths_keep_their_folder() {
    let c = frontend(&format!(
        "{FRONTEND}{REST}loadgen:\n  scenario: single_stream\n  user_conf: u.conf\n  \
         audit_config: /etc/a\n  output_dir: results\n  model: other\n  settings: {{a: 1, b: 0.5, \
         c: true, d: text, e: \"1\", f: 10688027786191513374}}\n"
    ))
    .unwrap();
    let settings: Vec<_> = c.run.loadgen.settings.values().collect();
    assert_eq!(
        settings,
        ["1", "0.5", "true", "text", "1", "10688027786191513374"]
    );
    assert_eq!(c.loadgen_model(), "other");
    assert_eq!(c.run.loadgen.scenario, Some(Scenario::SingleStream));
    assert_eq!(
        c.run.loadgen.user_conf.as_deref(),
        Some(Path::new("/base/u.conf"))
    );
    assert_eq!(
        c.run.loadgen.audit_config.as_deref(),
        Some(Path::new("/etc/a"))
    );
    assert_eq!(c.run.loadgen.output_dir(), Path::new("/base/results"));
}

/// A frontend of raw data with these labels, whose model has this output.
fn labelled(labels: &str, output: &str) -> Result<FrontendFile, ConfigError> {
    let text = format!("{FRONTEND}{REST}").replace("dtype: u8, shape: [8]", output);
    let text = text.replace(", ragged: true}]", "}]");
    let data = format!("{{kind: raw, samples: s, labels: {labels}}}");
    frontend(&text.replace("{kind: random}", &data))
}

#[test]
fn labels_are_a_path_or_say_their_type() {
    let scores = "dtype: f32, shape: [4]";
    let plain = good(labelled("l.bin", scores));
    let labels = plain.run.dataset.labels.expect("there");
    assert_eq!((labels.file, labels.dtype), ("/base/l.bin".into(), None));
    let typed = good(labelled("{file: l.bin, dtype: i32}", scores));
    let labels = typed.run.dataset.labels.expect("there");
    assert_eq!(
        (labels.file, labels.dtype),
        ("/base/l.bin".into(), Some(DType::I32))
    );
    assert_refused(
        |labels| labelled(labels, scores),
        "{file: l.bin, type: i32} => unknown key `type`
         {file: l.bin, type: i32} => file, dtype
         {file: l.bin, dtype: int32} => it must be: u8, i8, i32, i64, f16, bf16, f32
         [l.bin] => a path, or `{file: PATH, dtype: i32}`",
    );
}

#[test]
fn labels_need_an_output_that_names_a_class() {
    for output in [
        "dtype: i64, shape: []",
        "dtype: f32, shape: [1, 1000]",
        "dtype: f32, shape: [1000, 1, 1]",
    ] {
        good(labelled("l", output));
    }
    assert_refused(
        |output| labelled("l", output),
        "dtype: f32, shape: [10, 4] => neither a class nor one score
         dtype: i32, shape: [64], ragged: true => neither a class nor one score",
    );
}

#[test]
fn a_shape_says_how_large_samples_are() {
    let shaped = |shape: &str| {
        let data = format!("{{kind: random, shape: {shape}}}");
        frontend(&format!("{FRONTEND}{REST}").replace("{kind: random}", &data))
    };
    // The model's input has at most 4 bytes.
    let shape = good(shaped("[[1, 2], 2]"))
        .run
        .dataset
        .shape
        .expect("it is there");
    let each: Vec<_> = shape.iter().map(|d| (d.least, d.most, d.step)).collect();
    assert_eq!(each, [(1, 2, 1), (2, 2, 1)]);
    assert_refused(
        shaped,
        "[[1, 3], 2] => the largest sample has 6 bytes
         [[1, 3], 2] => fits no slot
         [0] => [least, most, step]
         [[3, 2]] => [least, most, step]
         [[1, 3, 0]] => [least, most, step]
         [] => [least, most, step]
         [[1, 2, 3, 4]] => [least, most, step]
         [x] => [least, most, step]
         [2], max_bytes: 3 => both say how large samples are",
    );
}

#[test]
fn verify_digest_needs_eight_bytes_or_more() {
    let text = format!("{FRONTEND}{REST}verify: digest\n");
    let with = |change: &str| frontend(&changed(&text, change));
    assert_eq!(good(frontend(&text)).run.verify, Verify::Digest);
    let wide = good(with("shape: [8] -> shape: [90000]"));
    assert_eq!(wide.run.verify, Verify::Digest);
    assert_problems(
        with,
        "shape: [8] -> shape: [7] == 9:9 `verify: digest` expects responses of 8 bytes or more, \
         the model's output is o: u8[7]",
    );
}

#[test]
fn a_file_of_tokens_is_prompts_of_32_bits() {
    let with = |input: &str, data: &str| {
        let text = format!("{FRONTEND}{REST}");
        let text = text.replace("dtype: u8, shape: [4], ragged: true", input);
        frontend(&text.replace("{kind: random}", &format!("{{kind: tokens{data}}}")))
    };
    let prompt = "dtype: i32, shape: [64], ragged: true";
    let samples = good(with(prompt, ", samples: a.tokens"))
        .run
        .dataset
        .samples;
    assert_eq!(samples.as_deref(), Some(Path::new("/base/a.tokens")));
    good(with(prompt, ", vocab: 7"));
    let both = text(with(prompt, ", samples: a.tokens, vocab: 7"));
    assert_has(&both, &["a file of tokens has samples of its own"]);
    let wide = text(with(&prompt.replace("i32", "i64"), ", samples: a.tokens"));
    assert!(wide.contains("one input, a ragged row of i32"), "{wide}");
}
