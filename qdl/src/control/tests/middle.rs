//! A program on the path: it forwards a control connection, and captures, changes, repeats, cuts
//! or replaces units of the handshake (a frame in clear, or a record). The fuzz target `handshake`
//! changes records of a session.

use std::{path::Path, sync::Mutex};

use fabric::wire::End;
use tokio::time::sleep;

use super::*;
use crate::testkit::assert_has;

/// The direction of a unit.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Toward {
    Frontend,
    Accelerator,
}

/// Units of a session's direction that are in clear: hello and answer.
const IN_CLEAR: usize = 2;
/// A change of one unit.
#[derive(Clone, Debug)]
enum Attack {
    /// Changes text in clear.
    Replace(&'static str, &'static str),
    /// Flips one bit of the byte at this place, counted from the end for a negative place.
    Flip(isize),
    Repeat,
    /// Forwards the first half, and closes.
    Cut,
    /// Forwards these bytes of another session instead.
    Splice(Vec<u8>),
}

/// The units of a session as captured, by direction.
type Capture = Arc<Mutex<[Vec<Vec<u8>>; 2]>>;

/// Reads a unit: a frame in clear, or a record.
async fn unit(from: &mut (impl AsyncReadExt + Unpin), index: usize) -> Option<Vec<u8>> {
    let mut unit = match index < IN_CLEAR {
        true => vec![0; 4],
        false => vec![0; 2],
    };
    from.read_exact(&mut unit).await.ok()?;
    let length = unit.iter().fold(0, |sum, b| sum << 8 | usize::from(*b));
    let at = unit.len();
    unit.resize(at + length, 0);
    from.read_exact(&mut unit[at..]).await.ok()?;
    Some(unit)
}

/// Forwards one direction.
async fn forward(
    mut from: impl AsyncReadExt + Unpin,
    mut to: impl AsyncWriteExt + Unpin,
    toward: Toward,
    attack: Option<(Toward, usize, Attack)>,
    capture: Capture,
) {
    let mut index = 0;
    while let Some(mut unit) = unit(&mut from, index).await {
        capture.lock().expect("alive")[toward as usize].push(unit.clone());
        let mut cut = false;
        if let Some((_, _, attack)) = attack.as_ref().filter(|a| (a.0, a.1) == (toward, index)) {
            match attack {
                Attack::Replace(old, new) => {
                    let text = String::from_utf8_lossy(&unit[4..]).replace(old, new);
                    unit = [&(text.len() as u32).to_be_bytes()[..], text.as_bytes()].concat();
                }
                Attack::Flip(at) => {
                    let at = at.rem_euclid(unit.len() as isize) as usize;
                    unit[at] ^= 1;
                }
                Attack::Repeat => unit = unit.repeat(2),
                Attack::Cut => {
                    unit.truncate(unit.len() / 2);
                    cut = true;
                }
                Attack::Splice(other) => unit = other.clone(),
            }
        }
        if to.write_all(&unit).await.is_err() || cut {
            break;
        }
        index += 1;
    }
    let _ = to.shutdown().await;
}

/// Listens for one frontend of `to`.
async fn middle(to: SocketAddr, attack: Option<(Toward, usize, Attack)>) -> (SocketAddr, Capture) {
    let listener = TcpListener::bind(any_port()).await.expect("bound");
    let address = listener.local_addr().expect("bound");
    let capture = Capture::default();
    let own = capture.clone();
    tokio::spawn(async move {
        let (here, _) = listener.accept().await.expect("it comes");
        let there = TcpStream::connect(to).await.expect("it listens");
        let ((from_front, to_front), (from_node, to_node)) =
            (here.into_split(), there.into_split());
        let way = |from, to, toward| forward(from, to, toward, attack.clone(), own.clone());
        tokio::join!(
            way(from_front, to_node, Toward::Accelerator),
            way(from_node, to_front, Toward::Frontend)
        );
    });
    (address, capture)
}

/// The units of an undisturbed session.
async fn captured(
    to: SocketAddr,
    calls: &mut mpsc::UnboundedReceiver<HandlerCall>,
) -> [Vec<Vec<u8>>; 2] {
    let (address, capture) = middle(to, None).await;
    drop(connect(address, local("fe-1")).await.expect("connected"));
    until_gone(calls).await;
    capture.lock().expect("alive").clone()
}

/// Waits until the log has more than `lines` lines about refused peers, and returns the newest.
async fn next_line(log: &Path, lines: &mut usize) -> String {
    loop {
        let text = std::fs::read_to_string(log).expect("text");
        let refused: Vec<_> = text
            .lines()
            .filter(|l| l.contains("control: refused"))
            .collect();
        if refused.len() > *lines {
            *lines = refused.len();
            return (*refused.last().expect("one")).to_owned();
        }
        sleep(Duration::from_millis(5)).await;
    }
}

#[tokio::test]
async fn a_capture_of_a_session_holds_no_secret_name_configuration_or_address() {
    let server = bind(local("acc-1")).await;
    let (address, capture) = middle(server.address(), None).await;
    let mut calls = serve(server);
    let session = connect(address, local("fe-1")).await.expect("connected");
    let (handle, mut events) = (session.handle, session.events);
    let mut asked = vec![connection(0, 1), connection(1, 1)];
    asked[1].transport = End::new("ib", "987654321".to_owned());
    handle.open(asked).within(LONG).await.expect("opened");
    handle.describe().within(LONG).await.expect("described");
    handle.name().within(LONG).await.expect("named");
    handle.bye();
    assert!(gone(&mut events).await.is_clean());
    until_gone(&mut calls).await;
    let captured = capture.lock().expect("alive").concat().concat();
    let holds = |bytes: &[u8]| captured.windows(bytes.len()).any(|w| w == bytes);
    assert!(holds(b"\"nonce\""), "the hellos are there");
    let token = "0123456789abcdef".repeat(4);
    for secret in [
        &*token,
        "07070707",
        "fe-1",
        "acc-1",
        "host of",
        "digest",
        "node:",
        "127.0.0.1",
        "987654321",
    ] {
        assert!(!holds(secret.as_bytes()), "{secret} is in the capture");
    }
    assert!(!holds(&hex::decode(&token).expect("digits")) && !holds(&[7; 32]));
}

/// A handshake that is changed begins no session, and each end has one line about it.
#[tokio::test]
async fn a_changed_handshake_begins_no_session() {
    use Toward::{Accelerator, Frontend};
    const MISSING: &str = "set token_file";
    const DIGITS: &str = "64 hexadecimal digits";
    const DIFFER: &str = "tokens differ";
    const ITS_TOKEN: &str = "token is not this node's";
    const SEALED: &str = "does not open";
    const CUT: &str = "ended inside a frame";
    let log = tempfile::NamedTempFile::new().expect("a file");
    let writer = Arc::new(log.reopen().expect("a file"));
    let subscriber = tracing_subscriber::fmt()
        .with_ansi(false)
        .with_writer(writer)
        .finish();
    // Two subscribers: with one, tracing would ask the thread that logs first whether it listens.
    let _second = tracing::Dispatch::new(tracing::subscriber::NoSubscriber::new());
    // This runtime has one thread.
    let _own = tracing::subscriber::set_default(subscriber);
    let server = bind(local("acc-1")).await;
    let to = server.address();
    let mut calls = serve(server);
    let before = captured(to, &mut calls).await;
    let again = |toward: Toward, i: usize| Attack::Splice(before[toward as usize][i].clone());
    let downgrade = Attack::Replace("\"token\"", "\"none\"");
    let older = Attack::Replace("\"version\":11", "\"version\":9");
    let nonce = Attack::Replace("\"nonce\":\"", "\"nonce\":\"0");
    let cases = [
        (Accelerator, 0, downgrade.clone(), [MISSING, MISSING]),
        (Frontend, 0, downgrade, [MISSING, MISSING]),
        (
            Accelerator,
            0,
            older.clone(),
            [
                "version 11, the frontend 9",
                "version 9, this node speaks 11",
            ],
        ),
        (
            Frontend,
            0,
            older,
            [
                "version 9, this node speaks 11",
                "version 11, the accelerator 9",
            ],
        ),
        (Accelerator, 0, nonce.clone(), [DIGITS, DIGITS]),
        (Frontend, 0, nonce, [DIGITS, DIGITS]),
        (Accelerator, 0, again(Accelerator, 0), [DIFFER, ITS_TOKEN]),
        (Frontend, 0, again(Frontend, 0), [DIFFER, ITS_TOKEN]),
        (Accelerator, 1, again(Accelerator, 1), [DIFFER, ITS_TOKEN]),
        (Frontend, 1, again(Frontend, 1), [ITS_TOKEN, SEALED]),
        (Accelerator, 1, Attack::Flip(-3), [DIFFER, ITS_TOKEN]),
        (Frontend, 1, Attack::Flip(-3), [ITS_TOKEN, SEALED]),
        (Accelerator, 1, Attack::Repeat, [SEALED, SEALED]),
        (Frontend, 1, Attack::Repeat, [SEALED, SEALED]),
        (Accelerator, 2, Attack::Flip(-1), [SEALED, SEALED]),
        (Frontend, 2, Attack::Flip(-1), [SEALED, SEALED]),
        (Accelerator, 2, again(Accelerator, 2), [SEALED, SEALED]),
        (Frontend, 2, again(Frontend, 2), [SEALED, SEALED]),
        (Accelerator, 2, Attack::Cut, [CUT, CUT]),
        (Frontend, 2, Attack::Cut, [CUT, CUT]),
    ];
    let mut lines = 0;
    for (toward, index, attack, words) in cases {
        let case = format!("{toward:?} {index} {attack:?}");
        // A server of its own: the log of one is limited to a line in 10 s.
        let server = bind(local("acc-1")).await;
        let to = server.address();
        let mut calls = serve(server);
        let (address, _) = middle(to, Some((toward, index, attack))).await;
        let e = connect(address, local("fe-1")).await.expect_err(&case);
        // The accelerator's session begins with its last frame of the handshake.
        let there = tokio::select! {
            line = next_line(log.path(), &mut lines) => line,
            calls = until_gone(&mut calls) => match calls.last() {
                Some(HandlerCall::Gone(cause, false)) => cause.clone(),
                other => panic!("{case}: {other:?}"),
            },
        };
        for (line, words) in [e.to_string(), there].iter().zip(words) {
            assert!(line.contains(words), "{case}: {line}");
            assert!(!line.contains('\n'), "{case}: {line}");
        }
    }
    let honest = connect(to, local("fe-1")).await.expect("let in");
    honest.handle.name().within(LONG).await.expect("served");
}

/// Handshakes that stop before or inside the hello, or behind it.
#[tokio::test]
async fn half_open_handshakes_by_the_thousand_keep_no_frontend_out_and_disturb_no_session() {
    const PLACES: usize = 16;
    let server = Server::bind(any_port(), PLACES, local("acc-1")).await;
    let to = server.as_ref().expect("bound").address();
    let mut calls = serve(server.expect("bound"));
    let hello = captured(to, &mut calls).await[Toward::Accelerator as usize][0].clone();
    let mut half_open = std::collections::VecDeque::new();
    for i in 0..2000 {
        let mut peer = TcpStream::connect(to).await.expect("connected");
        let sent = [hello.len(), i % 40, 0][i % 3];
        let _ = peer.write_all(&hello[..sent]).await;
        half_open.push_back(peer);
        // More stay open than have a place.
        if half_open.len() > 4 * PLACES {
            half_open.pop_front();
        }
    }
    let honest = connect(to, local("fe-2")).await.expect("let in");
    // Also during a session, a stranger disturbs nothing, and learns why it is refused.
    let mut stranger = TcpStream::connect(to).await.expect("connected");
    stranger.write_all(&[0xff; 64]).await.expect("sent");
    let length = stranger.read_u32().await.expect("a frame");
    let mut frame = String::new();
    let end = stranger.read_to_string(&mut frame).await;
    assert_eq!(end.expect("closed after the error"), length as usize);
    assert_has(&frame, &[r#""type":"error","code":"protocol""#]);
    honest.handle.name().within(LONG).await.expect("served");
}
