//! Tests of a model's outputs, and of the labels for them.

use super::*;
use crate::model::DType;

const OUTPUT: &str = "output: {name: o, dtype: u8, shape: [8]}";

fn outputs(yaml: &str) -> String {
    format!("{FRONTEND}{REST}").replace(OUTPUT, yaml)
}

/// A frontend of raw data with these labels, whose model has this output.
fn labelled(labels: &str, output: &str) -> Result<FrontendConfig, ConfigError> {
    let text = outputs(&format!("output: {{name: o, {output}}}"));
    let text = text.replace(", ragged: true}]", "}]");
    let data = format!("{{kind: raw, samples: s, labels: {labels}}}");
    frontend(&text.replace("{kind: random}", &data))
}

#[test]
fn a_single_element_has_no_dimensions() {
    let c = good(frontend(&outputs(
        "output: {name: o, dtype: i64, shape: []}",
    )));
    assert_eq!(c.model.max_output_bytes(), Some(8));
    let ragged = outputs("output: {name: o, dtype: i32, shape: [], ragged: true}");
    assert_eq!(
        problems(frontend(&ragged)),
        ["5:33 a single element cannot be ragged"]
    );
    let input = format!("{FRONTEND}{REST}").replace("shape: [4], ragged: true", "shape: []");
    let c = good(frontend(&input));
    assert_eq!(c.model.max_input_bytes(), Some(1));
}

#[test]
fn several_outputs_follow_the_one_that_names_the_class() {
    let several = "output: {name: class, dtype: i64, shape: []}\n  \
                   other_outputs: [{name: s, dtype: f32, shape: [4]}]";
    let c = good(frontend(&outputs(several)));
    let names: Vec<_> = c.model.outputs().map(|t| &*t.name).collect();
    assert_eq!(names, ["class", "s"]);
    assert_eq!(c.model.max_output_bytes(), Some(24));
    assert_refused(
        |change| frontend(&changed(&outputs(several), change)),
        "name: s -> name: class => f.yaml:6:26: two outputs have the name `class`
         [4]}] -> [4], ragged: true}] => none can be ragged
         [4]}] -> [268435456]}] => a response has 1073741832 bytes",
    );
}

#[test]
fn further_outputs_follow_an_output() {
    let alone = ACCELERATOR.replace(
        "max_input_bytes: 4",
        "max_input_bytes: 4, other_outputs: [{name: p, dtype: f32, shape: [2]}]",
    );
    let found = problems(accelerator(&alone));
    assert!(found[0].contains("there is none"), "{found:?}");
}

#[test]
fn labels_are_a_path_or_say_their_type() {
    let scores = "dtype: f32, shape: [4]";
    let plain = good(labelled("l.bin", scores));
    let labels = plain.dataset.labels.expect("there");
    assert_eq!((labels.file, labels.dtype), ("/base/l.bin".into(), None));
    let typed = good(labelled("{file: l.bin, dtype: i32}", scores));
    let labels = typed.dataset.labels.expect("there");
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
