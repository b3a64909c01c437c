//! An accelerator whose paths can be cut one by one, and made to swallow everything: what a network does to a real one.

use std::{
    collections::{HashMap, HashSet},
    io::{Read, Write},
    net::{SocketAddr, TcpListener, TcpStream},
    sync::{
        Arc, Mutex, MutexGuard, OnceLock,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use qdl::{
    control::{
        Auth, ControlError, Counters, GrantTransport, Key, LaneGrant, LaneRequest, Refusal, Server,
        ServerHandle, ServerParams, SessionHandler, Timing,
    },
    fabric::{
        Broken,
        tcp::{self, PREAMBLE_BYTES, TcpCfgs},
    },
    os::Near,
    rail::{RailCfgs, Spin},
    serve::{self, OnLaneLost, ServeLane, ServeLaneCfgs, Service},
};

use super::harness::{Digest, model};

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
    lanes: Mutex<HashMap<u16, Arc<ServeLane>>>,
    /// Lanes whose connections nobody answers, and how many came.
    swallowed: Mutex<(HashSet<u16>, usize)>,
    /// Lanes and epochs that were confirmed to be down.
    let_go: Mutex<HashSet<(u16, u32)>>,
    /// Opening waits for it.
    gate: Mutex<()>,
    nameless: AtomicBool,
    ending: AtomicBool,
}

impl SessionHandler for Inner {
    fn open(&self, requests: &[LaneRequest]) -> Result<Vec<LaneGrant>, Refusal> {
        let _open = self.gate.lock();
        let grant = |r: &LaneRequest| {
            let cfgs = ServeLaneCfgs {
                gpu: None,
                session: 1,
                lane: r.lane,
                epoch: r.epoch,
                slots: r.slots as usize,
                request_stride: r.request_stride as usize,
                response_stride: r.response_stride as usize,
            };
            let lane = Arc::new(ServeLane::new(cfgs).expect("memory"));
            self.lanes.lock().expect("alive").insert(r.lane, lane);
            LaneGrant {
                lane: r.lane,
                epoch: r.epoch,
                slots: r.slots,
                nic: 0,
                gpu: None,
                key: Key::random().expect("random bytes"),
                transport: GrantTransport::Tcp { address: self.data },
            }
        };
        Ok(requests.iter().map(grant).collect())
    }
    fn lane_lost(&self, lane: u16, epoch: u32, _cause: &str) {
        self.cut(lane);
        self.let_go(lane, epoch);
    }
    fn lane_reset(&self, _lane: u16, _epoch: u32) {}
    fn drain(&self) -> Option<Counters> {
        Some(Counters::default())
    }
    fn name(&self) -> String {
        if self.nameless.load(Ordering::SeqCst) {
            return String::new();
        }
        "fake".to_owned()
    }
    fn counters(&self) -> Counters {
        Counters::default()
    }
    fn gone(&self, _cause: &ControlError) {}
}

impl Inner {
    /// Confirms, once, that this end is down.
    fn let_go(&self, lane: u16, epoch: u32) {
        let news = self.let_go.lock().expect("alive").insert((lane, epoch));
        if let Some(h) = self.handle.get().filter(|_| news) {
            h.lane_reset(lane, epoch);
        }
    }

    fn cut(&self, lane: u16) {
        self.rails.give_up(move |c| c.lane == lane, &Broken::Closed);
    }

    /// One data connection; given back where it is swallowed.
    fn welcome(&self, mut stream: TcpStream) -> Option<TcpStream> {
        let mut preamble = [0; PREAMBLE_BYTES];
        stream.read_exact(&mut preamble).expect("a preamble");
        let number = u16::from_le_bytes([preamble[8], preamble[9]]);
        {
            let mut swallowed = self.swallowed.lock().expect("alive");
            if swallowed.0.contains(&number) {
                swallowed.1 += 1;
                return Some(stream);
            }
        }
        stream.write_all(b"QDLOK\0\0\0").expect("taken");
        let lane = self.lanes.lock().expect("alive")[&number].clone();
        let link = tcp::link(stream, lane.endpoint(64), &TcpCfgs::default()).expect("descriptors");
        self.rails.attach(0, lane, link);
        None
    }
}

impl Fake {
    pub fn start() -> Fake {
        let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
        let rail = RailCfgs {
            name: "fake".to_owned(),
            spin: Spin::new(20_000),
            tick_ns: 10_000_000,
            near: Near::default(),
        };
        let service: Arc<dyn Service> = Arc::new(Digest);
        let lost: Arc<OnLaneLost> = Arc::new(|_| ());
        let inner = Arc::new(Inner {
            handle: OnceLock::new(),
            rails: serve::Server::new(vec![rail], &service, &lost).expect("threads"),
            data: listener.local_addr().expect("bound"),
            lanes: Mutex::default(),
            swallowed: Mutex::default(),
            let_go: Mutex::default(),
            gate: Mutex::default(),
            nameless: AtomicBool::new(false),
            ending: AtomicBool::new(false),
        });
        let (tell, told) = std::sync::mpsc::channel();
        let (stop, stopped) = tokio::sync::oneshot::channel();
        let shared = inner.clone();
        let control = std::thread::spawn(move || {
            let runtime = tokio::runtime::Builder::new_current_thread()
                .enable_all()
                .build()
                .expect("a runtime");
            runtime.block_on(async {
                let params = ServerParams {
                    node: "fake".to_owned(),
                    auth: Auth::Unset,
                    model: model(),
                    timing: Timing::default(),
                    pending: 4,
                };
                let any = "127.0.0.1:0".parse().expect("address");
                let mut server = Server::bind(any, params).await.expect("bound");
                tell.send(server.address()).expect("waited for");
                let serve = async {
                    let session = server.accept_session().await.expect("a session");
                    let _ = shared.handle.set(session.handle());
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
            for stream in listener.incoming() {
                let stream = stream.expect("accepted");
                if shared.ending.load(Ordering::SeqCst) {
                    return;
                }
                kept.extend(shared.welcome(stream));
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

    /// The socket of a lane is closed.
    pub fn cut(&self, lane: u16) {
        self.inner.cut(lane);
    }

    /// This end loses a lane before the other knows, says so, and that it has let go.
    pub fn lose(&self, lane: u16, epoch: u32) {
        let handle = self.inner.handle.get().expect("a session");
        handle.lane_lost(lane, epoch, "as the test has it");
        self.inner.let_go(lane, epoch);
    }

    /// Nothing is opened while this is held.
    pub fn hold(&self) -> MutexGuard<'_, ()> {
        self.inner.gate.lock().expect("alive")
    }

    /// From now on its name is none that may be answered.
    pub fn forget_name(&self) {
        self.inner.nameless.store(true, Ordering::SeqCst);
    }

    /// Whether this end was confirmed to be down.
    pub fn has_let_go(&self, lane: u16, epoch: u32) -> bool {
        let confirmed = self.inner.let_go.lock().expect("alive");
        confirmed.contains(&(lane, epoch))
    }

    /// From now on nobody answers who connects for this lane.
    pub fn swallow(&self, lane: u16) {
        self.inner.swallowed.lock().expect("alive").0.insert(lane);
    }

    /// Connections that nobody answered.
    pub fn swallowed(&self) -> usize {
        self.inner.swallowed.lock().expect("alive").1
    }
}

impl Drop for Fake {
    fn drop(&mut self) {
        drop(self.stop.take());
        self.inner.ending.store(true, Ordering::SeqCst);
        // The next to come ends the thread that lets connections in.
        drop(TcpStream::connect(self.inner.data));
        self.threads.drain(..).for_each(|t| drop(t.join()));
    }
}
