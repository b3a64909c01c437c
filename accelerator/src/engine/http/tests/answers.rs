//! Correct answers in every dialect: their tokens, parts and requests.

use fabric::wire::Stream;
use qdl::config::Dialect;
use serde_json::{Value, json};

use super::{
    rig::{ROOM, VOCAB, prompts, samples, started},
    server::{Reply, Request, Server, StreamPiece, events, singly, tokens_of},
};

#[test]
fn answers_are_the_servers_tokens_whatever_is_streamed() {
    for dialect in Dialect::ALL {
        let server = Server::good(dialect);
        let started = started(&server, dialect, |_| ());
        for stream in [Stream::None, Stream::First, Stream::All] {
            let prompts = prompts(33);
            let all = samples(&prompts, stream);
            started.run(&all);
            for (i, prompt) in prompts.iter().enumerate() {
                let record = all.record(i);
                let right = tokens_of(prompt, ROOM);
                let what = format!("{dialect:?}, {stream}, sample {i}: {:?}", record.refused);
                assert_eq!(record.answer().as_ref(), Some(&right), "{what}");
                // Each event except the last is a part, or only the first one.
                let parts = match stream {
                    Stream::None => 0,
                    Stream::First => 1.min(right.len() - 1),
                    Stream::All => right.len() - 1,
                };
                // llama.cpp sends a separate end event, so its last token may leave as a part.
                let late = usize::from(dialect == Dialect::LlamaCpp && stream != Stream::None);
                let most = if stream == Stream::First {
                    1
                } else {
                    parts + late
                };
                assert!(
                    (parts..=most).contains(&record.parts.len()),
                    "{what}: {:?}",
                    record.parts
                );
                let sent = record.finished.expect("it finished").sent;
                assert_eq!(sent.parts as usize, record.parts.len(), "{what}");
                assert_eq!(sent.bytes, record.parts.last().map_or(0, |p| p.1), "{what}");
            }
        }
        assert_eq!(started.fatal(), None);
        let report = started.http.report();
        // Includes the trial of the start.
        assert_eq!((report.answers, report.busy, report.cached), (100, 0, 0));
        assert!(report.most >= 1 && report.firsts > 0, "{report}");
    }
}

/// The body of the second request; the first is the trial.
fn body_of(dialect: Dialect) -> Value {
    let server = Server::good(dialect);
    let started = started(&server, dialect, |http| {
        http.max_tokens = Some(40);
        http.temperature = 0.5;
        if dialect != Dialect::LlamaCpp {
            http.min_tokens = 1;
            http.stop = vec![5];
        }
    });
    started.run(&samples(&[vec![7, 8]], Stream::None));
    let bodies = server.state.bodies.lock().expect("whole");
    let path = match dialect {
        Dialect::Vllm | Dialect::TensorRtLlm => "/v1/completions",
        Dialect::VllmGenerate => "/inference/v1/generate",
        Dialect::Sglang => "/generate",
        Dialect::LlamaCpp => "/completion",
    };
    assert_eq!(bodies[1].path, path);
    bodies[1].body.clone()
}

#[test]
fn a_request_is_what_each_server_takes() {
    let sampling = json!({
        "max_tokens": 40, "min_tokens": 1, "temperature": 0.5, "ignore_eos": false,
        "stop_token_ids": [5],
    });
    let with = |more: Value| {
        let mut all = sampling.clone();
        let more = more.as_object().expect("a map").clone();
        all.as_object_mut().expect("a map").extend(more);
        all
    };
    let usage = json!({"include_usage": true});
    assert_eq!(
        body_of(Dialect::Vllm),
        with(json!({
            "model": "m", "prompt": [7, 8], "stream": true, "stream_options": usage,
            "return_token_ids": true,
        }))
    );
    assert_eq!(
        body_of(Dialect::VllmGenerate),
        json!({
            "model": "m", "token_ids": [7, 8], "stream": true, "stream_options": usage,
            "sampling_params": with(json!({"detokenize": false})),
        })
    );
    assert_eq!(
        body_of(Dialect::TensorRtLlm),
        with(json!({
            "model": "m", "prompt": [7, 8], "stream": true, "stream_options": usage,
            "include_stop_str_in_output": true, "add_special_tokens": false, "detokenize": false,
        }))
    );
    assert_eq!(
        body_of(Dialect::Sglang),
        json!({
            "input_ids": [7, 8], "stream": true,
            "sampling_params": {
                "max_new_tokens": 40, "min_new_tokens": 1, "temperature": 0.5,
                "ignore_eos": false, "stop_token_ids": [5], "skip_special_tokens": false,
            },
        })
    );
    assert_eq!(
        body_of(Dialect::LlamaCpp),
        json!({
            "prompt": [7, 8], "n_predict": 40, "temperature": 0.5, "ignore_eos": false,
            "cache_prompt": false, "return_tokens": true, "stream": true,
        })
    );
}

/// An answer with tokens in groups of these sizes, repeated.
fn in_groups(dialect: Dialect, asked: &Request, sizes: &[usize]) -> Reply {
    let tokens = tokens_of(&asked.prompt(), asked.most());
    let mut groups: Vec<&[i32]> = Vec::new();
    let mut rest = &tokens[..];
    for size in sizes.iter().cycle() {
        if rest.is_empty() {
            break;
        }
        let (group, after) = rest.split_at(rest.len().min(*size));
        groups.push(group);
        rest = after;
    }
    let events = events(
        dialect,
        asked.prompt().len(),
        &groups,
        asked.finish(&tokens),
    );
    // All events in one chunk, as a server sends them after a delay.
    Reply::Stream(vec![StreamPiece::Chunk(events.concat())])
}

#[test]
fn an_event_may_carry_several_tokens() {
    for dialect in Dialect::ALL {
        let server = Server::of(dialect, move |asked| in_groups(dialect, asked, &[1, 3, 12]));
        let started = started(&server, dialect, |_| ());
        let prompts = prompts(40);
        let all = samples(&prompts, Stream::All);
        started.run(&all);
        for (i, prompt) in prompts.iter().enumerate() {
            assert_eq!(all.answer(i), Some(tokens_of(prompt, ROOM)), "{dialect:?}");
        }
        let report = started.http.report();
        assert!(report.steps < report.tokens, "{report}");
    }
}

#[test]
fn the_end_of_sequence_is_kept_and_counted() {
    let end = VOCAB as i32 - 1;
    let server = Server::of(Dialect::Vllm, move |asked| {
        let mut tokens = tokens_of(&asked.prompt(), asked.most() - 1);
        tokens.retain(|id| *id != end);
        tokens.push(end);
        Reply::of(singly(Dialect::Vllm, asked, &tokens, "stop"))
    });
    let started = started(&server, Dialect::Vllm, |http| {
        http.eos = vec![2, end as u32];
    });
    let all = samples(&prompts(20), Stream::First);
    started.run(&all);
    for i in 0..20 {
        let answer = all.answer(i).expect("an answer");
        assert_eq!(answer.last(), Some(&end));
    }
    assert_eq!(started.fatal(), None);
}
