//! Correct answers in every dialect: their tokens, parts and requests.

use fabric::wire::Stream;
use qdl::config::Dialect;
use serde_json::{Value, json};

use super::{
    rig::{ROOM, prompts, samples, started},
    server::{Reply, Server, events, tokens_of},
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
                let late = record.parts.len().checked_sub(parts).expect(&what) <= late;
                assert!(late, "{what}: {:?}", record.parts);
            }
        }
        assert_eq!(started.fatal(), None);
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

#[test]
fn an_event_may_carry_several_tokens_or_a_whole_answer() {
    for (dialect, most) in Dialect::ALL.into_iter().flat_map(|d| [(d, 3), (d, ROOM)]) {
        let server = Server::of(dialect, move |asked| {
            let tokens = tokens_of(&asked.prompt(), asked.most());
            let groups: Vec<_> = tokens.chunks(most).collect();
            let (prompt, finish) = (asked.prompt().len(), asked.finish(&tokens));
            // All events in one chunk, as a server sends them after a delay.
            Reply::of(vec![events(dialect, prompt, &groups, finish).concat()])
        });
        let started = started(&server, dialect, |_| ());
        let prompts = prompts(33);
        let all = samples(&prompts, Stream::All);
        started.run(&all);
        for (i, prompt) in prompts.iter().enumerate() {
            let right = tokens_of(prompt, ROOM);
            assert_eq!(all.answer(i), Some(right), "{dialect:?}");
        }
    }
}
