//! Invalid input is refused, and the peer learns the reason.

use proptest::prelude::*;

use super::*;
use crate::{
    control::{
        core::accelerator::Refusal,
        frame::Codec,
        message::{Counters, VERSION},
        tests::codec::{feed, message},
    },
    testkit::assert_has,
    wire::{Description, MAX_DESCRIPTION},
};

/// Both sides' cause after one handshake.
fn handshake(f: LocalNode, a: LocalNode) -> (Option<ControlError>, Option<ControlError>) {
    let (mut f, mut a) = (frontend(f), accelerator(a));
    meet(&mut f, &mut a, 0);
    (f.link().cause().cloned(), a.link().cause().cloned())
}

fn handshake_with(change: impl FnOnce(&mut LocalNode)) -> (Option<ControlError>, ControlError) {
    let mut f = local("fe-1");
    change(&mut f);
    let (here, there) = handshake(f, local("acc-1"));
    (here, there.expect("refused"))
}

/// Checks that the peer's error frame has this code and these words.
fn assert_remote(e: Option<ControlError>, expected: ErrorCode, words: &[&str]) {
    match e {
        Some(ControlError::Remote { code, text, .. }) if code == expected => {
            assert_has(&text, words);
        }
        other => panic!("{expected}: {other:?}"),
    }
}

/// The accelerator detects the mismatch, and the frontend gets a text from its own point of view.
#[test]
fn what_does_not_fit_is_refused_and_both_sides_say_what() {
    let (here, there) = handshake(local("fe-1"), local("acc-1"));
    assert!(here.is_none() && there.is_none(), "{here:?}, {there:?}");

    let (here, there) = handshake_with(|f| f.auth = token("abcdef9876543210"));
    assert!(matches!(there, ControlError::TokenWrong { .. }), "{there}");
    assert_remote(here, ErrorCode::Auth, &["token_file", "differ"]);

    let (here, there) = handshake_with(|f| f.auth = Auth::None);
    assert!(
        matches!(there, ControlError::TokenMissing { here: true, .. }),
        "{there}"
    );
    let words = ["accelerator has a token", "frontend has none"];
    assert_remote(here, ErrorCode::Auth, &words);

    let mut open = local("acc-1");
    open.auth = Auth::None;
    let (here, there) = handshake(local("fe-1"), open);
    let there = there.expect("refused");
    assert!(
        matches!(there, ControlError::TokenMissing { here: false, .. }),
        "{there}"
    );
    let words = ["frontend has a token", "accelerator has none"];
    assert_remote(here, ErrorCode::Auth, &words);

    let (here, there) = handshake_with(|f| f.model.inputs[0].shape = vec![65]);
    let there = there.to_string();
    assert_has(&there, &["fe-1", "u8[64]", "u8[65]"]);
    let words = [
        "input 0",
        "accelerator has input: u8[64]",
        "frontend has input: u8[65]",
    ];
    assert_remote(here, ErrorCode::Model, &words);

    let (here, there) = handshake_with(|f| f.node = "acc-1".to_owned());
    assert!(matches!(there, ControlError::NameTaken { .. }), "{there}");
    assert_remote(here, ErrorCode::NameTaken, &["acc-1"]);

    // 60 ms is half-way between the accelerator's 20 and 100 ms.
    let slow = |ms| HeartbeatCfgs {
        every: Duration::from_millis(ms),
        gone_after: Duration::from_secs(1),
    };
    let (here, _) = handshake_with(|f| f.timing.heartbeat = slow(60));
    assert_remote(here, ErrorCode::Protocol, &["model.heartbeat_ms: 60"]);
    let mut f = local("fe-1");
    f.timing.heartbeat = slow(59);
    let (here, _) = handshake(f, local("acc-1"));
    assert!(here.is_none(), "{here:?}");
}

/// Each role must send its own field with the model; omitting it does not mean none.
#[test]
fn a_stream_and_an_engine_are_sent_by_their_roles_alone() {
    let stream = RolePart::Stream(Stream::None);
    let engine = EngineInfo {
        name: "x".to_owned(),
        tokens: true,
        at_once: 64,
        ..EngineInfo::default()
    };
    let (_, there) = handshake_with(|f| f.own = RolePart::Engine(engine.clone()));
    let there = there.to_string();
    assert!(there.contains("model.stream: is missing"), "{there}");
    let mut a = local("acc-1");
    a.own = stream;
    let (here, there) = handshake(local("fe-1"), a);
    let here = here.expect("refused").to_string();
    assert!(here.contains("model.engine: is missing"), "{here}");
    assert_remote(there, ErrorCode::Protocol, &["model.engine"]);

    let (mut f, mut a) = (frontend(local("fe-1")), accelerator(local("acc-1")));
    carry(&mut f, &mut a, 0);
    carry(&mut a, &mut f, 0);
    carry(&mut f, &mut a, 0);
    let both = Message::Model {
        node: "fe-1".to_owned(),
        heartbeat_ms: 10,
        spec: ModelSpec::opaque("digest", 64, 8),
        stream: Some(Stream::All),
        engine: Some(engine),
        facts: Box::default(),
    };
    a.handle(both, 0);
    let cause = a.link().cause().expect("refused").to_string();
    assert!(
        cause.contains("comes from the accelerator alone"),
        "{cause}"
    );

    let (f, a) = session();
    assert_eq!(a.link().handshake.peer_own, Some(local("fe-1").own));
    assert_eq!(f.link().handshake.peer_own, Some(local("acc-1").own));
    assert_eq!(a.link().handshake.peer_facts, local("fe-1").facts);
    assert_eq!(f.link().handshake.peer_facts, local("acc-1").facts);
}

#[test]
fn two_of_one_role_refuse_each_other() {
    let (mut f, mut g) = (frontend(local("fe-1")), frontend(local("fe-2")));
    while carry(&mut f, &mut g, 0) | carry(&mut g, &mut f, 0) {}
    for side in [&f, &g] {
        let cause = side.link().cause().expect("over");
        let is_role = matches!(
            cause,
            ControlError::Role { .. } | ControlError::Remote { .. }
        );
        assert!(is_role && cause.to_string().contains("frontend"), "{cause}");
    }
}

/// Bytes on an accelerator's port that are no frame, and what both sides say of them.
#[test]
fn a_frame_that_is_none_is_refused_with_what_is_wrong_on_both_sides() {
    let frame = |json: &[u8]| [&(json.len() as u32).to_be_bytes()[..], json].concat();
    let hello = |field: &str| {
        let nonce = "00".repeat(32);
        let json = format!(
            r#"{{"type": "hello", "version": {VERSION}, "role": "frontend",
                 "auth": "token", "nonce": "{nonce}", {field}}}"#
        );
        frame(json.as_bytes())
    };
    let long = format!(
        r#"{{"type": "connection_lost", "connection": 0, "epoch": 1, "cause": "{}"}}"#,
        "x".repeat(2049)
    );
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
        (
            frame(b"{\"type\":\"error\",\"code\":\"error\",\"text\":\"\"}"),
            "frame error",
        ),
        (frame(long.as_bytes()), "2049 bytes"),
        (hello(r#""colour": "red""#), "colour"),
        (frame(b"{\"type\":\"hello\",\"version\":99}"), "version 99"),
        (
            frame(b"{\"type\":\"hello\",\"version\":8,\"node\":\"fe-1\"}"),
            "version 8",
        ),
    ];
    for (bytes, words) in cases {
        let mut a = accelerator(local("acc-1"));
        let (frames, e) = feed(&mut Codec::before_auth(), &bytes, 1000);
        assert!(frames.is_empty(), "{words}: {frames:?}");
        a.link_mut().fail_frame(e.expect(words), 0);
        let cause = a.link().cause().expect("over").to_string();
        assert_has(&cause, &["10.0.0.1:999", words]);
        let Some(Message::Error { code, text }) = last_word(&mut a) else {
            panic!("{words}: the peer is not told");
        };
        let expected = match words {
            "version 99" => (ErrorCode::Version, "the frontend 99"),
            "version 8" => (ErrorCode::Version, "the frontend 8"),
            words => (ErrorCode::Protocol, words),
        };
        assert!(
            code == expected.0 && text.contains(expected.1),
            "{code}: {text}"
        );
    }
}

/// The version of a hello counts even if its fields are those of this version.
#[test]
fn a_first_frame_that_is_no_hello_of_this_version_is_refused() {
    let (mut f, mut a) = (frontend(local("fe-1")), accelerator(local("acc-1")));
    carry(&mut f, &mut a, 0);
    let mut hello = a.link_mut().poll_transmit(0).expect("a frame");
    let Message::Hello { version, .. } = &mut hello else {
        panic!("{hello:?}")
    };
    *version = VERSION + 1;
    f.handle(hello, 0);
    let cause = f.link().cause().cloned();
    assert!(
        matches!(cause, Some(ControlError::Version { theirs, .. }) if theirs == VERSION + 1),
        "{cause:?}"
    );
    let versions = [VERSION, VERSION + 1].map(|version| version.to_string());
    match last_word(&mut f) {
        Some(Message::Error {
            code: ErrorCode::Version,
            text,
        }) => assert_has(&text, &[&versions[0], &versions[1]]),
        other => panic!("{other:?}"),
    }
    let mut a = accelerator(local("acc-1"));
    a.handle(Message::Bye {}, 0);
    assert_has(&error_text(&mut a), &["bye", "hello"]);
}

#[test]
fn a_peer_that_closes_or_falls_silent_in_the_handshake_is_named_with_what_was_missing() {
    for (frames, missing) in ["hello", "answer", "model"].into_iter().enumerate() {
        for closes in [true, false] {
            let (mut f, mut a) = (frontend(local("fe-1")), accelerator(local("acc-1")));
            for _ in 0..frames {
                carry(&mut f, &mut a, 0);
                carry(&mut a, &mut f, 0);
            }
            if closes {
                a.link_mut().handle_eof();
            } else {
                let at = a.poll_timeout().expect("a deadline");
                a.handle_timeout(at);
            }
            let cause = a.link().cause().expect("over").to_string();
            let how = if closes {
                "closed the control connection while"
            } else {
                "no "
            };
            assert_has(&cause, &["10.0.0.1:999", how, missing]);
        }
    }
}

#[test]
fn a_refused_request_leaves_the_session_as_it_was() {
    let (mut f, mut a) = session();
    let mut ask = |connections: Option<Vec<ConnectionRequest>>| {
        match connections {
            Some(connections) => f.open(connections, 0),
            None => f.start(0),
        }
        loop {
            let (here, there) = meet(&mut f, &mut a, 0);
            if let Some(Event::Answer(0, answer)) = here.into_iter().next() {
                return answer.map_err(|e| e.to_string());
            }
            let [AcceleratorEvent::Open(asked)] = &there[..] else {
                panic!("{there:?}");
            };
            a.opened(Ok(asked.iter().map(grant).collect()));
        }
    };
    let mut refused = |connections, words: &str| {
        let text = ask(connections).expect_err(words);
        assert!(text.contains(words), "{text} lacks {words}");
    };
    refused(None, "no connection is open");
    // The frontend does not send these requests, because the peer would end the session.
    let slots = |slots| ConnectionRequest {
        slots,
        ..connection(0, 1)
    };
    refused(Some(vec![]), "connections: 0");
    refused(Some(vec![connection(0, 0)]), "epoch 0");
    refused(Some(vec![slots(0)]), "0 slots");
    refused(Some(vec![slots(8193)]), "8193 slots");
    refused(
        Some(vec![connection(0, 1), connection(0, 2)]),
        "is there twice",
    );
    ask(Some(vec![connection(0, 2)])).expect("opened");
    for old in [1, 2] {
        let text = ask(Some(vec![connection(0, old)])).expect_err("an old epoch");
        assert_has(
            &text,
            &["acc-1 (10.0.0.2:7400)", "does not come after epoch 2"],
        );
    }
    ask(Some(vec![connection(0, 3)])).expect("opened again");
    ask(None).expect("ready after a refused start");
    let more = (1..=1024).map(|number| connection(number, 1)).collect();
    let text = ask(Some(more)).expect_err("too many");
    assert_has(&text, &["(budget)", "1025 connections", "at most 1024"]);
}

/// The last frame that a core sends.
fn last_word(core: &mut impl Core) -> Option<Message> {
    std::iter::from_fn(|| core.link_mut().poll_transmit(0)).last()
}

fn error_text(core: &mut impl Core) -> String {
    match last_word(core) {
        Some(Message::Error {
            code: ErrorCode::Protocol,
            text,
        }) => text,
        other => panic!("{other:?}"),
    }
}

/// Frames from lines of JSON with single quotation marks.
fn frames(text: &str) -> Vec<Message> {
    let quoted = text.replace('\'', "\"");
    let each = quoted.lines().map(|line| serde_json::from_str(line.trim()));
    each.map(|message| message.expect("a frame")).collect()
}

#[test]
fn a_frontend_that_breaks_the_order_is_told_which_field() {
    const OPEN: &str = "{'type': 'open', 'id': 1, 'connections': [{'connection': 0, 'nic': 0, \
        'gpu_turn': 0, 'epoch': 2, 'slots': 4, 'request_stride': 64, 'response_stride': 24, \
        'transport': {'fabric': 'tcp', \
        'end': '3333333333333333333333333333333333333333333333333333333333333333'}}]}\n";
    let start = "{'type': 'start', 'id': 2}\n";
    let beat = "{'type': 'heartbeat', 'seq': 1}\n";
    let counters = "{'type': 'heartbeat', 'seq': 1, 'counters': {'arrived': 0, 'responded': 0, \
        'refused': 0, 'dropped_late': 0, 'batches': 0, 'copies': 0, 'parts': 0, \
        'progress': 0}}";
    let lost = "{'type': 'connection_lost', 'connection': 0, 'epoch': 3, 'cause': ''}";
    let cases = [
        (
            "{'type': 'answer', 'noise': ''}".to_owned(),
            "answer came where a frontend's frame",
        ),
        (
            "{'type': 'ready', 'id': 1}".to_owned(),
            "ready came where a frontend's frame",
        ),
        (
            "{'type': 'heartbeat', 'seq': 2}".to_owned(),
            "heartbeat.seq: 2, expected 1",
        ),
        (beat.repeat(2), "heartbeat.seq: 1, expected 2"),
        (counters.to_owned(), "heartbeat.counters"),
        (
            lost.to_owned(),
            "connection_lost.connection: connection 0 was never opened",
        ),
        (
            "{'type': 'connection_reset', 'connection': 3, 'epoch': 1}".to_owned(),
            "connection_reset.connection: connection 3 was never opened",
        ),
        (
            OPEN.to_owned() + lost,
            "connection_lost.epoch: connection 0 is at epoch 2, this says 3",
        ),
        (
            OPEN.to_owned() + &start.repeat(2),
            "start.id: a session starts once",
        ),
        // One is in progress, 256 wait.
        (OPEN.repeat(258), "open.id: 256 such requests wait"),
        (
            "{'type': 'drain', 'id': 1}\n".repeat(257),
            "drain.id: 256 such requests wait",
        ),
        (
            "{'type': 'describe', 'id': 1}\n".repeat(2),
            "describe.id: one such request waits",
        ),
    ];
    for (text, words) in cases {
        let (_, mut a) = session();
        let mut frames = frames(&text);
        let last = frames.pop().expect("a frame");
        for m in frames {
            a.handle(m, 0);
            assert!(a.link().in_session(), "{words}: too early");
        }
        a.handle(last, 0);
        assert_has(&error_text(&mut a), &[words]);
    }
}

#[test]
fn a_description_past_its_limits_is_refused_and_the_session_goes_on() {
    let (mut f, mut a) = session();
    for (at, machine) in ["x".repeat(MAX_DESCRIPTION + 1), "{}".to_owned()]
        .into_iter()
        .enumerate()
    {
        f.describe(at);
        let (_, asked) = meet(&mut f, &mut a, 0);
        assert!(
            matches!(&asked[..], [AcceleratorEvent::Describe]),
            "{asked:?}"
        );
        a.described(Ok(Description {
            machine,
            ..Description::default()
        }));
        let (here, _) = meet(&mut f, &mut a, 0);
        match &here[..] {
            [Event::Answer(0, Err(e))] => {
                let words = "the description's machine: 131073 bytes";
                assert!(e.to_string().contains(words), "{e}");
            }
            [Event::Answer(1, Ok(Message::Described { description, .. }))] => {
                assert_eq!(description.machine, "{}");
            }
            other => panic!("{other:?}"),
        }
    }
}

#[test]
fn a_name_past_its_limits_is_refused_and_the_session_goes_on() {
    let (mut f, mut a) = session();
    for (name, words) in [
        ("x".repeat(257), "257 bytes, must be 1 to 256"),
        ("acc".to_owned(), ""),
    ] {
        f.name(1);
        let (_, asked) = meet(&mut f, &mut a, 0);
        let [AcceleratorEvent::Name(id)] = asked[..] else {
            panic!("{asked:?}");
        };
        a.named(id, name);
        match &meet(&mut f, &mut a, 0).0[..] {
            [Event::Answer(1, Err(e))] => assert_has(&e.to_string(), &[words]),
            [Event::Answer(1, Ok(Message::NameIs { name, .. }))] => assert_eq!(name, "acc"),
            other => panic!("{other:?}"),
        }
    }
}

/// Names from drivers and libraries are clipped, since the frontend would refuse a longer name and
/// the whole answer with it.
#[test]
fn what_a_node_says_when_it_is_drained_is_cut_to_its_limits() {
    let (mut f, mut a) = session();
    f.drain(1);
    let (_, asked) = meet(&mut f, &mut a, 0);
    assert!(asked.is_empty(), "{asked:?}");
    a.handle_timeout(0);
    let gpu = record::GpuRecord {
        name: "\u{1b}[2J".repeat(100),
        ..Default::default()
    };
    let mut used = record::NodeUse::default();
    used.threads.push(record::ThreadGroup {
        name: "\n".repeat(100),
        ..Default::default()
    });
    a.drained(
        Counters::default(),
        &Default::default(),
        vec![gpu; 65],
        used,
    );
    let (here, _) = meet(&mut f, &mut a, 0);
    let [Event::Answer(1, Ok(drained))] = &here[..] else {
        panic!("{here:?}");
    };
    assert_eq!(crate::control::limits::check(drained), Ok(()));
}

/// The frontend's messages about a connection whose open is in progress wait for the answer.
#[test]
fn a_connection_lost_before_its_open_is_answered_waits_for_the_answer() {
    let lost = "{'type': 'connection_lost', 'connection': 5, 'epoch': 3, 'cause': 'slow'}";
    let reset = "{'type': 'connection_reset', 'connection': 5, 'epoch': 3}";
    let (lost, reset) = (frames(lost).remove(0), frames(reset).remove(0));
    for granted in [true, false] {
        let (_, mut a) = session();
        let asked = connection(5, 3);
        let connections = vec![asked.clone()];
        a.handle(Message::Open { id: 1, connections }, 0);
        // The second, equal message has no effect.
        for message in [&lost, &lost, &reset] {
            a.handle(message.clone(), 0);
        }
        assert!(matches!(a.poll_event(), Some(AcceleratorEvent::Open(_))));
        assert!(a.poll_event().is_none(), "nothing before the answer");
        a.opened(match granted {
            true => Ok(vec![grant(&asked)]),
            false => Err(Refusal::new(ErrorCode::Budget, "no")),
        });
        let sent: Vec<_> = std::iter::from_fn(|| a.link_mut().poll_transmit(0)).collect();
        let events: Vec<_> = std::iter::from_fn(|| a.poll_event()).collect();
        let text = format!("{events:?}");
        if granted {
            assert!(
                matches!(&sent[..], [Message::Opened { id: 1, .. }]),
                "{sent:?}"
            );
            let passed_on = [
                "[ConnectionLost { connection: 5, epoch: 3",
                "ConnectionReset {",
            ];
            assert!(events.len() == 2, "{text}");
            assert_has(&text, &passed_on);
        } else {
            assert!(
                matches!(&sent[..], [Message::Refused { .. }, r] if *r == reset),
                "{sent:?}"
            );
            assert!(events.is_empty(), "no connection exists: {text}");
            // A later message of the frontend has the same result.
            a.handle(lost.clone(), 0);
            assert_eq!(a.link_mut().poll_transmit(0).as_ref(), Some(&reset));
        }
        assert!(a.link().in_session());
    }
}

/// A message about an earlier epoch must not affect the current one.
#[test]
fn a_frame_on_an_earlier_epoch_is_ignored() {
    let (_, mut a) = session();
    for epoch in [1, 2] {
        let connections = vec![connection(0, epoch)];
        a.handle(Message::Open { id: 1, connections }, 0);
        assert!(matches!(a.poll_event(), Some(AcceleratorEvent::Open(_))));
        a.opened(Ok(vec![grant(&connection(0, epoch))]));
    }
    let mut reset = |epoch| {
        let connection = 0;
        a.handle(Message::ConnectionReset { connection, epoch }, 0);
        a.poll_event()
    };
    assert!(reset(1).is_none());
    assert!(matches!(
        reset(2),
        Some(AcceleratorEvent::ConnectionReset { epoch: 2, .. })
    ));
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
        let (mut f, _) = session();
        f.open(vec![connection(0, 1)], 77);
        f.handle(frame, 0);
        let text = error_text(&mut f);
        assert!(text.contains(words), "{text:?} lacks {words:?}");
        let events: Vec<_> = std::iter::from_fn(|| f.poll_event()).collect();
        match &events[..] {
            [
                Event::Answer(77, Err(e)),
                Event::Session(ClientEvent::Gone(cause)),
            ] => {
                assert_eq!(e.to_string(), cause.to_string());
            }
            other => panic!("{other:?}"),
        }
    }
}

/// The peer's last frames are still read then, and the cause is not set yet.
#[test]
fn a_request_after_a_failed_write_gets_the_cause_of_the_sessions_end() {
    let (mut f, _) = session();
    let broken = std::io::ErrorKind::BrokenPipe.into();
    f.link_mut().fail_write(broken, MS);
    f.name(7);
    f.handle_timeout(200 * MS);
    let answer = f.poll_event();
    let vanished = matches!(
        answer,
        Some(Event::Answer(7, Err(ControlError::Vanished { .. })))
    );
    assert!(vanished, "{answer:?}");
}

/// A peer that accepts no bytes is neither read nor waited for without limit.
#[test]
fn a_peer_that_takes_no_answers_is_held_up_then_given_up() {
    let (_, mut a) = session();
    for id in 1..=256 {
        a.handle(Message::Name { id }, 0);
        a.named(id, "acc".to_owned());
    }
    assert!(
        !a.link().wants_input(),
        "no more requests while none is answered"
    );
    assert!(a.link_mut().poll_transmit(0).is_some());
    assert!(a.link().wants_input());
    let mut seq = 0;
    let mut now = 0;
    while !a.link().is_over() {
        now = a.poll_timeout().expect("not over");
        // The peer sends heartbeats but reads nothing.
        seq += 1;
        let beat = Message::Heartbeat {
            seq,
            counters: None,
            scores: None,
        };
        a.handle(beat, now);
        a.handle_timeout(now);
    }
    assert_eq!(now, nanos(local("x").timing.step));
    let cause = a.link().cause().expect("over").to_string();
    assert!(cause.contains("room to send a frame"), "{cause}");
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(200))]

    /// Any frames in any order, to either role, at any point: they are in order, or the session
    /// ends and the peer gets an error about one of its frames.
    #[test]
    fn any_frames_in_any_order_are_taken_or_refused_by_name(
        frames in prop::collection::vec(message(), 1..12), shaken: bool, to_accelerator: bool)
    {
        let (mut f, mut a) = if shaken {
            session()
        } else {
            (frontend(local("fe-1")), accelerator(local("acc-1")))
        };
        if shaken {
            f.open(vec![connection(0, 1)], 1);
            f.name(2);
        }
        fn feed(core: &mut impl Core, frames: &[Message]) -> Result<(), TestCaseError> {
            let kinds: Vec<_> = frames.iter().map(Message::kind).collect();
            for m in frames {
                core.handle(m.clone(), 0);
                while core.poll_event().is_some() {}
            }
            let last = last_word(core);
            match core.link().cause() {
                None => prop_assert_ne!(last.map_or("", |m| m.kind()), "error"),
                // The peer sent the cause, or the peer does not fit.
                Some(ControlError::Remote { .. } | ControlError::Bye { .. }
                    | ControlError::Version { .. } | ControlError::Role { .. }
                    | ControlError::TokenMissing { .. } | ControlError::TokenWrong { .. }) => {}
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
        if to_accelerator {
            feed(&mut a, &frames)?;
        } else {
            feed(&mut f, &frames)?;
        }
    }
}
