//! Queries before the first sample, and the consequences of their responses.

use std::sync::atomic::{AtomicUsize, Ordering::SeqCst};

use crate::config::{Dialect, HttpConfig};
use record::CacheState;

use super::{
    rig::{Started, VOCAB, params, start},
    server::{Reply, Server, ServerState, about, correct},
};
use crate::{Engine, EngineKind, EngineParams, llm_server::Http};

fn warnings(started: &Started) -> &[String] {
    &started.engine.started.get().expect("started").warnings
}

/// Checks the start: a warning with these words (none if empty), or an error.
fn starts(
    server: &Server,
    dialect: Dialect,
    expected: Result<&str, &str>,
    change: impl FnOnce(&mut HttpConfig),
) {
    let mut params = params(&server.url, dialect);
    change(params.engine.http.as_mut().expect("http"));
    match (start(&params), expected) {
        (Ok(started), Ok("")) => assert_eq!(warnings(&started), &[""; 0]),
        (Ok(started), Ok(words)) => {
            let warnings = warnings(&started);
            assert!(warnings.iter().any(|w| w.contains(words)), "{warnings:?}");
        }
        (Err(e), Err(words)) => {
            let text = e.to_string();
            assert!(text.starts_with("server http://"), "{text}");
            assert!(text.contains(words) && !text.contains('\n'), "{text}");
        }
        (Ok(_), Err(words)) => panic!("it started: {words}"),
        (Err(e), Ok(_)) => panic!("{e}"),
    }
}

type Case<'r> = (
    Dialect,
    &'static str,
    u16,
    &'r str,
    Result<&'r str, &'r str>,
);

fn each(rows: &[Case<'_>]) {
    for (dialect, path, status, body, expected) in rows {
        let server = Server::saying(*dialect, path, *status, body);
        starts(&server, *dialect, *expected, |_| ());
    }
}

#[test]
fn a_missing_server_is_waited_for_and_named() {
    let mut server = Server::good(Dialect::Vllm);
    server.stop();
    let nowhere = "http://nowhere.invalid:1".to_owned();
    for url in [&server.url, &nowhere] {
        for words in [
            format!(
                "not ready after 1 s (no connection: {}: ",
                &url["http://".len()..]
            ),
            ": start it, or name it in engine.http.command".to_owned(),
            ": see engine.http.ready_s".to_owned(),
        ] {
            starts(&server, Dialect::Vllm, Err(&words), |http| {
                (http.url, http.ready_s) = (url.clone(), 1);
            });
        }
    }
}

#[test]
fn a_server_that_is_not_ready_is_waited_for() {
    let asked = AtomicUsize::new(0);
    // llama.cpp while it loads.
    let loading = r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#;
    let server = Server::with(
        ServerState::default(),
        move |path| match path {
            "/health" if asked.fetch_add(1, SeqCst) < 5 => {
                Some(Reply::Whole(503, loading.to_owned()))
            }
            _ => about(Dialect::LlamaCpp, path),
        },
        |asked| correct(Dialect::LlamaCpp, asked),
    );
    let words = "llama.cpp works on 4 sequences at once";
    starts(&server, Dialect::LlamaCpp, Ok(words), |_| ());
    let server = Server::saying(Dialect::LlamaCpp, "/health", 503, loading);
    let words = "not ready after 1 s (it answers 503 to /health: Loading model)";
    starts(&server, Dialect::LlamaCpp, Err(words), |http| {
        http.ready_s = 1;
    });
}

#[test]
fn a_wrong_model() {
    for dialect in Dialect::ALL {
        let other = r#"{"data":[{"id":"llama"}]}"#;
        let server = Server::saying(dialect, "/v1/models", 200, other);
        let words = "it serves `llama` and no `m`: see engine.http.model";
        starts(&server, dialect, Err(words), |_| ());
    }
    let other = r#"{"data":[{"id":"llama","max_model_len":4096}]}"#;
    let server = Server::saying(Dialect::Vllm, "/v1/models", 200, other);
    starts(&server, Dialect::Vllm, Ok(""), |http| {
        http.model = Some("llama".to_owned());
    });
}

#[test]
fn a_context_that_is_too_short() {
    let short = r#"{"data":[{"id":"m","max_model_len":95}]}"#;
    let enough = r#"{"data":[{"id":"m","max_model_len":96}]}"#;
    let props = r#"{"default_generation_settings":{"n_ctx":95},"total_slots":1}"#;
    let words = "its context of 95 tokens is too short for the longest sample: 32 of prompt and \
                 64 of answer";
    each(&[
        (Dialect::Vllm, "/v1/models", 200, short, Err(words)),
        (Dialect::VllmGenerate, "/v1/models", 200, short, Err(words)),
        (Dialect::Sglang, "/v1/models", 200, short, Err(words)),
        (Dialect::LlamaCpp, "/props", 200, props, Err(words)),
        (Dialect::Vllm, "/v1/models", 200, enough, Ok("")),
    ]);
    // Without the server's report the configuration counts, if it has a context.
    let server = Server::good(Dialect::TensorRtLlm);
    let unknown = Ok("engine.http.context");
    starts(&server, Dialect::TensorRtLlm, unknown, |_| ());
    starts(&server, Dialect::TensorRtLlm, Err(words), |http| {
        http.context = Some(95);
    });
}

#[test]
fn the_state_of_the_prefix_cache_is_reported_with_a_warning() {
    use CacheState::{Off, On, Unknown};
    use Dialect::{Sglang, TensorRtLlm, Vllm, VllmGenerate};
    let is = |on: &str| format!("vllm:cache_config_info{{enable_prefix_caching=\"{on}\"}} 1.0\n");
    let (on, off) = (&*is("True"), &*is("False"));
    let word = "started with --no-enable-prefix-caching";
    let radix = r#"{"disable_radix_cache":false}"#;
    for (dialect, path, status, body, given, state, how) in [
        (Vllm, "/metrics", 200, off, None, Off, "the server says"),
        // The server's report counts before the configuration.
        (Vllm, "/metrics", 200, on, Some(word), On, "vLLM with --no"),
        (Vllm, "/metrics", 404, "{}", Some(word), Off, word),
        (Vllm, "/metrics", 404, "{}", None, Unknown, "cache_off"),
        (Sglang, "/server_info", 200, radix, None, On, "--disable"),
        // The correct server.
        (Sglang, "", 0, "", None, Off, "the server says so"),
        (VllmGenerate, "", 0, "", None, Off, "the server says so"),
        // The dialect has no query for it.
        (TensorRtLlm, "", 0, "", None, Unknown, "block_reuse: f"),
    ] {
        let server = Server::saying(dialect, path, status, body);
        let mut params = params(&server.url, dialect);
        let http = params.engine.http.as_mut().expect("http");
        http.prefix_cache_off = given.map(str::to_owned);
        let unasked = Http::open(&params).expect("sound").prefix_cache();
        assert_eq!(unasked.map(|c| c.state), Some(Unknown));
        let started = start(&params).unwrap_or_else(|e| panic!("{e}"));
        let cache = started.engine.prefix_cache().expect("its server may");
        assert!(cache.state == state && cache.how.contains(how), "{cache:?}");
        let warning = match state {
            Off => "",
            On => "its prefix cache is on, and such a run does not count: ",
            Unknown => "it does not say whether its prefix cache is on",
        };
        let said = warnings(&started)
            .iter()
            .find(|w| w.contains("prefix cache"));
        let said = said.map(String::as_str).unwrap_or_default();
        assert!(said.starts_with(warning), "{said}");
        assert_eq!(said.is_empty(), state == Off, "{said}");
        assert!(state == Off || said.ends_with(&cache.how), "{said}");
    }
    // Engines in this process have no prefix cache.
    for kind in [EngineKind::Null, EngineKind::Digest] {
        let engine = crate::create(&EngineParams::new(kind)).expect("sound");
        assert_eq!(engine.prefix_cache(), None);
    }
}

#[test]
fn sglang_that_sends_all_ids_each_time() {
    for key in ["incremental_streaming_output", "stream_output"] {
        let info = format!(r#"{{"disable_radix_cache":true,"{key}":false}}"#);
        let advice = Ok("--incremental-streaming-output");
        each(&[(Dialect::Sglang, "/server_info", 200, &info, advice)]);
    }
}

#[test]
fn limits_of_sglang_are_known_at_the_start() {
    let info = |keys: &str| format!(r#"{{"disable_radix_cache":true,{keys}}}"#);
    let (short, enough) = (r#""max_req_input_len":32"#, r#""max_req_input_len":33"#);
    let words = Err("it takes prompts of at most 31 tokens, and the longest sample has 32");
    for (keys, expected) in [(short, words), (enough, Ok(""))] {
        each(&[(Dialect::Sglang, "/server_info", 200, &info(keys), expected)]);
    }
    let bare = info(r#""skip_tokenizer_init":true"#);
    let server = Server::saying(Dialect::Sglang, "/server_info", 200, &bare);
    let words = Err("refuses min_new_tokens with --skip-tokenizer-init");
    starts(&server, Dialect::Sglang, words, |http| http.min_tokens = 2);
    starts(&server, Dialect::Sglang, Ok(""), |http| http.min_tokens = 0);
}

#[test]
fn a_vocabulary_that_is_unknown_or_differs() {
    let unknown = Err("set engine.http.vocab");
    let differs = Err("its vocabulary has 1000 ids, and engine.http.vocab says 1001");
    let said = Ok("llama.cpp works on 4 sequences at once");
    for (dialect, vocab, expected) in [
        (Dialect::Vllm, None, unknown),
        (Dialect::LlamaCpp, None, said),
        (Dialect::LlamaCpp, Some(VOCAB + 1), differs),
    ] {
        starts(&Server::good(dialect), dialect, expected, |http| {
            http.vocab = vocab;
        });
    }
}

#[test]
fn a_server_of_another_kind() {
    let (path, missing) = ("/v1/models", "it answers 404 to /v1/models");
    each(&[
        (Dialect::Vllm, path, 404, "{}", Err(missing)),
        (Dialect::Vllm, path, 200, "<html>", Err("is not understood")),
    ]);
    // vLLM 0.32 without its option.
    let server = Server::of(Dialect::VllmGenerate, |_| {
        Reply::Whole(403, r#"{"detail":"Forbidden"}"#.to_owned())
    });
    let words = "HTTP 403: Forbidden (from /inference/v1/generate); vLLM wants --enable-scale-out";
    starts(&server, Dialect::VllmGenerate, Err(words), |_| ());
}

#[test]
fn an_unusable_configuration_is_refused_by_its_key() {
    let opened = |url: &str, change: fn(&mut EngineParams)| {
        let mut params = params(url, Dialect::Vllm);
        change(&mut params);
        match Http::open(&params) {
            Err(e) => e.to_string().replacen("engine.", "", 1),
            Ok(http) => format!("it opens: {}", http.name()),
        }
    };
    type Change = fn(&mut EngineParams);
    let fixed: Change = |p| p.spec.as_mut().expect("a model").inputs[0].ragged = false;
    let rows: [(Change, &str); 7] = [
        (|_| (), "it opens: http"),
        (fixed, "it opens: http"),
        (|p| p.engine.http = None, "http: no server is named"),
        (|p| p.spec = None, "http: the model must have one input"),
        (
            |p| p.engine.http.as_mut().expect("http").max_tokens = Some(65),
            "http.max_tokens: 65 is more than the model's output of 64",
        ),
        (
            |p| p.engine.http.as_mut().expect("http").min_tokens = 65,
            "http.min_tokens: 65 is more than max_tokens, 64",
        ),
        (
            |p| p.engine.http.as_mut().expect("http").in_flight = Some(1 << 40),
            "open files",
        ),
    ];
    for (change, words) in rows {
        let text = opened("http://127.0.0.1:1", change);
        assert!(text.contains(words), "{text}");
    }
    for url in [
        "https://127.0.0.1",
        "http://",
        "127.0.0.1:8000",
        "http://a/b",
        "",
    ] {
        assert!(opened(url, |_| ()).starts_with("http.url: "), "{url}");
    }
    assert_eq!(opened("http://localhost:8000/", |_| ()), "it opens: http");
}
