//! Many concurrent streams: the tokens are correct, and streams share connections.

use std::sync::atomic::Ordering::SeqCst;

use crate::config::Dialect;
use fabric::wire::Stream;

use super::{
    rig::{ROOM, params, prompts, start, started},
    server::{Server, ServerState, about, correct, tokens_of},
};

#[test]
fn ten_thousand_short_streams_256_at_once() {
    let server = Server::good(Dialect::Vllm);
    let mut params = params(&server.url, Dialect::Vllm);
    params.engine.threads = 2;
    params.engine.http.as_mut().expect("http").in_flight = Some(256);
    let started = start(&params).expect("a server");
    let prompts = prompts(10_000);
    let samples = started.run_prompts(&prompts, Stream::First);
    for (i, prompt) in prompts.iter().enumerate() {
        let right = tokens_of(prompt, ROOM);
        assert_eq!(samples.answer(i), Some(right), "{:?}", started.fatal());
    }
    // A sample ends a moment before its connection can be used again. So a busy machine has more
    // connections than streams, but far fewer than requests.
    let opened = server.state.connections.load(SeqCst);
    assert!(opened > 1 && opened <= 2_000, "{opened}");
}

#[test]
fn connections_that_the_server_closes_are_opened_again() {
    let state = ServerState {
        closes: true,
        ..ServerState::default()
    };
    let server = Server::with(
        state,
        |path| about(Dialect::Sglang, path),
        |asked| correct(Dialect::Sglang, asked),
    );
    let started = started(&server, Dialect::Sglang, |http| http.in_flight = Some(4));
    let prompts = prompts(500);
    let samples = started.run_prompts(&prompts, Stream::None);
    for (i, prompt) in prompts.iter().enumerate() {
        let right = Some(tokens_of(prompt, ROOM));
        assert_eq!(samples.answer(i), right, "{:?}", samples.record(i));
    }
}
