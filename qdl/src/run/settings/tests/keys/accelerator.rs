//! Keys of an accelerator's configuration.

use serde_json::{Value, json};

use super::{accelerator, check, maps, read};

fn others() -> (&'static str, Value) {
    let boxes = json!({"name": "boxes", "dtype": "i64", "shape": [4]});
    ("model.other_outputs", json!([boxes]))
}

#[test]
fn every_key_of_an_accelerator_has_an_effect() {
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
    let ids = |name: &str| json!({"name": name, "dtype": "i32", "shape": [8], "ragged": true});
    let server = || {
        let http = json!({"url": "http://127.0.0.1:1", "dialect": "vllm", "vocab": 100});
        [
            (
                "model",
                json!({"name": "m", "inputs": [ids("p")], "output": ids("t")}),
            ),
            ("engine", json!({"kind": "http", "http": http})),
        ]
    };
    let http = |key: &'static str, other: Value| read(key, other).given(server());
    let pretended = || {
        let ids = json!({"name": "ids", "dtype": "i32", "shape": [64], "ragged": true});
        [
            (
                "model",
                json!({"name": "m", "inputs": [ids.clone()], "output": ids}),
            ),
            ("engine", json!({"kind": "tokens", "tokens": {}})),
        ]
    };
    let llm = || {
        [
            ("model", json!({"name": "m", "file": "m.onnx"})),
            ("engine", json!({"kind": "llm"})),
        ]
    };
    let two = || ("nics", json!([{"listen": "127.0.0.1:1"}]));
    let keys = [
        read("node", json!("a-2")),
        read("control.listen", json!("127.0.0.1:1")),
        maps("token_file", json!("t"), "auth").given([("auth", Value::Null)]),
        maps("nic_threads", json!(7), "crew"),
        maps("auth", Value::Null, "auth"),
        maps("model.name", json!("x"), "model"),
        read("model.file", json!("x")),
        maps("model.inputs[0].name", json!("x"), "model"),
        maps("model.inputs[0].dtype", json!("f32"), "model"),
        maps("model.inputs[0].shape", json!([7]), "model"),
        maps("model.output.name", json!("x"), "model"),
        maps("model.output.dtype", json!("f32"), "model"),
        maps("model.output.shape", json!([7]), "model"),
        maps("model.other_outputs[0].name", json!("x"), "model").given([others()]),
        maps("model.other_outputs[0].dtype", json!("f32"), "model").given([others()]),
        maps("model.other_outputs[0].shape", json!([7]), "model").given([others()]),
        maps("model.compression", json!("lz4"), "model"),
        maps("model.max_input_bytes", json!(7), "model").given([any_bytes()]),
        maps("model.output_bytes", json!(7), "model").given([any_bytes()]),
        read("engine.kind", json!("digest")).given([any_bytes()]),
        read("engine.max_batch", json!(7)),
        read("engine.max_delay_us", json!(7)),
        read("engine.latency_us", json!(7)),
        read("engine.begin_apart_us", json!(7)),
        read("engine.threads", json!(7)),
        read("engine.intra_threads", json!(7)).given(onnx()),
        read("engine.library", json!("x")).given(onnx()),
        read("engine.provider", json!("cuda")).given(onnx()),
        maps("engine.gpu", json!(7), "gpus").given(on_gpu()),
        maps("engine.gpus", json!([0, 1]), "gpus").given([two()]),
        read("engine.batch_sizes", json!([64])).given(on_gpu()),
        read("engine.precision", json!("int8")).given(on_gpu()),
        read("engine.profiles", json!([64])).given(on_gpu()),
        read("engine.optimization_level", json!(1)).given(on_gpu()),
        read("engine.llm.sequences", json!(7)).given(llm()),
        read("engine.llm.context", json!(7)).given(llm()),
        read("engine.llm.min_tokens", json!(7)).given(llm()),
        read("engine.llm.max_tokens", json!(7)).given(llm()),
        read("engine.llm.eos", json!(7)).given(llm()),
        read("engine.delay_us", json!(7)),
        read("engine.spin_us", json!(7)),
        read("engine.tokens.sequences", json!(7)).given(pretended()),
        read("engine.tokens.prefill_us", json!(7)).given(pretended()),
        read("engine.tokens.step_us", json!(7)).given(pretended()),
        read("engine.tokens.beside_us", json!(7)).given(pretended()),
        read("engine.tokens.min_tokens", json!(7)).given(pretended()),
        read("engine.tokens.max_tokens", json!(7)).given(pretended()),
        read("engine.tokens.vocab", json!(7)).given(pretended()),
        read("engine.tokens.eos", json!(7)).given(pretended()),
        http("engine.http.url", json!("http://127.0.0.1:2")),
        http("engine.http.dialect", json!("sglang")),
        http("engine.http.model", json!("x")),
        http("engine.http.temperature", json!(1)),
        http("engine.http.max_tokens", json!(7)),
        http("engine.http.min_tokens", json!(7)),
        http("engine.http.stop", json!([7])),
        http("engine.http.ignore_eos", json!(true)),
        http("engine.http.eos", json!([7])),
        http("engine.http.vocab", json!(7)),
        http("engine.http.context", json!(7)),
        http("engine.http.in_flight", json!(7)),
        http("engine.http.connect_ms", json!(7)),
        http("engine.http.first_token_s", json!(7)),
        http("engine.http.next_token_s", json!(7)),
        http("engine.http.busy_s", json!(7)),
        http("engine.http.ready_s", json!(7)),
        http("engine.http.prefix_cache_off", json!("x")),
        http("engine.http.command", json!(["x"])),
        http("engine.http.log", json!("x")),
        http("engine.http.stop_s", json!(7)),
        read("nics[0].listen", json!("127.0.0.1:1")),
        read("nics[0].gpu", json!(0)),
        read("nics[0].gpudirect", json!(true))
            .given([("nics", json!([{"device": "mlx5_0", "gpu": 0}]))]),
        maps("memory_mib", json!(7), "memory"),
        maps("deadlines.connect_ms", json!(7), "timing"),
        maps("deadlines.echo_timeout_ms", json!(7), "tcp"),
        maps("deadlines.heartbeat_interval_ms", json!(7), "timing"),
        maps("deadlines.heartbeat_timeout_ms", json!(700), "timing"),
        read("deadlines.drain_ms", json!(7)),
    ];
    check(1, &keys, accelerator);
}
