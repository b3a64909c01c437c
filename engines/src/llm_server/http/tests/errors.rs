//! Errors during a run: the message of each, and the fate of the sample.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::config::{Dialect, HttpConfig};
use fabric::wire::Stream;
use qdl::config::Deadlines;
use serde_json::{Value, json};

use super::{
    super::{
        Http,
        judge::{Judge, TRIAL, Verdict},
        trouble::Trouble,
    },
    rig::{
        ROOM, SampleRecord, Samples, VOCAB, eventually, params, prompts, run_one, samples, started,
    },
    server::{Reply, Request, Server, StreamPiece, begun, correct, events, singly},
    splits::{read, server},
};
use crate::{Fault, llm_server::account::lost};

type Script = fn(&Request) -> Reply;
type Change = fn(&mut HttpConfig);

fn vllm(server: &Server, change: Change) -> (SampleRecord, Option<String>) {
    run_one(server, Dialect::Vllm, change)
}

fn refused((record, fatal): (SampleRecord, Option<String>), words: &str) {
    let why = record.refused.unwrap_or_else(|| panic!("{fatal:?}"));
    assert!(why.contains(words) && !why.contains('\n'), "{why}");
    assert_eq!((record.finished, fatal), (None, None));
}

/// Checks that the engine ended with these words and that the sample has no answer.
fn ended((record, fatal): (SampleRecord, Option<String>), words: &str) {
    let line = fatal.unwrap_or_else(|| panic!("{record:?}"));
    assert!(line.starts_with("server http://127.0.0.1:"), "{line}");
    assert!(line.contains(words) && !line.contains('\n'), "{line}");
    assert!(record.finished.is_none() && record.refused.is_none() && record.ended.is_some());
}

fn status(status: u16, text: &str) -> Reply {
    Reply::Whole(status, text.to_owned())
}

fn raw(head: &str, body: &str) -> Reply {
    let len = body.len();
    Reply::Raw(format!(
        "HTTP/1.1 {head}\r\ncontent-length: {len}\r\n\r\n{body}"
    ))
}

#[test]
fn an_error_of_one_sample_refuses_that_sample() {
    let none: Change = |_| ();
    let rows: [(Script, Change, &str); 6] = [
        // vLLM's own words for a prompt that is too long.
        (
            |_| {
                let words = r#"{"error":{"message":"This model's maximum context length is 4096
                    tokens.","type":"BadRequestError","param":null,"code":400}}"#;
                status(400, &words.replace('\n', " "))
            },
            none,
            "HTTP 400: This model's maximum context length",
        ),
        (
            |_| status(500, "Internal Server Error"),
            none,
            "HTTP 500: Internal Server Error (from /v1/completions); the server goes on",
        ),
        (
            |asked| {
                let mut all = singly(Dialect::Vllm, asked, &[5, 6], "stop");
                all.pop();
                Reply::of(all)
            },
            none,
            "cut stream: it ended behind 2 tokens (it ended before the answer did)",
        ),
        (
            |asked| begun(asked, 2, StreamPiece::Cut),
            none,
            "cut stream: it ended behind 2 tokens",
        ),
        (
            |asked| Reply::of(broken_off(Dialect::Vllm, asked.prompt().len(), "error")),
            none,
            "error event 404: no room; the server goes on",
        ),
        (
            |_| status(503, "queue full"),
            |http| http.busy_s = 1,
            "given back: HTTP 503: queue full (for 1 s); raise engine.http.busy_s",
        ),
    ];
    for (script, change, words) in rows {
        let server = Server::working(Dialect::Vllm, script);
        refused(vllm(&server, change), words);
    }
    // A trial that fails once does not decide against the server, the start's neither.
    let now_and_then = Server::of(Dialect::Vllm, |asked| match asked.number {
        1 | 4 => correct(Dialect::Vllm, asked),
        _ => status(500, "now and then"),
    });
    refused(vllm(&now_and_then, none), "HTTP 500: now and then");
}

#[test]
fn an_error_of_every_answer_ends_the_engine() {
    let rows: [(Script, &str); 13] = [
        // vLLM after an id beyond its vocabulary: every request is a 500 from then on.
        (
            |_| status(500, r#"{"error":{"message":"EngineCore died"}}"#),
            "HTTP 500: EngineCore died",
        ),
        (|_| status(401, "no"), "start it without an API key"),
        (|_| status(403, "no"), "--enable-scale-out"),
        (|_| status(404, "no"), "see engine.http.model"),
        (
            |_| raw("307 X\r\nlocation: http://127.0.0.1/v1/completions/", ""),
            "HTTP 307: it redirects to http://127.0.0.1/v1/completions/ (from /v1/completions): \
             give the address of the server itself in engine.http.url",
        ),
        (
            |_| {
                let head = "200 X\r\ncontent-type: text/event-stream\r\ncontent-encoding: gzip";
                raw(head, "")
            },
            "its answer is no event stream: it is compressed (content-encoding: gzip)",
        ),
        (
            |_| {
                let head = "200 X\r\ncontent-type: Text/HTML; charset=utf-8";
                raw(head, "<html>\n<body>login</body></html>")
            },
            "a web page (content-type: text/html): <html> <body>login</body></html>",
        ),
        (
            |asked| {
                let all = singly(Dialect::Vllm, asked, &[5, 6], "stop").concat();
                Reply::of(vec![all.replace("\"stop\"", "null")])
            },
            "2 tokens, and no word why they end: no event has a finish_reason",
        ),
        (
            |asked| Reply::of(broken_off(Dialect::Vllm, asked.prompt().len(), "error")),
            "error event 404: no room",
        ),
        (
            |asked| begun(asked, 2, StreamPiece::Cut),
            "cut stream: it ended behind 2 tokens",
        ),
        (
            |_| Reply::of(vec!["data: <html>\n\n".to_owned()]),
            "it does not speak this dialect: expected value at line 1 column 1",
        ),
        (
            |_| {
                let two = r#"data: {"choices":[{"token_ids":[5]},{"token_ids":[6]}]}"#;
                Reply::of(vec![format!("{two}\n\n")])
            },
            "several answers to one prompt",
        ),
        (
            |_| {
                let text = r#"data: {"choices":[{"index":0,"text":"hi","finish_reason":"stop"}]}"#;
                Reply::of(vec![format!("{text}\n\ndata: [DONE]\n\n")])
            },
            "its stream carries no token ids",
        ),
    ];
    for (script, words) in rows {
        // After the trial of the start, it answers every request by the script.
        let server = Server::of(Dialect::Vllm, move |asked| match asked.number {
            0 => correct(Dialect::Vllm, asked),
            _ => script(asked),
        });
        ended(vllm(&server, |http| http.busy_s = 1), words);
    }
}

/// The events of a server that ends an answer after its first token with an error of kind `how`.
fn broken_off(dialect: Dialect, prompt: usize, how: &str) -> Vec<String> {
    let mut all = events(dialect, prompt, &[&[5], &[6]], "stop");
    all.truncate(1);
    let aborted = |finish: Value| match dialect {
        Dialect::Sglang => json!({"output_ids": [], "meta_info": {
            "id": "1", "prompt_tokens": prompt, "completion_tokens": 1, "finish_reason": finish,
        }}),
        Dialect::LlamaCpp => json!({
            "tokens": [], "stop": true, "stop_type": "none", "tokens_predicted": 1,
            "tokens_evaluated": prompt,
        }),
        _ => json!({"choices": [{"index": 0, "token_ids": [], "finish_reason": "abort"}]}),
    };
    let error = json!({"message": "no room", "type": "E", "code": 404});
    all.push(match how {
        "abort" => format!("data: {}\n\n", aborted(json!({"type": "abort"}))),
        "abort, said" => format!(
            "data: {}\n\n",
            aborted(json!({"type": "abort", "message": "no room", "status_code": 503}))
        ),
        "error" => format!("data: {}\n\n", json!({"error": error})),
        "error event" => format!("event: error\ndata: {error}\n\n"),
        // The form of older versions of llama.cpp.
        "error field" => format!("error: {error}\n\n"),
        "error in words" => "event: error\ndata: no room\n\n".to_owned(),
        "detail" => format!("data: {}\n\n", json!({"detail": "no room"})),
        // The body is an error instead of a stream.
        "body" => return vec![json!({"error": error}).to_string()],
        other => panic!("{other}"),
    });
    all.push("data: [DONE]\n\n".to_owned());
    all
}

#[test]
fn an_abort_or_an_error_event_is_read_in_each_dialect() {
    for dialect in Dialect::ALL {
        for (how, words) in [
            ("abort", "aborted: it ended the answer with `"),
            ("abort, said", "aborted"),
            ("error", "error event 404: no room"),
            ("error event", "error event 404: no room"),
            ("error field", "error event 404: no room"),
            ("error in words", "error event: no room"),
            ("detail", "error event: no room"),
            ("body", "error event 404: no room"),
        ] {
            let events = broken_off(dialect, 3, how).concat();
            let trouble = read(&server(dialect), &[events.as_bytes()]).expect_err(how);
            let right = trouble.to_string().starts_with(words);
            assert!(right, "{dialect:?}, {how}: {trouble}");
            assert_eq!(trouble.fault(), Fault::Either, "{dialect:?}, {how}");
        }
    }
}

#[test]
fn an_error_that_names_the_request_is_the_samples_without_a_trial() {
    let error = json!({"error": {"message": "too long", "code": 400}});
    let abort = json!({"meta_info": {"finish_reason": {
        "type": "abort", "message": "too long", "status_code": 400,
    }}});
    for (dialect, event) in [(Dialect::Vllm, error), (Dialect::Sglang, abort)] {
        let event = format!("data: {event}\n\n");
        let server = Server::working(dialect, move |_| Reply::of(vec![event.clone()]));
        refused(run_one(&server, dialect, |_| ()), " 400: too long");
        let asked = server.state.asked.load(SeqCst);
        assert_eq!(asked, 2, "a trial at the start, a sample");
    }
}

#[test]
fn a_lost_token_is_an_error() {
    // llama.cpp itself leaves ids out, and counts them.
    let others = Dialect::ALL.into_iter().filter(|d| *d != Dialect::LlamaCpp);
    for dialect in others {
        let mut all = events(dialect, 3, &[&[5], &[6], &[7]], "stop");
        all.remove(1);
        if dialect == Dialect::Sglang {
            // New ids only, as with its option, and one of them is missing.
            let third = super::server::sglang(&[7], 3, 3, Some("stop"));
            all[1] = format!("data: {third}\n\n");
        }
        let answer = read(&server(dialect), &[all.concat().as_bytes()]);
        assert_eq!(answer, Err(lost(3, 2).into()), "{dialect:?}");
    }
}

#[test]
fn a_request_is_closed_once_its_frontend_is_gone() {
    for before in [0, 1] {
        let server = Server::working(Dialect::Vllm, move |asked| {
            begun(asked, before, StreamPiece::Hang)
        });
        let started = started(&server, Dialect::Vllm, |_| ());
        let samples = samples(&prompts(8), Stream::All);
        started.submit(&samples, 8);
        eventually("8 streams", || server.state.asked.load(SeqCst) == 9);
        samples.leave();
        eventually("all end", || samples.ended() == 8);
        eventually("all are closed", || {
            server.state.cancelled.load(SeqCst) == 8
        });
        assert!(samples.refused().is_empty());
        assert_eq!(started.fatal(), None);
    }
}

#[test]
fn a_stop_drops_open_requests() {
    let server = Server::working(Dialect::Vllm, |asked| begun(asked, 0, StreamPiece::Hang));
    let started = started(&server, Dialect::Vllm, |_| ());
    let samples = samples(&prompts(8), Stream::All);
    for i in 0..8 {
        started.submit_one(&samples, i);
    }
    eventually("8 streams", || server.state.asked.load(SeqCst) == 9);
    drop(started);
    assert_eq!(samples.ended(), 8);
    assert!(samples.refused().is_empty());
    eventually("all are closed", || {
        server.state.cancelled.load(SeqCst) == 8
    });
}

#[test]
fn a_trial_that_hangs_decides_against_the_server() {
    let server = Server::of(Dialect::Vllm, |_| Reply::Stream(vec![StreamPiece::Hang]));
    let mut params = params(&server.url, Dialect::Vllm);
    params.engine.http.as_mut().expect("http").first_token_s = 86_400;
    let http = Http::open(&params).expect("a configuration");
    let mut asked = http.transport.server().expect("an address");
    asked.ask.limits.vocab = VOCAB;
    let judge = Judge::new(None, Duration::from_millis(100));
    let silent = Trouble::Silent {
        tokens: 3,
        after: Duration::from_secs(30),
    };
    let mut runtime = tokio::runtime::Builder::new_current_thread();
    let runtime = runtime.enable_all().build().expect("a runtime");
    let verdict = runtime.block_on(async {
        let verdict = judge.verdict(&asked, silent);
        tokio::time::timeout(Duration::from_secs(30), verdict).await
    });
    let words = "no token for 30 s behind 3: see engine.http.next_token_s";
    assert_eq!(verdict, Ok(Verdict::End(words.to_owned())));
}

#[test]
fn a_silent_server_is_named_before_a_frontend_gives_up() {
    let http = HttpConfig::new("http://127.0.0.1:1", Dialect::Vllm);
    let watchdog = Duration::from_secs(Deadlines::default().watchdog_s);
    for silence in [http.first_token(), http.next_token()] {
        assert!(silence + TRIAL < watchdog, "{silence:?}");
    }
}

#[test]
fn a_panic_of_a_sequence_ends_the_engine() {
    let server = Server::good(Dialect::Vllm);
    let started = started(&server, Dialect::Vllm, |_| ());
    let samples = Samples::acting(&prompts(2), ROOM * 4, Stream::All, |_, _| {
        panic!("no part is taken")
    });
    started.run(&samples);
    eventually("the engine ends", || started.fatal().is_some());
    let words = "worker 0 of engine http panicked: no part is taken";
    assert_eq!(started.fatal().as_deref(), Some(words));
}
