//! Peers that are silent, broken, hostile or of a different version.

use fabric::clock::now_ns;
use proptest::prelude::*;

use super::*;
use crate::{
    control::{
        core::{Local, Own},
        lobby::{Guest, Proof},
        message::VERSION,
        shell::{Served, greet},
    },
    testkit::assert_has,
};

fn open_server() -> ServerParams {
    ServerParams {
        auth: Auth::Unset,
        ..server_params()
    }
}

fn open_client(address: SocketAddr) -> ClientParams {
    ClientParams {
        auth: Auth::Unset,
        ..client_params(address)
    }
}

/// The accelerator's error for a peer; the error must name the peer's address.
async fn accelerator_on<F: Future<Output = ()>>(
    deadline: Duration,
    peer: impl FnOnce(Raw) -> F,
) -> String {
    let (l, address) = listener().await;
    let local = Local {
        node: "acc-1".to_owned(),
        auth: Auth::Unset,
        model: model(),
        own: Own::Engine(engine()),
        facts: facts("there"),
        heartbeat: patient().heartbeat,
        deadline,
    };
    let there = async {
        let (stream, from) = l.accept().await.expect("accepted");
        let guest = Guest {
            stream,
            address: from,
            since_ns: now_ns(),
            speaks: true,
            proof: Proof::default(),
        };
        let e = greet(guest, Arc::new(local), Served::default()).await;
        let e = e.map(|_| ()).expect_err("not a frontend");
        let text = e.to_string();
        assert!(
            text.contains(&from.to_string()),
            "{text} does not name {from}"
        );
        text
    };
    let here = async { peer(Raw::connect(address).await).await };
    let (text, ()) = timeout(LONG, async { tokio::join!(there, here) })
        .await
        .expect("nobody hangs");
    text
}

#[tokio::test]
async fn a_frame_that_is_none_is_refused_with_what_is_wrong_on_both_sides() {
    let frame = |json: &[u8]| {
        let mut b = (json.len() as u32).to_be_bytes().to_vec();
        b.extend(json);
        b
    };
    let long_name = hello(&"x".repeat(65)).to_string();
    let mut extra = hello("fe-1");
    extra["colour"] = json!("red");
    let mut short_nonce = hello("fe-1");
    short_nonce["nonce"] = json!("00");
    let cases: Vec<(Vec<u8>, &str)> = vec![
        (
            b"GET / HTTP/1.1\r\nHost: acc\r\n\r\n".to_vec(),
            "a frame of 1195725856 bytes, 4096 are allowed",
        ),
        (
            (1u32 << 20).to_be_bytes().to_vec(),
            "a frame of 1048576 bytes, 4096 are allowed",
        ),
        (frame(b"{\"type\""), "no JSON object"),
        (frame(b"[1,2]"), "no JSON object"),
        (frame(b""), "no JSON object"),
        (frame(b"\xff\xfe"), "no JSON object"),
        (frame(b"{\"a\":1}"), "without a field `type`"),
        (frame(b"{\"type\":7}"), "without a field `type`"),
        (frame(b"{\"type\":\"hallo\"}"), "unknown type \"hallo\""),
        (frame(b"{\"type\":\"hello\"}"), "missing field"),
        (frame(long_name.as_bytes()), "node: 65 bytes"),
        (frame(extra.to_string().as_bytes()), "colour"),
        (
            frame(short_nonce.to_string().as_bytes()),
            "64 hexadecimal digits",
        ),
        (frame(b"{\"type\":\"bye\"}"), "bye"),
    ];
    for (bytes, words) in cases {
        let here = accelerator_on(LONG, |mut raw| async move {
            raw.bytes(&bytes).await;
            let there = raw.refusal("protocol").await;
            assert!(
                there.contains(words),
                "told {there:?}, which lacks {words:?}"
            );
        })
        .await;
        assert!(here.contains(words), "{here:?} lacks {words:?}");
    }
}

#[tokio::test]
async fn a_frame_cut_short_is_not_a_clean_end() {
    for cut in [1, 4, 9] {
        let text = accelerator_on(LONG, |mut raw| async move {
            raw.bytes(&[&[0, 0, 0, 20], &b"{\"type\":\"he"[..]].concat()[..cut])
                .await;
            raw.0.shutdown().await.expect("shut");
            raw.hear().await;
        })
        .await;
        assert_has(&text, &[&format!("inside a frame, {cut} bytes into it")]);
    }
}

#[tokio::test]
async fn a_peer_that_closes_or_falls_silent_in_the_handshake_is_named_with_what_was_missing() {
    let frames = [hello("fe-1"), json!({"type": "answer"})];
    let missing = ["hello", "answer", "model"];
    let cases = (0..=frames.len()).flat_map(|said| [(said, true), (said, false)]);
    let cases = cases.map(|(said, close)| {
        let frames = frames[..said].to_vec();
        let deadline = if close {
            LONG
        } else {
            Duration::from_millis(400)
        };
        async move {
            let text = accelerator_on(deadline, |mut raw| async move {
                for f in frames {
                    let kind = f["type"].as_str().expect("a type").to_owned();
                    raw.say(f).await;
                    raw.hear_type(&kind).await;
                }
                if close {
                    raw.0.shutdown().await.expect("shut");
                }
                while raw.hear().await.is_some() {}
            })
            .await;
            let words = if close {
                "closed the control connection while"
            } else {
                "no "
            };
            assert!(
                text.contains(words) && text.contains(missing[said]),
                "{text}"
            );
        }
    });
    futures_util::future::join_all(cases).await;
}

#[tokio::test]
async fn both_sides_report_both_versions() {
    // A hello of a different version may have any other fields.
    let theirs = json!({"type": "hello", "version": 99, "speed": "ludicrous"});
    let here = accelerator_on(LONG, |mut raw| async move {
        raw.say(theirs).await;
        let there = raw.refusal("version").await;
        assert_has(&there, &[&format!("version {VERSION}"), "99"]);
    })
    .await;
    assert_has(&here, &["version 99", &format!("speaks {VERSION}")]);

    let (l, address) = listener().await;
    let frontend = tokio::spawn(ClientSession::connect(open_client(address)));
    let mut raw = Raw(l.accept().await.expect("accepted").0);
    assert_eq!(raw.hear_type("hello").await["version"], VERSION);
    let mut theirs = hello("acc-1");
    theirs["version"] = json!(VERSION + 1);
    theirs["role"] = json!("accelerator");
    raw.say(theirs).await;
    let there = raw.refusal("version").await;
    assert_has(
        &there,
        &[&format!("version {VERSION}"), &(VERSION + 1).to_string()],
    );
    let e = frontend.await.expect("ran").expect_err("an error");
    assert!(
        matches!(e, ControlError::Version { theirs, .. } if theirs == VERSION + 1),
        "{e}"
    );
}

#[tokio::test]
async fn those_who_knock_and_never_speak_keep_nobody_out() {
    let server = bind(ServerParams {
        pending: 2,
        ..open_server()
    })
    .await;
    let address = server.address();
    let _heard = serve(server);
    let mut silent = Vec::new();
    for _ in 0..6 {
        silent.push(Raw::connect(address).await);
    }
    let session = ClientSession::connect(open_client(address))
        .await
        .expect("let in");
    session.handle.name().within(LONG).await.expect("served");
    // The oldest silent peers were evicted.
    assert_eq!(silent[0].hear().await, None);
    // Also during a session, a stranger disturbs nothing.
    let mut raw = Raw::connect(address).await;
    raw.bytes(&[0xff; 64]).await;
    raw.refusal("protocol").await;
    session
        .handle
        .name()
        .within(LONG)
        .await
        .expect("still served");
}

#[tokio::test]
async fn a_slow_frontend_gets_in_through_a_flood_of_silent_peers() {
    let params = open_server();
    let pending = params.pending;
    let server = bind(params).await;
    let address = server.address();
    let _heard = serve(server);
    let flood = async |n: usize| {
        let mut silent = Vec::new();
        for _ in 0..n {
            silent.push(Raw::connect(address).await);
        }
        silent
    };
    let mut raw = Raw::connect(address).await;
    // The frontend is about to lose its place when it speaks, and from then on it keeps the place.
    let _silent = flood(pending - 1).await;
    raw.say(hello("fe-1")).await;
    raw.hear_type("hello").await;
    let _more = flood(10 * pending).await;
    raw.say(json!({"type": "answer"})).await;
    raw.hear_type("answer").await;
    let _more = flood(10 * pending).await;
    raw.say(json!({"type": "model", "spec": model(), "stream": "none", "facts": {}}))
        .await;
    raw.hear_type("model").await;
}

#[test]
fn random_bytes_on_the_port_break_nothing() {
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let server = runtime.block_on(bind(open_server()));
    let address = server.address();
    let _heard = runtime.block_on(async { serve(server) });
    let mut runner = proptest::test_runner::TestRunner::new(ProptestConfig {
        cases: 64,
        ..ProptestConfig::default()
    });
    let bytes = prop::collection::vec(any::<u8>(), 0..200);
    let framed = (bytes.clone(), any::<bool>()).prop_map(|(b, framed)| {
        if framed {
            [(b.len() as u32).to_be_bytes().to_vec(), b].concat()
        } else {
            b
        }
    });
    runner
        .run(&framed, |bytes| {
            runtime.block_on(async {
                let mut raw = Raw::connect(address).await;
                raw.bytes(&bytes).await;
                raw.0.shutdown().await.expect("shut");
                // At most one frame, an error, and the end.
                if let Some(frame) = raw.hear().await {
                    prop_assert_eq!(&frame["type"], "error");
                    prop_assert_eq!(raw.hear().await, None);
                }
                Ok(())
            })
        })
        .expect("nothing breaks");
    runtime.block_on(async {
        let session = ClientSession::connect(open_client(address))
            .await
            .expect("let in");
        session.handle.name().within(LONG).await.expect("served");
    });
}

#[tokio::test]
async fn a_silent_frontend_is_gone_and_the_next_is_served() {
    let server = bind(ServerParams {
        timing: hasty(),
        ..open_server()
    })
    .await;
    let address = server.address();
    let mut heard = serve(server);
    let mut raw = Raw::connect(address).await;
    raw.handshake("fe-1").await;
    let text = raw.refusal("protocol").await;
    assert!(text.contains("heard nothing from the frontend"), "{text}");
    let told = until_gone(&mut heard).await;
    match &told[..] {
        [Told::Gone(cause, false)] => {
            assert!(cause.contains("fe-1") && cause.contains("gone"), "{cause}");
        }
        other => panic!("{other:?}"),
    }
    Raw::connect(address).await.handshake("fe-2").await;
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_waited_for_until_its_deadline() {
    let (l, address) = listener().await;
    let frontend = tokio::spawn(ClientSession::connect(open_client(address)));
    let mut raw = Raw(l.accept().await.expect("accepted").0);
    accept(&mut raw).await;
    let ClientSession { handle, events, .. } = frontend.await.expect("ran").expect("connected");
    // The events need no reader.
    drop(events);
    let short = Duration::from_millis(5);
    let e = handle.drain().within(short).await.expect_err("an error");
    assert!(
        matches!(
            e,
            ControlError::Timeout {
                waiting_for: "drained",
                ..
            }
        ),
        "{e}"
    );
    let h = handle.clone();
    let e = aside(move || h.name().wait(short))
        .await
        .expect_err("an error");
    assert!(
        matches!(
            e,
            ControlError::Timeout {
                waiting_for: "name_is",
                ..
            }
        ),
        "{e}"
    );
    // A late answer without a waiting caller is no error.
    raw.hear_type("drain").await;
    let asked = raw.hear_type("name").await;
    raw.say(json!({"type": "name_is", "id": asked["id"], "name": "late"}))
        .await;
    let h = handle.clone();
    let again = tokio::spawn(aside(move || h.name().wait(LONG)));
    let asked = raw.hear_type("name").await;
    raw.say(json!({"type": "name_is", "id": asked["id"], "name": "in time"}))
        .await;
    assert_eq!(again.await.expect("ran").expect("a name"), "in time");
}

/// Performs the accelerator's side of the handshake, without a token.
async fn accept(raw: &mut Raw) {
    raw.hear_type("hello").await;
    let mut ours = hello("acc-1");
    ours["role"] = json!("accelerator");
    raw.say(ours).await;
    raw.hear_type("answer").await;
    raw.say(json!({"type": "answer"})).await;
    raw.hear_type("model").await;
    let engine = json!({"name": "digest", "tokens": false});
    raw.say(json!({"type": "model", "spec": model(), "engine": engine, "facts": {}}))
        .await;
}
