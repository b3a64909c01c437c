//! Tests of the defaults of missing keys, and of the values of present ones.

use std::path::Path;

use super::*;

#[test]
fn what_is_left_out_has_its_default() {
    // The test of `docs/configuration.md` has the defaults of the other keys.
    let c = good(frontend(&format!("{FRONTEND}{REST}")));
    assert_eq!(c.auth(), Auth::LoopbackOnly);
    assert_eq!(c.loadgen.output_dir(), Path::new("results"));
    assert_eq!(c.loadgen_model(), "m");
    let dataset = &c.dataset;
    assert_eq!(*dataset, DatasetConfig::new(DatasetKind::Random));
    assert_eq!(dataset.bytes(&c.model), (1, 4));
    let distribution = dataset.distribution(&c.model);
    assert_eq!(distribution, SizeDistribution::LogUniform);
    let spec = crate::model::ModelSpec::opaque("m", 4, 8);
    assert_eq!(good(accelerator(ACCELERATOR)).model.spec(), Some(spec));
}

#[test]
fn a_model_of_fixed_size_gets_samples_of_that_size() {
    let fixed = format!("{FRONTEND}{REST}").replace(", ragged: true", "");
    let c = good(frontend(&fixed));
    assert_eq!(c.dataset.bytes(&c.model), (4, 4));
    let distribution = c.dataset.distribution(&c.model);
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
    let d = &c.dataset;
    assert_eq!((d.kind, d.count, d.seed), (DatasetKind::Tokens, 1024, 1));
    assert_eq!((d.min_len, d.max_len(&c.model)), (2, 48));
    assert_eq!(d.vocab, 30_522);
    let problem = |from: &str, to: &str| problems(frontend(&bert.replace(from, to))).join("; ");
    let long = problem("min_len: 2", "max_len: 49");
    assert!(long.contains("max_len is 49"), "{long}");
    let bytes = problem("i64", "u8");
    assert!(bytes.contains("ragged rows of i64"), "{bytes}");
    let prompts = good(frontend(&bert.replace("i64", "i32")));
    assert_eq!(prompts.dataset.max_len(&prompts.model), 48);
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
    let settings: Vec<_> = c.loadgen.settings.values().collect();
    assert_eq!(
        settings,
        ["1", "0.5", "true", "text", "1", "10688027786191513374"]
    );
    assert_eq!(c.loadgen_model(), "other");
    assert_eq!(c.loadgen.scenario, Some(Scenario::SingleStream));
    assert_eq!(
        c.loadgen.user_conf.as_deref(),
        Some(Path::new("/base/u.conf"))
    );
    assert_eq!(c.loadgen.audit_config.as_deref(), Some(Path::new("/etc/a")));
    assert_eq!(c.loadgen.output_dir(), Path::new("/base/results"));
}
