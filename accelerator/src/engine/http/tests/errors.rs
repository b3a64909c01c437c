//! Errors during a run: the message of each, and the fate of the sample.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use fabric::wire::Stream;
use qdl::config::{Deadlines, Dialect, HttpConfig};
use serde_json::{Value, json};

use super::{
    super::{
        Http,
        dialect::{Ask, trouble::Trouble},
        judge::{Judge, TRIAL, Verdict},
    },
    rig::{Fate, PROMPT, ROOM, Samples, Started, VOCAB, eventually, params, prompts, start},
    server::{Asked, Piece, Reply, Server, answer, events, tokens_of},
};

/// A server of `dialect` that starts without error and then answers by `script`.
fn server(dialect: Dialect, script: impl Fn(&Asked) -> Reply + Send + Sync + 'static) -> Server {
    Server::of(dialect, move |asked| match asked.is_trial() {
        true => good(dialect, asked),
        false => script(asked),
    })
}

fn good(dialect: Dialect, asked: &Asked) -> Reply {
    answer(dialect, asked, &tokens_of(&asked.prompt(), asked.most()))
}

fn stream(events: Vec<String>) -> Reply {
    Reply::Stream(events.into_iter().map(Piece::Chunk).collect())
}

fn started(server: &Server, dialect: Dialect, change: impl FnOnce(&mut HttpConfig)) -> Started {
    let mut params = params(&server.url, dialect);
    change(params.engine.http.as_mut().expect("http"));
    start(&params).expect("a server")
}

/// Runs one sample; returns its fate and the errors that ended the engine.
fn one_with(server: &Server, change: impl FnOnce(&mut HttpConfig)) -> (Fate, Vec<String>) {
    let started = started(server, Dialect::Vllm, change);
    let samples = Samples::new(&[vec![1, 2, 3]], Stream::First);
    started.run(&samples);
    (samples.fate(0), started.fatal())
}

fn one(server: &Server) -> (Fate, Vec<String>) {
    one_with(server, |_| ())
}

/// Checks that the sample was refused with these words and that the engine goes on.
fn refused((fate, fatal): (Fate, Vec<String>), words: &str) {
    let why = fate
        .refused
        .unwrap_or_else(|| panic!("not refused: {fatal:?}"));
    assert!(why.contains(words), "{why}");
    assert!(!why.contains('\n'), "{why}");
    assert_eq!((fate.answer, fatal), (None, vec![]));
}

/// Checks that the engine ended with these words and that the sample has no answer.
fn ended((fate, fatal): (Fate, Vec<String>), words: &str) {
    let [line] = &fatal[..] else {
        panic!("{fatal:?}, {fate:?}")
    };
    assert!(line.starts_with("server http://127.0.0.1:"), "{line}");
    assert!(line.contains(words), "{line}");
    assert!(!line.contains('\n'), "{line}");
    assert!(fate.answer.is_none() && fate.refused.is_none() && fate.ended);
}

/// The events of an answer with these tokens, one each.
fn tokens(asked: &Asked, tokens: &[i32]) -> Vec<String> {
    let groups: Vec<_> = tokens.iter().map(std::slice::from_ref).collect();
    events(Dialect::Vllm, asked.prompt().len(), &groups, "stop")
}

/// A server that answers by `script` whatever it is asked, but for the trial of the start.
fn after_the_start(script: fn(&Asked) -> Reply) -> Server {
    Server::of(Dialect::Vllm, move |asked| match asked.number {
        0 => good(Dialect::Vllm, asked),
        _ => script(asked),
    })
}

#[test]
fn what_is_the_samples_alone_refuses_it() {
    type Row = (fn(&Asked) -> Reply, &'static str);
    let rows: [Row; 3] = [
        // vLLM's own words for a prompt that is too long.
        (
            |_| {
                let words = r#"{"error":{"message":"This model's maximum context length is 4096
                    tokens.","type":"BadRequestError","param":null,"code":400}}"#;
                Reply::Whole(400, words.replace('\n', " "))
            },
            "HTTP 400: This model's maximum context length",
        ),
        (
            |_| Reply::Whole(500, "Internal Server Error".to_owned()),
            "HTTP 500: Internal Server Error (from /v1/completions); the server goes on",
        ),
        (
            |asked| {
                let mut all = tokens(asked, &[5, 6]);
                all.pop();
                stream(all)
            },
            "cut stream: it ended behind 2 tokens (it ended before the answer did)",
        ),
    ];
    for (script, words) in rows {
        refused(one(&server(Dialect::Vllm, script)), words);
    }
    // A trial that fails once does not decide against the server, the start's neither.
    let now_and_then = Server::of(Dialect::Vllm, |asked| match asked.number {
        1 | 4 => good(Dialect::Vllm, asked),
        _ => Reply::Whole(500, "now and then".to_owned()),
    });
    refused(one(&now_and_then), "HTTP 500: now and then");
}

#[test]
fn what_is_wrong_with_every_answer_ends_the_engine() {
    type Row = (fn(&Asked) -> Reply, &'static str);
    let rows: [Row; 10] = [
        // vLLM after an id beyond its vocabulary: every request is a 500 from then on.
        (
            |_| Reply::Whole(500, r#"{"error":{"message":"EngineCore died"}}"#.to_owned()),
            "HTTP 500: EngineCore died",
        ),
        (
            |_| Reply::Whole(401, "no".to_owned()),
            "start it without an API key",
        ),
        (|_| Reply::Whole(403, "no".to_owned()), "--enable-scale-out"),
        (
            |_| Reply::Whole(404, "no".to_owned()),
            "see engine.http.model",
        ),
        (
            |asked| stream(broken_off(Dialect::Vllm, asked.prompt().len(), "error")),
            "error event 404: no room",
        ),
        (
            |asked| stream(tokens(asked, &[5, VOCAB as i32])),
            "it answers with token 1000, beyond the vocabulary of 1000",
        ),
        (
            |asked| {
                stream(events(
                    Dialect::Vllm,
                    asked.prompt().len() + 1,
                    &[&[5]],
                    "stop",
                ))
            },
            "it counts 4 tokens in a prompt of 3",
        ),
        (
            |_| stream(vec!["data: <html>\n\n".to_owned()]),
            "it does not speak this dialect: expected value at line 1 column 1",
        ),
        (
            |_| {
                let two = r#"data: {"choices":[{"token_ids":[5]},{"token_ids":[6]}]}"#;
                stream(vec![format!("{two}\n\n")])
            },
            "several answers to one prompt",
        ),
        (
            |_| {
                let text = r#"data: {"choices":[{"index":0,"text":"hi","finish_reason":"stop"}]}"#;
                stream(vec![format!("{text}\n\n"), "data: [DONE]\n\n".to_owned()])
            },
            "its stream carries no token ids",
        ),
    ];
    for (script, words) in rows {
        ended(one(&after_the_start(script)), words);
    }
}

#[test]
fn a_busy_server_is_asked_again_and_counted() {
    for status in [429, 503] {
        let server = server(Dialect::Vllm, move |asked| match asked.number {
            1..=3 => Reply::Whole(status, r#"{"error":"queue full"}"#.to_owned()),
            _ => good(Dialect::Vllm, asked),
        });
        let started = started(&server, Dialect::Vllm, |_| ());
        let samples = Samples::new(&[vec![1]], Stream::None);
        started.run(&samples);
        assert_eq!(samples.fate(0).answer, Some(tokens_of(&[1], ROOM)));
        let report = started.http.report();
        assert_eq!((report.busy, report.requests), (3, 5));
        assert!(report.to_string().contains("3 times busy"), "{report}");
    }
}

#[test]
fn a_server_that_stays_busy_ends_the_engine() {
    let busy = r#"{"error":{"message":"queue full"}}"#;
    let server = Server::of(Dialect::Vllm, |asked| match asked.number {
        0 => good(Dialect::Vllm, asked),
        _ => Reply::Whole(429, busy.to_owned()),
    });
    let result = one_with(&server, |http| http.busy_s = 1);
    ended(
        result,
        "HTTP 429: queue full (for 0 s); raise engine.http.busy_s",
    );
}

#[test]
fn a_request_that_a_working_server_is_too_busy_for_is_refused() {
    let server = server(Dialect::Vllm, |_| {
        Reply::Whole(503, "queue full".to_owned())
    });
    let result = one_with(&server, |http| http.busy_s = 1);
    refused(
        result,
        "HTTP 503: queue full (for 0 s); raise engine.http.busy_s",
    );
}

#[test]
fn a_stream_that_is_cut_is_the_samples_while_the_server_goes_on() {
    let server = server(Dialect::Vllm, |asked| {
        let events = events(
            Dialect::Vllm,
            asked.prompt().len(),
            &[&[5], &[6], &[7]],
            "stop",
        );
        let mut pieces: Vec<_> = events[..2].iter().cloned().map(Piece::Chunk).collect();
        pieces.push(Piece::Cut);
        Reply::Stream(pieces)
    });
    let (fate, fatal) = one(&server);
    assert_eq!(fate.parts, [(0, 4)], "its first token was out");
    refused((fate, fatal), "cut stream: it ended behind 2 tokens");
}

#[test]
fn a_server_that_goes_ends_the_engine() {
    let mut server = server(Dialect::Vllm, |asked| {
        let mut all = events(Dialect::Vllm, asked.prompt().len(), &[&[5], &[6]], "stop");
        all.truncate(1);
        let mut pieces: Vec<_> = all.into_iter().map(Piece::Chunk).collect();
        pieces.push(Piece::Hang);
        Reply::Stream(pieces)
    });
    let started = started(&server, Dialect::Vllm, |_| ());
    let samples = Samples::new(&prompts(16), Stream::First);
    for i in 0..16 {
        samples.submit(i, &*started.http);
    }
    eventually("first tokens", || {
        (0..16).all(|i| !samples.fate(i).parts.is_empty())
    });
    server.stop();
    eventually("all end", || samples.ended() == 16);
    for i in 0..16 {
        let fate = samples.fate(i);
        assert!(fate.answer.is_none() && fate.refused.is_none());
    }
    ended(
        (samples.fate(0), started.fatal()),
        "cut stream: it ended behind 1 tokens",
    );
}

#[test]
fn no_token_for_so_long() {
    for (events_before, words) in [
        (
            0,
            "no token for 1 s behind 0: see engine.http.first_token_s",
        ),
        (1, "no token for 1 s behind 1: see engine.http.next_token_s"),
    ] {
        let server = server(Dialect::Vllm, move |asked| {
            let all = events(Dialect::Vllm, asked.prompt().len(), &[&[5], &[6]], "stop");
            let some = all.into_iter().take(events_before);
            let mut pieces: Vec<_> = some.map(Piece::Chunk).collect();
            // A comment carries no token.
            pieces.push(Piece::Chunk(": ping\n\n".to_owned()));
            pieces.push(Piece::Hang);
            Reply::Stream(pieces)
        });
        let result = one_with(&server, |http| {
            (http.first_token_s, http.next_token_s) = (1, 1)
        });
        refused(result, words);
        eventually("the request is closed", || {
            server.state.cancelled.load(SeqCst) == 1
        });
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
fn an_abort_or_an_error_event_refuses_that_sample_alone_in_each_dialect() {
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
            let server = server(dialect, move |asked| match asked.prompt()[..] {
                [9, ..] => stream(broken_off(dialect, asked.prompt().len(), how)),
                _ => good(dialect, asked),
            });
            let started = started(&server, dialect, |_| ());
            let samples = Samples::new(&[vec![1], vec![9], vec![2]], Stream::First);
            started.run(&samples);
            let why = samples.fate(1).refused.unwrap_or_default();
            assert!(why.starts_with(words), "{dialect:?}, {how}: {why}");
            assert!(
                why.contains("; the server goes on"),
                "{dialect:?}, {how}: {why}"
            );
            for i in [0, 2] {
                assert!(samples.fate(i).answer.is_some(), "{dialect:?}, {how}");
            }
            assert_eq!(started.fatal(), [""; 0], "{dialect:?}, {how}");
        }
    }
}

#[test]
fn an_error_that_names_the_request_is_the_samples_without_a_trial() {
    for (dialect, event) in [
        (
            Dialect::Vllm,
            json!({"error": {"message": "too long", "code": 400}}),
        ),
        (
            Dialect::Sglang,
            json!({"meta_info": {"finish_reason": {
                "type": "abort", "message": "too long", "status_code": 400,
            }}}),
        ),
    ] {
        let event = format!("data: {event}\n\n");
        let server = server(dialect, move |_| stream(vec![event.clone()]));
        let started = started(&server, dialect, |_| ());
        let samples = Samples::new(&[vec![1]], Stream::None);
        started.run(&samples);
        let why = samples.fate(0).refused.unwrap_or_default();
        assert!(why.ends_with(" 400: too long"), "{why}");
        assert_eq!(
            server.state.asked.load(SeqCst),
            2,
            "a trial at the start, a sample"
        );
    }
}

#[test]
fn an_answer_longer_than_its_slot_is_never_written_past_it() {
    // The server ignores the limit; the slot has room for 8 tokens, the model for more.
    let server = server(Dialect::Vllm, |asked| {
        let tokens: Vec<i32> = (0..ROOM as i32).collect();
        let groups: Vec<_> = tokens.iter().map(std::slice::from_ref).collect();
        stream(events(Dialect::Vllm, asked.prompt().len(), &groups, "stop"))
    });
    let started = started(&server, Dialect::Vllm, |_| ());
    // The room of the second lies behind that of the first.
    let samples = Samples::with_room(&[vec![1], vec![2]], Stream::All, 8);
    samples.submit(0, &*started.http);
    eventually("it ends", || samples.ended() == 1);
    let words = "an answer of 9 tokens and more, and room for 8";
    refused((samples.fate(0), started.fatal()), words);
    assert!(samples.is_blank(1));
    eventually("the request is closed", || {
        server.state.cancelled.load(SeqCst) <= 1
    });
}

#[test]
fn ids_beyond_the_vocabulary_do_not_leave() {
    let server = Server::good(Dialect::Vllm);
    let started = started(&server, Dialect::Vllm, |_| ());
    let samples = Samples::new(&[vec![1, VOCAB as i32], vec![-1], vec![1]], Stream::None);
    started.run(&samples);
    let why = |i: usize| samples.fate(i).refused.expect("refused");
    assert_eq!(
        why(0),
        "token 1 of the prompt is 1000, beyond the vocabulary of 1000"
    );
    assert_eq!(
        why(1),
        "token 0 of the prompt is -1, beyond the vocabulary of 1000"
    );
    assert!(samples.fate(2).answer.is_some());
    assert_eq!(
        server.state.asked.load(SeqCst),
        2,
        "the trial and the good one"
    );
    assert_eq!(started.fatal(), [""; 0]);
}

#[test]
fn prompts_of_a_wrong_length_do_not_leave() {
    let server = Server::good(Dialect::Vllm);
    let started = started(&server, Dialect::Vllm, |_| ());
    let inputs = vec![vec![], vec![1, 0, 0], vec![0; (PROMPT + 1) * 4]];
    let samples = Samples::of_bytes(inputs, Stream::None, ROOM);
    started.run(&samples);
    for (i, bytes) in [0, 3, 132].into_iter().enumerate() {
        let words = format!("a prompt of {bytes} bytes; model `m` takes 1 to 32 ids of 4 bytes");
        assert_eq!(samples.fate(i).refused, Some(words));
    }
    assert_eq!(server.state.asked.load(SeqCst), 1, "the trial");
}

#[test]
fn a_lost_token_ends_the_engine() {
    for dialect in [
        Dialect::Vllm,
        Dialect::VllmGenerate,
        Dialect::TensorRtLlm,
        Dialect::LlamaCpp,
    ] {
        let server = server(dialect, move |asked| {
            let mut all = events(dialect, asked.prompt().len(), &[&[5], &[6], &[7]], "stop");
            all.remove(1);
            stream(all)
        });
        let started = started(&server, dialect, |_| ());
        let samples = Samples::new(&[vec![1]], Stream::All);
        started.run(&samples);
        let words = "it counts 3 tokens in an answer of which 2 came: tokens are lost";
        ended((samples.fate(0), started.fatal()), words);
    }
    // SGLang with new ids only, one of them missing.
    let server = server(Dialect::Sglang, |asked| {
        let prompt = asked.prompt().len();
        let first = super::server::sglang(&[5], 1, prompt, None);
        let third = super::server::sglang(&[7], 3, prompt, Some("stop"));
        stream(vec![
            format!("data: {first}\n\ndata: {third}\n\n"),
            "data: [DONE]\n\n".to_owned(),
        ])
    });
    let started = started(&server, Dialect::Sglang, |_| ());
    let samples = Samples::new(&[vec![1]], Stream::All);
    started.run(&samples);
    ended(
        (samples.fate(0), started.fatal()),
        "it counts 3 tokens in an answer of which 2 came",
    );
}

#[test]
fn an_end_of_sequence_that_differs_ends_the_engine() {
    type Change = fn(&mut HttpConfig);
    let cases: [(&[i32], &str, Change, &str); 5] = [
        // The server omits the end of sequence, or uses a different one.
        (
            &[5, 6],
            "stop",
            |h| h.eos = vec![9],
            "it stopped behind token 6, which is none of",
        ),
        // The server goes on after the end of sequence.
        (
            &[9, 6, 7],
            "stop",
            |h| h.eos = vec![9],
            "token 6 follows 9, which engine.http.eos",
        ),
        // The server stops despite `ignore_eos`.
        (
            &[5, 9],
            "stop",
            |h| h.ignore_eos = true,
            "it stopped at token 9 although",
        ),
        // The server reports the limit too early.
        (
            &[5, 6],
            "length",
            |_| (),
            "it says that 64 tokens were reached, and 2 came",
        ),
        // The answer is too short.
        (
            &[5, 6],
            "stop",
            |h| h.min_tokens = 3,
            "2 tokens, and 3 to 64 were asked for",
        ),
    ];
    for (tokens, finish, change, words) in cases {
        // The trial's answer ends at its limit, which says nothing of the end of sequence.
        let server = Server::of(Dialect::Vllm, move |asked| {
            let tokens: &[i32] = if asked.is_trial() { &[5, 6] } else { tokens };
            let finish = if asked.is_trial() { "length" } else { finish };
            let groups: Vec<_> = tokens.iter().map(std::slice::from_ref).collect();
            stream(events(Dialect::Vllm, asked.prompt().len(), &groups, finish))
        });
        ended(one_with(&server, change), words);
    }
}

#[test]
fn a_request_that_nobody_waits_for_is_closed() {
    for before in [0, 1] {
        let server = server(Dialect::Vllm, move |asked| {
            let all = events(Dialect::Vllm, asked.prompt().len(), &[&[5], &[6]], "stop");
            let some = all.into_iter().take(before);
            let mut pieces: Vec<_> = some.map(Piece::Chunk).collect();
            pieces.push(Piece::Hang);
            Reply::Stream(pieces)
        });
        let started = started(&server, Dialect::Vllm, |_| ());
        let samples = Samples::new(&prompts(8), Stream::All);
        for i in 0..8 {
            samples.submit(i, &*started.http);
        }
        eventually("8 streams", || server.state.asked.load(SeqCst) == 9);
        samples.leave();
        eventually("all end", || samples.ended() == 8);
        eventually("all are closed", || {
            server.state.cancelled.load(SeqCst) == 8
        });
        assert!((0..8).all(|i| samples.fate(i).refused.is_none()));
        assert_eq!(started.http.report().cancelled, 8);
        assert_eq!(started.fatal(), [""; 0]);
    }
}

#[test]
fn stopping_drops_what_is_under_way() {
    let server = server(Dialect::Vllm, |_| Reply::Stream(vec![Piece::Hang]));
    let started = started(&server, Dialect::Vllm, |_| ());
    let samples = Samples::new(&prompts(8), Stream::All);
    for i in 0..8 {
        samples.submit(i, &*started.http);
    }
    eventually("8 streams", || server.state.asked.load(SeqCst) == 9);
    let http = started.http.clone();
    drop(started);
    assert_eq!(samples.ended(), 8);
    assert!((0..8).all(|i| samples.fate(i).refused.is_none()));
    let late = Samples::new(&prompts(1), Stream::All);
    late.submit(0, &*http);
    assert_eq!(late.ended(), 1, "one that comes too late is dropped");
    eventually("all are closed", || {
        server.state.cancelled.load(SeqCst) == 8
    });
}

#[test]
fn a_slow_stream_is_no_error() {
    let server = server(Dialect::Vllm, |asked| {
        let all = events(Dialect::Vllm, asked.prompt().len(), &[&[5], &[6]], "stop");
        let wait = Piece::Wait(Duration::from_millis(700));
        let pieces = all
            .into_iter()
            .flat_map(|e| [wait.clone(), Piece::Chunk(e)]);
        Reply::Stream(pieces.collect())
    });
    let result = one_with(&server, |http| {
        (http.first_token_s, http.next_token_s) = (5, 5)
    });
    assert_eq!(result.0.answer, Some(vec![5, 6]), "{:?}", result.1);
}

#[test]
fn a_trial_that_hangs_decides_against_the_server() {
    let server = Server::of(Dialect::Vllm, |_| Reply::Stream(vec![Piece::Hang]));
    let mut params = params(&server.url, Dialect::Vllm);
    params.engine.http.as_mut().expect("http").first_token_s = 86_400;
    let http = Http::open(&params).expect("a configuration");
    let ask = Ask {
        vocab: VOCAB,
        ..http.ask.clone()
    };
    let asked = http.server(&ask).expect("an address");
    let judge = Judge::within(None, Duration::from_millis(100));
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
    let samples = Samples::new(&prompts(2), Stream::All);
    samples.panics.store(true, SeqCst);
    (0..2).for_each(|i| samples.submit(i, &*started.http));
    eventually("the engine ends", || !started.fatal().is_empty());
    eventually("both end", || samples.ended() == 2);
    let words = "worker 0 of engine http panicked: no part is taken";
    assert_eq!(started.fatal(), [words]);
}
