//! Compares `docs/configuration.md` with the parser: both of its files are valid, their defaults
//! are the real ones, no key is missing, and none in a comment is unknown.

use super::{super::document::keys_of, *};
use crate::model::{ModelSpec, TensorSpec};
use fabric::ib::AdaptiveRouting;

const TEXT: &str = include_str!("../../../../docs/configuration.md");

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
    "engine.kind",
    "deadlines.connect_ms",
];

#[test]
fn its_files_are_good_and_their_defaults_are_the_defaults() {
    let blocks = blocks();
    let [front, acc] = &blocks[..] else {
        panic!("{} files", blocks.len())
    };
    let (f, a) = (good(frontend(front)), good(accelerator(acc)));
    let nics = "{address: 127.0.0.1}, {device: mlx5_0}, {ofi: efa, domain: rdmap0s6-rdm}, \
                {ofi: efa, match: 'rdmap*', group_by: gpu}";
    let rest = REST.replace("{address: 127.0.0.1}", nics);
    let plain = good(frontend(&format!("{FRONTEND}{rest}auth: none\n")));
    let default = Deadlines::default();
    assert_eq!(f.deadlines.connect(), default.connect());
    assert_eq!(a.deadlines.step(), default.step());
    assert_defaults(&f, &plain);
    assert_defaults(&a, &good(accelerator(ACCELERATOR)));
}

/// Each value of `file` that has a default is that of `plain`, a file of required keys.
fn assert_defaults(file: &impl serde::Serialize, plain: &impl serde::Serialize) {
    let [file, plain] = [values(file), values(plain)];
    for (key, default) in plain {
        if !EXAMPLES.iter().any(|example| key.starts_with(example)) {
            assert_eq!(file.get(&key), Some(&default), "{key}");
        }
    }
}

fn values(config: &impl serde::Serialize) -> std::collections::BTreeMap<String, String> {
    let document = serde_json::to_value(config).expect("a document");
    record::flat(&document).into_iter().collect()
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
    let keys = [
        keys_of::<FrontendConfig>(),
        keys_of::<AcceleratorConfig>(),
        keys_of::<ModelSpec>(),
        keys_of::<TensorSpec>(),
        keys_of::<AcceleratorModel>(),
        keys_of::<AcceleratorAddress>(),
        keys_of::<ControlConfig>(),
        keys_of::<DatasetConfig>(),
        keys_of::<NicConfig>(),
        keys_of::<TcpKeys>(),
        keys_of::<IbKeys>(),
        keys_of::<OfiKeys>(),
        keys_of::<Completion>(),
        keys_of::<AdaptiveRouting>(),
        keys_of::<HealthConfig>(),
        keys_of::<WarmUpConfig>(),
        keys_of::<Deadlines>(),
        keys_of::<LoadgenConfig>(),
        keys_of::<EngineConfig>(),
        keys_of::<TokensConfig>(),
        keys_of::<HttpConfig>(),
        keys_of::<VllmConfig>(),
        keys_of::<LlmConfig>(),
    ]
    .concat();
    assert!(keys.len() > 150, "{} keys", keys.len());
    let blocks = blocks().concat();
    let commented = blocks.lines().filter_map(commented_key);
    let unknown: Vec<_> = commented.filter(|key| !keys.contains(key)).collect();
    assert_eq!(unknown, [""; 0], "keys that no file has");
    let is_told = |key: &&str| {
        let own_line = |line: &str| {
            let line = line.trim_start_matches([' ', '#', '-']);
            line.strip_prefix(*key)
                .is_some_and(|rest| rest.starts_with(':'))
        };
        let within = |before: &str| TEXT.contains(&format!("{before}{key}:"));
        TEXT.lines().any(own_line) || within("{") || within(", ")
    };
    let missing: Vec<_> = keys.into_iter().filter(|key| !is_told(key)).collect();
    assert_eq!(missing, [""; 0], "keys that the document lacks");
}
