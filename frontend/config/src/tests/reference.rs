//! Compares `docs/configuration.md` with the parser: both of its files are valid, their defaults
//! are the real ones, no key is missing, and none in a comment is unknown.

use std::collections::{BTreeMap, BTreeSet};

use engines::config::{EngineConfig, parse_accelerator};
use fabric::kinds::{EachFabric, NicFabric};
use qdl::config::{AcceleratorConfig, Deadlines};
use serde_json::Value;

use super::*;

const TEXT: &str = include_str!("../../../../docs/configuration.md");

fn node(text: &str) -> Result<(AcceleratorConfig, EngineConfig), ConfigError> {
    parse_accelerator(text, "a.yaml", Path::new("/base"))
}

fn blocks() -> Vec<String> {
    let parts: Vec<&str> = TEXT.split("```yaml\n").skip(1).collect();
    let ended = parts.iter().filter_map(|p| p.split("```").next());
    ended.map(str::to_owned).collect()
}

/// Keys of the document's files whose values are examples.
const EXAMPLES: [&str; 7] = [
    "node",
    "model.",
    "dataset.",
    "accelerators",
    "loadgen.",
    "kind",
    "deadlines.connect_ms",
];

#[test]
fn its_files_are_good_and_their_defaults_are_the_defaults() {
    let blocks = blocks();
    let [front, acc] = &blocks[..] else {
        panic!("{} files", blocks.len())
    };
    let (f, (a, engine)) = (good(frontend(front)), good(node(acc)));
    let nics = "{address: 127.0.0.1}, {device: mlx5_0}, {ofi: efa, domain: rdmap0s6-rdm}, \
                {ofi: efa, match: 'rdmap*', group_by: gpu}";
    let rest = REST.replace("{address: 127.0.0.1}", nics);
    let plain = good(frontend(&format!("{FRONTEND}{rest}auth: none\n")));
    let default = Deadlines::default();
    assert_eq!(f.cluster.deadlines.connect(), default.connect());
    assert_eq!(a.deadlines.step(), default.step());
    assert_defaults(&f, &plain);
    let (plain, plain_engine) = good(node(ACCELERATOR));
    assert_defaults(&a, &plain);
    for engine in [Some(engine), f.run.engine].into_iter().flatten() {
        assert_defaults(&engine, &plain_engine);
    }
}

/// Each value of `file` that has a default is that of `plain`, a file of required keys.
fn assert_defaults(file: &impl Serialize, plain: &impl Serialize) {
    let [file, plain] = [values(file), values(plain)];
    for (key, default) in plain {
        if !EXAMPLES.iter().any(|example| key.starts_with(example)) {
            assert_eq!(file.get(&key), Some(&default), "{key}");
        }
    }
}

fn values(config: &impl Serialize) -> BTreeMap<String, String> {
    let document = serde_json::to_value(config).expect("a document");
    record::flat(&document).into_iter().collect()
}

/// Adds the keys of every fabric.
struct FabricKeys<'k>(&'k mut BTreeSet<String>);

impl EachFabric for FabricKeys<'_> {
    fn visit<K: Default + Serialize>(&mut self, _: &'static str, _: fn(K) -> NicFabric) {
        add_keys(&K::default(), self.0);
    }
}

/// Adds the keys below each key of an engine that is a mapping.
fn add_sections(keys: &mut BTreeSet<String>) {
    let plain = serde_json::to_value(EngineConfig::default()).expect("a document");
    let unset = plain.as_object().expect("keys").iter();
    for (key, _) in unset.filter(|(_, value)| value.is_null()) {
        let with_it = serde_json::json!({ key: {} });
        if let Ok(engine) = serde_json::from_value::<EngineConfig>(with_it) {
            add_keys(&engine, keys);
        }
    }
}

fn add_keys(of: &impl Serialize, keys: &mut BTreeSet<String>) {
    fn walk(value: Value, keys: &mut BTreeSet<String>) {
        match value {
            Value::Object(fields) => fields.into_iter().for_each(|(key, value)| {
                keys.insert(key);
                walk(value, keys);
            }),
            Value::Array(items) => items.into_iter().for_each(|item| walk(item, keys)),
            _ => {}
        }
    }
    walk(serde_json::to_value(of).expect("a document"), keys);
}

/// The key of a line such as `  # key: value`; farther to the right, a comment is a remark.
fn commented_key(line: &str) -> Option<&str> {
    let blank = line.len() - line.trim_start().len();
    let rest = line[blank..].strip_prefix("# ").filter(|_| blank < 10)?;
    let (key, _) = rest.trim_start().split_once(':')?;
    let word = |c: char| c.is_ascii_lowercase() || c == '_';
    key.chars().all(word).then_some(key)
}

#[test]
fn no_key_is_missing_from_it_and_none_is_unknown() {
    let blocks = blocks();
    let mut keys = BTreeSet::new();
    keys.insert("engine".to_owned());
    add_keys(&good(frontend(&blocks[0])), &mut keys);
    add_keys(&good(node(&blocks[1])), &mut keys);
    NicFabric::each(&mut FabricKeys(&mut keys));
    add_sections(&mut keys);
    keys.extend(["shape".to_owned(), "other_outputs".to_owned()]);
    assert!(keys.len() > 150, "{} keys", keys.len());
    let blocks = blocks.concat();
    let commented = blocks.lines().filter_map(commented_key);
    let unknown: Vec<_> = commented.filter(|key| !keys.contains(*key)).collect();
    assert_eq!(unknown, [""; 0], "keys that no file has");
    let is_told = |key: &String| {
        let own_line = |line: &str| {
            let line = line.trim_start_matches([' ', '#', '-']);
            line.strip_prefix(key.as_str())
                .is_some_and(|rest| rest.starts_with(':'))
        };
        let within = |before: &str| TEXT.contains(&format!("{before}{key}:"));
        TEXT.lines().any(own_line) || within("{") || within(", ")
    };
    let missing: Vec<_> = keys.into_iter().filter(|key| !is_told(key)).collect();
    assert_eq!(missing, [""; 0], "keys that the document lacks");
}
