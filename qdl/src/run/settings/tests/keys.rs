//! Every key of `docs/configuration.md` has an effect.
//!
//! The document's two files are taken with the keys that stand in comments. A key without a line in
//! [`FRONTEND`] or [`ACCELERATOR`] fails, and so does one whose other value changes nothing.
//! [`super::fields`] checks that code reads the configuration's values.

use std::{collections::HashMap, fmt::Debug, path::Path};

use fabric::ib::IbCfgs;
use serde_json::Value;
use verbs::DeviceLimits;

use super::*;
use crate::{
    config::{AcceleratorConfig, Auto, EngineConfig, parse_accelerator, parse_frontend},
    run::{
        crew::{Connections, crew},
        request_stride, response_stride,
    },
    testkit::machine,
};

const TEXT: &str = include_str!("../../../../../docs/configuration.md");

/// Keys and another value for each. `maps`: the value changes the settings of a run's parts. `read`:
/// it changes the configuration. `with` lists keys that the lines behind it require.
const FRONTEND: &str = r"
read node: f-2
maps model.name: m2
maps model.inputs[0].name: x
maps model.inputs[0].ragged: true
maps model.output.name: x
maps model.output.dtype: f32
maps model.output.shape: [100]
maps model.output.ragged: true
maps model.compression: lz4
read dataset.count: 7
read dataset.seed: 7
read qsl: staged
read performance_sample_count: 7
maps auth: null
read accelerators[0].control: localhost:1
maps nic_threads: 7
maps arbiter: best
maps health.tick_ms: 7
maps health.ewma_ms: 7
maps health.out_below: 0.1
maps health.in_above: 0.7
maps health.baseline_spread: 7
maps health.probe_one_in: 7
maps health.probe_every_ms: 7
maps health.congested_hold_ms: 7
maps health.congested_hold_max_ms: 700
maps health.failed_hold_ms: 7
maps health.failed_hold_max_ms: 7000
maps one_by_one: true
maps warm_up.budget_ms: 7
maps warm_up.deadline_ms: 7
read model_files: any
read submission: v6.1
maps deadlines.connect_ms: 7
read deadlines.lost_ms: 4000
maps deadlines.echo_interval_ms: 7
maps deadlines.echo_timeout_ms: 700
maps deadlines.heartbeat_interval_ms: 7
maps deadlines.heartbeat_timeout_ms: 700
read deadlines.name_ms: 7
read deadlines.drain_ms: 7
read deadlines.watchdog_s: 7
read loadgen.scenario: offline
read loadgen.model: x
read loadgen.user_conf: x
read loadgen.audit_config: x
read loadgen.output_dir: x
read loadgen.settings: {a: 1}
read engine.kind: digest
read model_file: x
read nics[0].address: 127.0.0.2
maps nics[0].post_from_issue_thread_up_to: 7
maps nics[0].connections: 7
maps nics[0].slots: 7
maps nics[0].completion.mode: poll
maps nics[0].completion.spin_us: 7
maps nics[0].completion.yield_after_us: never
maps nics[0].inline_bytes: 7
read nics[0].congestion: reno
maps nics[0].send_buffer_bytes: system
maps nics[0].numa: 1
read nics[0].gpus: all
maps nics[0].cpus: [7]
read nics[1].device: mlx5_1
read nics[1].port: 2
read nics[1].gid_index: 2
maps nics[1].mtu: 512
maps nics[1].queue_pairs: 7
maps nics[1].slots: 7
maps nics[1].inline_bytes: 7
maps nics[1].signal_every: 7
maps nics[1].send_depth: 500
maps nics[1].receive_depth: 5000
maps nics[1].solicited: false
maps nics[1].completion.mode: poll
maps nics[1].completion.spin_us: 7
maps nics[1].completion.yield_after_us: never
maps nics[1].adaptive_routing.split_above: 7
maps nics[1].service_level: 7
maps nics[1].traffic_class: 7
maps nics[1].timeout: 7
maps nics[1].retry_count: 5
maps nics[1].rnr_retry: 5
maps nics[1].min_rnr_timer: 7
maps nics[1].numa: 1
read nics[1].gpus: all
maps nics[1].cpus: [7]
read nics[2].ofi: cxi
read nics[2].domain: cxi1
read nics[2].address: 10.0.0.2
maps nics[2].connections: 7
read nics[2].inline_bytes: 7
read nics[3].ofi: cxi
read nics[3].match: x*
read nics[3].group_by: null
with auth: null
maps token_file: t
with dataset: {kind: random}
maps model.inputs[0].dtype: f32
maps model.inputs[0].shape: [32]
with model.inputs[0].dtype: i64; model.inputs[0].ragged: true; dataset: {kind: random}
read dataset.kind: tokens
with model.inputs[0].ragged: true; dataset: {kind: random}
maps dataset.min_bytes: 7
maps dataset.max_bytes: 7
read dataset.shape: [7]
maps dataset.distribution: fixed
with model.inputs: [{name: a, dtype: i64, shape: [64], ragged: true}]; dataset: {kind: tokens}
read dataset.min_len: 7
maps dataset.max_len: 7
read dataset.vocab: 7
with dataset: {kind: raw, samples: s}
read dataset.samples: t
with model.inputs[0].ragged: true; dataset: {kind: raw, samples: s, lengths: k}
read dataset.lengths: l
with dataset: {kind: raw, samples: s, labels: {file: k, dtype: i64}}
read dataset.labels.file: l
read dataset.labels.dtype: u8
with model.other_outputs: [{name: boxes, dtype: i64, shape: [4]}]
maps model.other_outputs[0].name: x
maps model.other_outputs[0].dtype: u8
maps model.other_outputs[0].shape: [2]
with model.output.ragged: true; model.output.dtype: i32
maps stream: all
with model.output.dtype: u8; model.output.shape: [8]
read verify: digest
";

const ACCELERATOR: &str = r"
read node: a-2
read control.listen: 127.0.0.1:1
maps nic_threads: 7
maps auth: null
maps model.name: x
read model.file: x
maps model.inputs[0].name: x
maps model.inputs[0].dtype: f32
maps model.inputs[0].shape: [7]
maps model.output.name: x
maps model.output.dtype: f32
maps model.output.shape: [7]
maps model.compression: lz4
read engine.max_batch: 7
read engine.max_delay_us: 7
read engine.latency_us: 7
read engine.begin_apart_us: 7
read engine.threads: 7
read engine.delay_us: 7
read engine.spin_us: 7
read nics[0].listen: 127.0.0.1:1
read nics[0].gpu: 0
maps memory_mib: 7
maps deadlines.connect_ms: 7
maps deadlines.echo_timeout_ms: 7
maps deadlines.heartbeat_interval_ms: 7
maps deadlines.heartbeat_timeout_ms: 700
read deadlines.drain_ms: 7
with auth: null
maps token_file: t
with model.other_outputs: [{name: boxes, dtype: i64, shape: [4]}]
maps model.other_outputs[0].name: x
maps model.other_outputs[0].dtype: f32
maps model.other_outputs[0].shape: [7]
with model: {name: m, max_input_bytes: 64}
maps model.max_input_bytes: 7
maps model.output_bytes: 7
read engine.kind: digest
with model: {name: m, file: m.onnx}; engine: {kind: onnx}
read engine.intra_threads: 7
read engine.library: x
read engine.provider: cuda
with model: {name: m, file: m.onnx}; engine: {kind: tensorrt}
maps engine.gpu: 7
read engine.batch_sizes: [64]
read engine.precision: int8
read engine.profiles: [64]
read engine.optimization_level: 1
with nics: [{listen: '127.0.0.1:1'}]
maps engine.gpus: [0, 1]
with nics: [{device: mlx5_0, gpu: 0}]
read nics[0].gpudirect: true
with model: {name: m, file: m.onnx}; engine: {kind: llm}
read engine.llm.sequences: 7
read engine.llm.context: 7
read engine.llm.min_tokens: 7
read engine.llm.max_tokens: 7
read engine.llm.eos: 7
with model: {name: m, inputs: [IDS], output: IDS}; engine: {kind: tokens, tokens: {}}
read engine.tokens.sequences: 7
read engine.tokens.prefill_us: 7
read engine.tokens.step_us: 7
read engine.tokens.beside_us: 7
read engine.tokens.min_tokens: 7
read engine.tokens.max_tokens: 7
read engine.tokens.vocab: 7
read engine.tokens.eos: 7
with model: {name: m, inputs: [IDS], output: IDS}; engine: {kind: http, http: HTTP}
read engine.http.url: http://127.0.0.1:2
read engine.http.dialect: sglang
read engine.http.model: x
read engine.http.temperature: 1
read engine.http.max_tokens: 7
read engine.http.min_tokens: 7
read engine.http.stop: [7]
read engine.http.ignore_eos: true
read engine.http.eos: [7]
read engine.http.vocab: 7
read engine.http.context: 7
read engine.http.in_flight: 7
read engine.http.connect_ms: 7
read engine.http.first_token_s: 7
read engine.http.next_token_s: 7
read engine.http.busy_s: 7
read engine.http.ready_s: 7
read engine.http.prefix_cache_off: x
read engine.http.command: [x]
read engine.http.log: x
read engine.http.stop_s: 7
";

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

/// Sets a key from a line `path: value`, and creates missing mappings.
fn set(tree: &mut Value, line: &str) {
    let (path, value) = line.split_once(": ").expect("a key and its value");
    let pointer = path.replace('[', ".").replace(']', "");
    let here = pointer
        .split('.')
        .fold(tree, |here, part| match part.parse::<usize>() {
            Ok(index) => &mut here[index],
            Err(_) => &mut here[part],
        });
    // Alone, `m: n` in a value would be a mapping.
    *here = yaml(&format!("[{value}]"))[0].take();
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
    let crew = crew(nics, &near, wanted, 2, Connections::ToAccelerators(1));
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
    let policy = (d.policy, d.policy.by_health(), health(&c.health));
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

/// Checks the lines of one file.
fn check(index: usize, lines: &str, parse: fn(&Topology, &str) -> Parsed) {
    let root = tempfile::tempdir().expect("a folder");
    let addresses = machine::expand(machine::TWO_SOCKETS, root.path()).expect("a machine");
    let topology = Topology::read(root.path(), &addresses).expect("a tree");
    let [all, base] = files(index);
    let mut keys = Vec::new();
    leaves("", &all, &mut keys);
    let mut parsed: HashMap<String, Parsed> = HashMap::new();
    let mut before = base.clone();
    for line in lines.lines().filter(|line| !line.is_empty()) {
        let (kind, key) = line.split_once(' ').expect("a kind and a key");
        if kind == "with" {
            before = base.clone();
            key.split("; ").for_each(|key| set(&mut before, key));
            continue;
        }
        let path = key.split(": ").next().unwrap_or_default();
        let known = keys.iter().position(|k| k == path);
        keys.swap_remove(known.unwrap_or_else(|| panic!("{path}: the document has no such key")));
        let mut after = before.clone();
        set(&mut after, key);
        let mut parse = |tree: &Value| {
            let file = tree.to_string();
            let parsed = parsed.entry(file.clone());
            parsed.or_insert_with(|| parse(&topology, &file)).clone()
        };
        let ([settings, whole], [other_settings, other_whole]) = (parse(&before), parse(&after));
        assert_ne!(whole, other_whole, "{path}: dropped");
        assert!(
            kind == "read" || settings != other_settings,
            "{path}: no setting changes"
        );
    }
    assert_eq!(keys, [""; 0], "keys of the document without a line");
}

#[test]
fn every_key_of_a_frontend_has_an_effect() {
    check(0, FRONTEND, frontend);
}

#[test]
fn every_key_of_an_accelerator_has_an_effect() {
    check(1, ACCELERATOR, accelerator);
}
