//! Data from a server has size limits, and an answer without counts is an error.

use std::{sync::atomic::Ordering::SeqCst, time::Duration};

use crate::config::Dialect;
use bytes::Bytes;

use super::{
    rig::{eventually, run_one},
    server::{Reply, Server, StreamPiece, events},
    splits::{read, read_up_to, server},
};
use crate::llm_server::{
    account::uncounted,
    http::{stream::LlmServer, trouble::Trouble},
};

const EVENT: &str = "data: {\"choices\":[{\"token_ids\":[5],\"finish_reason\":null}]}\n\n";
const END: &str = "data: {\"choices\":[{\"token_ids\":[2],\"finish_reason\":\"stop\"}]}\n\n";

/// Number of the `most` pieces read after `first`, and the error that ends the answer, which is
/// limited to 8 tokens.
fn taken(server: &LlmServer, first: &str, piece: &str, most: usize) -> (usize, Trouble) {
    let (mut taken, piece) = (0, Bytes::copy_from_slice(piece.as_bytes()));
    let pieces = (0..most).map(|_| {
        taken += 1;
        piece.clone()
    });
    let first = Bytes::copy_from_slice(first.as_bytes());
    let ended = read_up_to(server, 8, std::iter::once(first).chain(pieces));
    (taken, ended.expect_err("no answer"))
}

#[test]
fn an_answer_that_goes_on_behind_its_end_is_given_up_at_once() {
    for dialect in [Dialect::Vllm, Dialect::VllmGenerate, Dialect::TensorRtLlm] {
        let (n, ended) = taken(&server(dialect), END, EVENT, 10_000);
        assert_eq!(n, 1, "{ended}");
        assert!(matches!(ended, Trouble::Answer(_)), "{ended}");
    }
}

#[test]
fn an_answer_without_an_end_is_given_up_at_its_longest() {
    let (n, ended) = taken(&server(Dialect::Vllm), EVENT, EVENT, 10_000);
    assert_eq!(n, 8, "{ended}");
    assert!(matches!(ended, Trouble::TooLong(_)), "{ended}");
}

#[test]
fn a_line_an_event_and_a_comment_without_an_end_are_given_up() {
    let server = server(Dialect::Sglang);
    let (long, line) = (
        "a".repeat(1 << 16),
        format!("data: {}\n", "a".repeat(1 << 16)),
    );
    for (first, piece) in [
        ("data: \"", &long),
        ("", &line),
        (": ", &long),
        ("x", &long),
    ] {
        let (n, ended) = taken(&server, first, piece, 64);
        assert!(n <= 2, "{n} pieces of 64 KiB were kept behind {first:?}");
        assert!(
            ended.to_string().contains("an event of more than"),
            "{ended}"
        );
    }
}

#[test]
fn only_tokens_move_the_deadline() {
    let pings = [": ping\n\n", "data: {\"choices\":[]}\n\n", "event: ping\n"];
    for (before, key) in [(0, "first_token_s"), (1, "next_token_s")] {
        let server = Server::working(Dialect::Vllm, move |_| {
            let mut pieces = vec![StreamPiece::Chunk(EVENT.to_owned()); before];
            for ping in pings.iter().cycle().take(6000) {
                pieces.push(StreamPiece::Chunk((*ping).to_owned()));
                pieces.push(StreamPiece::Wait(Duration::from_millis(10)));
            }
            Reply::Stream(pieces)
        });
        let why = refused(&server, 1);
        let words = format!("no token for 1 s behind {before}: see engine.http.{key}");
        assert!(why.starts_with(&words), "{why}");
        eventually("the request is closed", || {
            server.state.cancelled.load(SeqCst) == 1
        });
    }
}

fn refused(server: &Server, seconds: u64) -> String {
    let (record, fatal) = run_one(server, Dialect::Vllm, |http| {
        (http.first_token_s, http.next_token_s) = (seconds, seconds);
    });
    record.refused.unwrap_or_else(|| panic!("{fatal:?}"))
}

#[test]
fn an_error_of_any_length_keeps_its_first_words() {
    let server = Server::working(Dialect::Vllm, |_| {
        Reply::Whole(400, format!("too long, {}", "and on ".repeat(1 << 20)))
    });
    let why = refused(&server, 20);
    assert!(
        why.starts_with("HTTP 400: too long, and on and on"),
        "{why}"
    );
    assert!(why.len() < 300, "{}", why.len());
}

#[test]
fn headers_without_an_end_are_given_up() {
    let server = Server::working(Dialect::Vllm, |_| {
        Reply::Raw(format!("HTTP/1.1 200 OK\r\nx: {}", "x".repeat(1 << 24)))
    });
    let why = refused(&server, 20);
    assert!(why.contains("message head is too large"), "{why}");
}

#[test]
fn each_dialect_without_its_counts_gives_no_answer() {
    for dialect in Dialect::ALL {
        for (count, words) in [
            ("completion_tokens", "answer"),
            ("prompt_tokens", "prompt"),
            ("tokens_predicted", "answer"),
            ("tokens_evaluated", "prompt"),
        ] {
            let all = events(dialect, 3, &[&[5], &[2]], "stop").concat();
            let without = all.replace(count, "another");
            let ended = read(&server(dialect), &[without.as_bytes()]);
            let expected = match without == all {
                true => Ok(vec![5, 2]),
                false => Err(uncounted(words).into()),
            };
            assert_eq!(ended, expected, "{dialect:?} {count}");
        }
    }
}
