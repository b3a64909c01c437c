//! Every key of `docs/configuration.md` has an effect.
//!
//! The document's two files are taken with the keys that stand in comments. A key
//! whose other value changes nothing fails: the settings of a run's parts must change, or for the
//! keys in [`READ`] at least the configuration. [`super::fields`] checks that code reads it.

use std::{collections::HashMap, fmt::Debug, path::Path};

use fabric::ib::IbCfgs;
use serde_json::Value;
use verbs::DeviceLimits;

use super::*;
use crate::{
    config::{AcceleratorConfig, Auto, EngineConfig, parse_accelerator, parse_frontend},
    run::{crew::crew, request_stride, response_stride},
    testkit::machine,
};

const TEXT: &str = include_str!("../../../../../docs/configuration.md");

/// Keys that change the configuration alone, as far as this crate can tell.
const READ: &str = "
node qsl performance_sample_count accelerators model_files submission verify loadgen model_file
dataset.kind dataset.count dataset.seed dataset.shape dataset.samples dataset.lengths
dataset.labels dataset.min_len dataset.vocab
deadlines.lost_ms deadlines.name_ms deadlines.drain_ms deadlines.watchdog_s
control.listen model.file engine.kind engine.max_batch engine.max_delay_us engine.latency_us
engine.begin_apart_us engine.threads engine.delay_us engine.spin_us engine.intra_threads
engine.library engine.provider engine.batch_sizes engine.precision engine.profiles
engine.optimization_level engine.llm engine.tokens engine.http engine.vllm
nics[0].address nics[0].congestion nics[0].gpus nics[0].listen nics[0].gpu nics[0].gpudirect
nics[1].device nics[1].port nics[1].gid_index nics[1].gpus
nics[2].ofi nics[2].domain nics[2].address nics[2].inline_bytes nics[3]";

/// Keys that a file needs beside these keys, or those below them.
const WITH: &str = "
token_file | auth: null
model.other_outputs | model.other_outputs: [{name: boxes, dtype: i64, shape: [4]}]
model.inputs[0].dtype model.inputs[0].shape | dataset: {kind: random}
dataset.kind | model.inputs[0].dtype: i64; model.inputs[0].ragged: true; dataset: {kind: random}
dataset.min_bytes dataset.max_bytes | model.inputs[0].ragged: true; dataset: {kind: random}
dataset.shape dataset.distribution | model.inputs[0].ragged: true; dataset: {kind: random}
dataset.min_len dataset.max_len dataset.vocab | model.inputs: [IDS]; dataset: {kind: tokens}
dataset.samples | dataset: {kind: raw, samples: s}
dataset.lengths | model.inputs[0].ragged: true; dataset: {kind: raw, samples: s, lengths: k}
dataset.labels | dataset: {kind: raw, samples: s, labels: {file: k, dtype: i64}}
stream | model.output.ragged: true; model.output.dtype: i32
verify engine.kind | model.output.dtype: u8; model.output.shape: [8]
model.max_input_bytes model.output_bytes | model: {name: m, max_input_bytes: 64}
engine.intra_threads | model: {name: m, file: m.onnx}; engine: {kind: onnx}
engine.library engine.provider | model: {name: m, file: m.onnx}; engine: {kind: onnx}
engine.gpu engine.batch_sizes | model: {name: m, file: m.onnx}; engine: {kind: tensorrt}
engine.precision engine.profiles | model: {name: m, file: m.onnx}; engine: {kind: tensorrt}
engine.optimization_level | model: {name: m, file: m.onnx}; engine: {kind: tensorrt}
engine.gpus | nics: [{listen: '127.0.0.1:1'}]
nics[0].gpudirect | nics: [{device: mlx5_0, gpu: 0}]
engine.llm | model: {name: m, file: m.onnx}; engine: {kind: llm}
engine.tokens | model: {name: m, inputs: [IDS], output: IDS}; engine: {kind: tokens, tokens: {}}
engine.http | model: {name: m, inputs: [IDS], output: IDS}; engine: {kind: http, http: HTTP}
engine.vllm | model: {name: m, inputs: [IDS], output: IDS}; engine: {kind: vllm, vllm: {model: m}}";

/// Other values of keys for which 7 (also for `auto` and `never`), `x`, `[7]` or the other truth
/// value would be an error.
const OTHER: &str = "
auth: null
node: n-2
accelerators[0].control: localhost:1
arbiter: best
control.listen: 127.0.0.1:1
dataset.distribution: fixed
dataset.kind: tokens
dataset.labels.dtype: u8
deadlines.echo_timeout_ms: 700
deadlines.heartbeat_timeout_ms: 700
deadlines.lost_ms: 4000
engine.batch_sizes: [64]
engine.gpus: [0, 1]
engine.http.command: [x]
engine.http.dialect: sglang
engine.http.temperature: 1
engine.http.url: http://127.0.0.1:2
engine.kind: digest
engine.optimization_level: 1
engine.precision: int8
engine.profiles: [64]
engine.provider: cuda
engine.vllm.args: [x]
engine.vllm.command: [x]
engine.vllm.listen: 127.0.0.1:2
engine.vllm.temperature: 1
health.congested_hold_max_ms: 700
health.failed_hold_max_ms: 7000
health.in_above: 0.7
health.out_below: 0.1
loadgen.scenario: offline
loadgen.settings: {a: 1}
model.compression: lz4
model.inputs[0].dtype: f32
model.inputs[0].shape: [32]
model.other_outputs[0].dtype: u8
model.output.dtype: f32
model_files: any
nics[0].address: 127.0.0.2
nics[0].completion.mode: poll
nics[0].completion.yield_after_us: never
nics[0].congestion: reno
nics[0].gpu: 0
nics[0].gpus: all
nics[0].listen: 127.0.0.1:1
nics[0].numa: 1
nics[0].send_buffer_bytes: system
nics[1].completion.mode: poll
nics[1].completion.yield_after_us: never
nics[1].device: mlx5_1
nics[1].gid_index: 2
nics[1].gpus: all
nics[1].mtu: 512
nics[1].numa: 1
nics[1].port: 2
nics[1].receive_depth: 5000
nics[1].retry_count: 5
nics[1].rnr_retry: 5
nics[1].send_depth: 500
nics[2].address: 10.0.0.2
nics[2].domain: cxi1
nics[2].ofi: cxi
nics[3].group_by: null
nics[3].match: x*
nics[3].ofi: cxi
one_by_one: true
qsl: staged
stream: all
submission: v6.1
verify: digest";

fn yaml(text: &str) -> Value {
    let text = text
        .replace("IDS", "{name: ids, dtype: i32, shape: [64], ragged: true}")
        .replace(
            "HTTP",
            "{url: 'http://127.0.0.1:1', dialect: vllm, vocab: 100}",
        );
    serde_saphyr::from_str(&text).expect("YAML")
}

/// The document's files with the keys in comments, and as they are.
fn files(index: usize) -> [Value; 2] {
    let block = TEXT.split("```yaml\n").nth(index + 1).expect("two files");
    let block = block.split("```").next().expect("its end");
    let all: Vec<String> = block.lines().map(uncomment).collect();
    [yaml(&all.join("\n")), yaml(block)]
}

/// Turns `  # key: value  # remark` into `  key: value  # remark`. Likewise for lines below such a
/// key (`  #   key: value`), with their indentation.
fn uncomment(line: &str) -> String {
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

/// Paths and values of all keys without keys below them. LoadGen's settings count as one.
fn leaves<'v>(path: &str, value: &'v Value, out: &mut Vec<(String, &'v Value)>) {
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
        value => out.push((path.to_owned(), value)),
    }
}

/// Whether `path` is `key` or below it.
fn is_below(path: &str, key: &str) -> bool {
    let rest = path.strip_prefix(key);
    rest.is_some_and(|rest| rest.is_empty() || rest.starts_with(['.', '[']))
}

/// Sets a key, and creates missing mappings.
fn set(tree: &mut Value, path: &str, value: Value) {
    let pointer = path.replace('[', ".").replace(']', "");
    let here = pointer
        .split('.')
        .fold(tree, |here, part| match part.parse::<usize>() {
            Ok(index) => &mut here[index],
            Err(_) => &mut here[part],
        });
    *here = value;
}

/// A path and a value from `path: value`.
fn key_value(line: &str) -> (&str, Value) {
    let (path, value) = line.split_once(": ").expect("a key and its value");
    // Alone, `m: n` in a value would be a mapping.
    (path, yaml(&format!("[{value}]"))[0].take())
}

/// A value other than the document's.
fn other_value(path: &str, value: &Value) -> Value {
    let exception = OTHER
        .lines()
        .skip(1)
        .map(key_value)
        .find(|(p, _)| *p == path);
    exception.map_or_else(
        || match value {
            Value::Bool(is) => (!is).into(),
            Value::String(word) if !["auto", "never"].contains(&&**word) => "x".into(),
            Value::Null => "x".into(),
            Value::Array(_) => vec![7].into(),
            _ => 7.into(),
        },
        |(_, other)| other,
    )
}

/// Settings of the parts of a run, and the whole configuration.
type Parsed = [String; 2];

fn text(value: impl Debug) -> String {
    format!("{value:?}")
}

/// Settings from `nics`, on a machine where placement matters, with two cores.
fn settings(topology: &Topology, nics: &[NicConfig], d: &Deadlines, wanted: Auto<usize>) -> String {
    let limits = DeviceLimits {
        max_qp: 1 << 20,
        max_cq: 1 << 20,
        max_qp_wr: 1 << 20,
        max_cqe: 1 << 20,
        ..DeviceLimits::default()
    };
    let one = |nic: &NicConfig| {
        let fabric = match &nic.fabric {
            NicFabric::Tcp(keys) => text(tcp(nic, keys, d)),
            NicFabric::Ib(keys) => {
                let wishes = ib(nic, keys);
                let cfgs = IbCfgs::resolve(&wishes, &limits, nic.resolve_slots(64));
                text(cfgs.expect("within limits"))
            }
            NicFabric::Ofi(_) => String::new(),
        };
        let thread = nic_thread(0, nic, &topology.near_nic(nic));
        text((fabric, thread, nic.connections(), nic.resolve_slots(64)))
    };
    let near = vec![Near::default(); nics.len()];
    let crew = crew(nics, &near, wanted, 2, Some(1));
    text((nics.iter().map(one).collect::<Vec<_>>(), timing(d), crew))
}

fn frontend(topology: &Topology, file: &str) -> Parsed {
    let c = parse_frontend(file, "f.yaml", Path::new("/"));
    let c: FrontendConfig = c.unwrap_or_else(|e| panic!("{e}"));
    let (model, data, d) = (&c.model, &c.dataset, dispatch(&c));
    let path = (
        d.echo,
        d.post_up_to,
        d.stay_ns,
        d.one_by_one,
        d.stream,
        d.token_bytes,
    );
    let run = (
        c.warm_up.is_on(),
        c.warm_up.budget(),
        c.warm_up.deadline(),
        c.auth(),
    );
    let policy = (d.policy, d.policy.by_health(), c.health);
    let sizes = (model, request_stride(model), response_stride(model));
    let samples = (
        data.bytes(model),
        data.distribution(model),
        data.max_len(model),
    );
    let nics = settings(topology, &c.nics, &c.deadlines, c.nic_threads);
    [text((nics, path, run, policy, sizes, samples)), text(&c)]
}

fn accelerator(topology: &Topology, file: &str) -> Parsed {
    let c = parse_accelerator(file, "a.yaml", Path::new("/"));
    let c: AcceleratorConfig = c.unwrap_or_else(|e| panic!("{e}"));
    let nics = settings(topology, &c.nics, &c.deadlines, c.nic_threads);
    let gpus = EngineConfig::all_gpus(&c.engine);
    [
        text((nics, c.auth(), c.model.spec(), c.memory(), gpus)),
        text(&c),
    ]
}

/// Checks the keys of one file.
fn check(index: usize, parse: fn(&Topology, &str) -> Parsed) {
    let root = tempfile::tempdir().expect("a folder");
    let addresses = machine::expand(machine::TWO_SOCKETS, root.path()).expect("a machine");
    let topology = Topology::read(root.path(), &addresses).expect("a tree");
    let [all, base] = files(index);
    let mut keys = Vec::new();
    leaves("", &all, &mut keys);
    let mut parsed: HashMap<String, Parsed> = HashMap::new();
    for (path, value) in keys {
        let mut before = base.clone();
        let with = WITH.lines().filter_map(|line| line.split_once(" | "));
        for (_, required) in
            with.filter(|(keys, _)| keys.split(' ').any(|key| is_below(&path, key)))
        {
            for (path, value) in required.split("; ").map(key_value) {
                // An accelerator has no data set.
                if all
                    .get(path.split(['.', '[']).next().unwrap_or_default())
                    .is_some()
                {
                    set(&mut before, path, value);
                }
            }
        }
        let mut after = before.clone();
        set(&mut after, &path, other_value(&path, value));
        let mut parse = |tree: &Value| {
            let file = tree.to_string();
            let parsed = parsed.entry(file.clone());
            parsed.or_insert_with(|| parse(&topology, &file)).clone()
        };
        let ([settings, whole], [other_settings, other_whole]) = (parse(&before), parse(&after));
        assert_ne!(whole, other_whole, "{path}: dropped");
        let is_read = READ.split_whitespace().any(|key| is_below(&path, key));
        assert!(
            is_read || settings != other_settings,
            "{path}: no setting changes"
        );
    }
}

#[test]
fn every_key_of_a_frontend_has_an_effect() {
    check(0, frontend);
}

#[test]
fn every_key_of_an_accelerator_has_an_effect() {
    check(1, accelerator);
}
