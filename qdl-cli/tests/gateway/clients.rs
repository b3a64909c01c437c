//! Programs of others as clients: OpenAI's Python package, and curl.

use std::{path::PathBuf, process::Command, time::Duration};

use launch::{on_path, run_quietly};
use serde_json::json;

use super::{Place, TOKENS, VOCAB, events, expected};

const PROMPT: [i32; 3] = [1, 2, 3];
const LIMIT: Duration = Duration::from_secs(120);

/// A model folder: words `w0` to `w999`, and a chat that is its messages.
fn model_dir() -> tempfile::TempDir {
    let folder = tempfile::tempdir().expect("a folder");
    let vocab: serde_json::Map<_, _> = (0..VOCAB).map(|i| (format!("w{i}"), i.into())).collect();
    let tokenizer = json!({
        "version": "1.0", "added_tokens": [], "pre_tokenizer": {"type": "Whitespace"},
        "model": {"type": "WordLevel", "vocab": vocab, "unk_token": "w0"},
    });
    let template = "{% for m in messages %}{{ m.content }} {% endfor %}";
    for (name, json) in [
        ("tokenizer.json", tokenizer),
        ("tokenizer_config.json", json!({"chat_template": template})),
        ("generation_config.json", json!({"eos_token_id": VOCAB - 1})),
    ] {
        std::fs::write(folder.path().join(name), json.to_string()).expect("a file");
    }
    folder
}

fn words(ids: &[i32]) -> String {
    let words: Vec<_> = ids.iter().map(|id| format!("w{id}")).collect();
    words.join(" ")
}

/// The Python of `cargo xtask setup`, if it has the package `openai`.
fn python() -> Option<PathBuf> {
    let venv = PathBuf::from(env!("CARGO_MANIFEST_DIR")).join("../.deps/venv");
    let has_openai = venv.join("tests").is_file();
    has_openai.then(|| venv.join("bin/python"))
}

#[test]
fn openais_own_client_gets_texts_streams_stops_usage_and_its_errors() {
    let Some(python) = python() else {
        return println!("skipped: no Python with the package openai: `cargo xtask setup`");
    };
    let model = model_dir();
    let gateway = format!(", requests: 2, model_dir: {}", model.path().display());
    let place = Place::new(1, 10_000, &gateway);
    let script = concat!(
        env!("CARGO_MANIFEST_DIR"),
        "/tests/gateway/openai_client.py"
    );
    let mut command = Command::new(python);
    command
        .arg(script)
        .arg(format!("http://{}/v1", place.address));
    command.args([words(&PROMPT), words(&expected(&PROMPT))]);
    command
        .env("NO_PROXY", "*")
        .env("PYTHONDONTWRITEBYTECODE", "1");
    let said = run_quietly("openai_client.py", &mut command, LIMIT);
    let said = said.unwrap_or_else(|error| panic!("{error:#}\n{}", place.log()));
    assert!(said.contains("all checked"), "{said}");
}

#[test]
fn curl_shows_each_token_as_an_event() {
    if !on_path("curl") {
        return println!("skipped: no curl (Debian: curl)");
    }
    let model = model_dir();
    let gateway = format!(", model_dir: {}", model.path().display());
    let place = Place::new(1, 1000, &gateway);
    let body = json!({"prompt": words(&PROMPT), "stream": true, "return_token_ids": true});
    let mut curl = Command::new("curl");
    curl.args([
        "-sSN",
        "--noproxy",
        "*",
        "-H",
        "Content-Type: application/json",
        "-d",
    ]);
    curl.arg(body.to_string());
    curl.arg(format!("http://{}/v1/completions", place.address));
    let said = run_quietly("curl", &mut curl, LIMIT).expect("an answer");
    let (events, is_done) = events(&said);
    assert!(is_done, "{said}");
    let with_text = events
        .iter()
        .filter(|event| event["choices"][0]["text"] != "");
    assert_eq!(with_text.count(), TOKENS, "{said}");
    let text = events
        .iter()
        .filter_map(|event| event["choices"][0]["text"].as_str());
    assert_eq!(text.collect::<String>(), words(&expected(&PROMPT)));
}
