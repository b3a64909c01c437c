//! The server of the engine `http`.

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

/// An accelerator whose engine has these keys.
fn with(engine: &str) -> Result<AcceleratorConfig, ConfigError> {
    accelerator(&format!("{IDS}engine:\n  kind: http\n{engine}"))
}

/// The same, whose server has these beside its address.
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
fn values_are_taken() {
    let keys = "    temperature: 0.5\n    stop: [5, 6]\n    eos: [7]\n    vocab: 8\n    \
                command: [env, A=1, vllm, serve, m]\n    log: logs/s.log\n";
    let http = server(keys).expect("good").engine.http.expect("http");
    assert_eq!(http.temperature.to_string(), "0.5");
    assert_eq!((&http.stop[..], &http.eos[..]), (&[5, 6][..], &[7][..]));
    assert_eq!(http.command, ["env", "A=1", "vllm", "serve", "m"]);
    assert_eq!(http.log, Path::new("/base/logs/s.log"));
}

#[test]
fn what_is_wrong_is_said() {
    let said = |result| problems(result).join("; ");
    let has = |text: String, words: &str| assert!(text.contains(words), "{text}");
    has(
        said(with("")),
        "engine `http` asks a server, and none is named",
    );
    for url in ["https://a:1", "http://", "a:1", "http://a/v1"] {
        let text = format!("  http: {{url: \"{url}\", dialect: vllm}}\n");
        has(
            said(with(&text)),
            "is no address of a server on this machine",
        );
    }
    has(
        said(server("    temperature: 2.5\n")),
        "2.5 is no temperature",
    );
    has(
        said(server("    temperature: -1\n")),
        "-1 is no temperature",
    );
    has(
        said(server("    min_tokens: 9\n    max_tokens: 8\n")),
        "min_tokens is 9, more than max_tokens, 8",
    );
    has(
        said(server("    vocab: 8\n    eos: [8]\n")),
        "id 8 of `stop` or `eos` is not below vocab, 8",
    );
    has(said(server("    in_flight: 0\n")), "in_flight is 0");
    let llama = |keys: &str| {
        with(&format!(
            "  http:\n    url: http://a:1\n    dialect: llama_cpp\n{keys}"
        ))
    };
    has(said(llama("    stop: [1]\n")), "cannot be asked for `stop`");
    has(
        said(llama("    min_tokens: 1\n")),
        "cannot be asked for `min_tokens`",
    );
    let other = accelerator(&ACCELERATOR.replace(
        "{kind: digest}",
        "{kind: digest, http: {url: \"http://a:1\", dialect: vllm}}",
    ));
    has(said(other), "engine `digest` asks no server");
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
    assert!(file.contains("leaves the model to its server"), "{file}");
}

/// `reference` walks what is not in comments; these keys are.
#[test]
fn every_key_is_in_the_document() {
    let text = include_str!("../../../../docs/configuration.md");
    let Err(ConfigError::Invalid { problems }) = server("    unheard_of: 1\n") else {
        panic!("an unknown key was taken")
    };
    let keys = problems[0].help.as_deref();
    let keys = keys.and_then(|h| h.strip_prefix("keys here are: "));
    let keys: Vec<_> = keys.expect("it names the keys").split(", ").collect();
    assert!(keys.len() >= 20, "{keys:?}");
    for key in keys {
        let told = text
            .lines()
            .any(|l| l.starts_with(&format!("  #   {key}: ")));
        assert!(told, "{key} is missing");
    }
}
