//! Both sides as they are meant to be used, and the refusals that a user meets.

use super::*;
use crate::control::{
    handshake::{Local, Served, admit, join},
    wire::Wire,
};

#[tokio::test]
async fn a_session_from_hello_to_bye_and_the_next_frontend_after_it() {
    let server = bind(server_params()).await;
    let address = server.address();
    let mut heard = serve(server);

    for round in 0..2 {
        let session = ClientSession::connect(client_params(address))
            .await
            .expect("connected");
        assert_eq!(session.peer_node, "acc-1");
        assert_eq!(session.peer_model, model());
        assert_eq!(session.peer_address, address);
        let (handle, mut events) = (session.handle, session.events);

        let asked = vec![lane(0, 1, 16), lane(1, 1, 32)];
        let grants = handle
            .open(asked.clone())
            .within(LONG)
            .await
            .expect("opened");
        assert_eq!(grants.len(), 2);
        assert_ne!(grants[0].key, grants[1].key, "every lane has its own key");
        handle.start().within(LONG).await.expect("ready");

        // From a thread that runs no tasks, as LoadGen's does.
        let h = handle.clone();
        let name = aside(move || h.name().wait(LONG)).await.expect("a name");
        assert_eq!(name, "acc-1 (null engine)");

        handle.lane_lost(1, 1, "cable\nout");
        handle.lane_reset(1, 1);
        let again = handle.open(vec![lane(1, 2, 32)]).within(LONG).await;
        let again = again.expect("opened again");
        assert_eq!((again[0].lane, again[0].epoch), (1, 2));
        assert_ne!(again[0].key, grants[1].key, "a new epoch has a new key");

        let (counters, ..) = handle.drain().within(LONG).await.expect("drained");
        assert_eq!(counters.responded, 11);
        let beat = timeout(LONG, async {
            loop {
                if let Some(ClientEvent::Heartbeat(c)) = events.next().await {
                    return c;
                }
            }
        });
        assert_eq!(beat.await.expect("a heartbeat").responded, 11);

        handle.bye();
        let cause = gone(&mut events).await;
        assert!(cause.is_clean(), "round {round}: {cause}");
        assert!(handle.ended().is_some_and(|c| c.is_clean()));
        let late = handle.name().within(LONG).await.expect_err("an error");
        assert!(late.is_clean(), "asked after the end: {late}");

        let told = until_gone(&mut heard).await;
        let calls: Vec<_> = told
            .iter()
            .filter(|t| !matches!(t, Told::Heartbeat(_)))
            .cloned()
            .collect();
        assert_eq!(
            calls[..calls.len() - 1],
            [
                Told::Open(asked),
                Told::Start,
                Told::Lost(1, 1, "cable out".to_owned()),
                Told::Reset(1, 1),
                Told::Open(vec![lane(1, 2, 32)]),
            ]
        );
        assert!(
            matches!(calls.last(), Some(Told::Gone(_, true))),
            "{calls:?}"
        );
        assert!(
            told.iter()
                .any(|t| matches!(t, Told::Heartbeat(c) if c.arrived == 7))
        );
    }
}

#[tokio::test]
async fn a_frontend_that_said_goodbye_is_done_even_if_it_takes_nothing_more() {
    let mut server = bind(server_params()).await;
    let address = server.address();
    let (handler, _heard) = Handler::new();
    // A process that ends: its socket is closed whatever is on the way to it.
    let client = std::thread::spawn(move || {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build();
        runtime.expect("a runtime").block_on(async {
            let ClientSession {
                handle, mut events, ..
            } = ClientSession::connect(client_params(address))
                .await
                .expect("connected");
            handle.bye();
            assert!(gone(&mut events).await.is_clean());
        });
    });
    let session = server.accept_session().await.expect("a session");
    let mouth = session.handle();
    aside(move || client.join()).await.expect("said good-bye");

    // It is gone before the accelerator gets to say the first of these.
    (0..100).for_each(|i| mouth.lane_lost(i, 1, "closed"));
    let cause = timeout(LONG, session.run(handler)).await.expect("ends");
    assert!(cause.is_clean(), "{cause}");
}

#[tokio::test]
async fn what_the_accelerator_says_by_itself_reaches_the_frontend() {
    let mut server = bind(server_params()).await;
    let address = server.address();
    let (handler, _heard) = Handler::new();
    let client = tokio::spawn(ClientSession::connect(client_params(address)));
    let session = server.accept_session().await.expect("a session");
    assert_eq!(session.peer_node(), "fe-1");
    assert!(session.peer_address().ip().is_loopback());
    let mouth = session.handle();
    tokio::spawn(session.run(handler));
    let ClientSession {
        handle, mut events, ..
    } = client.await.expect("ran").expect("connected");

    aside(move || {
        mouth.lane_lost(3, 1, "port down");
        mouth.lane_reset(3, 1);
        mouth.close(ErrorCode::ShuttingDown, "SIGINT");
    })
    .await;
    let mut seen = Vec::new();
    let listen = timeout(LONG, async {
        while let Some(e) = events.next().await {
            if !matches!(e, ClientEvent::Heartbeat(_)) {
                seen.push(format!("{e:?}"));
            }
        }
    });
    listen.await.expect("gone in time");
    assert_eq!(seen.len(), 3, "{seen:?}");
    assert!(seen[0].contains("LaneLost { lane: 3, epoch: 1, cause: \"port down\" }"));
    assert!(seen[1].contains("LaneReset { lane: 3, epoch: 1 }"));
    assert!(seen[2].contains("ShuttingDown") && seen[2].contains("SIGINT"));
    let cause = handle.ended().expect("over");
    assert!(
        matches!(
            cause,
            ControlError::Remote {
                code: ErrorCode::ShuttingDown,
                ..
            }
        ),
        "{cause}"
    );
    drop(handle);
}

#[tokio::test]
async fn a_refused_request_leaves_the_session_as_it_was() {
    let server = bind(server_params()).await;
    let address = server.address();
    let _heard = serve(server);
    let session = ClientSession::connect(client_params(address))
        .await
        .expect("connected");
    let ask = |lanes| session.handle.open(lanes).within(LONG);

    let e = session
        .handle
        .start()
        .within(LONG)
        .await
        .expect_err("an error");
    assert!(e.to_string().contains("no lane is open"), "{e}");

    let e = ask(vec![lane(0, 1, 5000)]).await.expect_err("an error");
    assert!(
        matches!(
            &e,
            ControlError::Refused {
                code: ErrorCode::Budget,
                asked: "open",
                ..
            }
        ),
        "{e}"
    );
    let text = e.to_string();
    assert!(
        text.contains("5000") && text.contains("acc-1 (127.0.0.1:"),
        "{text}"
    );

    // Not even sent: the peer would end the session.
    for bad in [
        vec![],
        vec![lane(0, 0, 1)],
        vec![lane(0, 1, 0)],
        vec![lane(0, 1, 8193)],
        vec![lane(0, 1, 1), lane(0, 2, 1)],
    ] {
        let e = ask(bad).await.expect_err("an error");
        assert!(
            matches!(e, ControlError::Setting { key: "lanes", .. }),
            "{e}"
        );
    }

    ask(vec![lane(0, 2, 1)]).await.expect("opened");
    for old in [1, 2] {
        let e = ask(vec![lane(0, old, 1)]).await.expect_err("an error");
        assert!(e.to_string().contains("does not come after epoch 2"), "{e}");
    }
    ask(vec![lane(0, 3, 1)]).await.expect("opened again");
    session
        .handle
        .start()
        .within(LONG)
        .await
        .expect("ready after a refused start");
}

#[tokio::test]
async fn a_second_frontend_is_told_who_is_served_and_let_in_afterwards() {
    let server = bind(server_params()).await;
    let address = server.address();
    let mut heard = serve(server);
    let first = ClientSession::connect(client_params(address))
        .await
        .expect("connected");
    let second = || ClientParams {
        node: "fe-2".to_owned(),
        ..client_params(address)
    };
    let e = ClientSession::connect(second())
        .await
        .expect_err("an error");
    assert!(
        matches!(
            e,
            ControlError::Remote {
                code: ErrorCode::Busy,
                ..
            }
        ),
        "{e}"
    );
    assert!(e.to_string().contains("fe-1"), "{e}");
    first
        .handle
        .name()
        .within(LONG)
        .await
        .expect("the first is not disturbed");

    // Dropped without a word: as good as a bye.
    drop(first);
    timeout(LONG, async {
        loop {
            match ClientSession::connect(second()).await {
                Ok(session) => return session,
                Err(ControlError::Remote {
                    code: ErrorCode::Busy,
                    ..
                }) => {
                    tokio::time::sleep(Duration::from_millis(5)).await;
                }
                Err(e) => panic!("{e}"),
            }
        }
    })
    .await
    .expect("let in");
    let told = until_gone(&mut heard).await;
    assert!(matches!(told.last(), Some(Told::Gone(_, true))), "{told:?}");
}

/// Both sides' word on one handshake.
async fn meet(frontend: Local, accelerator: Local) -> (Option<ControlError>, Option<ControlError>) {
    let (l, address) = listener().await;
    let here = async {
        let stream = TcpStream::connect(address).await.expect("connected");
        let mut wire = Wire::new(stream, address.to_string(), LONG).expect("a wire");
        let e = join(&mut wire, &frontend).await.err();
        if let Some(e) = &e {
            wire.close(e, Role::Frontend).await;
        }
        e
    };
    let there = async {
        let (stream, from) = l.accept().await.expect("accepted");
        let mut wire = Wire::new(stream, from.to_string(), LONG).expect("a wire");
        let e = admit(&mut wire, &accelerator, &Served::default())
            .await
            .err();
        if let Some(e) = &e {
            wire.close(e, Role::Accelerator).await;
        }
        e
    };
    tokio::join!(here, there)
}

fn local(role: Role) -> Local {
    Local {
        role,
        node: match role {
            Role::Frontend => "fe-1".to_owned(),
            Role::Accelerator => "acc-1".to_owned(),
        },
        auth: token(TOKEN),
        model: model(),
        heartbeat: patient().heartbeat,
        deadline: LONG,
    }
}

/// The accelerator finds out; the frontend is told, in words that make sense on its side.
#[tokio::test]
async fn what_does_not_fit_is_refused_and_both_sides_say_what() {
    let (none, _) = meet_with(|_| {}).await;
    assert!(none.is_none(), "{none:?}");

    let other = "another token of the right length";
    let (here, there) = meet_with(|f| f.auth = token(other)).await;
    assert!(
        matches!(there, Some(ControlError::TokenWrong { .. })),
        "{there:?}"
    );
    told(here, ErrorCode::Auth, &["token_file", "differ"]);

    let (here, there) = meet_with(|f| f.auth = Auth::None).await;
    assert!(
        matches!(there, Some(ControlError::TokenMissing { here: true, .. })),
        "{there:?}"
    );
    told(
        here,
        ErrorCode::Auth,
        &["accelerator has a token", "frontend has none"],
    );

    let (here, there) = meet_full(
        local(Role::Frontend),
        Local {
            auth: Auth::None,
            ..local(Role::Accelerator)
        },
    )
    .await;
    assert!(
        matches!(there, Some(ControlError::TokenMissing { here: false, .. })),
        "{there:?}"
    );
    told(
        here,
        ErrorCode::Auth,
        &["frontend has a token", "accelerator has none"],
    );

    let (here, there) = meet_with(|f| f.model.inputs[0].shape = vec![65]).await;
    let there = there.expect("refused").to_string();
    assert!(
        there.contains("fe-1") && there.contains("u8[64]") && there.contains("u8[65]"),
        "{there}"
    );
    told(
        here,
        ErrorCode::Model,
        &[
            "input 0",
            "accelerator has input: u8[64]",
            "frontend has input: u8[65]",
        ],
    );

    let (here, there) = meet_with(|f| f.node = "acc-1".to_owned()).await;
    assert!(
        matches!(there, Some(ControlError::NameTaken { .. })),
        "{there:?}"
    );
    told(here, ErrorCode::NameTaken, &["acc-1"]);

    let (here, there) = meet_with(|f| f.role = Role::Accelerator).await;
    assert!(
        matches!(there, Some(ControlError::Role { .. })),
        "{there:?}"
    );
    told(here, ErrorCode::Role, &["both sides are accelerators"]);

    let (here, _) = meet_with(|f| f.heartbeat.every = LONG).await;
    told(here, ErrorCode::Protocol, &["heartbeat_ms", "20000"]);
}

/// An accelerator that does not check is found out by the frontend.
#[tokio::test]
async fn the_frontend_checks_for_itself() {
    let (l, address) = listener().await;
    let frontend = tokio::spawn(ClientSession::connect(client_params(address)));
    let mut raw = Raw(l.accept().await.expect("accepted").0);
    let theirs = raw.hear_type("hello").await;
    let mut answer = theirs.clone();
    answer["role"] = json!("accelerator");
    answer["node"] = json!("acc-1");
    raw.say(answer).await;
    // A proof played back is no proof.
    let proof = raw.hear_type("answer").await;
    raw.say(proof).await;
    let text = raw.refusal("auth").await;
    assert!(text.contains("token"), "{text}");
    let e = frontend.await.expect("ran").expect_err("an error");
    assert!(matches!(e, ControlError::TokenWrong { .. }), "{e}");
}

async fn meet_with(
    change: impl FnOnce(&mut Local),
) -> (Option<ControlError>, Option<ControlError>) {
    let mut frontend = local(Role::Frontend);
    change(&mut frontend);
    meet_full(frontend, local(Role::Accelerator)).await
}

async fn meet_full(f: Local, a: Local) -> (Option<ControlError>, Option<ControlError>) {
    timeout(LONG, meet(f, a)).await.expect("no side hangs")
}

fn told(e: Option<ControlError>, expected: ErrorCode, words: &[&str]) {
    match e {
        Some(ControlError::Remote { code, text, .. }) if code == expected => {
            for w in words {
                assert!(text.contains(w), "{text:?} says nothing of {w:?}");
            }
        }
        other => panic!("{expected}: {other:?}"),
    }
}

#[tokio::test]
async fn a_port_in_use_an_open_address_and_bad_settings_refuse_to_start() {
    let server = bind(server_params()).await;
    let e = Server::bind(server.address(), server_params())
        .await
        .expect_err("an error");
    let text = e.to_string();
    assert!(
        matches!(e, ControlError::PortInUse { .. })
            && text.contains("control.listen")
            && text.contains(&server.address().to_string()),
        "{text}"
    );

    let open = ServerParams {
        auth: Auth::Unset,
        ..server_params()
    };
    let e = Server::bind(([0, 0, 0, 0], 0).into(), open)
        .await
        .expect_err("an error");
    assert!(e.to_string().contains("token_file"), "{e}");

    let bad = ServerParams {
        node: "two words".to_owned(),
        ..server_params()
    };
    let e = Server::bind(any_port(), bad).await.expect_err("an error");
    assert!(
        matches!(e, ControlError::Setting { key: "node", .. }),
        "{e}"
    );

    let (l, address) = listener().await;
    drop(l);
    let e = ClientSession::connect(client_params(address))
        .await
        .expect_err("an error");
    assert!(matches!(e, ControlError::Connect { .. }), "{e}");
    assert!(e.to_string().contains(&address.to_string()), "{e}");
}

#[tokio::test]
async fn a_session_that_is_dropped_is_over_for_both_sides_once() {
    let mut server = bind(server_params()).await;
    let client = tokio::spawn(ClientSession::connect(client_params(server.address())));
    let session = server.accept_session().await.expect("a session");
    let ClientSession {
        handle, mut events, ..
    } = client.await.expect("ran").expect("connected");
    let (handler, mut heard) = Handler::new();
    let running = tokio::spawn(session.run(handler));
    handle.name().within(LONG).await.expect("it runs");
    running.abort();
    assert!(running.await.expect_err("aborted").is_cancelled());
    let cause = gone(&mut events).await;
    assert!(
        matches!(cause, ControlError::Closed { .. } | ControlError::Io { .. }),
        "{cause}"
    );
    until_gone(&mut heard).await;
    assert_eq!(heard.recv().await, None, "nothing comes after the end");
}
