//! Sessions over loopback sockets.

pub(in crate::control) mod codec;
mod middle;
mod sessions;

use std::{
    net::SocketAddr,
    sync::{
        Arc,
        atomic::{AtomicU32, Ordering},
    },
    time::Duration,
};

use fabric::wire::{End, Stream};
use record::{EngineInfo, NodeFacts};
use tokio::{
    io::{AsyncReadExt, AsyncWriteExt},
    net::{TcpListener, TcpStream},
    sync::mpsc,
    time::timeout,
};

use super::*;
use crate::{model::ModelSpec, wire::Description};

/// Time limit that no sound test reaches.
const LONG: Duration = Duration::from_secs(20);

pub(in crate::control) fn token(text: &str) -> Auth {
    Auth::Token(Token::parse(text.repeat(64 / text.len()).as_bytes()).expect("digits"))
}

/// A node's part in its sessions: a frontend's for a name that begins with `fe`. The time limits
/// are so long that no session times out on a slow machine.
pub(in crate::control) fn local(node: &str) -> LocalNode {
    LocalNode {
        node: node.to_owned(),
        auth: token("0123456789abcdef"),
        model: ModelSpec::opaque("digest", 64, 8),
        own: match node.starts_with("fe") {
            true => RolePart::Stream(Stream::First),
            false => RolePart::Engine(EngineInfo {
                name: "digest".to_owned(),
                ..EngineInfo::default()
            }),
        },
        facts: NodeFacts {
            host: format!("host of {node}"),
            ..NodeFacts::default()
        },
        timing: Timing {
            step: LONG,
            heartbeat: HeartbeatCfgs {
                every: Duration::from_millis(20),
                gone_after: Duration::from_secs(30),
            },
        },
    }
}

fn any_port() -> SocketAddr {
    ([127, 0, 0, 1], 0).into()
}

async fn connect(address: SocketAddr, local: LocalNode) -> Result<ClientSession, ControlError> {
    ClientSession::connect(address.to_string(), local).await
}

async fn bind(local: LocalNode) -> Server {
    Server::bind(any_port(), 16, local).await.expect("bound")
}

/// A call that a handler received.
#[derive(Clone, Debug, PartialEq)]
enum HandlerCall {
    Open(Vec<ConnectionRequest>),
    Lost(u16, u32, String),
    Reset(u16, u32),
    Gone(String, bool),
}

/// Grants every connection, and reports its calls.
struct Handler {
    calls: mpsc::UnboundedSender<HandlerCall>,
    drains: AtomicU32,
}

impl Handler {
    fn new() -> (Arc<Handler>, mpsc::UnboundedReceiver<HandlerCall>) {
        let (calls, received) = mpsc::unbounded_channel();
        let handler = Handler {
            calls,
            drains: AtomicU32::new(0),
        };
        (Arc::new(handler), received)
    }

    fn report(&self, call: HandlerCall) {
        let _ = self.calls.send(call);
    }
}

impl SessionHandler for Handler {
    fn open(&self, connections: &[ConnectionRequest]) -> Result<Vec<ConnectionGrant>, Refusal> {
        self.report(HandlerCall::Open(connections.to_vec()));
        Ok(connections.iter().map(grant).collect())
    }

    fn connection_lost(&self, connection: u16, epoch: u32, cause: &str) {
        self.report(HandlerCall::Lost(connection, epoch, cause.to_owned()));
    }

    fn connection_reset(&self, connection: u16, epoch: u32) {
        self.report(HandlerCall::Reset(connection, epoch));
    }

    fn drain(&self) -> Option<Counters> {
        (self.drains.fetch_add(1, Ordering::Relaxed) >= 3).then(|| self.counters())
    }

    fn describe(&self) -> Result<Description, Refusal> {
        Ok(Description {
            machine: "{}".to_owned(),
            config: "node: acc-1\n".to_owned(),
        })
    }

    fn name(&self) -> String {
        "acc-1 (null engine)".to_owned()
    }

    fn counters(&self) -> Counters {
        Counters {
            responded: 11,
            ..Counters::default()
        }
    }

    fn gone(&self, cause: &ControlError) {
        self.report(HandlerCall::Gone(cause.to_string(), cause.is_clean()));
    }
}

pub(in crate::control) fn connection(connection: u16, epoch: u32) -> ConnectionRequest {
    ConnectionRequest {
        connection,
        nic: 0,
        gpu_turn: 0,
        epoch,
        slots: 4,
        request_stride: 64,
        response_stride: 24,
        transport: End::new("tcp", "07".repeat(32)),
    }
}

pub(in crate::control) fn grant(request: &ConnectionRequest) -> ConnectionGrant {
    ConnectionGrant {
        connection: request.connection,
        epoch: request.epoch,
        slots: request.slots,
        nic: 0,
        gpu: None,
        transport: End::new("tcp", any_port().to_string()),
    }
}

/// All calls up to the end of a session.
async fn until_gone(calls: &mut mpsc::UnboundedReceiver<HandlerCall>) -> Vec<HandlerCall> {
    let mut all = Vec::new();
    let wait = timeout(LONG, async {
        while !matches!(all.last(), Some(HandlerCall::Gone(..))) {
            all.push(calls.recv().await.expect("the handler lives"));
        }
    });
    wait.await.expect("gone in time");
    all
}

/// Serves one session after another until the test is over; returns the channel of the handlers'
/// calls.
fn serve(mut server: Server) -> mpsc::UnboundedReceiver<HandlerCall> {
    let (handler, calls) = Handler::new();
    tokio::spawn(async move {
        while let Ok(session) = server.accept_session().await {
            session.run(handler.clone()).await;
        }
    });
    calls
}

/// Runs `f` on a second thread, so that the test's runtime goes on.
async fn aside<T: Send + 'static>(f: impl FnOnce() -> T + Send + 'static) -> T {
    tokio::task::spawn_blocking(f).await.expect("no panic")
}

async fn gone(events: &mut ClientEvents) -> ControlError {
    let cause = timeout(LONG, async {
        loop {
            if let ClientEvent::Gone(cause) = events.next().await {
                return cause;
            }
        }
    })
    .await
    .expect("gone in time");
    let again = events.next().await;
    assert!(matches!(again, ClientEvent::Gone(_)), "the last: {again:?}");
    cause
}
