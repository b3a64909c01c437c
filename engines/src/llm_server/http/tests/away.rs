//! A server that is busy or away: its samples go elsewhere or wait, and it comes back.

use std::sync::{
    Arc,
    atomic::{AtomicU16, Ordering::SeqCst},
};

use crate::config::{Dialect, HttpConfig};
use fabric::wire::Stream;
use qdl::wire::Standing;

use super::{
    rig::{ROOM, Started, eventually, prompts, samples, started},
    server::{Reply, Server, StreamPiece, begun, correct, tokens_of},
};
use crate::Streaming;

const WORKS: u16 = 200;

/// A server that answers prompts with this status, and streams while it is [`WORKS`].
fn of_status(status: &Arc<AtomicU16>) -> Server {
    let status = status.clone();
    Server::of(Dialect::Vllm, move |asked| match status.load(SeqCst) {
        WORKS => correct(Dialect::Vllm, asked),
        other => Reply::Whole(other, "restarting".to_owned()),
    })
}

fn hasty(server: &Server, ready_s: u64) -> Started {
    let change = |http: &mut HttpConfig| (http.busy_s, http.ready_s) = (1, ready_s);
    started(server, Dialect::Vllm, change)
}

fn is_away(started: &Started) -> bool {
    started.engine.standing().absence().is_some()
}

/// Runs one sample and returns why it was given back.
fn given_back(started: &Started) -> String {
    let one = started.run_prompts(&prompts(1), Stream::First);
    one.record(0).refused.expect("given back")
}

fn answered(started: &Started) {
    let all = started.run_prompts(&prompts(9), Stream::First);
    for (i, prompt) in prompts(9).iter().enumerate() {
        assert_eq!(all.answer(i), Some(tokens_of(prompt, ROOM)));
    }
}

#[test]
fn a_server_that_is_away_gives_samples_back_and_comes_back() {
    for code in [429, 502, 503, 504] {
        let status = Arc::new(AtomicU16::new(WORKS));
        let server = of_status(&status);
        let started = hasty(&server, 600);
        assert_eq!(started.engine.standing(), Standing::Takes);
        status.store(code, SeqCst);
        let why = given_back(&started);
        let gone = format!(
            "given back: the server at {} is gone: HTTP {code}",
            server.url
        );
        assert!(why.starts_with(&gone), "{why}");
        let Standing::Away(why) = started.engine.standing() else {
            panic!("it takes samples");
        };
        assert!(format!("given back: {why}").starts_with(&gone), "{why}");
        // Later samples do not go to the server.
        assert!(given_back(&started).contains("is gone"));
        // It is asked again, and stays away.
        std::thread::sleep(std::time::Duration::from_millis(1500));
        assert!(is_away(&started) && started.fatal().is_none());
        status.store(WORKS, SeqCst);
        eventually("it is back", || !is_away(&started));
        answered(&started);
        let busy = started.engine.server_counts().busy;
        assert_eq!(busy > 0, [429, 503].contains(&code), "{busy}");
        assert_eq!(started.fatal(), None);
    }
}

/// Waits until the server has been away for its `ready_s`; returns the reason.
fn overdue(started: &Started) -> String {
    let mut words = None;
    eventually("it is overdue", || match started.engine.standing() {
        Standing::Overdue(why) => words.replace(why).is_none(),
        _ => false,
    });
    words.expect("just seen")
}

#[test]
fn a_server_that_is_overdue_comes_back_or_ends_the_engine_of_a_sample_without_another_place() {
    let status = Arc::new(AtomicU16::new(WORKS));
    let server = of_status(&status);
    let started = hasty(&server, 1);
    for _ in 0..2 {
        status.store(503, SeqCst);
        let _ = given_back(&started);
        let why = overdue(&started);
        assert!(why.contains(" is gone: HTTP 503: restarting"), "{why}");
        assert!(why.contains("engine.http.ready_s"), "{why}");
        status.store(WORKS, SeqCst);
        eventually("it is back", || !is_away(&started));
        answered(&started);
    }
    status.store(503, SeqCst);
    let _ = given_back(&started);
    let _ = overdue(&started);
    assert_eq!(started.fatal(), None);
    let one = samples(&prompts(1), Stream::None);
    one.stay();
    started.submit(&one, 1);
    eventually("it is given up", || started.fatal().is_some());
    let fatal = started.fatal().expect("an error");
    let words = format!("server {}: it is gone: HTTP 503", server.url);
    assert!(fatal.starts_with(&words), "{fatal}");
}

#[test]
fn a_sample_without_another_place_waits_for_the_server() {
    let status = Arc::new(AtomicU16::new(503));
    let server = of_status(&status);
    status.store(WORKS, SeqCst);
    let started = hasty(&server, 600);
    status.store(503, SeqCst);
    let all = samples(&prompts(9), Stream::None);
    all.stay();
    started.submit(&all, 9);
    eventually("it is away", || is_away(&started));
    assert_eq!(all.ended(), 0);
    status.store(WORKS, SeqCst);
    eventually("all end", || all.ended() == 9);
    assert!((0..9).all(|i| all.answer(i).is_some()));
    // A part of its answer has left: it is refused, and begins anew.
    let part = Server::of(Dialect::Vllm, |asked| match asked.number {
        0 => correct(Dialect::Vllm, asked),
        1 => begun(asked, 2, StreamPiece::Cut),
        _ => Reply::Whole(503, "restarting".to_owned()),
    });
    let started = hasty(&part, 600);
    let one = samples(&prompts(1), Stream::First);
    one.stay();
    started.run(&one);
    let why = one.record(0).refused.expect("refused");
    assert!(why.starts_with("the server at "), "{why}");
}

#[test]
fn a_busy_server_is_asked_again_when_it_says() {
    // The header outlasts the back-off, and is limited by what is left of `busy_s`.
    for (header, busy_s) in [("1", 30), ("100", 1), ("Fri, 27 Nov 2099 10:00:00 GMT", 1)] {
        let reply =
            format!("HTTP/1.1 429 X\r\nretry-after: {header}\r\ncontent-length: 4\r\n\r\nbusy");
        let server = Server::working(Dialect::Vllm, move |asked| match asked.number {
            1 => Reply::Raw(reply.clone()),
            _ => correct(Dialect::Vllm, asked),
        });
        let started = started(&server, Dialect::Vllm, |http| http.busy_s = busy_s);
        let begun = std::time::Instant::now();
        let one = samples(&prompts(1), Stream::None);
        started.submit(&one, 1);
        eventually("it waits", || {
            one.ended() == 1 || started.engine.standing() == Standing::Busy
        });
        eventually("it ends", || one.ended() == 1);
        assert!(one.answer(0).is_some(), "{:?}", one.record(0));
        assert!(begun.elapsed().as_millis() >= 1000, "{header}");
        assert_eq!(started.engine.server_counts().busy, 1);
        assert_eq!(started.engine.standing(), Standing::Takes);
    }
}

#[test]
fn a_server_that_comes_back_as_another_stays_away() {
    let status = Arc::new(AtomicU16::new(WORKS));
    let (of_prompts, of_model) = (status.clone(), status.clone());
    let server = Server::with(
        super::server::ServerState::default(),
        move |path| match (path, of_model.load(SeqCst)) {
            ("/v1/models", WORKS) | ("/health" | "/metrics", _) => {
                super::server::about(Dialect::Vllm, path)
            }
            _ => Some(Reply::Whole(200, r#"{"data":[{"id":"other"}]}"#.to_owned())),
        },
        move |asked| match of_prompts.load(SeqCst) {
            503 => Reply::Whole(503, "restarting".to_owned()),
            _ => correct(Dialect::Vllm, asked),
        },
    );
    let started = hasty(&server, 3);
    status.store(503, SeqCst);
    let _ = given_back(&started);
    status.store(201, SeqCst);
    let why = overdue(&started);
    assert!(why.contains("it serves `other` and no `m`"), "{why}");
}
