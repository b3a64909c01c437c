//! A fake accelerator whose connections a test can cut or leave unanswered one by one, to simulate
//! network faults.

use std::{
    collections::{HashMap, HashSet},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use fabric::{
    Broken,
    tcp::{self, ConnectionSecret, TcpDevice, TcpKeys},
    wire::End,
};
use qdl::{
    connection::{NicThreadCfgs, Spin},
    control::{
        Auth, ConnectionGrant, ConnectionRequest, ControlError, Counters, LocalNode, Refusal,
        RolePart, Server, ServerHandle, SessionHandler, Timing,
    },
    serve::{self, OnConnectionLost, ServeConnection, ServeConnectionCfgs, Service},
    testkit::runtime,
};
use record::EngineInfo;

use crate::harness::{Digest, model};

pub struct Fake {
    inner: Arc<Inner>,
    pub control: SocketAddr,
    stop: Option<tokio::sync::oneshot::Sender<()>>,
    threads: Vec<std::thread::JoinHandle<()>>,
}

struct Inner {
    handle: OnceLock<ServerHandle>,
    rails: serve::Server,
    data: SocketAddr,
    connections: Mutex<HashMap<u16, (Arc<ServeConnection>, ConnectionSecret)>>,
    /// Indexes of the connections whose sockets are left unanswered, and how many sockets arrived.
    swallowed: Mutex<(HashSet<u16>, usize)>,
    ending: AtomicBool,
}

impl SessionHandler for Inner {
    fn open(&self, requests: &[ConnectionRequest]) -> Result<Vec<ConnectionGrant>, Refusal> {
        let grant = |r: &ConnectionRequest| {
            let cfgs = ServeConnectionCfgs {
                gpu: None,
                session: 1,
                connection: r.connection,
                epoch: r.epoch,
                slots: r.slots as usize,
                request_stride: r.request_stride as usize,
                takes_options: false,
                response_stride: r.response_stride as usize,
                stream: fabric::wire::Stream::None,
            };
            let connection = Arc::new(ServeConnection::new(cfgs).expect("memory"));
            let mut key = [0; 32];
            hex::decode_to_slice(&r.transport.end, &mut key).expect("a key");
            let secret = ConnectionSecret {
                key,
                address: self.data,
            };
            self.connections
                .lock()
                .expect("alive")
                .insert(r.connection, (connection, secret));
            ConnectionGrant {
                connection: r.connection,
                epoch: r.epoch,
                slots: r.slots,
                nic: 0,
                gpu: None,
                transport: End::new("tcp", self.data.to_string()),
            }
        };
        Ok(requests.iter().map(grant).collect())
    }
    fn connection_lost(&self, connection: u16, epoch: u32, _cause: &str) {
        self.cut(connection);
        if let Some(session) = self.handle.get() {
            session.connection_reset(connection, epoch);
        }
    }
    fn connection_reset(&self, _connection: u16, _epoch: u32) {}
    fn drain(&self) -> Option<Counters> {
        Some(Counters::default())
    }
    fn name(&self) -> String {
        "fake".to_owned()
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn gone(&self, _cause: &ControlError) {}
}

impl Inner {
    fn cut(&self, connection: u16) {
        self.rails
            .give_up(move |c| c.connection == connection, &Broken::Closed);
    }

    /// Accepts one data connection; returns the stream if it must stay unanswered.
    async fn welcome(&self, stream: TcpStream) -> Option<tokio::net::TcpStream> {
        stream.set_nonblocking(true).expect("set");
        let mut stream = tokio::net::TcpStream::from_std(stream).expect("a socket");
        let preamble = TcpDevice::read_preamble(&mut stream).await;
        let preamble = preamble.expect("a preamble");
        let number = preamble.connection;
        {
            let mut swallowed = self.swallowed.lock().expect("alive");
            if swallowed.0.contains(&number) {
                swallowed.1 += 1;
                return Some(stream);
            }
        }
        let (connection, secret) = self.connections.lock().expect("alive")[&number].clone();
        let proved = TcpDevice::prove(&mut stream, &preamble, &secret).await;
        proved.expect("it has the key");
        TcpDevice::welcome(&mut stream).await.expect("taken");
        let stream = stream.into_std().expect("a socket");
        let link =
            tcp::link(stream, connection.endpoint(64), &TcpKeys::default()).expect("descriptors");
        self.rails.attach(0, connection, link);
        None
    }
}

impl Fake {
    pub fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let rail = NicThreadCfgs::new("fake", Spin::new(20_000), 10_000_000);
        let service: Arc<dyn Service> = Arc::new(Digest);
        let lost: Arc<OnConnectionLost> = Arc::new(|_| ());
        let inner = Arc::new(Inner {
            handle: OnceLock::new(),
            rails: serve::Server::new(vec![rail], &service, &lost).expect("threads"),
            data: listener.local_addr().expect("bound"),
            connections: Mutex::default(),
            swallowed: Mutex::default(),
            ending: AtomicBool::new(false),
        });
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let shared = inner.clone();
        let control = std::thread::spawn(move || {
            runtime().block_on(async {
                let local = LocalNode {
                    node: "fake".to_owned(),
                    auth: Auth::Unset,
                    model: model(),
                    own: RolePart::Engine(EngineInfo {
                        name: "digest".to_owned(),
                        ..EngineInfo::default()
                    }),
                    facts: record::NodeFacts::default(),
                    timing: Timing::default(),
                };
                let any = "127.0.0.1:0".parse().expect("address");
                let mut server = Server::bind(any, 4, local).await.expect("bound");
                tell.send(server.address()).expect("waited for");
                let serve = async {
                    let session = server.accept_session().await.expect("a session");
                    let _ = shared.handle.set(session.handle.clone());
                    session.run(shared.clone()).await;
                };
                tokio::select! {
                    () = serve => {}
                    _ = stopped => {}
                }
            });
        });
        let shared = inner.clone();
        let data = std::thread::spawn(move || {
            let mut kept = Vec::new();
            let runtime = runtime();
            for stream in listener.incoming() {
                let stream = stream.expect("accepted");
                if shared.ending.load(Ordering::SeqCst) {
                    return;
                }
                kept.extend(runtime.block_on(shared.welcome(stream)));
            }
        });
        let control_address = told.recv_timeout(Duration::from_secs(10)).expect("bound");
        Fake {
            inner,
            control: control_address,
            stop: Some(stop),
            threads: vec![control, data],
        }
    }

    /// Ends the control session; sockets of connections stay open.
    pub fn end_session(&mut self) {
        drop(self.stop.take());
    }

    pub fn cut(&self, connection: u16) {
        self.inner.cut(connection);
    }

    /// From now on, sockets for this connection stay unanswered.
    pub fn swallow(&self, connection: u16) {
        self.inner
            .swallowed
            .lock()
            .expect("alive")
            .0
            .insert(connection);
    }

    pub fn swallowed(&self) -> usize {
        self.inner.swallowed.lock().expect("alive").1
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.inner.ending.store(true, Ordering::SeqCst);
        // The next connection ends the thread that accepts.
        drop(TcpStream::connect(self.inner.data));
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}
