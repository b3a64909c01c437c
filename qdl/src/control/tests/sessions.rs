//! Sessions in normal use, and refusals that a user meets.

use super::*;
use crate::testkit::runtime;

/// A node without a token.
fn open(node: &str) -> LocalNode {
    LocalNode {
        auth: Auth::Unset,
        ..local(node)
    }
}

#[tokio::test]
async fn a_session_from_hello_to_bye_and_the_next_frontend_after_it() {
    let server = bind(local("acc-1")).await;
    let address = server.address();
    let mut calls = serve(server);

    for round in 0..2 {
        let session = connect(address, local("fe-1")).await.expect("connected");
        assert_eq!(session.peer_node, "acc-1");
        assert_eq!(session.peer_address, address);
        let (handle, mut events) = (session.handle, session.events);

        let asked = vec![connection(0, 1), connection(1, 1)];
        let grants = handle
            .open(asked.clone())
            .within(LONG)
            .await
            .expect("opened");
        assert_eq!(grants.len(), 2);
        handle.start().within(LONG).await.expect("ready");

        let name = handle.name().within(LONG).await.expect("a name");
        assert_eq!(name, "acc-1 (null engine)");

        handle.connection_lost(1, 1, "cable\nout");
        handle.connection_reset(1, 1);
        let again = handle.open(vec![connection(1, 2)]).within(LONG).await;
        let again = again.expect("opened again");
        assert_eq!((again[0].connection, again[0].epoch), (1, 2));

        let (counters, ..) = handle.drain().within(LONG).await.expect("drained");
        assert_eq!(counters.responded, 11);
        let said = handle.describe().within(LONG).await.expect("described");
        assert_eq!((&*said.machine, &*said.config), ("{}", "node: acc-1\n"));
        let beat = timeout(LONG, async {
            loop {
                if let ClientEvent::Heartbeat(c) = events.next().await {
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

        let received = until_gone(&mut calls).await;
        assert_eq!(
            received[..received.len() - 1],
            [
                HandlerCall::Open(asked),
                HandlerCall::Lost(1, 1, "cable out".to_owned()),
                HandlerCall::Reset(1, 1),
                HandlerCall::Open(vec![connection(1, 2)]),
            ]
        );
        assert!(
            matches!(received.last(), Some(HandlerCall::Gone(_, true))),
            "{received:?}"
        );
    }
}

#[tokio::test]
async fn a_frontend_that_said_goodbye_is_done_even_if_it_takes_nothing_more() {
    let mut server = bind(local("acc-1")).await;
    let address = server.address();
    let (handler, _heard) = Handler::new();
    // A process that ends closes its socket, even with unread bytes.
    let client = std::thread::spawn(move || {
        runtime().block_on(async {
            let ClientSession {
                handle, mut events, ..
            } = connect(address, local("fe-1")).await.expect("connected");
            handle.bye();
            assert!(gone(&mut events).await.is_clean());
        });
    });
    let session = server.accept_session().await.expect("a session");
    let sender = session.handle.clone();
    aside(move || client.join()).await.expect("said good-bye");

    // The client is gone before the accelerator sends the first of these.
    (0..100).for_each(|i| sender.connection_lost(i, 1, "closed"));
    let cause = timeout(LONG, session.run(handler)).await.expect("ends");
    assert!(cause.is_clean(), "{cause}");
}

#[tokio::test]
async fn a_second_frontend_is_told_who_is_served_and_let_in_afterwards() {
    let server = bind(local("acc-1")).await;
    let address = server.address();
    let mut calls = serve(server);
    let first = connect(address, local("fe-1")).await.expect("connected");
    let e = connect(address, local("fe-2")).await.expect_err("an error");
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

    // Dropping the handle counts as a bye.
    drop(first);
    timeout(LONG, async {
        loop {
            match connect(address, local("fe-2")).await {
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
    let received = until_gone(&mut calls).await;
    assert!(
        matches!(received.last(), Some(HandlerCall::Gone(_, true))),
        "{received:?}"
    );
}

#[tokio::test]
async fn a_frontend_that_comes_while_the_model_loads_is_told_so_and_let_in_afterwards() {
    let LocalNode { model, own, .. } = local("acc-1");
    let server = bind(LocalNode {
        model: ModelSpec::opaque("not known yet", 1, 1),
        own: RolePart::Loading,
        ..local("acc-1")
    })
    .await;
    let early = connect(server.address(), local("fe-1")).await;
    let early = early.expect_err("it loads");
    assert_eq!(early.not_yet(), Some(NotYet::Loading), "{early}");
    // A wrong token needs no ready engine.
    let foreign = LocalNode {
        auth: token("f"),
        ..local("fe-1")
    };
    let e = connect(server.address(), foreign)
        .await
        .expect_err("foreign");
    assert_eq!(e.not_yet(), None, "{e}");
    if let RolePart::Engine(engine) = own {
        server.loaded(model, engine);
    }
    let session = connect(server.address(), local("fe-1"))
        .await
        .expect("loaded");
    assert_eq!(session.engine.name, "digest");
}

/// A label of more than 63 bytes has no address, and no resolver is asked for it.
#[tokio::test]
async fn a_name_without_an_address_may_get_one_later() {
    let name = format!("{}.example:7400", "a".repeat(64));
    let e = ClientSession::connect(name.clone(), local("fe-1")).await;
    let e = e.expect_err("no address");
    assert_eq!(e.not_yet(), Some(NotYet::Absent("has no address yet")));
    assert!(
        e.to_string()
            .starts_with(&format!("{name}: no address of this name: ")),
        "{e}"
    );
}

#[tokio::test]
async fn a_port_in_use_an_open_address_and_bad_settings_refuse_to_start() {
    let server = bind(local("acc-1")).await;
    let e = Server::bind(server.address(), 16, local("acc-1"))
        .await
        .expect_err("an error");
    let text = e.to_string();
    assert!(
        text.contains("control.listen")
            && text.contains(&format!("{} is in use", server.address())),
        "{text}"
    );

    let e = Server::bind(([0, 0, 0, 0], 0).into(), 16, open("acc-1"))
        .await
        .expect_err("an error");
    assert!(e.to_string().contains("token_file"), "{e}");

    let bad = Server::bind(any_port(), 16, local("two words")).await;
    let e = bad.expect_err("an error");
    assert!(
        matches!(e, ControlError::Setting { key: "node", .. }),
        "{e}"
    );

    let free = TcpListener::bind(any_port()).await;
    let address = free.and_then(|l| l.local_addr()).expect("bound");
    let e = connect(address, local("fe-1")).await.expect_err("an error");
    assert!(matches!(e, ControlError::Connect { .. }), "{e}");
    assert!(e.to_string().contains(&address.to_string()), "{e}");
}

#[tokio::test]
async fn a_session_that_is_dropped_is_over_for_both_sides_once() {
    let mut server = bind(local("acc-1")).await;
    let client = tokio::spawn(connect(server.address(), local("fe-1")));
    let session = server.accept_session().await.expect("a session");
    let ClientSession {
        handle, mut events, ..
    } = client.await.expect("ran").expect("connected");
    let (handler, mut calls) = Handler::new();
    let running = tokio::spawn(session.run(handler));
    handle.name().within(LONG).await.expect("it runs");
    running.abort();
    assert!(running.await.expect_err("aborted").is_cancelled());
    let cause = gone(&mut events).await;
    assert!(matches!(cause, ControlError::Vanished { .. }), "{cause}");
    until_gone(&mut calls).await;
    assert_eq!(calls.recv().await, None, "nothing comes after the end");
}

/// The thread of the runtime was held up, and then has something to say before the runtime has
/// looked at its sockets: what the peer has said meanwhile is there.
#[tokio::test]
async fn a_thread_that_was_held_up_does_not_take_its_peer_for_silent() {
    let (tell, received) = std::sync::mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let there = std::thread::spawn(move || {
        runtime().block_on(async {
            let server = bind(local("acc-1")).await;
            tell.send(server.address()).expect("awaited");
            let _heard = serve(server);
            let _ = ended.await;
        });
    });
    let address = received.recv().expect("bound");
    let mut hasty = local("fe-1");
    let gone_after = Duration::from_millis(300);
    hasty.timing.heartbeat.gone_after = gone_after;
    let session = connect(address, hasty).await.expect("connected");
    for time in 1..=3 {
        tokio::time::sleep(Duration::from_millis(30)).await;
        std::thread::sleep(gone_after * 4 / 3);
        let _asked = session.handle.name();
        for _ in 0..3 {
            tokio::task::yield_now().await;
        }
        let gone = session.handle.ended();
        assert!(gone.is_none(), "{time}: {gone:?}");
    }
    drop(session);
    let _ = end.send(());
    there.join().expect("no panic");
}

#[tokio::test]
async fn an_answer_that_does_not_come_is_waited_for_until_its_deadline() {
    let server = bind(local("acc-1")).await;
    let address = server.address();
    let _calls = serve(server);
    let session = connect(address, local("fe-1")).await.expect("connected");
    let ClientSession { handle, events, .. } = session;
    // The events need no reader.
    drop(events);
    match handle.drain().within(Duration::ZERO).await {
        Err(ControlError::Timeout { waiting_for, .. }) => assert_eq!(waiting_for, "drained"),
        other => panic!("{other:?}"),
    }
    // A late answer without a waiting caller is no error.
    handle.drain().within(LONG).await.expect("drained");
    let name = handle.name().within(LONG).await;
    assert_eq!(name.expect("in time"), "acc-1 (null engine)");
}
