//! Tests of a model's outputs.

use super::*;

const OUTPUT: &str = "output: {name: o, dtype: u8, shape: [8]}";

fn outputs(yaml: &str) -> String {
    format!("{FRONTEND}{REST}").replace(OUTPUT, yaml)
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
