//! Keys of a frontend's configuration.

use serde_json::{Value, json};

use super::{Key, check, frontend, maps, read};

fn raw() -> (&'static str, Value) {
    ("dataset", json!({"kind": "raw", "samples": "s"}))
}

fn labels() -> (&'static str, Value) {
    let labels = json!({"file": "k", "dtype": "i64"});
    (
        "dataset",
        json!({"kind": "raw", "samples": "s", "labels": labels}),
    )
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

fn others() -> (&'static str, Value) {
    let boxes = json!({"name": "boxes", "dtype": "i64", "shape": [4]});
    ("model.other_outputs", json!([boxes]))
}

#[test]
fn every_key_of_a_frontend_has_an_effect() {
    let whole = ("dataset", json!({"kind": "random"}));
    let mut keys = vec![
        read("node", json!("f-2")),
        maps("model.name", json!("m2"), "model"),
        maps("model.inputs[0].name", json!("x"), "model"),
        maps("model.inputs[0].dtype", json!("f32"), "model").given([whole.clone()]),
        maps("model.inputs[0].shape", json!([32]), "model").given([whole.clone()]),
        maps("model.inputs[0].ragged", json!(true), "model"),
        maps("model.output.name", json!("x"), "model"),
        maps("model.output.dtype", json!("f32"), "model"),
        maps("model.output.shape", json!([100]), "model"),
        maps("model.output.ragged", json!(true), "model"),
        maps("model.other_outputs[0].name", json!("x"), "model").given([others()]),
        maps("model.other_outputs[0].dtype", json!("u8"), "model").given([others()]),
        maps("model.other_outputs[0].shape", json!([2]), "model").given([others()]),
        maps("model.compression", json!("lz4"), "model"),
        read("dataset.kind", json!("tokens")).given([
            ("model.inputs[0].dtype", json!("i64")),
            ("model.inputs[0].ragged", json!(true)),
            whole,
        ]),
        read("dataset.count", json!(7)),
        read("dataset.seed", json!(7)),
        maps("dataset.min_bytes", json!(7), "samples").given(ragged()),
        maps("dataset.max_bytes", json!(7), "samples").given(ragged()),
        read("dataset.shape", json!([7])).given(ragged()),
        maps("dataset.distribution", json!("fixed"), "samples").given(ragged()),
        read("dataset.samples", json!("t")).given([raw()]),
        read("dataset.lengths", json!("l")).given([
            ("model.inputs[0].ragged", json!(true)),
            (
                "dataset",
                json!({"kind": "raw", "samples": "s", "lengths": "k"}),
            ),
        ]),
        read("dataset.labels.file", json!("l")).given([labels()]),
        read("dataset.labels.dtype", json!("u8")).given([labels()]),
        read("dataset.min_len", json!(7)).given(tokens()),
        maps("dataset.max_len", json!(7), "samples").given(tokens()),
        read("dataset.vocab", json!(7)).given(tokens()),
        read("qsl", json!("staged")),
        read("performance_sample_count", json!(7)),
        maps("token_file", json!("t"), "auth").given([("auth", Value::Null)]),
        maps("auth", Value::Null, "auth"),
        read("accelerators[0].control", json!("localhost:1")),
        maps("nic_threads", json!(7), "crew"),
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
        maps("one_by_one", json!(true), "dispatch"),
        maps("stream", json!("all"), "dispatch").given([
            ("model.output.ragged", json!(true)),
            ("model.output.dtype", json!("i32")),
        ]),
        maps("warm_up.budget_ms", json!(7), "warm-up"),
        maps("warm_up.deadline_ms", json!(7), "warm-up"),
        read("verify", json!("digest")),
        read("model_files", json!("any")),
        read("submission", json!("v6.1")),
        maps("deadlines.connect_ms", json!(7), "timing"),
        read("deadlines.lost_ms", json!(4000)),
        maps("deadlines.echo_interval_ms", json!(7), "dispatch"),
        maps("deadlines.echo_timeout_ms", json!(700), "dispatch"),
        maps("deadlines.heartbeat_interval_ms", json!(7), "timing"),
        maps("deadlines.heartbeat_timeout_ms", json!(700), "timing"),
        read("deadlines.name_ms", json!(7)),
        read("deadlines.drain_ms", json!(7)),
        read("deadlines.watchdog_s", json!(7)),
        read("loadgen.scenario", json!("offline")),
        read("loadgen.model", json!("x")),
        read("loadgen.user_conf", json!("x")),
        read("loadgen.audit_config", json!("x")),
        read("loadgen.output_dir", json!("x")),
        read("loadgen.settings", json!({"a": 1})),
        read("engine.kind", json!("digest")),
        read("model_file", json!("x")),
        read("nics[0].address", json!("127.0.0.2")),
        maps("nics[0].post_from_issue_thread_up_to", json!(7), "dispatch"),
    ];
    // 8 bytes, the size of a digest.
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
    vec![
        maps("nics[0].connections", json!(7), "connections"),
        maps("nics[0].slots", json!(7), "connections"),
        maps("nics[0].completion.mode", json!("poll"), "NIC thread"),
        maps("nics[0].completion.spin_us", json!(7), "NIC thread"),
        maps(
            "nics[0].completion.yield_after_us",
            json!("never"),
            "NIC thread",
        ),
        maps("nics[0].inline_bytes", json!(7), "tcp"),
        read("nics[0].congestion", json!("reno")),
        maps("nics[0].send_buffer_bytes", json!("system"), "tcp"),
        maps("nics[0].numa", json!(1), "NIC thread"),
        read("nics[0].gpus", json!("all")),
        maps("nics[0].cpus", json!([7]), "NIC thread"),
        read("nics[1].device", json!("mlx5_1")),
        read("nics[1].port", json!(2)),
        read("nics[1].gid_index", json!(2)),
        maps("nics[1].mtu", json!(512), "ib"),
        maps("nics[1].queue_pairs", json!(7), "connections"),
        maps("nics[1].slots", json!(7), "connections"),
        maps("nics[1].inline_bytes", json!(7), "ib"),
        maps("nics[1].signal_every", json!(7), "ib"),
        maps("nics[1].send_depth", json!(500), "ib"),
        maps("nics[1].receive_depth", json!(5000), "ib"),
        maps("nics[1].solicited", json!(false), "ib"),
        maps("nics[1].completion.mode", json!("poll"), "NIC thread"),
        maps("nics[1].completion.spin_us", json!(7), "NIC thread"),
        maps(
            "nics[1].completion.yield_after_us",
            json!("never"),
            "NIC thread",
        ),
        maps("nics[1].adaptive_routing.split_above", json!(7), "ib"),
        maps("nics[1].service_level", json!(7), "ib"),
        maps("nics[1].traffic_class", json!(7), "ib"),
        maps("nics[1].timeout", json!(7), "ib"),
        maps("nics[1].retry_count", json!(5), "ib"),
        maps("nics[1].rnr_retry", json!(5), "ib"),
        maps("nics[1].min_rnr_timer", json!(7), "ib"),
        maps("nics[1].numa", json!(1), "NIC thread"),
        read("nics[1].gpus", json!("all")),
        maps("nics[1].cpus", json!([7]), "NIC thread"),
        read("nics[2].ofi", json!("cxi")),
        read("nics[2].domain", json!("cxi1")),
        read("nics[2].address", json!("10.0.0.2")),
        maps("nics[2].connections", json!(7), "connections"),
        read("nics[2].inline_bytes", json!(7)),
        read("nics[3].ofi", json!("cxi")),
        read("nics[3].match", json!("x*")),
        read("nics[3].group_by", json!(null)),
    ]
}
