//! Texts of configurations, and what loading them says.

use std::path::{Path, PathBuf};

use crate::config::ConfigError;

pub const FRONTEND: &str = "\
node: f
model:
  name: m
  inputs: [{name: a, dtype: u8, shape: [4], ragged: true}]
  output: {name: o, dtype: u8, shape: [8]}
dataset: {kind: random}
";
pub const REST: &str = "accelerators: [{control: 127.0.0.1:7400}]\nnics: [{address: 127.0.0.1}]\n";
pub const ACCELERATOR: &str = "\
node: a
control: {listen: 127.0.0.1:7400}
model: {name: m, max_input_bytes: 4}
engine: {kind: digest}
nics: [{listen: 127.0.0.1:7410}]
";
pub const IDS: &str = "inputs: [{name: prompt, dtype: i32, shape: [16], ragged: true}], \
    output: {name: tokens, dtype: i32, shape: [8], ragged: true}";

/// Returns the configuration; panics with the text of the error.
#[track_caller]
pub fn good<T>(result: Result<T, ConfigError>) -> T {
    result.unwrap_or_else(|e| panic!("{e}"))
}

/// Returns the text of the error, without trailing blanks in its lines.
pub fn text<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> String {
    let text = result.expect_err("a problem").to_string();
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

/// Each line of `table` has keys and, after `=>`, words of their error.
#[track_caller]
pub fn assert_refused<T: std::fmt::Debug>(
    load: impl Fn(&str) -> Result<T, ConfigError>,
    table: &str,
) {
    for (keys, complaint) in table.lines().filter_map(|line| line.split_once("=> ")) {
        let all = text(load(keys.trim()));
        assert!(all.contains(complaint), "{keys}: {all}");
    }
}

/// Each line of `table` has keys and, after `==`, their problems with `; ` between them.
#[track_caller]
pub fn assert_problems<T: std::fmt::Debug>(
    load: impl Fn(&str) -> Result<T, ConfigError>,
    table: &str,
) {
    for (keys, expected) in table.lines().filter_map(|line| line.split_once(" == ")) {
        assert_eq!(problems(load(keys.trim())).join("; "), expected, "{keys}");
    }
}

pub fn changed(text: &str, change: &str) -> String {
    let (from, to) = change.split_once(" -> ").expect("a change");
    assert!(text.contains(from), "{from}");
    text.replace(from, to)
}

/// Returns the problems of a configuration, each as `line:column what`.
pub fn problems<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> Vec<String> {
    match result.expect_err("a problem") {
        ConfigError::Invalid { problems } => problems
            .iter()
            .map(|p| format!("{}:{} {}", p.line, p.column, p.what))
            .collect(),
        other => panic!("{other}"),
    }
}

pub fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

/// Passes name and text of each file below `configs` that `is_wanted` selects by its name to
/// `check`. Rounds are no configurations of a node.
pub fn each_in_configs(is_wanted: impl Fn(&str) -> bool, mut check: impl FnMut(&str, &str)) {
    let mut folders = vec![configs()];
    let mut files = 0;
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).expect("a folder") {
            let path = entry.expect("an entry").path();
            let name = path.file_name().unwrap_or_default().to_string_lossy();
            if path.is_dir() && name != "rounds" {
                folders.push(path);
            } else if name.ends_with(".yaml") && is_wanted(&name) {
                check(&name, &std::fs::read_to_string(&path).expect("a text"));
                files += 1;
            }
        }
    }
    assert!(files > 3, "{files} files");
}
