//! Every key of `docs/configuration.md` has an effect: each has a second value and a probe here.
//!
//! The document's two files are taken with the keys that stand in comments. A key without an entry
//! here fails, and so does one whose other value leaves what the rest of the program takes
//! ([`maps`]), or at least the file's own values ([`read`]), as they are. That code reads those
//! values is [`super::fields`]' to see.

use std::{fmt::Debug, path::Path};

use fabric::ib::IbCfgs;
use serde_json::Value;
use verbs::DeviceLimits;

use super::super::*;
use crate::{
    config::{AcceleratorConfig, Auto, EngineConfig, parse_accelerator, parse_frontend},
    run::{
        crew::{Connections, crew},
        request_stride, response_stride,
    },
    testkit::machine,
};

mod accelerator;
mod frontend;

const TEXT: &str = include_str!("../../../../../../docs/configuration.md");

/// A key, another value for it, and what that changes.
struct Key {
    path: &'static str,
    /// Keys that it requires beside it.
    given: Vec<(&'static str, Value)>,
    other: Value,
    /// The part of a run that takes another value.
    part: Option<&'static str>,
}

/// A key that changes what this part of a run takes.
fn maps(path: &'static str, other: Value, part: &'static str) -> Key {
    Key {
        part: Some(part),
        ..read(path, other)
    }
}

/// A key whose value is read as it is.
fn read(path: &'static str, other: Value) -> Key {
    Key {
        path,
        given: Vec::new(),
        other,
        part: None,
    }
}

impl Key {
    fn given<const N: usize>(mut self, given: [(&'static str, Value); N]) -> Self {
        self.given.extend(given);
        self
    }
}

/// The document's files as trees, including keys in comments.
fn files() -> [Value; 2] {
    let blocks: Vec<Value> = TEXT
        .split("```yaml\n")
        .skip(1)
        .filter_map(|part| part.split("```").next())
        .map(|block| {
            let lines: Vec<String> = block.lines().map(uncommented).collect();
            serde_saphyr::from_str(&lines.join("\n")).expect("YAML")
        })
        .collect();
    blocks.try_into().expect("two files")
}

/// Turns `  # key: value  # remark` into `  key: value  # remark`. Likewise for lines below such a
/// key (`  #   key: value`), with their indentation.
fn uncommented(line: &str) -> String {
    let blank = line.len() - line.trim_start().len();
    // Farther to the right, the line continues a remark.
    let comment = line[blank..].strip_prefix("# ").filter(|_| blank < 10);
    let key = comment.and_then(|rest| {
        let (key, _) = rest.split_once(':')?;
        let word = |c: char| c.is_ascii_lowercase() || c == '_';
        key.trim_start().chars().all(word).then_some(rest)
    });
    match key {
        Some(rest) => format!("{}{rest}", &line[..blank]),
        None => line.to_owned(),
    }
}

/// Paths of all keys with a scalar value. LoadGen's settings are excluded.
fn leaves(path: &str, value: &Value, out: &mut Vec<String>) {
    match value {
        Value::Object(map) if !map.is_empty() && !path.ends_with(".settings") => {
            for (key, value) in map {
                let dot = if path.is_empty() { "" } else { "." };
                leaves(&format!("{path}{dot}{key}"), value, out);
            }
        }
        Value::Array(items) if items.iter().any(Value::is_object) => {
            for (i, item) in items.iter().enumerate() {
                leaves(&format!("{path}[{i}]"), item, out);
            }
        }
        _ => out.push(path.to_owned()),
    }
}

/// Sets `path`, and creates missing mappings.
fn set(tree: &mut Value, path: &str, value: &Value) {
    let pointer = path.replace('[', ".").replace(']', "");
    let mut here = tree;
    for step in pointer.split('.') {
        here = match step.parse::<usize>() {
            Ok(index) => &mut here[index],
            Err(_) => &mut here[step],
        };
    }
    *here = value.clone();
}

/// The document's values, without keys of other kinds of models or engines.
fn base(block: usize) -> Value {
    let part = TEXT.split("```yaml\n").nth(block + 1).expect("two files");
    serde_saphyr::from_str(part.split("```").next().expect("its end")).expect("YAML")
}

/// Settings of the parts of a run, by name.
type Taken = Vec<(&'static str, String)>;

fn text(value: impl Debug) -> String {
    format!("{value:?}")
}

/// A machine with two NUMA nodes, where placement matters.
fn two_sockets() -> Topology {
    let root = tempfile::tempdir().expect("a folder");
    let addresses = machine::expand(machine::TWO_SOCKETS, root.path()).expect("a machine");
    Topology::read(root.path(), &addresses).expect("a tree")
}

fn nics(nics: &[NicConfig], d: &Deadlines) -> Taken {
    let limits = DeviceLimits {
        max_qp: 1 << 20,
        max_cq: 1 << 20,
        max_qp_wr: 1 << 20,
        max_cqe: 1 << 20,
        ..DeviceLimits::default()
    };
    let ib = nics.iter().filter_map(|n| Some((n, n.as_ib()?)));
    let ib = ib.map(|(n, keys)| {
        let wishes = super::super::ib(n, keys);
        IbCfgs::resolve(&wishes, &limits, n.resolve_slots(64)).expect("within limits")
    });
    let each = nics.iter();
    let sockets = each.clone().filter_map(|n| match &n.fabric {
        NicFabric::Tcp(keys) => Some(tcp(n, keys, d)),
        _ => None,
    });
    let machine = two_sockets();
    vec![
        ("tcp", text(sockets.collect::<Vec<_>>())),
        ("ib", text(ib.collect::<Vec<_>>())),
        (
            "NIC thread",
            text(
                each.clone()
                    .map(|n| nic_thread(0, n, &machine.near_nic(n)))
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "connections",
            text(
                each.map(|n| (n.connections(), n.resolve_slots(64)))
                    .collect::<Vec<_>>(),
            ),
        ),
    ]
}

/// Plan of the threads on a machine with two cores.
fn threads(nics: &[NicConfig], wanted: Auto<usize>) -> String {
    let near = vec![Near::default(); nics.len()];
    text(crew(nics, &near, wanted, 2, Connections::ToAccelerators(1)))
}

fn frontend(tree: &Value) -> (Taken, String) {
    let c = parse_frontend(&tree.to_string(), "f.yaml", Path::new("/"));
    let c: FrontendConfig = c.unwrap_or_else(|e| panic!("{e}"));
    let d = dispatch(&c);
    let mut all = nics(&c.nics, &c.deadlines);
    let data = &c.dataset;
    all.extend([
        ("auth", text(c.auth())),
        ("timing", text(timing(&c.deadlines))),
        ("crew", threads(&c.nics, c.nic_threads)),
        ("policy", text((d.policy, d.policy.by_health()))),
        (
            "dispatch",
            text((
                d.echo,
                (d.post_up_to, d.stay_ns, d.one_by_one),
                d.stream,
                d.token_bytes,
            )),
        ),
        ("health", text(c.health)),
        (
            "warm-up",
            text((c.warm_up.is_on(), c.warm_up.budget(), c.warm_up.deadline())),
        ),
        (
            "model",
            text((
                &c.model,
                request_stride(&c.model),
                response_stride(&c.model),
            )),
        ),
        (
            "samples",
            text((
                data.bytes(&c.model),
                data.distribution(&c.model),
                data.max_len(&c.model),
            )),
        ),
    ]);
    (all, text(&c))
}

fn accelerator(tree: &Value) -> (Taken, String) {
    let c = parse_accelerator(&tree.to_string(), "a.yaml", Path::new("/"));
    let c: AcceleratorConfig = c.unwrap_or_else(|e| panic!("{e}"));
    let mut all = nics(&c.nics, &c.deadlines);
    all.extend([
        ("auth", text(c.auth())),
        ("timing", text(timing(&c.deadlines))),
        ("model", text(c.model.spec())),
        ("memory", text(c.memory())),
        ("crew", threads(&c.nics, c.nic_threads)),
        ("gpus", text(EngineConfig::all_gpus(&c.engine))),
    ]);
    (all, text(&c))
}

/// Checks the entries of one file; `taken` parses it.
fn check(block: usize, keys: &[Key], taken: fn(&Value) -> (Taken, String)) {
    let mut all = Vec::new();
    leaves("", &files()[block], &mut all);
    let without: Vec<_> = all
        .iter()
        .filter(|path| keys.iter().all(|k| k.path != **path))
        .collect();
    assert_eq!(without, [""; 0], "keys of the document without an entry");
    for key in keys {
        let known = all.iter().any(|path| path == key.path);
        assert!(known, "{}: the document has no such key", key.path);
        let mut before = base(block);
        for (path, value) in &key.given {
            set(&mut before, path, value);
        }
        let mut after = before.clone();
        set(&mut after, key.path, &key.other);
        let (before, whole_before) = taken(&before);
        let (after, whole_after) = taken(&after);
        assert_ne!(whole_before, whole_after, "{}: dropped", key.path);
        let Some(part) = key.part else { continue };
        let of = |all: &Taken| all.iter().find(|(name, _)| *name == part).cloned();
        let (before, after) = (of(&before), of(&after));
        assert!(before.is_some(), "{}: nothing is called {part}", key.path);
        assert_ne!(before, after, "{}: nothing changes in {part}", key.path);
    }
}
