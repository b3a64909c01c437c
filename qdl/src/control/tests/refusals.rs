//! Invalid input is refused, and the peer learns the reason.

use proptest::prelude::*;

use super::{codec::message, *};
use crate::{
    control::message::{Counters, VERSION},
    testkit::assert_has,
    wire::{Description, MAX_DESCRIPTION},
};

/// Checks that the peer of a side ended the session with this code.
fn assert_remote<C: Core>(side: &Side<C>, expected: ErrorCode) {
    let is = |code: &ErrorCode| *code == expected;
    let cause = side.cause();
    assert!(
        matches!(cause, Some(ControlError::Remote { code, .. }) if is(code)),
        "{expected}: {cause:?}"
    );
}

/// A change of a pair before its handshake.
type Change = fn(&mut LocalNode, &mut LocalNode);

/// The accelerator detects the mismatch, and the frontend gets a text from its own point of view.
#[test]
fn a_node_that_does_not_fit_is_refused_and_both_sides_say_why() {
    let slow = |node: &mut LocalNode, ms| {
        node.timing.heartbeat.every = Duration::from_millis(ms);
        node.timing.heartbeat.gone_after = Duration::from_secs(1);
    };
    use ErrorCode::{Auth as AuthCode, Loading, Model, NameTaken, Protocol};
    let cases: [(Change, ErrorCode, &[&str], &[&str]); 8] = [
        (
            |f, _| f.auth = token("abcdef9876543210"),
            AuthCode,
            &["token_file", "differ"],
            &["10.0.0.1:999", "its token is not this node's"],
        ),
        (
            |f, _| f.auth = Auth::None,
            AuthCode,
            &["accelerator has a token and the frontend has none"],
            &["has no token and this node wants one"],
        ),
        (
            |_, a| a.auth = Auth::None,
            AuthCode,
            &["frontend has a token and the accelerator has none"],
            &["wants a token and this node has none"],
        ),
        (
            |f, _| f.model.inputs[0].shape = vec![65],
            Model,
            &[
                "accelerator has input: u8[64]",
                "frontend has input: u8[65]",
            ],
            &["fe-1 (10.0.0.1:999)", "u8[64]", "u8[65]"],
        ),
        (
            |f, _| f.node = "acc-1".to_owned(),
            NameTaken,
            &["acc-1"],
            &["this node's name"],
        ),
        (
            |f, _| f.own = local("acc-1").own,
            Protocol,
            &["model.stream"],
            &["model.stream: is missing"],
        ),
        (
            |_, a| a.own = RolePart::Loading,
            Loading,
            &["the accelerator loads its model"],
            &["came while the model loads"],
        ),
        // A wrong token needs no ready engine.
        (
            |f, a| (f.auth, a.own) = (token("f"), RolePart::Loading),
            AuthCode,
            &["differ"],
            &["its token"],
        ),
    ];
    for (change, code, front, node) in cases {
        let (mut f, mut a) = (local("fe-1"), local("acc-1"));
        change(&mut f, &mut a);
        let mut pair = Pair::new(f, a);
        let [here, there] = pair.causes();
        assert_remote(&pair.front, code);
        assert_has(&here, front);
        assert_has(&there, node);
        let is_early = pair.front.cause().and_then(ControlError::not_yet);
        assert_eq!(is_early == Some(NotYet::Loading), code == Loading);
    }

    // 60 ms is half-way between the accelerator's 20 and 100 ms.
    for (ms, words) in [(60, "model.heartbeat_ms: 60"), (59, "")] {
        let mut f = local("fe-1");
        slow(&mut f, ms);
        let [here, _] = Pair::new(f, local("acc-1")).causes();
        assert!(
            here.contains(words) && here.is_empty() == words.is_empty(),
            "{here}"
        );
    }

    let mut pair = Pair::new(local("fe-1"), local("acc-1"));
    pair.served = Some("fe-9");
    let [here, there] = pair.causes();
    assert_remote(&pair.front, ErrorCode::Busy);
    assert_has(&here, &["fe-9", "one frontend at a time"]);
    assert_has(&there, &["fe-1", "came while frontend fe-9 is served"]);
}

/// Each role must send its own field with the model; omitting it does not mean none.
#[test]
fn an_engine_is_missing_where_an_accelerator_sends_none() {
    let mut a = local("acc-1");
    a.own = RolePart::Stream(Stream::None);
    let mut pair = Pair::new(local("fe-1"), a);
    let [here, _] = pair.causes();
    assert_has(&here, &["model.engine: is missing"]);
    assert_remote(&pair.node, ErrorCode::Protocol);

    let pair = Pair::in_session();
    for (side, peer) in [
        (&pair.node.core.link().handshake, local("fe-1")),
        (&pair.front.core.link().handshake, local("acc-1")),
    ] {
        assert_eq!(side.peer_own, Some(peer.own));
        assert_eq!(side.peer_facts, peer.facts);
    }
}

#[test]
fn a_peer_that_closes_or_falls_silent_in_the_handshake_is_named_with_what_was_missing() {
    for (frames, missing) in ["hello", "answer", "model"].into_iter().enumerate() {
        for closes in [true, false] {
            let mut pair = Pair::new(local("fe-1"), local("acc-1"));
            let Pair {
                front,
                node,
                ways: [to_front, to_node],
                ..
            } = &mut pair;
            for _ in 0..frames {
                front.carry(node, to_node, 0);
                node.carry(front, to_front, 0);
            }
            if closes {
                node.framing.end(&mut node.core, 0);
            } else {
                let end = node.core.poll_timeout().expect("a deadline");
                node.core.handle_timeout(end);
            }
            let cause = node.cause().expect("over").to_string();
            let silent = format!("no {missing}");
            let how = match closes {
                true => "closed the control connection while",
                false => &silent,
            };
            assert_has(&cause, &["10.0.0.1:999", how, missing]);
        }
    }
}

#[test]
fn two_of_one_role_refuse_each_other() {
    let (mut f, mut g) = (frontend(local("fe-1")), frontend(local("fe-2")));
    let [mut there, mut back] = <[Way; 2]>::default();
    while f.carry(&mut g, &mut there, 0) | g.carry(&mut f, &mut back, 0) {}
    let texts = [&f, &g].map(|side| side.cause().expect("over").to_string());
    let is_told = texts.iter().any(|t| t.contains("both sides are frontends"));
    assert!(
        is_told || texts.iter().all(|t| t.contains("is frontend too")),
        "{texts:?}"
    );
}

/// Bytes on an accelerator's port that are no frame, or no hello of this version, and what both
/// sides say of them.
#[test]
fn bytes_that_are_no_hello_are_refused_with_what_is_wrong_on_both_sides() {
    let frame = |json: &[u8]| [&(json.len() as u32).to_be_bytes()[..], json].concat();
    let hello = |version: u64, field: &str| {
        let nonce = "00".repeat(32);
        let json = format!(
            r#"{{"type": "hello", "version": {version}, "role": "frontend",
                 "auth": "token", "nonce": "{nonce}"{field}}}"#
        );
        frame(json.as_bytes())
    };
    let long = format!(
        r#"{{"type": "connection_lost", "connection": 0, "epoch": 1, "cause": "{}"}}"#,
        "x".repeat(2049)
    );
    let error = br#"{"type": "error", "code": "error", "text": ""}"#;
    let cases = [
        (
            b"GET / HTTP/1.1\r\n".to_vec(),
            "HTTP on a control connection",
        ),
        (
            (1u32 << 20).to_be_bytes().to_vec(),
            "a frame of 1048576 bytes, 4096 are allowed",
        ),
        (
            b"QDLDATA2\x01\0".to_vec(),
            "a data connection at a control port",
        ),
        (vec![0, 0, 0, 20, b'{'], "inside a frame, 5 bytes into it"),
        (frame(b"{\"type\""), "no JSON"),
        (frame(b"[1,2]"), "without a field `type`"),
        (frame(b""), "no JSON"),
        (frame(b"\xff\xfe"), "no JSON"),
        (frame(b"{\"a\":1}"), "without a field `type`"),
        (frame(b"{\"type\":7}"), "without a field `type`"),
        (frame(b"{\"type\":\"hallo\"}"), "unknown variant `hallo`"),
        (frame(b"{\"type\":\"hello\"}"), "missing field"),
        (frame(error), "frame error"),
        (frame(long.as_bytes()), "2049 bytes"),
        (hello(VERSION, r#", "colour": "red""#), "colour"),
        (frame(b"{\"type\":\"bye\"}"), "bye"),
        (Vec::new(), "closed the control connection while hello was"),
        // A version counts whatever the other fields are.
        (frame(b"{\"type\":\"hello\",\"version\":99}"), "version 99"),
        (hello(VERSION + 1, ""), "version 14"),
        (hello(8, r#", "node": "fe-1""#), "version 8"),
    ];
    for (bytes, words) in cases {
        let mut a = accelerator(local("acc-1"));
        a.framing.receive(&mut a.core, &bytes, 0);
        a.framing.end(&mut a.core, 0);
        let cause = a.cause().expect("over").to_string();
        assert_has(&cause, &["10.0.0.1:999", words]);
        if bytes.is_empty() {
            continue;
        }
        let (code, text) = a.error();
        match words.strip_prefix("version ") {
            Some(version) => {
                assert_eq!(code, ErrorCode::Version);
                let own = format!("speaks protocol version {VERSION}");
                assert_has(&text, &[&own, &format!("the frontend {version}")]);
            }
            None => {
                assert_eq!(code, ErrorCode::Protocol);
                assert_has(&text, &[words]);
            }
        }
    }
}

#[test]
fn a_refused_request_leaves_the_session_as_it_was() {
    let mut pair = Pair::in_session();
    let mut ask = |connections: Option<Vec<ConnectionRequest>>| {
        match connections {
            Some(connections) => pair.front.open(connections, 0),
            None => pair.front.ask("ready", |id| Message::Start { id }, 0),
        }
        loop {
            let (here, there) = pair.meet();
            if let Some(Event::Answer(0, answer)) = here.into_iter().next() {
                return answer.map_err(|e| e.to_string());
            }
            let [AcceleratorEvent::Open(asked)] = &there[..] else {
                panic!("{there:?}");
            };
            let grants = asked.iter().map(grant).collect();
            pair.node.core.opened(Ok(grants));
        }
    };
    let mut refused = |connections, words: &[&str]| {
        assert_has(&ask(connections).expect_err("refused"), words);
    };
    refused(None, &["no connection is open"]);
    // The frontend does not send these requests, because the peer would end the session.
    let slots = |slots| ConnectionRequest {
        slots,
        ..connection(0, 1)
    };
    refused(Some(vec![]), &["connections: 0"]);
    refused(Some(vec![connection(0, 0)]), &["epoch 0"]);
    refused(Some(vec![slots(0)]), &["0 slots"]);
    refused(Some(vec![slots(8193)]), &["8193 slots"]);
    let twice = vec![connection(0, 1), connection(0, 2)];
    refused(Some(twice), &["is there twice"]);
    ask(Some(vec![connection(0, 2)])).expect("opened");
    let mut refused = |connections, words: &[&str]| {
        assert_has(&ask(Some(connections)).expect_err("refused"), words);
    };
    for old in [1, 2] {
        let words = ["acc-1 (10.0.0.2:7400)", "does not come after epoch 2"];
        refused(vec![connection(0, old)], &words);
    }
    let more = (1..=1024).map(|number| connection(number, 1)).collect();
    refused(more, &["(budget)", "1025 connections", "at most 1024"]);
    ask(Some(vec![connection(0, 3)])).expect("opened again");
    ask(None).expect("ready after a refused start");
}

fn heartbeat(seq: u64, counters: Option<Counters>) -> Message {
    Message::Heartbeat {
        seq,
        counters,
        scores: None,
    }
}

fn open(connection: ConnectionRequest) -> Message {
    let connections = vec![connection];
    Message::Open { id: 1, connections }
}

fn lost(connection: u16, epoch: u32) -> Message {
    Message::ConnectionLost {
        connection,
        epoch,
        cause: "a\u{1b}b".to_owned(),
    }
}

fn reset(connection: u16, epoch: u32) -> Message {
    Message::ConnectionReset { connection, epoch }
}

#[test]
fn a_frontend_that_breaks_the_order_is_told_which_field() {
    let answer = || Message::Answer {
        noise: String::new(),
    };
    let counters = Some(Counters::default());
    let (open, start) = (|| open(connection(0, 2)), Message::Start { id: 2 });
    let (drain, describe) = (Message::Drain { id: 1 }, Message::Describe { id: 1 });
    let cases = [
        (vec![answer()], "answer came where a frontend's"),
        (vec![Message::Ready { id: 1 }], "ready came where"),
        (vec![heartbeat(2, None)], "seq: 2, expected 1"),
        (vec![heartbeat(1, None); 2], "seq: 1, expected 2"),
        (vec![heartbeat(1, counters)], "heartbeat.counters"),
        (vec![lost(0, 3)], "connection 0 was never opened"),
        (vec![reset(3, 1)], "connection 3 was never opened"),
        (vec![open(), lost(0, 3)], "at epoch 2, this says 3"),
        (vec![open(), start.clone(), start], "a session starts once"),
        // One is in progress, 256 wait.
        (vec![open(); 258], "open.id: 256 such requests"),
        (vec![drain; 257], "drain.id: 256 such requests"),
        (vec![describe; 2], "describe.id: one such request"),
    ];
    for (mut frames, words) in cases {
        let mut a = Pair::in_session().node;
        let last = frames.pop().expect("a frame");
        for m in frames {
            a.handle(m);
            assert!(a.core.link().in_session(), "{words}: too early");
        }
        a.handle(last);
        let (code, text) = a.error();
        assert_eq!(code, ErrorCode::Protocol);
        assert_has(&text, &[words]);
    }
}

#[test]
fn an_answer_past_its_limits_is_refused_and_the_session_goes_on() {
    let mut pair = Pair::in_session();
    let name = |name: String| Message::NameIs { id: 0, name };
    let description = |machine| Message::Described {
        id: 0,
        description: Box::new(Description {
            machine,
            ..Description::default()
        }),
    };
    for (answer, words) in [
        (name("x".repeat(257)), "257 bytes, must be 1 to 256"),
        (name("acc\u{1b}".to_owned()), "control or format character"),
        (name("acc".to_owned()), ""),
        (
            description("x".repeat(MAX_DESCRIPTION + 1)),
            "machine: 131073 bytes",
        ),
        (description("{}".to_owned()), ""),
    ] {
        let kind = answer.kind();
        pair.front.ask(kind, |id| Message::Describe { id }, 0);
        let (_, asked) = pair.meet();
        let [AcceleratorEvent::Describe(asked)] = asked[..] else {
            panic!("{asked:?}");
        };
        let mut answer = answer;
        if let Message::NameIs { id, .. } | Message::Described { id, .. } = &mut answer {
            *id = asked;
        }
        pair.node.core.answer(asked, Ok(answer));
        match &pair.meet().0[..] {
            [Event::Answer(0, Err(e))] if !words.is_empty() => assert_has(&e.to_string(), &[words]),
            [Event::Answer(0, Ok(_))] => assert_eq!(words, ""),
            other => panic!("{other:?}"),
        }
    }
}

/// Names from drivers and libraries are clipped, since the whole answer would be refused.
#[test]
fn the_answer_to_a_drain_is_cut_to_its_limits() {
    let mut pair = Pair::in_session();
    pair.front.ask("drained", |id| Message::Drain { id }, 1);
    pair.meet();
    let gpu = record::GpuRecord {
        name: "\u{1b}[2J".repeat(100),
        ..Default::default()
    };
    let mut used = record::NodeUse::default();
    used.threads.push(record::ThreadGroup {
        name: "\n".repeat(100),
        ..Default::default()
    });
    let (counters, batches) = (Counters::default(), Default::default());
    pair.node
        .core
        .drained(counters, &batches, vec![gpu; 65], used);
    let (here, _) = pair.meet();
    assert!(matches!(&here[..], [Event::Answer(1, Ok(_))]), "{here:?}");
}

/// An open that is refused leaves no end at the accelerator, and the frontend may wait for a reset.
#[test]
fn a_connection_lost_before_its_open_is_answered_waits_for_the_answer() {
    for granted in [true, false] {
        let mut a = Pair::in_session().node;
        let asked = connection(5, 3);
        // The second, equal message has no effect.
        let messages = [open(asked.clone()), lost(5, 3), lost(5, 3), reset(5, 3)];
        messages.into_iter().for_each(|m| a.handle(m));
        let events = |a: &mut Side<Accelerator>| -> String {
            let all: Vec<_> = std::iter::from_fn(|| a.core.poll_event()).collect();
            format!("{all:?}")
        };
        assert_eq!(
            events(&mut a).matches("Connection").count(),
            1,
            "no more than the request"
        );
        a.core.opened(match granted {
            true => Ok(vec![grant(&asked)]),
            false => Err(Refusal::new(ErrorCode::Budget, "no")),
        });
        let sent: Vec<_> = std::iter::from_fn(|| a.core.link_mut().poll_transmit(0)).collect();
        let text = events(&mut a);
        if granted {
            assert!(matches!(&sent[..], [Message::Opened { .. }]), "{sent:?}");
            // A message about an earlier epoch does not affect the current one.
            a.handle(reset(5, 2));
            assert!(a.core.poll_event().is_none());
            let both = [
                "[ConnectionLost { connection: 5, epoch: 3, cause: \"a b\" }, ",
                "ConnectionReset { connection: 5, epoch: 3 }]",
            ];
            assert_eq!(text, both.concat());
        } else {
            assert!(matches!(&sent[..], [Message::Refused { .. }, r] if *r == reset(5, 3)));
            assert_eq!(text, "[]", "no connection exists");
            // A later message of the frontend has the same result.
            a.handle(lost(5, 3));
            assert_eq!(a.last_word(), Some(reset(5, 3)));
        }
        assert!(a.core.link().in_session());
    }
}

#[test]
fn an_answer_that_was_not_asked_for_ends_the_session_and_answers_what_was() {
    let opened = |slots| {
        let connections = vec![ConnectionGrant {
            slots,
            ..grant(&connection(0, 1))
        }];
        Message::Opened { id: 1, connections }
    };
    let name = |id| Message::NameIs {
        id,
        name: "x".to_owned(),
    };
    let cases = [
        (name(9), "name_is.id: 9"),
        (name(1), "name_is.id: 1"),
        (Message::Ready { id: 1 }, "ready.id: 1"),
        (opened(9), "opened.connections"),
        (
            Message::Start { id: 1 },
            "start came where an accelerator's frame",
        ),
    ];
    for (frame, words) in cases {
        let mut f = Pair::in_session().front;
        f.open(vec![connection(0, 1)], 77);
        f.handle(frame);
        assert_has(&f.error().1, &[words]);
        let events: Vec<_> = std::iter::from_fn(|| f.core.poll_event()).collect();
        match &events[..] {
            [
                Event::Answer(77, Err(e)),
                Event::Session(ClientEvent::Gone(cause)),
            ] => assert_eq!(e.to_string(), cause.to_string()),
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_bye_ends_a_session_in_good_order_for_both() {
    let mut pair = Pair::in_session();
    pair.front.core.link_mut().bye(0);
    pair.meet();
    let causes = [pair.front.cause(), pair.node.cause()];
    assert!(
        causes.iter().all(|c| c.is_some_and(ControlError::is_clean)),
        "{causes:?}"
    );
}

/// The peer's last frames are still read then: it may have said bye, and closed.
#[test]
fn a_failed_write_ends_a_session_with_the_peers_bye_or_as_vanished() {
    for says_bye in [true, false] {
        let mut f = Pair::in_session().front;
        let broken = std::io::ErrorKind::BrokenPipe.into();
        f.core.link_mut().fail_write(&broken, MS);
        // The cause is not set yet.
        f.ask("name_is", |id| Message::Name { id }, 7);
        if says_bye {
            f.handle(Message::Bye {});
        }
        f.core.handle_timeout(200 * MS);
        let cause = match f.core.poll_event() {
            Some(Event::Answer(7, Err(cause))) => cause,
            other => panic!("{other:?}"),
        };
        let has_vanished = matches!(cause, ControlError::Vanished { .. });
        assert_eq!((cause.is_clean(), has_vanished), (says_bye, !says_bye));
    }
}

/// A peer that accepts no bytes is neither read nor waited for without limit.
#[test]
fn a_peer_that_takes_no_answers_is_held_up_then_given_up() {
    let mut a = Pair::in_session().node.core;
    for id in 1..=256 {
        a.handle(Message::Name { id }, 0);
        let name = "acc".to_owned();
        a.answer(id, Ok(Message::NameIs { id, name }));
    }
    assert!(!a.link().wants_input(), "no request while none is answered");
    assert!(a.link_mut().poll_transmit(0).is_some());
    assert!(a.link().wants_input());
    let (mut seq, mut now) = (0, 0);
    while !a.link().is_over() {
        now = a.poll_timeout().expect("not over");
        // The peer sends heartbeats but reads nothing.
        seq += 1;
        a.handle(heartbeat(seq, None), now);
        a.handle_timeout(now);
    }
    assert_eq!(now, 200 * MS, "a step");
    let cause = a.link().cause().expect("over").to_string();
    assert_has(&cause, &["room to send a frame"]);
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any frames in any order, to either role, at any point: they are in order, or the session
    /// ends and the peer gets an error about one of its frames.
    #[test]
    fn any_frames_in_any_order_are_taken_or_refused_by_name(
        frames in prop::collection::vec(message(), 1..12), shaken: bool, to_accelerator: bool)
    {
        fn feed(side: &mut Side<impl Core>, frames: &[Message]) -> Result<(), TestCaseError> {
            let kinds: Vec<_> = frames.iter().map(Message::kind).collect();
            for m in frames {
                side.handle(m.clone());
                while side.core.poll_event().is_some() {}
            }
            let last = side.last_word();
            match side.cause() {
                None => prop_assert_ne!(last.map_or("", |m| m.kind()), "error"),
                // The peer sent the cause, or the peer does not fit.
                Some(ControlError::Remote { .. } | ControlError::Bye { .. }) => {}
                Some(ControlError::Refusing { code, .. }) if *code != ErrorCode::Protocol => {
                    let sent = matches!(&last, Some(Message::Error { code: c, .. }) if c == code);
                    prop_assert!(sent, "{code:?}: {last:?}");
                }
                Some(cause) => {
                    let Some(Message::Error { text, .. }) = last else {
                        return Err(TestCaseError::fail(format!("{cause}, and {last:?}")));
                    };
                    let named = kinds.iter().any(|k| text.starts_with(k));
                    prop_assert!(named, "{} of {:?}", text, kinds);
                }
            }
            Ok(())
        }
        let mut pair = match shaken {
            true => Pair::in_session(),
            false => Pair::new(local("fe-1"), local("acc-1")),
        };
        if shaken {
            pair.front.open(vec![connection(0, 1)], 1);
            pair.front.ask("name_is", |id| Message::Name { id }, 2);
        }
        match to_accelerator {
            true => feed(&mut pair.node, &frames)?,
            false => feed(&mut pair.front, &frames)?,
        }
    }
}
