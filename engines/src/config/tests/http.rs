//! Tests of the keys of the engine `http` and its server.

use super::*;

/// Loads an accelerator of token ids whose engine has these keys.
fn with(keys: &str) -> Result<EngineConfig, ConfigError> {
    with_engine(IDS, &format!("kind: http, {keys}"))
}

/// An accelerator whose server has these keys beside its address.
fn server(dialect: &str, keys: &str) -> Result<EngineConfig, ConfigError> {
    with(&format!(
        "http: {{url: \"http://a:1\", dialect: {dialect}, {keys}}}"
    ))
}

#[test]
fn what_is_left_out_has_its_default() {
    let c = server("vllm", "").expect("an address is enough");
    let mut default = HttpConfig::new("http://a:1", Dialect::Vllm);
    default.log = Path::new("/base/llm-server.log").to_owned();
    assert_eq!(c.http, Some(default));
    for dialect in Dialect::ALL {
        let http = server(dialect.as_str(), "").expect("a dialect").http;
        assert_eq!(http.map(|h| h.dialect), Some(dialect));
    }
}

#[test]
fn what_is_wrong_is_said() {
    let any = |keys: &str| with(&format!("http: {keys}"));
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
        |keys| server("vllm", keys),
        "temperature: 2.5 => temperature is 2.5
         temperature: -1 => temperature is -1
         min_tokens: 9, max_tokens: 8 => min_tokens is 9, more than max_tokens, 8
         vocab: 8, eos: [8] => id 8 of `stop` or `eos` is not below vocab, 8
         in_flight: 0 => in_flight is 0
         env_file: e => there is no `command` that would get these variables",
    );
    let started = server("vllm", "command: [x], env_file: e").expect("sound");
    let file = started.http.and_then(|http| http.env_file);
    assert_eq!(file.as_deref(), Some(Path::new("/base/e")));
    assert_refused(
        |keys| server("llama_cpp", keys),
        "stop: [1] => cannot be asked for `stop`
         min_tokens: 1 => cannot be asked for `min_tokens`",
    );
    let other = with_engine(
        "max_input_bytes: 4",
        "kind: digest, http: {url: \"http://a:1\", dialect: vllm}",
    );
    assert_has(&text(other), &["engine `digest` has no `http`"]);
}

#[test]
fn its_model_is_token_ids() {
    let model = |from: &str, to: &str| {
        let engine = "kind: http, http: {url: \"http://a:1\", dialect: vllm}";
        problems(with_engine(&IDS.replace(from, to), engine)).join("; ")
    };
    let ids = "takes the token ids of a prompt";
    for (from, to) in [
        ("dtype: i32, shape: [16]", "dtype: i64, shape: [16]"),
        ("dtype: i32, shape: [8]", "dtype: i32, shape: [8, 1]"),
        ("shape: [8], ragged: true", "shape: [8]"),
    ] {
        assert!(model(from, to).contains(ids), "{}", model(from, to));
    }
    let file = model("inputs:", "file: m.onnx, inputs:");
    assert_has(&file, &["leaves the model to a second program"]);
}
