//! A server with its own queue: a waiting request is not lost, and the number of waiting requests
//! is limited.

use std::time::Duration;

use crate::config::Dialect;
use fabric::wire::Stream;
use tokio::sync::Semaphore;

use super::{
    rig::{Started, eventually, prompts, samples, started},
    server::{Reply, Request, Server, ServerState, StreamPiece, about, answer, begun, correct},
};
use crate::Streaming;

/// The answer of a server that takes 20 ms for each event.
fn slow(dialect: Dialect, asked: &Request) -> Reply {
    let Reply::Stream(pieces) = answer(dialect, asked, &[5, 6, 7, 2][..asked.most().min(4)]) else {
        unreachable!("a stream");
    };
    let wait = StreamPiece::Wait(Duration::from_millis(20));
    Reply::Stream(pieces.into_iter().flat_map(|p| [wait.clone(), p]).collect())
}

/// An engine with deadlines of a second.
fn hasty(server: &Server, dialect: Dialect, in_flight: Option<usize>) -> Started {
    started(server, dialect, |http| {
        (http.first_token_s, http.next_token_s, http.in_flight) = (1, 1, in_flight);
    })
}

#[test]
fn a_request_that_waits_in_the_servers_queue_is_not_given_up_while_tokens_come() {
    let state = ServerState {
        at_once: Some(Semaphore::new(1)),
        ..ServerState::default()
    };
    let server = Server::with(
        state,
        |path| about(Dialect::Vllm, path),
        |asked| slow(Dialect::Vllm, asked),
    );
    let started = hasty(&server, Dialect::Vllm, Some(40));
    // The last one waits for about 4 s, with a first-token deadline of 1 s.
    let samples = samples(&prompts(40), Stream::First);
    started.submit(&samples, 40);
    eventually("all end", || samples.ended() == 40);
    for i in 0..40 {
        assert!(samples.answer(i).is_some(), "{i}: {:?}", samples.record(i));
    }
}

#[test]
fn an_error_does_not_end_a_server_that_sends_tokens_to_others() {
    // Each trial behind the start's waits in the server's queue, for longer than one may take.
    let server = Server::of(Dialect::Vllm, |asked| match asked.prompt()[..] {
        [9, ..] => Reply::Whole(500, "no".to_owned()),
        _ if asked.number == 0 => correct(Dialect::Vllm, asked),
        _ if asked.is_trial() => Reply::Stream(vec![StreamPiece::Hang]),
        _ => slow(Dialect::Vllm, asked),
    });
    let started = hasty(&server, Dialect::Vllm, Some(4));
    let mut prompts = vec![vec![1]; 60];
    prompts[7] = vec![9];
    let samples = started.run_prompts(&prompts, Stream::First);
    let why = samples.record(7).refused.unwrap_or_default();
    assert_eq!(
        why,
        "HTTP 500: no (from /v1/completions); the server goes on"
    );
    assert!((0..60).all(|i| i == 7 || samples.answer(i).is_some()));
    assert_eq!(started.fatal(), None);
}

#[test]
fn a_busy_server_is_asked_again_for_as_long_as_it_brings_tokens_to_others() {
    // It is busy until 25 requests have come, for longer than `busy_s`.
    let server = Server::of(Dialect::Vllm, |asked| match asked.prompt()[..] {
        [9, ..] if asked.number < 25 => Reply::Whole(429, "later".to_owned()),
        [9, ..] => slow(Dialect::Vllm, asked),
        _ if asked.is_trial() => correct(Dialect::Vllm, asked),
        _ => slow(Dialect::Vllm, asked),
    });
    let started = started(&server, Dialect::Vllm, |http| {
        (http.busy_s, http.in_flight) = (1, Some(20));
    });
    let busy = samples(&[vec![9]], Stream::First);
    started.submit(&busy, 1);
    started.submit(&samples(&vec![vec![1]; 30], Stream::First), 1);
    eventually("it ends", || busy.ended() == 1);
    assert!(busy.answer(0).is_some(), "{:?}", busy.record(0));
}

#[test]
fn requests_at_once_are_those_that_the_server_works_on_and_eight() {
    let info = r#"{"disable_radix_cache":true,"max_running_requests":3}"#;
    let server = Server::saying(Dialect::Sglang, "/server_info", 200, info);
    assert_eq!(hasty(&server, Dialect::Sglang, None).engine.in_flight(), 11);
}

#[test]
fn a_stream_that_the_server_forgot_is_refused_and_the_others_go_on() {
    for before in [0, 1] {
        let server = Server::of(Dialect::Vllm, move |asked| match asked.prompt()[..] {
            [9, ..] => begun(asked, before, StreamPiece::Hang),
            _ if asked.is_trial() => correct(Dialect::Vllm, asked),
            _ => slow(Dialect::Vllm, asked),
        });
        let started = hasty(&server, Dialect::Vllm, Some(4));
        let mut prompts = vec![vec![9]];
        prompts.resize(100, vec![1]);
        let samples = started.run_prompts(&prompts, Stream::First);
        let why = samples.record(0).refused.expect("refused");
        assert!(
            why.starts_with(&format!("no token for 1 s behind {before}")),
            "{why}"
        );
        assert!((1..100).all(|i| samples.answer(i).is_some()));
        assert_eq!(started.fatal(), None);
    }
}
