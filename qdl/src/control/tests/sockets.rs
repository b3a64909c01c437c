//! What only sockets can show: ports, names, a held-up thread, and floods of handshakes.

use std::{collections::VecDeque, net::SocketAddr};

use bytes::BytesMut;
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
};
use tokio_util::codec::Encoder;

use super::*;
use crate::{
    control::frame::Codec,
    testkit::{assert_has, runtime},
};

/// Time limit that no sound test reaches.
const LONG: Duration = Duration::from_secs(20);

/// A node with time limits so long that no session times out on a slow machine.
fn patient(node: &str) -> LocalNode {
    let mut local = local(node);
    local.timing.step = LONG;
    local.timing.heartbeat.gone_after = Duration::from_secs(30);
    local
}

fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn connect(address: SocketAddr, local: LocalNode) -> Result<ClientSession, ControlError> {
    ClientSession::connect(address.to_string(), local).await
}

/// Says its name, and grants nothing.
struct Handler;

impl SessionHandler for Handler {
    fn open(&self, _: &[ConnectionRequest]) -> Result<Vec<ConnectionGrant>, Refusal> {
        Err(Refusal::new(ErrorCode::Budget, "no connections here"))
    }
    fn connection_lost(&self, _: u16, _: u32, _: &str) {}
    fn connection_reset(&self, _: u16, _: u32) {}
    fn drain(&self) -> Option<Counters> {
        None
    }
    fn name(&self) -> String {
        "acc-1".to_owned()
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn gone(&self, _: &ControlError) {}
}

/// Serves one session after another until the test is over. Returns the address.
async fn serve(places: usize) -> SocketAddr {
    let server = Server::bind(any_port(), places, patient("acc-1")).await;
    let mut server = server.expect("bound");
    let address = server.address();
    tokio::spawn(async move {
        while let Ok(session) = server.accept_session().await {
            session.run(Arc::new(Handler)).await;
        }
    });
    address
}

/// A label of more than 63 bytes has no address, and no resolver is asked for it.
#[tokio::test]
async fn a_name_without_an_address_may_get_one_later() {
    let name = format!("{}.example:7400", "a".repeat(64));
    let e = ClientSession::connect(name.clone(), local("fe-1")).await;
    let e = e.expect_err("no address");
    assert_eq!(e.not_yet(), Some(NotYet::Absent("has no address yet")));
    assert_has(
        &e.to_string(),
        &[&format!("{name}: no address of this name: ")],
    );
}

#[tokio::test]
async fn a_port_in_use_an_open_address_and_bad_settings_refuse_to_start() {
    let server = Server::bind(any_port(), 16, local("acc-1")).await;
    let own = server.as_ref().expect("bound").address();
    let open = LocalNode {
        auth: Auth::Unset,
        ..local("acc-1")
    };
    let in_use = format!("control.listen: {own} is in use");
    for (address, node, words) in [
        (own, local("acc-1"), &*in_use),
        (([0, 0, 0, 0], 0).into(), open, "token_file"),
        (any_port(), local("two words"), "node: \"two words\""),
    ] {
        let e = Server::bind(address, 16, node).await.expect_err(words);
        assert_has(&e.to_string(), &[words]);
    }
    drop(server);
    let free = TcpListener::bind(any_port()).await;
    let address = free.and_then(|l| l.local_addr()).expect("bound");
    let e = connect(address, local("fe-1")).await.expect_err("an error");
    let is_absent = e.not_yet() == Some(NotYet::Absent("takes no connections yet"));
    assert!(
        is_absent && e.to_string().contains(&address.to_string()),
        "{e}"
    );
}

/// The thread of the runtime was held up, and then has something to say before the runtime has
/// looked at its sockets: what the peer has said meanwhile is there.
#[tokio::test]
async fn a_thread_that_was_held_up_does_not_take_its_peer_for_silent() {
    let (tell, received) = std::sync::mpsc::channel();
    let (end, ended) = tokio::sync::oneshot::channel::<()>();
    let there = std::thread::spawn(move || {
        runtime().block_on(async {
            tell.send(serve(16).await).expect("awaited");
            let _ = ended.await;
        });
    });
    let address = received.recv().expect("bound");
    let mut hasty = patient("fe-1");
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

/// Handshakes that stop before or inside the hello, or behind it.
#[tokio::test]
async fn half_open_handshakes_by_the_thousand_keep_no_frontend_out_and_disturb_no_session() {
    const PLACES: usize = 16;
    let to = serve(PLACES).await;
    let mut hello = BytesMut::new();
    let frame = frontend(local("fe-1")).last_word().expect("a hello");
    let encoded = Codec::before_auth().encode(&frame, &mut hello);
    encoded.expect("it fits");
    let mut half_open = VecDeque::new();
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
    let honest = connect(to, patient("fe-2")).await.expect("let in");
    // Also during a session, a stranger disturbs nothing, and learns why it is refused.
    let mut stranger = TcpStream::connect(to).await.expect("connected");
    stranger.write_all(&[0xff; 64]).await.expect("sent");
    let length = stranger.read_u32().await.expect("a frame");
    let mut frame = String::new();
    let end = stranger.read_to_string(&mut frame).await;
    assert_eq!(end.expect("closed after the error"), length as usize);
    assert_has(&frame, &[r#""type":"error","code":"protocol""#]);
    // Without a caller that waits, an answer is no error.
    drop(honest.handle.name());
    let name = honest.handle.name().within(LONG).await;
    assert_eq!(name.expect("served"), "acc-1");
    let drained = honest.handle.drain().within(Duration::ZERO).await;
    assert_has(
        &drained.expect_err("never").to_string(),
        &["no drained within"],
    );
    // One frontend at a time; dropping its handle ends its session.
    let e = connect(to, patient("fe-3")).await.expect_err("busy");
    assert_has(&e.to_string(), &["(busy)", "fe-2"]);
    drop(honest);
    let admitted = async {
        while let Err(e) = connect(to, patient("fe-3")).await {
            assert_has(&e.to_string(), &["(busy)", "fe-2"]);
            tokio::time::sleep(Duration::from_millis(5)).await;
        }
    };
    let admitted = tokio::time::timeout(LONG, admitted).await;
    admitted.expect("the next frontend is admitted");
}
