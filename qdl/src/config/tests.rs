//! Every class of error with its text, every file in `configs/`, and no panic on any bytes.

use std::{
    net::SocketAddr,
    path::{Path, PathBuf},
};

use proptest::prelude::*;

use super::*;
use crate::rails::{HealthCfgs, Score};

/// A frontend's file down to its accelerators.
const FRONTEND: &str = "\
node: f
model:
  name: m
  inputs: [{name: a, dtype: u8, shape: [4], ragged: true}]
  output: {name: o, dtype: u8, shape: [8]}
dataset: {kind: random}
";
const REST: &str = "accelerators: [{control: 127.0.0.1:7400}]\nnics: [{address: 127.0.0.1}]\n";
const ACCELERATOR: &str = "\
node: a
control: {listen: 127.0.0.1:7400}
model: {name: m, max_input_bytes: 4}
engine: {kind: digest}
nics: [{listen: 127.0.0.1:7410}]
";

fn frontend(text: &str) -> Result<FrontendConfig, ConfigError> {
    parse_frontend(text, "f.yaml", Path::new("/base"))
}

fn accelerator(text: &str) -> Result<AcceleratorConfig, ConfigError> {
    parse_accelerator(text, "a.yaml", Path::new("/base"))
}

/// The text of the error; lines are compared without trailing blanks.
fn text<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> String {
    let text = result.unwrap_err().to_string();
    text.lines()
        .map(str::trim_end)
        .collect::<Vec<_>>()
        .join("\n")
}

/// The problems of a frontend that ends like this, each as `line:column what`.
fn problems<T: std::fmt::Debug>(result: Result<T, ConfigError>) -> Vec<String> {
    match result.unwrap_err() {
        ConfigError::Invalid { problems } => problems
            .iter()
            .map(|p| format!("{}:{} {}", p.line, p.column, p.what))
            .collect(),
        other => panic!("{other}"),
    }
}

/// As [`problems`], of a frontend with these lines after the head.
fn after_head(lines: &str) -> Vec<String> {
    problems(frontend(&format!("{FRONTEND}{lines}")))
}

#[test]
fn every_default_is_its_constant() {
    let c = frontend(&format!("{FRONTEND}{REST}")).unwrap();
    assert_eq!(c.auth, Auth::LoopbackOnly);
    assert_eq!((c.qsl, c.verify), (QslMode::Registered, Verify::None));
    assert_eq!(c.arbiter, Policy::LeastOutstanding);
    assert_eq!(c.deadlines, Deadlines::default());
    assert_eq!(c.loadgen, LoadgenConfig::default());
    assert_eq!(c.loadgen.output_dir, Path::new("results"));
    assert_eq!(c.loadgen_model(), "m");
    let bind = SocketAddr::from(([127, 0, 0, 1], 0));
    assert_eq!(c.nics, [NicConfig::Tcp(TcpNicConfig::new(bind))]);
    assert_eq!(
        c.dataset,
        DatasetConfig::Random {
            count: DEFAULT_RANDOM_COUNT,
            min_bytes: 1,
            max_bytes: 4,
            seed: DEFAULT_RANDOM_SEED,
            distribution: SizeDistribution::LogUniform,
        }
    );
    let a = accelerator(ACCELERATOR).unwrap();
    assert_eq!(a.engine, EngineConfig::new(EngineKind::Digest));
    assert_eq!(a.deadlines, AcceleratorDeadlines::default());
    assert_eq!(a.memory_mib, 4096);
    let spec = crate::model::ModelSpec::opaque("m", 4, 8);
    assert_eq!(a.model.spec(), Some(spec));
}

#[test]
fn a_model_of_fixed_size_gets_samples_of_that_size() {
    let fixed = format!("{FRONTEND}{REST}").replace(", ragged: true", "");
    assert!(matches!(
        frontend(&fixed).unwrap().dataset,
        DatasetConfig::Random {
            min_bytes: 4,
            max_bytes: 4,
            distribution: SizeDistribution::Fixed,
            ..
        }
    ));
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
    assert_eq!(
        frontend(&bert).unwrap().dataset,
        DatasetConfig::Tokens {
            count: DEFAULT_RANDOM_COUNT,
            min_len: 2,
            max_len: 48,
            vocab: DEFAULT_VOCAB,
            seed: DEFAULT_RANDOM_SEED,
        }
    );
    let problem = |from: &str, to: &str| problems(frontend(&bert.replace(from, to))).join("; ");
    let long = problem("min_len: 2", "max_len: 49");
    assert!(long.contains("max_len is 49"), "{long}");
    let bytes = problem("i64", "u8");
    assert!(bytes.contains("ragged rows of i64"), "{bytes}");
    let foreign = problem("min_len: 2", "min_bytes: 2");
    assert!(
        foreign.contains("of kind `tokens` has no `min_bytes`"),
        "{foreign}"
    );
}

#[test]
fn unknown_key() {
    assert_eq!(
        text(accelerator(&ACCELERATOR.replace("engine: {", "engine: {max_bach: 8, "))),
        "\
a.yaml:4:10: unknown key `max_bach`
  |
4 | engine: {max_bach: 8, kind: digest}
  |          ^^^^^^^^
  = did you mean `max_batch`? keys here are: kind, max_batch, max_delay_us, threads, intra_threads, library, \
delay_us, spin_us, gpu, gpus, batch_sizes, latency_us"
    );
}

#[test]
fn an_engine_on_a_gpu() {
    let aoti = |keys: &str| {
        let model = ACCELERATOR.replace("max_input_bytes: 4", "file: m.pt2");
        accelerator(&model.replace("kind: digest", &format!("kind: aoti{keys}")))
    };
    let good = aoti(", gpu: 1, max_batch: 8, batch_sizes: [1, 4, 8], latency_us: 15000");
    let engine = good.unwrap_or_else(|e| panic!("{e}")).engine;
    assert_eq!((engine.gpu, engine.batch_sizes), (1, vec![1, 4, 8]));
    assert_eq!(engine.latency_us, Some(15_000));
    for (keys, complaint) in [
        (
            ", max_batch: 8, batch_sizes: [1, 4]",
            "[1, 4] with max_batch 8",
        ),
        (
            ", max_batch: 8, batch_sizes: [8, 8]",
            "[8, 8] with max_batch 8",
        ),
        (
            ", max_batch: 8, batch_sizes: [0, 8]",
            "[0, 8] with max_batch 8",
        ),
    ] {
        let all = text(aoti(keys));
        assert!(
            all.contains(complaint) && all.contains("ascending"),
            "{all}"
        );
    }
    let digest = |key: &str| {
        text(accelerator(
            &ACCELERATOR.replace("kind: digest", &format!("kind: digest, {key}")),
        ))
    };
    assert!(digest("gpu: 1").contains("engine `digest` uses no GPU"));
    assert!(digest("batch_sizes: [64]").contains("engine `digest` runs batches of any size"));
}

#[test]
fn several_gpus_and_the_nics_that_feed_them() {
    let two = |engine: &str, nics: &str| {
        let text = ACCELERATOR.replace("kind: digest", &format!("kind: digest{engine}"));
        let (head, _) = text.split_once("nics:").expect("it has NICs");
        accelerator(&format!("{head}nics: {nics}\n"))
    };
    let nics = "[{listen: 127.0.0.1:1, gpu: 2}, {listen: 127.0.0.1:2, gpu: 5}]";
    let good = two(", gpus: [2, 5], threads: 3", nics).unwrap_or_else(|e| panic!("{e}"));
    assert_eq!(good.engine.all_gpus(), [2, 5]);
    assert_eq!(good.engine.workers(), 6);
    let plain = two("", nics).expect("without `gpus` a digest engine minds no GPU");
    assert_eq!(
        (plain.engine.all_gpus(), plain.engine.workers()),
        (vec![0], 1)
    );
    for (engine, nics, path, complaint) in [
        (
            ", gpus: [2]",
            nics,
            "nics[1].gpu",
            "no engine runs on GPU 5",
        ),
        (", gpus: [2, 5, 7]", nics, "engine", "GPU 7 gets no samples"),
        (", gpus: [2, 2]", nics, "engine.gpus", "names a GPU twice"),
        (", gpus: [2, 5], gpu: 1", nics, "engine.gpus", "both say"),
    ] {
        let all = text(two(engine, nics));
        assert!(all.contains(complaint), "{path}: {all}");
    }
    let anywhere = "[{listen: 127.0.0.1:1}]";
    two(", gpus: [0, 1]", anywhere).expect("a NIC without a GPU feeds all of them");
    let onnx = ACCELERATOR
        .replace("max_input_bytes: 4", "file: m.onnx")
        .replace("kind: digest", "kind: onnx, gpus: [0, 1]");
    assert!(text(accelerator(&onnx)).contains("engine `onnx` uses no GPU"));
    let aoti = ACCELERATOR
        .replace("max_input_bytes: 4", "file: m.pt2")
        .replace("kind: digest", "kind: aoti");
    let (head, _) = aoti.split_once("nics:").expect("it has NICs");
    let all = text(accelerator(&format!("{head}nics: {nics}\n")));
    assert!(all.contains("no engine runs on GPU 2"), "{all}");
}

#[test]
fn unknown_value() {
    assert_eq!(
        text(frontend(&format!("{FRONTEND}{REST}arbiter: round-robin\n"))),
        "\
f.yaml:9:10: `round-robin` is not a value of this key
  |
9 | arbiter: round-robin
  |          ^^^^^^^^^^^
  = did you mean `round_robin`? it must be: round_robin, least_outstanding, best, health_best_fit, health_spray"
    );
}

#[test]
fn policies_by_health() {
    let arbiter = |text: &str| frontend(&format!("{FRONTEND}{REST}{text}\n"));
    assert_eq!(arbiter("arbiter: best").unwrap().arbiter, Policy::Best);
    let c = arbiter(
        "arbiter: {health_spray: {delta: 0.25}}\nhealth: {probe_one_in: 200, out_below: 0.2}",
    );
    let c = c.unwrap();
    let delta = Score::try_from(0.25).unwrap();
    let spray = Policy::HealthSpray {
        delta,
        above_only: false,
    };
    assert_eq!(c.arbiter, spray);
    let health = c.health.cfgs();
    assert_eq!(health.probe_one_in, 200);
    assert_eq!(health.ewma_ns, HealthCfgs::default().ewma_ns);
    assert_eq!(
        arbiter("arbiter: best").unwrap().health.cfgs(),
        HealthCfgs::default()
    );
    for (wrong, key) in [
        ("arbiter: {health_spray: {delta: 1.5}}", "1.5"),
        ("arbiter: {health_spray: {}}", "delta"),
        (
            "arbiter: best\nhealth: {out_below: 0.7}",
            "out_below is 0.700",
        ),
        (
            "arbiter: best\nhealth: {failed_hold_ms: 70000}",
            "failed_hold_max_ms is 60000",
        ),
    ] {
        let said = text(arbiter(wrong));
        assert!(said.contains(key), "{wrong}: {said}");
    }
}

#[test]
fn wrong_type() {
    assert_eq!(
        text(frontend(&format!(
            "{FRONTEND}{REST}performance_sample_count: many\n"
        ))),
        "\
f.yaml:9:27: a value of the wrong type
  |
9 | performance_sample_count: many
  |                           ^^^^
  = it must be a whole number, not negative"
    );
    assert_eq!(
        text(frontend(&format!("{FRONTEND}nics:\n  - slots: lots\n"))),
        "\
f.yaml:8:12: found string \"lots\"
  |
8 |   - slots: lots
  |            ^^^^
  = it must be `auto` or a number, not negative"
    );
    assert_eq!(
        text(frontend("node: f\nmodel: 3\n")),
        "\
f.yaml:2:8: a value of the wrong type
  |
2 | model: 3
  |        ^
  = it must be a block of keys, as in `{key: value}`"
    );
}

#[test]
fn missing_key() {
    assert_eq!(
        text(accelerator(
            &ACCELERATOR.replace("kind: digest", "threads: 2")
        )),
        "\
a.yaml:4:10: the key `kind` is missing
  |
4 | engine: {threads: 2}
  |          ^^^^^^^
  = add `kind: ...` here"
    );
}

#[test]
fn no_yaml() {
    assert_eq!(
        text(frontend("node: f\nnode: g\n")),
        "\
f.yaml:2:1: the key `node` is here twice
  |
2 | node: g
  | ^^^^
  = remove one of the two"
    );
    assert!(text(frontend("")).starts_with("f.yaml:1:1: the file ends too early"));
    assert_eq!(
        text(frontend("node: \"f\n")),
        "\
f.yaml:1:9: invalid indentation in multiline quoted scalar
  |
1 | node: \"f
  |         ^"
    );
}

#[test]
fn out_of_range_names_key_and_range() {
    assert_eq!(
        text(frontend(&format!(
            "{FRONTEND}accelerators: [{{control: 127.0.0.1:7400}}]\nnics:\n  - address: 127.0.0.1\n    \
             slots: 8193\n    completion:\n      spin_us: 1000001\n"
        ))),
        "\
f.yaml:10:12: slots is 8193
   |
10 |     slots: 8193
   |            ^^^^
   = it must be 1 to 8192
f.yaml:12:16: spin_us is 1000001
   |
12 |       spin_us: 1000001
   |                ^^^^^^^
   = it must be 0 to 1000000"
    );
    let long = "x".repeat(65);
    for name in ["a b", "\"\"", "ä", &long] {
        let text = format!("{FRONTEND}{REST}").replace("node: f", &format!("node: {name}"));
        assert_eq!(problems(frontend(&text)), ["1:7 node is no usable name"]);
    }
}

#[test]
fn missing_file_and_folder() {
    assert_eq!(
        text(load_frontend("nowhere/f.yaml")),
        "\
nowhere/f.yaml: cannot read the configuration: No such file or directory (os error 2)
   = check the path; working examples are in configs/"
    );
    assert!(text(load_accelerator("src")).contains("name the YAML file in that folder"));
}

#[test]
fn a_file_that_a_key_names_must_be_there() {
    let file = std::env::temp_dir().join(format!("qdl-{}-missing-token.yaml", std::process::id()));
    std::fs::write(&file, format!("{ACCELERATOR}token_file: no-such-token\n")).unwrap();
    let error = text(load_accelerator(&file));
    std::fs::remove_file(&file).unwrap();
    assert!(error.contains("missing-token.yaml:6:13: "), "{error}");
    assert!(error.contains("no-such-token: No such file"), "{error}");
}

#[test]
fn addresses_need_a_token_off_loopback() {
    let open = ACCELERATOR.replace("127.0.0.1:7410", "0.0.0.0:7410");
    assert_eq!(
        text(accelerator(&open)),
        "\
a.yaml:5:17: 0.0.0.0:7410 is not a loopback address, and there is no token
  |
5 | nics: [{listen: 0.0.0.0:7410}]
  |                 ^^^^^^^^^^^^
  = add `token_file: PATH` with the same token on both nodes, or `auth: none` if the network is trusted"
    );
    let none = accelerator(&format!("{open}auth: none\n")).unwrap();
    assert_eq!(none.auth, Auth::None);
    let token = accelerator(&format!("{open}token_file: t\n")).unwrap();
    assert_eq!(token.auth, Auth::Token(PathBuf::from("/base/t")));
    let both = accelerator(&format!("{open}token_file: t\nauth: none\n"));
    assert_eq!(
        problems(both),
        ["7:7 `auth: none` and `token_file` contradict each other"]
    );
    for (control, fine) in [
        ("localhost:1", true),
        ("'[::1]:1'", true),
        ("127.8.8.8:1", true),
        ("10.0.0.1:1", false),
        ("dgx-01:1", false),
    ] {
        let text = format!("{FRONTEND}{REST}").replace("127.0.0.1:7400", control);
        assert_eq!(frontend(&text).is_ok(), fine, "{control}");
        assert!(
            frontend(&format!("{text}auth: none\n")).is_ok(),
            "{control}"
        );
    }
}

#[test]
fn relations_between_keys() {
    let rest = |more: &str| after_head(&format!("{REST}{more}\n"));
    assert_eq!(
        rest("deadlines: {echo_interval_ms: 2000}"),
        ["9:31 echo_interval_ms is 2000, no shorter than echo_timeout_ms, 2000"]
    );
    assert_eq!(
        rest("deadlines: {lost_ms: 2250}"),
        [
            "9:22 lost_ms is 2250, but losing a connection alone takes echo_interval_ms + echo_timeout_ms = 2250"
        ]
    );
    assert_eq!(
        rest("deadlines: {watchdog_s: 5}"),
        ["9:25 watchdog_s is 5 s, no longer than lost_ms, 5000 ms"]
    );
    assert_eq!(
        rest("engine: {kind: onnx, delay_us: 4}"),
        [
            "9:16 engine `onnx` needs a model file",
            "9:32 engine `onnx` pretends no compute"
        ]
    );
    assert_eq!(
        rest("performance_sample_count: 1025"),
        ["9:27 performance_sample_count is 1025, the data set has 1024 samples"]
    );
    assert_eq!(
        after_head("accelerators: []\nnics: []\n"),
        [
            "7:1 the list of accelerators is empty",
            "8:1 the list of NICs is empty"
        ]
    );
    let twice = "accelerators: [{control: localhost:1}, {control: localhost:1}, {control: localhost}]\n\
                 nics: [{address: '127.0.0.1:3'}]\n";
    assert_eq!(
        after_head(twice),
        ["8:18 `127.0.0.1:3` is not an IP address"]
    );
    assert_eq!(
        after_head(&twice.replace(":3", "")),
        [
            "7:50 localhost:1 is listed twice",
            "7:74 `localhost` is not HOST:PORT"
        ]
    );
    let port = ACCELERATOR.replace("7410", "7400");
    assert_eq!(
        problems(accelerator(&port)),
        ["5:17 127.0.0.1:7400 is taken by `control.listen`"]
    );
    let digest = ACCELERATOR.replace("bytes: 4", "bytes: 4, output_bytes: 16");
    assert_eq!(
        problems(accelerator(&digest)),
        ["3:52 the output has 16 bytes"]
    );
    let onnx = ACCELERATOR.replace("digest", "onnx");
    assert_eq!(
        problems(accelerator(&onnx)),
        [
            "3:1 engine `onnx` needs a model file",
            "3:35 engine `onnx` takes its sizes from the model file"
        ]
    );
}

#[test]
fn verify_digest_needs_eight_bytes() {
    let text = format!("{FRONTEND}{REST}verify: digest\n");
    assert_eq!(frontend(&text).unwrap().verify, Verify::Digest);
    let wide = text.replace("shape: [8]", "shape: [9]");
    assert_eq!(
        problems(frontend(&wide)),
        ["9:9 `verify: digest` expects responses of 8 bytes, the model's output is o: u8[9]"]
    );
}

#[test]
fn shapes_that_cannot_be() {
    for shape in ["[]", "[0]", "[4, 18446744073709551615]", "[1073741825]"] {
        let text = format!("{FRONTEND}{REST}").replace("shape: [4]", &format!("shape: {shape}"));
        let found = problems(frontend(&text));
        assert!(found[0].starts_with("4:"), "{found:?}");
        assert!(found[0].contains("no shape of a sample"), "{found:?}");
    }
}

#[test]
fn an_ib_nic_takes_every_key_and_no_tcp_key() {
    let nic = "  - device: mlx5_0
    port: 2
    gid_index: 3
    mtu: 4096
    numa: 1
    gpu: 0
    queue_pairs: 8
    slots: 2048
    inline_bytes: 128
    signal_every: 32
    send_depth: 4096
    receive_depth: 2112
    solicited: false
    completion: {mode: poll}
    adaptive_routing: {split_above: 8192}
    service_level: 3
    traffic_class: 106
    timeout: 15
    retry_count: 5
    rnr_retry: 4
    min_rnr_timer: 11
    cpus: [2, 3]
";
    let head = format!("{FRONTEND}accelerators: [{{control: localhost:1}}]\nnics:\n");
    let c = frontend(&format!("{head}{nic}")).unwrap();
    let NicConfig::Ib(ib) = &c.nics[0] else {
        panic!("{c:?}")
    };
    let expected = IbNicConfig {
        device: "mlx5_0".to_owned(),
        port: 2,
        gid_index: Auto::Fixed(3),
        mtu: Auto::Fixed(4096),
        queue_pairs: 8,
        slots: Auto::Fixed(2048),
        inline_bytes: 128,
        signal_every: 32,
        send_depth: Auto::Fixed(4096),
        receive_depth: Auto::Fixed(2112),
        solicited: false,
        completion: Completion {
            mode: CompletionMode::Poll,
            spin_us: DEFAULT_SPIN_US,
        },
        adaptive_routing: AdaptiveRouting {
            split_above: Some(8192),
        },
        service_level: 3,
        traffic_class: 106,
        timeout: 15,
        retry_count: 5,
        rnr_retry: 4,
        min_rnr_timer: 11,
        gpus: Gpus::Own,
        numa: Auto::Fixed(1),
        gpu: Some(0),
        cpus: Some(vec![2, 3]),
    };
    assert_eq!(*ib, expected);
    let plain = frontend(&format!("{head}  - device: mlx5_0\n")).unwrap();
    assert_eq!(plain.nics, [NicConfig::Ib(IbNicConfig::new("mlx5_0"))]);

    let bad = |line: &str| problems(frontend(&format!("{head}  - device: mlx5_0\n    {line}\n")));
    assert_eq!(bad("retry_count: 7"), ["10:18 retry_count is 7"]);
    assert_eq!(bad("timeout: 0"), ["10:14 timeout is 0"]);
    assert_eq!(bad("mtu: 1500"), ["10:10 mtu is 1500"]);
    assert_eq!(bad("cpus: [1, 1]"), ["10:5 cpus is no list of cores"]);
    assert_eq!(
        bad("connections: 2"),
        ["10:18 `connections` belongs to the TCP fabric, and `device` makes this an `ib` NIC"]
    );
    assert_eq!(
        bad("send_depth: 100"),
        ["9:5 one write in 64 is signaled, in a send queue of 100"]
    );
    let tcp = problems(frontend(&format!(
        "{head}  - address: 127.0.0.1\n    mtu: 1024\n"
    )));
    assert_eq!(
        tcp,
        ["10:10 `mtu` belongs to the `ib` fabric, and this NIC has no `device`"]
    );
}

#[test]
fn tcp_nic_keys() {
    let head = ACCELERATOR.replace("nics: [{listen: 127.0.0.1:7410}]\n", "nics:\n");
    let c = accelerator(&format!(
        "{head}  - listen: 127.0.0.1:0\n    connections: 4\n    slots: 33\n    send_buffer_bytes: system\n    \
         inline_bytes: 0\n    numa: auto\n    completion: {{mode: event}}\n"
    ))
    .unwrap();
    let nic = &c.nics[0];
    assert_eq!((nic.fabric(), nic.connections()), ("tcp", 4));
    assert_eq!(nic.resolve_slots(usize::MAX), 33);
    assert_eq!(nic.completion().spin_ns(), 0);
    let NicConfig::Tcp(tcp) = nic else {
        panic!("{nic:?}")
    };
    assert_eq!((tcp.send_buffer_bytes, tcp.inline_bytes), (None, 0));
    let address = accelerator(&format!("{head}  - address: 127.0.0.1\n"));
    assert_eq!(
        problems(address),
        ["6:14 a NIC of this node, which is the accelerator, has no `address`"]
    );
    let none = accelerator(&format!("{head}  - slots: 4\n"));
    assert_eq!(
        problems(none),
        ["6:5 a NIC needs `listen` (TCP) or `device` (InfiniBand, RoCE)"]
    );
}

#[test]
fn automatic_slots_stay_within_memory_and_bounds() {
    assert_eq!(resolve_slots(Auto::Auto, 0), MAX_AUTO_SLOTS);
    assert_eq!(resolve_slots(Auto::Auto, 64), MAX_AUTO_SLOTS);
    assert_eq!(resolve_slots(Auto::Auto, 150_528), 445);
    assert_eq!(resolve_slots(Auto::Auto, 64 << 20), MIN_AUTO_SLOTS);
    assert_eq!(resolve_slots(Auto::Fixed(8192), 1 << 30), 8192);
}

#[test]
fn settings_keep_their_types_and_paths_their_folder() {
    let c = frontend(&format!(
        "{FRONTEND}{REST}loadgen:\n  scenario: single_stream\n  user_conf: u.conf\n  audit_config: /etc/a\n  \
         output_dir: results\n  model: other\n  settings: {{a: 1, b: 0.5, c: true, d: text, e: \"1\"}}\n"
    ))
    .unwrap();
    let settings: Vec<_> = c.loadgen.settings.values().cloned().collect();
    assert_eq!(
        settings,
        [
            Scalar::Int(1),
            Scalar::Float(0.5),
            Scalar::Bool(true),
            Scalar::Text("text".to_owned()),
            Scalar::Text("1".to_owned()),
        ]
    );
    assert_eq!(c.loadgen_model(), "other");
    assert_eq!(c.loadgen.scenario, Some(Scenario::SingleStream));
    assert_eq!(
        c.loadgen.user_conf.as_deref(),
        Some(Path::new("/base/u.conf"))
    );
    assert_eq!(c.loadgen.audit_config.as_deref(), Some(Path::new("/etc/a")));
    assert_eq!(c.loadgen.output_dir, Path::new("/base/results"));
}

#[test]
fn a_long_line_is_cut_around_the_place() {
    let error = text(frontend(&format!("{}: 1\nx", "k".repeat(5000))));
    assert!(error.lines().all(|line| line.chars().count() < 6000));
    let shown = error.lines().nth(2).unwrap();
    assert!(shown.chars().count() < 130, "{shown}");
}

#[test]
fn a_later_problem_can_point_at_its_key() {
    let file = configs().join("demo/frontend.yaml");
    let key = "loadgen.settings.server_target_qps";
    let error = ConfigError::at_key(&file, key, "no such setting", None).to_string();
    assert!(error.contains("frontend.yaml:"), "{error}");
    assert!(error.contains("server_target_qps: 2000"), "{error}");
    assert!(error.ends_with("^^^^"), "{error}");
}

fn configs() -> PathBuf {
    Path::new(env!("CARGO_MANIFEST_DIR")).join("../configs")
}

/// Every YAML file in `configs/`.
fn config_files() -> Vec<PathBuf> {
    let mut folders = vec![configs()];
    let mut files = Vec::new();
    while let Some(folder) = folders.pop() {
        for entry in std::fs::read_dir(folder).unwrap() {
            let path = entry.unwrap().path();
            if path.is_dir() {
                folders.push(path);
            } else if path.extension().is_some_and(|e| e == "yaml") {
                files.push(path);
            }
        }
    }
    files.sort();
    files
}

/// A file whose name begins with `frontend` is a frontend's, any other an accelerator's.
fn is_frontend(file: &Path) -> bool {
    file.file_name()
        .is_some_and(|name| name.to_string_lossy().starts_with("frontend"))
}

#[test]
fn every_file_in_configs_is_right_and_its_sides_agree() {
    let files = config_files();
    assert!(files.len() >= 7, "{files:?}");
    for file in &files {
        let text = std::fs::read_to_string(file).unwrap();
        let (origin, base) = (file.display().to_string(), file.parent().unwrap());
        if !is_frontend(file) {
            if let Err(error) = parse_accelerator(&text, &origin, base) {
                panic!("{error}");
            }
            continue;
        }
        let frontend = parse_frontend(&text, &origin, base).unwrap_or_else(|e| panic!("{e}"));
        // Somebody beside it listens where it calls, has its model, and another name.
        for called in &frontend.accelerators {
            let found = files
                .iter()
                .filter(|f| f.parent() == file.parent() && !is_frontend(f))
                .map(|f| {
                    let text = std::fs::read_to_string(f).unwrap();
                    parse_accelerator(&text, "", base).unwrap_or_else(|e| panic!("{e}"))
                })
                .find(|a| a.control.listen.to_string() == called.control)
                .unwrap_or_else(|| panic!("{origin}: nobody listens at {}", called.control));
            assert_ne!(found.node, frontend.node);
            assert_eq!(found.model.name, frontend.model.name);
            if let Some(spec) = found.model.spec() {
                frontend.model.check_against(&spec).unwrap();
            }
        }
    }
}

fn both(text: &str) {
    // Whatever comes out, its text can be made.
    if let Err(error) = frontend(text) {
        assert!(!error.to_string().is_empty());
    }
    if let Err(error) = accelerator(text) {
        assert!(!error.to_string().is_empty());
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(256))]

    #[test]
    fn no_text_panics(text in any::<String>()) {
        both(&text);
    }

    #[test]
    fn no_yaml_like_text_panics(text in "[-a-c:{}\\[\\],#&*!|>'\"%@ \\t\\n0-9é\u{1}]{0,60}") {
        both(&text);
    }

    #[test]
    fn no_mutation_of_a_good_file_panics(
        which in any::<prop::sample::Index>(),
        edits in prop::collection::vec((any::<prop::sample::Index>(), 0u8..4, any::<char>()), 1..6),
    ) {
        let files = config_files();
        let file = which.get(&files);
        let mut chars: Vec<char> = std::fs::read_to_string(file).unwrap().chars().collect();
        for (at, kind, c) in edits {
            if chars.is_empty() {
                break;
            }
            let at = at.index(chars.len());
            match kind {
                0 => chars[at] = c,
                1 => chars.insert(at, c),
                2 => { chars.remove(at); }
                _ => chars.truncate(at),
            }
        }
        both(&chars.into_iter().collect::<String>());
    }

    #[test]
    fn no_number_panics(key in 0usize..12, number in any::<i128>()) {
        let key = [
            "slots", "connections", "inline_bytes", "send_buffer_bytes", "numa", "cpus",
            "post_from_issue_thread_up_to", "gid_index", "mtu", "send_depth", "port", "gpu",
        ][key];
        both(&format!("{FRONTEND}accelerators: [{{control: localhost:1}}]\nnics:\n  - {key}: {number}\n    \
                       device: d\n"));
    }
}
