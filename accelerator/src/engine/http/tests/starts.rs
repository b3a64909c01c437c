//! Queries before the first sample, and the consequences of their responses.

use qdl::{
    config::{Dialect, HttpConfig},
    testkit::assert_has,
};
use record::CacheState;
use serde_json::json;

use super::{
    rig::{VOCAB, params, start},
    server::{Piece, Reply, Server, about, answer, tokens_of},
};
use crate::engine::{Engine, EngineError, EngineKind, EngineParams, http::Http};

/// A server that answers `path` with `status` and `body`, and other queries correctly.
fn saying(dialect: Dialect, path: &'static str, status: u16, body: &str) -> Server {
    let body = body.to_owned();
    Server::start(
        move |asked| match asked == path {
            true => Some(Reply::Whole(status, body.clone())),
            false => about(dialect, asked),
        },
        move |asked| answer(dialect, asked, &tokens_of(&asked.prompt(), asked.most())),
    )
}

fn outcome(
    server: &Server,
    dialect: Dialect,
    change: impl FnOnce(&mut HttpConfig),
) -> Result<Vec<String>, String> {
    let mut params = params(&server.url, dialect);
    change(params.engine.http.as_mut().expect("http"));
    match start(&params) {
        Ok(started) => Ok(started.http.warnings()),
        Err(e) => {
            let text = e.to_string();
            assert!(text.starts_with("server http://127.0.0.1:"), "{text}");
            assert!(!text.contains('\n'), "{text}");
            Err(text)
        }
    }
}

/// Checks that the start fails with these words.
fn fails(server: &Server, dialect: Dialect, words: &str) {
    let error = outcome(server, dialect, |_| ()).expect_err("it has to fail");
    assert!(error.contains(words), "{error}");
}

/// Checks that the start succeeds with a warning of these words, or with none if empty.
fn warns(server: &Server, dialect: Dialect, words: &str) {
    let warnings = outcome(server, dialect, |_| ()).expect("a start");
    match words {
        "" => assert_eq!(warnings, [""; 0]),
        _ => assert!(warnings.iter().any(|w| w.contains(words)), "{warnings:?}"),
    }
}

#[test]
fn there_is_no_server() {
    let mut server = Server::good(Dialect::Vllm);
    server.stop();
    fails(&server, Dialect::Vllm, "there is none (127.0.0.1:");
    fails(
        &server,
        Dialect::Vllm,
        "start it first, or name it in engine.http.command",
    );
}

#[test]
fn a_server_that_is_not_ready_is_waited_for() {
    let asked = std::sync::atomic::AtomicUsize::new(0);
    // llama.cpp while it loads.
    let loading = r#"{"error":{"code":503,"message":"Loading model","type":"unavailable_error"}}"#;
    let server = Server::start(
        move |path| match path {
            "/health" if asked.fetch_add(1, std::sync::atomic::Ordering::SeqCst) < 5 => {
                Some(Reply::Whole(503, loading.to_owned()))
            }
            _ => about(Dialect::LlamaCpp, path),
        },
        |asked| {
            answer(
                Dialect::LlamaCpp,
                asked,
                &tokens_of(&asked.prompt(), asked.most()),
            )
        },
    );
    warns(
        &server,
        Dialect::LlamaCpp,
        "llama.cpp works on 4 sequences at once",
    );
    let server = saying(Dialect::LlamaCpp, "/health", 503, loading);
    let error = outcome(&server, Dialect::LlamaCpp, |http| http.ready_s = 1);
    let error = error.expect_err("it is never ready");
    assert_has(
        &error,
        &["not ready after 1 s (it answers 503 to /health: Loading model)"],
    );
}

#[test]
fn a_wrong_model() {
    for dialect in [
        Dialect::Vllm,
        Dialect::Sglang,
        Dialect::TensorRtLlm,
        Dialect::LlamaCpp,
    ] {
        let other = r#"{"data":[{"id":"llama"}]}"#;
        let server = saying(dialect, "/v1/models", 200, other);
        fails(
            &server,
            dialect,
            "it serves `llama` and no `m`: see engine.http.model",
        );
        let named = outcome(&server, dialect, |http| {
            http.model = Some("llama".to_owned());
            http.context = Some(4096);
        });
        assert!(named.is_ok(), "{named:?}");
    }
}

#[test]
fn a_context_that_is_too_short() {
    let short = r#"{"data":[{"id":"m","max_model_len":95}]}"#;
    let words = "its context of 95 tokens is too short for the longest sample: 32 of prompt and \
                 64 of answer";
    for dialect in [Dialect::Vllm, Dialect::VllmGenerate, Dialect::Sglang] {
        fails(&saying(dialect, "/v1/models", 200, short), dialect, words);
    }
    let enough = r#"{"data":[{"id":"m","max_model_len":96}]}"#;
    warns(
        &saying(Dialect::Vllm, "/v1/models", 200, enough),
        Dialect::Vllm,
        "",
    );
    let props = r#"{"default_generation_settings":{"n_ctx":95},"total_slots":1}"#;
    fails(
        &saying(Dialect::LlamaCpp, "/props", 200, props),
        Dialect::LlamaCpp,
        words,
    );
    // Without the server's report the configuration counts, if it has a context.
    let server = Server::good(Dialect::TensorRtLlm);
    warns(&server, Dialect::TensorRtLlm, "engine.http.context");
    let error = outcome(&server, Dialect::TensorRtLlm, |http| {
        http.context = Some(95)
    });
    assert!(error.expect_err("too short").contains(words));
}

#[test]
fn a_prefix_cache_that_is_on() {
    let metrics = "vllm:cache_config_info{block_size=\"16\",enable_prefix_caching=\"True\"} 1.0\n";
    let server = saying(Dialect::Vllm, "/metrics", 200, metrics);
    let words = "its prefix cache is on, and such a run does not count: start vLLM with \
                 --no-enable-prefix-caching";
    warns(&server, Dialect::Vllm, words);
    let info = r#"{"disable_radix_cache":false}"#;
    let server = saying(Dialect::Sglang, "/server_info", 200, info);
    warns(
        &server,
        Dialect::Sglang,
        "start SGLang with --disable-radix-cache",
    );
    // The server does not report it, or the dialect has no query for it.
    let server = saying(Dialect::Vllm, "/metrics", 404, "{}");
    warns(
        &server,
        Dialect::Vllm,
        "it does not say whether its prefix cache is on",
    );
    warns(
        &Server::good(Dialect::TensorRtLlm),
        Dialect::TensorRtLlm,
        "enable_block_reuse: false",
    );
    for dialect in [Dialect::Vllm, Dialect::VllmGenerate, Dialect::Sglang] {
        warns(&Server::good(dialect), dialect, "");
    }
}

#[test]
fn an_engine_says_what_it_keeps() {
    let keeps = |status, metrics: &str, word: Option<&str>| {
        let server = saying(Dialect::Vllm, "/metrics", status, metrics);
        let mut params = params(&server.url, Dialect::Vllm);
        let http = params.engine.http.as_mut().expect("http");
        http.prefix_cache_off = word.map(str::to_owned);
        let unasked = Http::open(&params).expect("sound").prefix_cache();
        assert_eq!(unasked.map(|c| c.state), Some(CacheState::Unknown));
        let started = start(&params).unwrap_or_else(|e| panic!("{e}"));
        started.http.prefix_cache().expect("its server may")
    };
    let is = |on: &str| format!("vllm:cache_config_info{{enable_prefix_caching=\"{on}\"}} 1.0\n");
    let word = Some("started with --no-enable-prefix-caching");
    let cache = keeps(200, &is("False"), None);
    assert_eq!(
        (cache.state, &*cache.how),
        (CacheState::Off, "the server says so")
    );
    // The server's report counts before the configuration.
    let cache = keeps(200, &is("True"), word);
    assert_eq!(cache.state, CacheState::On);
    let cache = keeps(404, "{}", word);
    assert_eq!((cache.state, Some(&*cache.how)), (CacheState::Off, word));
    let cache = keeps(404, "{}", None);
    assert_eq!(cache.state, CacheState::Unknown);
    assert!(
        cache.how.contains("engine.http.prefix_cache_off"),
        "{cache:?}"
    );
    // Engines in this process have no prefix cache.
    for kind in [EngineKind::Null, EngineKind::Digest] {
        let engine = crate::engine::create(&EngineParams::new(kind)).expect("sound");
        assert_eq!(engine.prefix_cache(), None);
    }
}

#[test]
fn sglang_that_sends_all_ids_each_time() {
    for key in ["incremental_streaming_output", "stream_output"] {
        let info = json!({"disable_radix_cache": true, key: false}).to_string();
        let server = saying(Dialect::Sglang, "/server_info", 200, &info);
        warns(&server, Dialect::Sglang, "--incremental-streaming-output");
    }
}

#[test]
fn a_vocabulary_that_nobody_knows() {
    let server = Server::good(Dialect::Vllm);
    let error = outcome(&server, Dialect::Vllm, |http| http.vocab = None);
    assert!(
        error
            .expect_err("not known")
            .contains("set engine.http.vocab")
    );
    let server = Server::good(Dialect::LlamaCpp);
    let known = outcome(&server, Dialect::LlamaCpp, |http| http.vocab = None);
    assert!(known.is_ok(), "llama.cpp says it: {known:?}");
    let error = outcome(&server, Dialect::LlamaCpp, |http| {
        http.vocab = Some(VOCAB + 1)
    });
    let error = error.expect_err("they differ");
    assert_has(
        &error,
        &["its vocabulary has 1000 ids, and engine.http.vocab says 1001"],
    );
}

#[test]
fn a_server_of_another_kind() {
    let server = saying(Dialect::Vllm, "/v1/models", 404, "{}");
    fails(&server, Dialect::Vllm, "it answers 404 to /v1/models");
    let server = saying(Dialect::Vllm, "/v1/models", 200, "<html>");
    fails(&server, Dialect::Vllm, "is not understood");
    // vLLM 0.32 without its option.
    let server = Server::of(Dialect::VllmGenerate, |_| {
        Reply::Whole(403, r#"{"detail":"Forbidden"}"#.to_owned())
    });
    fails(
        &server,
        Dialect::VllmGenerate,
        "HTTP 403: Forbidden (from /inference/v1/generate); vLLM",
    );
    fails(&server, Dialect::VllmGenerate, "--enable-scale-out");
}

#[test]
fn a_stream_without_ids() {
    let server = Server::of(Dialect::Vllm, |_| {
        let text = r#"data: {"choices":[{"index":0,"text":"hi","finish_reason":"length"}]}"#;
        Reply::Stream(vec![Piece::Chunk(format!("{text}\n\ndata: [DONE]\n\n"))])
    });
    fails(&server, Dialect::Vllm, "its stream carries no token ids");
}

#[test]
fn what_no_server_is_asked_for() {
    let wrong = |change: fn(&mut EngineParams)| {
        let mut params = params("http://127.0.0.1:1", Dialect::Vllm);
        change(&mut params);
        match Http::open(&params) {
            Err(EngineError::Param { field, reason }) => format!("{field}: {reason}"),
            Err(e) => e.to_string(),
            Ok(http) => format!("it opens: {}", http.name()),
        }
    };
    let set = |url: &str| {
        let mut params = params(url, Dialect::Vllm);
        params.engine.kind = EngineKind::Http;
        Http::open(&params).err().map(|e| e.to_string())
    };
    assert_eq!(wrong(|_| ()), "it opens: http");
    assert!(wrong(|p| p.engine.http = None).contains("no server is named"));
    assert!(wrong(|p| p.spec = None).contains("i32 of one dimension"));
    let long = wrong(|p| p.engine.http.as_mut().expect("http").max_tokens = Some(65));
    assert_eq!(
        long,
        "http.max_tokens: 65 is more than the model's output of 64"
    );
    let short = wrong(|p| p.engine.http.as_mut().expect("http").min_tokens = 65);
    assert_eq!(short, "http.min_tokens: 65 is more than max_tokens, 64");
    let many = wrong(|p| p.engine.http.as_mut().expect("http").in_flight = Some(1 << 40));
    assert!(many.contains("open files"), "{many}");
    for url in [
        "https://127.0.0.1",
        "http://",
        "127.0.0.1:8000",
        "http://a/b",
        "",
    ] {
        assert!(set(url).is_some(), "{url}");
    }
    assert_eq!(set("http://localhost:8000/"), None);
}
