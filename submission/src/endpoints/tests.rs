use std::os::unix::fs::PermissionsExt;

use clap::Parser;
use machine::{Gpu, Memory, Processors};

use super::*;

fn node(host: &str, gpus: usize) -> Node {
    Node {
        node: format!("on-{host}"),
        host: host.to_owned(),
        operating_system: "Debian".to_owned(),
        processors: Processors {
            model: "EPYC".to_owned(),
            sockets: 2,
            cores_per_socket: 64,
            ..Processors::default()
        },
        memory: Memory {
            bytes: 1 << 40,
            ..Memory::default()
        },
        nics: vec![Nic {
            name: "eth0".to_owned(),
            link_layer: "Ethernet".to_owned(),
            speed_mbps: Some(200_000),
            up: true,
            addresses: vec!["192.0.2.9".to_owned()],
            ..Nic::default()
        }],
        gpus: vec![
            Gpu {
                name: "H200".to_owned(),
                bytes: 141 << 30,
                ..Gpu::default()
            };
            gpus
        ],
        ..Node::default()
    }
}

fn endpoint(accelerators: Vec<Node>) -> Endpoint {
    let accelerators = accelerators.into_iter().map(|machine| EndpointNode {
        machine,
        engine: "vllm".to_owned(),
        network_us: Some(31),
    });
    Endpoint {
        client: node("client", 0),
        gateway: node("door", 0),
        fabric: "ib".to_owned(),
        accelerators: accelerators.collect(),
        baseline: Baseline {
            client: "192.0.2.1".parse().expect("an address"),
            gateway: "192.0.2.9:8000".parse().expect("an address"),
            routers: None,
            round_trips: "p50 80.0 us".to_owned(),
        },
    }
}

/// The seeds of a published set exceed 2^63.
const CONFIG: &str = "
model_params: {name: llama3_1-8b}
datasets:
- {name: val, type: accuracy}
- {name: cnn, type: performance}
settings:
  runtime: {min_duration_ms: 600000, scheduler_random_seed: 10487924139932647040}
  load_pattern: {type: concurrency, target_concurrency: 32}
  client: {stream_all_chunks: true}
  warmup: {enabled: false}
endpoint_config: {endpoints: ['http://192.0.2.9:8000']}
";

fn client() -> ClientConfig {
    ClientConfig(error::yaml(CONFIG).expect("YAML"))
}

#[test]
fn equal_machines_are_one_type_of_node_and_the_gateway_is_another() {
    let system = endpoint(vec![
        node("a", 8),
        node("b", 8),
        node("b", 8),
        node("door", 0),
    ]);
    let text = system_desc(&system, &client());
    let json: Value = serde_json::from_str(&text).expect("JSON");
    assert_eq!(json["system_size"], "0 accelerators + 16 accelerators");
    assert_eq!(json["system_node_ensemble_total"], 3);
    let types = json["node_types"].as_array().expect("types");
    let numbers: Vec<_> = types
        .iter()
        .map(|t| t["number_of_nodes"].as_u64())
        .collect();
    assert_eq!(numbers, [Some(1), Some(2)]);
    assert_eq!(types[0]["accelerator_info"], serde_json::json!([]));
    let gpus = &types[1]["accelerator_info"][0];
    assert_eq!(gpus["accelerators_per_node"], 8);
    assert_eq!(gpus["accelerator_memory_capacity"], "141 GiB");
    assert_eq!(types[1]["host_processor_core_count"], 64);
    for open in [
        &json["tensor_parallel"],
        &types[1]["cooling"],
        &types[1]["driver"],
    ] {
        assert!(
            open.as_str()
                .is_some_and(|text| text.starts_with("FILL IN: ")),
            "{open}"
        );
    }
}

#[test]
fn a_point_has_what_the_clients_file_says_and_asks_for_the_rest() {
    let text = fill(
        include_str!("point.yaml"),
        Form::Json,
        &client().point(),
        &[],
    );
    let yaml: Value = error::yaml(&text).expect("YAML");
    assert_eq!(yaml["concurrency"], 32);
    assert_eq!(yaml["dataset"], "cnn");
    assert_eq!(yaml["model_name"], "llama3_1-8b");
    let settings = &yaml["runtime_settings"];
    assert_eq!(
        settings["runtime"]["scheduler_rng_seed"],
        10_487_924_139_932_647_040_u64
    );
    assert_eq!(settings["stream_all_chunks"], true);
    assert_eq!(yaml["warmup"]["requests_issued"], 0);
    for open in [
        &settings["runtime"]["model_seed"],
        &yaml["steady_state"]["window"]["n_samples"],
    ] {
        assert!(
            open.as_str()
                .is_some_and(|text| text.starts_with("FILL IN: ")),
            "{open}"
        );
    }
}

#[test]
fn the_page_on_the_network_names_both_nics_and_what_is_not_known() {
    let page = network(&endpoint(vec![node("a", 8)]), &client());
    for words in [
        "| endpoint's address and NIC | 192.0.2.9, eth0 (Ethernet, 200G) |",
        "| client's address and NIC | 192.0.2.1, FILL IN",
        "| IP routers on the way | FILL IN: number |",
        "| on-a | vllm | eth0 (Ethernet, 200G) | 31 us |",
    ] {
        assert!(page.contains(words), "{words}: {page}");
    }
}

#[derive(Parser)]
struct Line {
    #[command(flatten)]
    args: CheckArgs,
}

#[test]
fn a_hole_is_refused_and_without_holes_the_official_checker_decides() {
    let place = tempfile::tempdir().expect("a folder");
    let (inner, cli) = (place.path().join("run"), place.path().join("cli"));
    let point = inner.join("point.yaml");
    let run = |cli: &Path| {
        let words = [Path::new("check"), place.path(), Path::new("--cli"), cli];
        let line = Line::try_parse_from(words.map(|word| word.to_owned()));
        check(&line.expect("arguments").args)
    };
    error::write(
        &point,
        "# FILL IN marks a hole\nregion: FILL IN: low_latency\n",
    )
    .expect("written");
    assert!(!run(&cli).expect("found"));
    error::write(&point, "# FILL IN marks a hole\nregion: low_latency\n").expect("written");
    let error = run(&cli).expect_err("no program").to_string();
    assert!(
        error.contains("pip install endpoints-submission-cli"),
        "{error}"
    );
    // Passes if it is asked for the check of this very folder.
    let asked = format!(
        "#!/bin/sh\n[ \"$*\" = 'check-submission {}' ]\n",
        place.path().display()
    );
    for (script, is_good) in [(&*asked, true), ("#!/bin/sh\nexit 1\n", false)] {
        error::write(&cli, script).expect("written");
        let mode = PermissionsExt::from_mode(0o755);
        std::fs::set_permissions(&cli, mode).expect("a program");
        assert_eq!(run(&cli).expect("ran"), is_good);
    }
}
