//! Every key of `docs/configuration.md` has an effect: for each there is another value and a probe.
//!
//! The document's two files are taken with the keys that stand in comments. A key without an entry
//! here fails, and so does one whose other value leaves what the rest of the program takes
//! ([`Effect::Maps`]) as it is, or that no code reads ([`Effect::Read`]).

use std::{fmt::Debug, path::Path};

use serde_json::{Value, json};
use verbs::DeviceLimits;

use super::{super::*, source::code};
use crate::{
    config::{AcceleratorConfig, EngineConfig, parse_accelerator, parse_frontend},
    fabric::ib::IbCfgs,
    session::{request_stride, response_stride},
    testkit::machine,
};

const TEXT: &str = include_str!("../../../../../docs/configuration.md");

/// How it shows that a key does something.
enum Effect {
    /// What this part of a run takes becomes another.
    Maps(&'static str),
    /// The value is another, and the code at this path reads it by these words.
    Read(&'static str, &'static str),
}

/// A key, another value for it, and what that does.
struct Key {
    path: &'static str,
    /// Other keys that it needs beside it.
    given: Vec<(&'static str, Value)>,
    other: Value,
    effect: Effect,
}

fn maps(path: &'static str, other: Value, to: &'static str) -> Key {
    Key {
        path,
        given: Vec::new(),
        other,
        effect: Effect::Maps(to),
    }
}

fn read(path: &'static str, other: Value, at: &'static str, words: &'static str) -> Key {
    Key {
        path,
        given: Vec::new(),
        other,
        effect: Effect::Read(at, words),
    }
}

impl Key {
    fn given<const N: usize>(mut self, given: [(&'static str, Value); N]) -> Self {
        self.given.extend(given);
        self
    }
}

/// The document's files as trees, with what stands in comments.
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

/// `  # key: value  # remark` as `  key: value  # remark`.
fn uncommented(line: &str) -> String {
    let blank = line.len() - line.trim_start().len();
    let key = line[blank..].strip_prefix("# ").and_then(|rest| {
        let (key, _) = rest.split_once(':')?;
        let word = |c: char| c.is_ascii_lowercase() || c == '_';
        key.chars().all(word).then_some(rest)
    });
    match key {
        Some(rest) => format!("{}{rest}", &line[..blank]),
        None => line.to_owned(),
    }
}

/// The paths of all keys with a value of their own. LoadGen's settings are LoadGen's to know.
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

/// Sets `path`, whose mappings are made where there are none.
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

/// The document's own values, without the keys that belong to another kind of model or engine.
fn base(block: usize) -> Value {
    let part = TEXT.split("```yaml\n").nth(block + 1).expect("two files");
    serde_saphyr::from_str(part.split("```").next().expect("its end")).expect("YAML")
}

/// What the parts of a run take, by name.
type Taken = Vec<(&'static str, String)>;

fn text(value: impl Debug) -> String {
    format!("{value:?}")
}

/// A machine where it makes a difference which node a thread is on.
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
    let ib = nics.iter().filter(|n| n.device.is_some());
    let ib = ib.map(|n| IbCfgs::resolve(n, &limits, n.resolve_slots(64)).expect("within limits"));
    let each = nics.iter();
    let machine = two_sockets();
    vec![
        ("tcp", text(tcp(&nics[0], d))),
        ("ib", text(ib.collect::<Vec<_>>())),
        (
            "rail",
            text(
                each.clone()
                    .map(|n| rail(0, n, &machine.near_nic(n)))
                    .collect::<Vec<_>>(),
            ),
        ),
        (
            "lanes",
            text(
                each.map(|n| (n.connections(), n.resolve_slots(64)))
                    .collect::<Vec<_>>(),
            ),
        ),
    ]
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
        ("policy", text((d.policy, d.policy.by_health()))),
        (
            "dispatch",
            text((d.echo, d.issue_post_up_to, d.doorbell_wait_ns)),
        ),
        ("health", text(health(&c.health))),
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
        match key.effect {
            Effect::Maps(to) => {
                let of = |all: &Taken| all.iter().find(|(name, _)| *name == to).cloned();
                let (before, after) = (of(&before), of(&after));
                assert!(before.is_some(), "{}: nothing is called {to}", key.path);
                assert_ne!(before, after, "{}: nothing changes in {to}", key.path);
            }
            Effect::Read(at, words) => {
                assert_ne!(whole_before, whole_after, "{}: dropped", key.path);
                let found = code(at, "qdl/src/config").contains(words);
                assert!(found, "{}: {at} does not read `{words}`", key.path);
            }
        }
    }
}

fn raw() -> (&'static str, Value) {
    ("dataset", json!({"kind": "raw", "samples": "s"}))
}

fn tokens() -> [(&'static str, Value); 2] {
    let input = json!([{"name": "a", "dtype": "i64", "shape": [64], "ragged": true}]);
    [
        ("model.inputs", input),
        ("dataset", json!({"kind": "tokens"})),
    ]
}

fn ragged() -> [(&'static str, Value); 2] {
    [
        ("model.inputs[0].ragged", json!(true)),
        ("dataset", json!({"kind": "random"})),
    ]
}

#[test]
fn every_key_of_a_frontend_has_an_effect() {
    let data = "frontend/src/dataset.rs";
    let run = "frontend/src/run.rs";
    let loadgen = "frontend/src/settings.rs";
    let session = "qdl/src/session";
    let whole = ("dataset", json!({"kind": "random"}));
    let mut keys = vec![
        read("node", json!("f-2"), session, "config.node.clone()"),
        maps("model.name", json!("m2"), "model"),
        maps("model.inputs[0].name", json!("x"), "model"),
        maps("model.inputs[0].dtype", json!("f32"), "model").given([whole.clone()]),
        maps("model.inputs[0].shape", json!([32]), "model").given([whole.clone()]),
        maps("model.inputs[0].ragged", json!(true), "model"),
        maps("model.output.name", json!("x"), "model"),
        maps("model.output.dtype", json!("f32"), "model"),
        maps("model.output.shape", json!([100]), "model"),
        read("dataset.kind", json!("tokens"), data, "match config.kind").given([
            ("model.inputs[0].dtype", json!("i64")),
            ("model.inputs[0].ragged", json!(true)),
            whole,
        ]),
        read("dataset.count", json!(7), data, "config.count"),
        read("dataset.seed", json!(7), data, "config.seed"),
        maps("dataset.min_bytes", json!(7), "samples").given(ragged()),
        maps("dataset.max_bytes", json!(7), "samples").given(ragged()),
        maps("dataset.distribution", json!("fixed"), "samples").given(ragged()),
        read("dataset.samples", json!("t"), data, "&config.samples").given([raw()]),
        read("dataset.lengths", json!("l"), data, "&config.lengths").given([
            ("model.inputs[0].ragged", json!(true)),
            (
                "dataset",
                json!({"kind": "raw", "samples": "s", "lengths": "k"}),
            ),
        ]),
        read("dataset.labels", json!("l"), run, "config.dataset.labels").given([raw()]),
        read("dataset.min_len", json!(7), data, "config.min_len").given(tokens()),
        maps("dataset.max_len", json!(7), "samples").given(tokens()),
        read("dataset.vocab", json!(7), data, "config.vocab").given(tokens()),
        read(
            "qsl",
            json!("staged"),
            "frontend/src/network.rs",
            "config.qsl",
        ),
        read(
            "performance_sample_count",
            json!(7),
            run,
            ".performance_sample_count",
        ),
        maps("token_file", json!("t"), "auth").given([("auth", Value::Null)]),
        maps("auth", Value::Null, "auth"),
        read(
            "accelerators[0].control",
            json!("localhost:1"),
            session,
            "a.control",
        ),
        maps("arbiter", json!("best"), "policy"),
        maps("health.tick_ms", json!(7), "health"),
        maps("health.ewma_ms", json!(7), "health"),
        maps("health.out_below", json!(0.1), "health"),
        maps("health.in_above", json!(0.7), "health"),
        maps("health.baseline_spread", json!(7), "health"),
        maps("health.probe_one_in", json!(7), "health"),
        maps("health.probe_every_ms", json!(7), "health"),
        maps("health.congested_hold_ms", json!(7), "health"),
        maps("health.congested_hold_max_ms", json!(700), "health"),
        maps("health.failed_hold_ms", json!(7), "health"),
        maps("health.failed_hold_max_ms", json!(7000), "health"),
        maps("doorbell_wait_us", json!(7), "dispatch"),
        maps("warm_up.budget_ms", json!(7), "warm-up"),
        maps("warm_up.deadline_ms", json!(7), "warm-up"),
        read(
            "verify",
            json!("digest"),
            run,
            "config.verify == config::Verify::Digest",
        ),
        maps("deadlines.connect_ms", json!(7), "timing"),
        read("deadlines.lost_ms", json!(4000), session, ".lost()"),
        maps("deadlines.echo_interval_ms", json!(7), "dispatch"),
        maps("deadlines.echo_timeout_ms", json!(700), "dispatch"),
        maps("deadlines.heartbeat_interval_ms", json!(7), "timing"),
        maps("deadlines.heartbeat_timeout_ms", json!(700), "timing"),
        read("deadlines.name_ms", json!(7), session, "deadlines.name()"),
        read("deadlines.drain_ms", json!(7), session, "deadlines.drain()"),
        read(
            "deadlines.watchdog_s",
            json!(7),
            run,
            "deadlines.watchdog_s",
        ),
        read(
            "loadgen.scenario",
            json!("offline"),
            loadgen,
            "config.scenario",
        ),
        read(
            "loadgen.model",
            json!("x"),
            "frontend/src",
            ".loadgen_model()",
        ),
        read("loadgen.user_conf", json!("x"), loadgen, "config.user_conf"),
        read(
            "loadgen.audit_config",
            json!("x"),
            loadgen,
            "config.audit_config",
        ),
        read(
            "loadgen.output_dir",
            json!("x"),
            loadgen,
            "config.output_dir()",
        ),
        read(
            "loadgen.settings",
            json!({"a": 1}),
            loadgen,
            "config.settings",
        ),
        read(
            "engine.kind",
            json!("digest"),
            "accelerator/src",
            "engine.kind",
        ),
        read(
            "model_file",
            json!("x"),
            "frontend/src/local",
            "config.model_file",
        ),
        read("nics[0].address", json!("127.0.0.2"), session, "nic.at()"),
        maps("nics[0].post_from_issue_thread_up_to", json!(7), "dispatch"),
    ];
    // 8 bytes, as digests have.
    for key in &mut keys {
        if key.path == "verify" {
            key.given.push(("model.output.dtype", json!("u8")));
            key.given.push(("model.output.shape", json!([8])));
        }
    }
    keys.extend(nic_keys());
    check(0, &keys, frontend);
}

/// Keys of the frontend's two NICs.
fn nic_keys() -> Vec<Key> {
    let device = "qdl/src/fabric/ib/device.rs";
    let peer = "qdl/src/session/peer.rs";
    vec![
        maps("nics[0].connections", json!(7), "lanes"),
        maps("nics[0].slots", json!(7), "lanes"),
        maps("nics[0].completion.mode", json!("poll"), "rail"),
        maps("nics[0].completion.spin_us", json!(7), "rail"),
        maps("nics[0].completion.yield_after_us", json!("never"), "rail"),
        maps("nics[0].inline_bytes", json!(7), "tcp"),
        maps("nics[0].send_buffer_bytes", json!("system"), "tcp"),
        maps("nics[0].numa", json!(1), "rail"),
        read("nics[0].gpus", json!("all"), peer, "nic.gpus == Gpus::All"),
        maps("nics[0].cpus", json!([7]), "rail"),
        read("nics[1].device", json!("mlx5_1"), device, "nic.device()"),
        read("nics[1].port", json!(2), device, "nic.port"),
        read("nics[1].gid_index", json!(2), device, "nic.gid_index"),
        maps("nics[1].mtu", json!(512), "ib"),
        maps("nics[1].queue_pairs", json!(7), "lanes"),
        maps("nics[1].slots", json!(7), "lanes"),
        maps("nics[1].inline_bytes", json!(7), "ib"),
        maps("nics[1].signal_every", json!(7), "ib"),
        maps("nics[1].send_depth", json!(500), "ib"),
        maps("nics[1].receive_depth", json!(5000), "ib"),
        maps("nics[1].solicited", json!(false), "ib"),
        maps("nics[1].completion.mode", json!("poll"), "rail"),
        maps("nics[1].completion.spin_us", json!(7), "rail"),
        maps("nics[1].completion.yield_after_us", json!("never"), "rail"),
        maps("nics[1].adaptive_routing.split_above", json!(7), "ib"),
        maps("nics[1].service_level", json!(7), "ib"),
        maps("nics[1].traffic_class", json!(7), "ib"),
        maps("nics[1].timeout", json!(7), "ib"),
        maps("nics[1].retry_count", json!(5), "ib"),
        maps("nics[1].rnr_retry", json!(5), "ib"),
        maps("nics[1].min_rnr_timer", json!(7), "ib"),
        maps("nics[1].numa", json!(1), "rail"),
        read("nics[1].gpus", json!("all"), peer, "nic.gpus == Gpus::All"),
        maps("nics[1].cpus", json!([7]), "rail"),
    ]
}

#[test]
fn every_key_of_an_accelerator_has_an_effect() {
    let session = "qdl/src/session";
    let node = "accelerator/src/node.rs";
    let engines = "accelerator/src";
    let any_bytes = || ("model", json!({"name": "m", "max_input_bytes": 64}));
    let on_gpu = || {
        [
            ("model", json!({"name": "m", "file": "m.onnx"})),
            ("engine", json!({"kind": "tensorrt"})),
        ]
    };
    let onnx = || {
        [
            ("model", json!({"name": "m", "file": "m.onnx"})),
            ("engine", json!({"kind": "onnx"})),
        ]
    };
    let two = || ("nics", json!([{"listen": "127.0.0.1:1"}]));
    let keys = [
        read("node", json!("a-2"), session, "config.node.clone()"),
        read(
            "control.listen",
            json!("127.0.0.1:1"),
            session,
            "config.control.listen",
        ),
        maps("token_file", json!("t"), "auth").given([("auth", Value::Null)]),
        maps("auth", Value::Null, "auth"),
        maps("model.name", json!("x"), "model"),
        read("model.file", json!("x"), node, "config.model.file"),
        maps("model.inputs[0].name", json!("x"), "model"),
        maps("model.inputs[0].dtype", json!("f32"), "model"),
        maps("model.inputs[0].shape", json!([7]), "model"),
        maps("model.output.name", json!("x"), "model"),
        maps("model.output.dtype", json!("f32"), "model"),
        maps("model.output.shape", json!([7]), "model"),
        maps("model.max_input_bytes", json!(7), "model").given([any_bytes()]),
        maps("model.output_bytes", json!(7), "model").given([any_bytes()]),
        read("engine.kind", json!("digest"), engines, "engine.kind").given([any_bytes()]),
        read("engine.max_batch", json!(7), engines, "engine.max_batch"),
        read(
            "engine.max_delay_us",
            json!(7),
            engines,
            "engine.max_delay_us",
        ),
        read("engine.latency_us", json!(7), engines, "engine.latency_us"),
        read("engine.threads", json!(7), engines, "engine.threads"),
        read(
            "engine.intra_threads",
            json!(7),
            engines,
            "engine.intra_threads",
        )
        .given(onnx()),
        read("engine.library", json!("x"), engines, "engine.library").given(onnx()),
        read("engine.provider", json!("cuda"), engines, "engine.provider").given(onnx()),
        maps("engine.gpu", json!(7), "gpus").given(on_gpu()),
        maps("engine.gpus", json!([0, 1]), "gpus").given([two()]),
        read("engine.gather", json!("copies"), engines, "engine.gather").given(on_gpu()),
        read(
            "engine.batch_sizes",
            json!([64]),
            engines,
            "engine.batch_sizes",
        )
        .given(on_gpu()),
        read(
            "engine.precision",
            json!("int8"),
            engines,
            "engine.precision",
        )
        .given(on_gpu()),
        read("engine.profiles", json!([64]), engines, "engine.profiles").given(on_gpu()),
        read(
            "engine.optimization_level",
            json!(1),
            engines,
            "engine.optimization_level",
        )
        .given(on_gpu()),
        read("engine.delay_us", json!(7), engines, "engine.delay_us"),
        read("engine.spin_us", json!(7), engines, "engine.spin_us"),
        read(
            "nics[0].listen",
            json!("127.0.0.1:1"),
            session,
            "TcpDevice::listen(listen)",
        ),
        read("nics[0].gpu", json!(0), session, ".map(|n| n.gpu)"),
        read(
            "nics[0].gpudirect",
            json!(true),
            session,
            "config.gpudirect",
        )
        .given([("nics", json!([{"device": "mlx5_0", "gpu": 0}]))]),
        maps("memory_mib", json!(7), "memory"),
        maps("deadlines.connect_ms", json!(7), "timing"),
        maps("deadlines.echo_timeout_ms", json!(7), "tcp"),
        maps("deadlines.heartbeat_interval_ms", json!(7), "timing"),
        maps("deadlines.heartbeat_timeout_ms", json!(700), "timing"),
        read(
            "deadlines.drain_ms",
            json!(7),
            session,
            "config.deadlines.drain()",
        ),
    ];
    check(1, &keys, accelerator);
}
