//! Tests of the keys of the engine `http` and its server.

use std::path::Path;

use super::*;

const IDS: &str = "\
node: a
control: {listen: 127.0.0.1:7400}
model:
  name: m
  inputs: [{name: prompt, dtype: i32, shape: [16], ragged: true}]
  output: {name: tokens, dtype: i32, shape: [8], ragged: true}
nics: [{listen: 127.0.0.1:7410}]
";

/// Loads an accelerator whose engine has these keys.
fn with(engine: &str) -> Result<AcceleratorConfig, ConfigError> {
    accelerator(&format!("{IDS}engine:\n  kind: http\n{engine}"))
}

/// An accelerator of the engine `http` whose server has these keys beside its address.
fn server(keys: &str) -> Result<AcceleratorConfig, ConfigError> {
    with(&format!(
        "  http:\n    url: http://127.0.0.1:8000\n    dialect: vllm\n{keys}"
    ))
}

#[test]
fn what_is_left_out_has_its_default() {
    let c = server("").expect("an address is enough").engine;
    let mut default = HttpConfig::new("http://127.0.0.1:8000", Dialect::Vllm);
    default.log = Path::new("/base/llm-server.log").to_owned();
    assert_eq!(c.http, Some(default));
    for dialect in Dialect::ALL {
        let text = format!(
            "  http: {{url: \"http://a:1\", dialect: {}}}\n",
            dialect.as_str()
        );
        let http = with(&text).expect("a dialect").engine.http;
        assert_eq!(http.map(|h| h.dialect), Some(dialect));
    }
}

#[test]
fn what_is_wrong_is_said() {
    let any = |keys: &str| with(&format!("  http: {keys}\n"));
    assert_refused(with, " => engine `http` asks a server, and none is named");
    let bare = text(any("{}"));
    assert_has(&bare, &["key `url` is missing", "key `dialect` is missing"]);
    assert_refused(
        |url| any(&format!("{{url: \"{url}\", dialect: vllm}}")),
        "https://a:1 => is no address of a server on this machine
         http:// => is no address of a server on this machine
         a:1 => is no address of a server on this machine
         http://a/v1 => is no address of a server on this machine",
    );
    assert_refused(
        |keys| any(&format!("{{url: \"http://a:1\", dialect: vllm, {keys}}}")),
        "temperature: 2.5 => temperature is 2.5
         temperature: -1 => temperature is -1
         min_tokens: 9, max_tokens: 8 => min_tokens is 9, more than max_tokens, 8
         vocab: 8, eos: [8] => id 8 of `stop` or `eos` is not below vocab, 8
         in_flight: 0 => in_flight is 0
         env_file: e => there is no `command` that would get these variables",
    );
    let server = server("    command: [x]\n    env_file: e\n").expect("sound");
    let file = server.engine.http.and_then(|http| http.env_file);
    assert_eq!(file.as_deref(), Some(Path::new("/base/e")));
    assert_refused(
        |keys| {
            any(&format!(
                "{{url: \"http://a:1\", dialect: llama_cpp, {keys}}}"
            ))
        },
        "stop: [1] => cannot be asked for `stop`
         min_tokens: 1 => cannot be asked for `min_tokens`",
    );
    let other = with_engine(
        "max_input_bytes: 4",
        "kind: digest, http: {url: \"http://a:1\", dialect: vllm}",
    );
    assert_has(&text(other), &["engine `digest` asks no server"]);
}

#[test]
fn its_model_is_token_ids() {
    let model = |from: &str, to: &str| {
        let text =
            format!("{IDS}engine: {{kind: http, http: {{url: \"http://a:1\", dialect: vllm}}}}\n");
        problems(accelerator(&text.replace(from, to))).join("; ")
    };
    let ids = "takes the token ids of a prompt";
    for (from, to) in [
        ("dtype: i32, shape: [16]", "dtype: i64, shape: [16]"),
        ("dtype: i32, shape: [8]", "dtype: i32, shape: [8, 1]"),
        ("shape: [8], ragged: true", "shape: [8]"),
    ] {
        assert!(model(from, to).contains(ids), "{}", model(from, to));
    }
    let file = model("  name: m\n", "  name: m\n  file: m.onnx\n");
    assert!(
        file.contains("leaves the model to a second program"),
        "{file}"
    );
}
