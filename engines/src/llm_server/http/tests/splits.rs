//! A stream has the same result for any split by the network.

use std::convert::Infallible;

use crate::config::Dialect;
use bytes::Bytes;
use fabric::wire::Stream;
use futures_util::stream;
use http_body_util::StreamBody;
use hyper::body::Frame;
use tokio::runtime::Builder;

use super::{
    rig::{ROOM, VOCAB, params, samples},
    server::{events, sglang},
};
use crate::{
    llm_server::http::{Http, stream::LlmServer, trouble::Trouble},
    streaming::TOKEN_BYTES,
};

pub fn server(dialect: Dialect) -> LlmServer {
    let http = Http::open(&params("http://127.0.0.1:1", dialect)).expect("an engine");
    let mut server = http.transport.server().expect("a server");
    server.ask.limits.vocab = VOCAB;
    server
}

pub fn read(server: &LlmServer, pieces: &[&[u8]]) -> Result<Vec<i32>, Trouble> {
    let pieces: Vec<_> = pieces.iter().map(|p| Bytes::copy_from_slice(p)).collect();
    read_up_to(server, ROOM, pieces.into_iter())
}

/// The result of an answer that is limited to `most` tokens.
pub fn read_up_to(
    server: &LlmServer,
    most: usize,
    pieces: impl Iterator<Item = Bytes>,
) -> Result<Vec<i32>, Trouble> {
    let frames = pieces.map(|p| Ok::<_, Infallible>(Frame::data(p)));
    let body = StreamBody::new(stream::iter(frames));
    let runtime = Builder::new_current_thread().enable_all().build();
    runtime.expect("a runtime").block_on(async {
        let mut account = server.ask.limits.account(3, most);
        let samples = samples(&[vec![1, 2, 3]], Stream::First);
        let mut sequence = samples.sequence(0, ROOM * TOKEN_BYTES);
        let mut sink = Some(&mut sequence);
        let last = server
            .read(body, server.request_time(), &mut account, &mut sink)
            .await?;
        sequence.finish(&last);
        Ok(samples.answer(0).expect("an answer"))
    })
}

/// The bytes of an answer, with comments and `\r\n` line ends as servers send them.
fn bytes(dialect: Dialect) -> Vec<u8> {
    let all = events(dialect, 3, &[&[504], &[7, 8], &[2]], "stop");
    let mut text = String::from(": ping\n\n");
    text += &all[0];
    text += &all[1].replace('\n', "\r\n");
    text += &all[2..].concat();
    text.into_bytes()
}

#[test]
fn a_split_anywhere_changes_nothing() {
    for dialect in Dialect::ALL {
        let (server, all) = (server(dialect), bytes(dialect));
        for size in [1, 2, 7, 100, all.len()] {
            let pieces: Vec<_> = all.chunks(size).collect();
            let answer = read(&server, &pieces);
            assert_eq!(answer, Ok(vec![504, 7, 8, 2]), "{dialect:?} by {size}");
        }
    }
}

#[test]
fn a_byte_order_mark_and_any_line_end_are_taken() {
    for dialect in Dialect::ALL {
        let server = server(dialect);
        let text = String::from_utf8(bytes(dialect))
            .expect("text")
            .replace('\r', "");
        for end in ["\n", "\r", "\r\n"] {
            let all = format!("\u{feff}{}", text.replace('\n', end));
            for size in [1, 2, 5, all.len()] {
                let pieces: Vec<_> = all.as_bytes().chunks(size).collect();
                let answer = read(&server, &pieces);
                assert_eq!(
                    answer,
                    Ok(vec![504, 7, 8, 2]),
                    "{dialect:?} {end:?} by {size}"
                );
            }
        }
    }
}

/// A character of two tokens: llama.cpp sends the second id alone, and counts both.
#[test]
fn ids_that_llama_cpp_counts_and_does_not_send_end_no_answer() {
    let server = server(Dialect::LlamaCpp);
    let event = |ids: &[i32], n: usize, stop: bool| {
        let event = serde_json::json!({"tokens": ids, "tokens_predicted": n, "stop": stop,
            "stop_type": "eos", "tokens_evaluated": 3});
        format!("data: {event}\n\n")
    };
    let answer = |last| event(&[234], 2, false) + &event(&[7], 3, false) + &event(&[], last, true);
    let read = |last| read(&server, &[answer(last).as_bytes()]);
    assert_eq!(read(3), Ok(vec![234, 7]));
    // The answer ends inside a character.
    assert_eq!(read(4), Ok(vec![234, 7]));
}

#[test]
fn a_body_that_is_no_stream_is_named() {
    let server = server(Dialect::Vllm);
    for (body, words) in [
        (&b"\x1f\x8b\x08\0"[..], "it is compressed (gzip)"),
        (b"\x1f\x8b\x08\0\n\x02", "it is compressed (gzip)"),
        (b"<!DOCTYPE html>\n<html>", "a web page: <!DOCTYPE html>"),
        (b"\xef\xbb\xbf<html>", "a web page: <html>"),
        (b"{\"id\":1}", "it is JSON: {\"id\":1}"),
        (b"{\n \"id\": 1\n}", "it is JSON: {"),
        (b"{\"detail\":\"no room\"}\n", "error event: no room"),
        (b"", "cut stream: it ended behind 0 tokens"),
        (b"\xef\xbb", "cut stream: it ended behind 0 tokens"),
    ] {
        let error = read(&server, &[body]).expect_err(words).to_string();
        assert!(error.contains(words), "{error}");
    }
}

#[test]
fn a_stream_that_ends_at_any_byte_before_its_end_is_no_answer() {
    for dialect in Dialect::ALL {
        let server = server(dialect);
        let all = bytes(dialect);
        // The last byte is the second line end of the event that ends the answer.
        for at in 0..all.len() - 1 {
            let cut = read(&server, &[&all[..at]]);
            assert!(
                matches!(cut, Err(Trouble::Cut { .. })),
                "{dialect:?} at {at}: {cut:?}"
            );
        }
    }
}

#[test]
fn sglang_may_send_new_ids_or_all_of_them() {
    let event = |ids: &[i32], n, finish| format!("data: {}\n\n", sglang(ids, n, 3, finish));
    for events in [
        [event(&[5, 6], 2, None), event(&[7], 3, Some("stop"))],
        [event(&[5, 6], 2, None), event(&[5, 6, 7], 3, Some("stop"))],
        // All ids, and one more than the count in between.
        [event(&[5, 6], 1, None), event(&[5, 6, 7], 3, Some("stop"))],
    ] {
        let text = events.concat() + "data: [DONE]\n\n";
        let answer = read(&server(Dialect::Sglang), &[text.as_bytes()]);
        assert_eq!(answer, Ok(vec![5, 6, 7]));
    }
}
