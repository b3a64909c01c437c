//! A dispatcher and a server in one process, and links between them.

use std::{
    ops::Range,
    sync::{Arc, Mutex},
};

use xxhash_rust::xxh3::xxh3_64;

use super::eventually_or;
use crate::{
    config::HealthConfig,
    connection::{CrewPlan, EchoCfgs, NicThreadCfgs, Spin},
    dispatch::{Completer, ConnectionCfgs, DispatchCfgs, DispatchNic, Dispatcher, Owner, Sample},
    model::Lengths,
    rails::{ConnectionRail, PeerCfgs, Policy, RailArbiter, RailId},
    serve::{
        Arrival, Finished, OnConnectionLost, Sent, ServeConnection, ServeConnectionCfgs, Server,
        Service, respond_all,
    },
};
use fabric::{Region, clock::now_ns, tcp, wire::Stream};

/// Finishes a sample whose answer of `len` bytes is written: 1 us of queue, 2 us of compute.
pub fn finished(arrival: &Arrival, len: u32, sent: Sent) -> Finished {
    Finished {
        ticket: arrival.ticket(),
        len,
        queue_us: 1,
        compute_us: 2,
        sent,
    }
}

/// Answers at once with the digest of the input.
pub struct Digest;

impl Service for Digest {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let each = arrivals.drain(..).map(|mut a| {
            let digest = xxh3_64(a.input()).to_le_bytes();
            a.output()[..8].copy_from_slice(&digest);
            let done = finished(&a, 8, Sent::default());
            (a, done)
        });
        respond_all(each, &mut Vec::new());
    }
}

/// Keeps its arrivals, so that samples stay in flight.
#[derive(Default)]
pub struct Hoard(pub Mutex<Vec<Arrival>>);

impl Service for Hoard {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        self.0.lock().expect("alive").append(arrivals);
    }
}

with_defaults! {
#[derive(Clone, Copy, Debug)]
pub struct Wait {
    /// Nanoseconds that a thread spins before it sleeps.
    pub spin_ns: u64 = 20_000,
    /// Nanoseconds after which a sleeping thread wakes by itself.
    pub tick_ns: u64 = 5_000_000,
    pub echo: EchoCfgs = EchoCfgs { interval_ns: 10_000_000, timeout_ns: 200_000_000 },
}
}

const HOUR: u64 = 3_600_000_000_000;
const NO_ECHO: EchoCfgs = EchoCfgs {
    interval_ns: HOUR,
    timeout_ns: HOUR,
};

impl Wait {
    /// Threads that sleep at once and do not wake by themselves.
    pub fn asleep() -> Self {
        Wait {
            spin_ns: 0,
            tick_ns: HOUR,
            echo: NO_ECHO,
        }
    }

    /// Connections that no delay of this machine counts as lost.
    pub fn patient() -> Self {
        Wait {
            echo: NO_ECHO,
            ..Wait::default()
        }
    }
}

/// Configuration of a [`Rig`]. Connection `i` uses NIC `i % nics`.
#[derive(Clone, Debug)]
pub struct RigCfgs {
    pub connections: usize,
    pub slots: usize,
    pub nics: usize,
    /// True if each connection leads to its own peer.
    pub peers: bool,
    /// Length of a request slot in bytes.
    pub request: usize,
    /// Length of a response slot in bytes.
    pub response: usize,
    /// Requested parts of answers.
    pub stream: Stream,
    /// Valid lengths of answers; `None` for any length.
    pub answers: Option<Lengths>,
    /// True if samples are copied before they are sent.
    pub staged: bool,
    /// Maximum burst that the issuing thread posts, in bytes.
    pub up_to: u64,
    pub policy: Policy,
    pub wait: Wait,
    /// Assignment of NICs to threads; default one thread per NIC.
    pub crew: Option<CrewPlan>,
}

impl RigCfgs {
    /// Samples of up to 4 KiB, answers of 8 bytes in one part, posted by the issuing thread.
    pub fn new(connections: usize, slots: usize) -> Self {
        RigCfgs {
            connections,
            slots,
            nics: 2,
            peers: false,
            request: 4096,
            response: 24,
            stream: Stream::None,
            answers: None,
            staged: false,
            up_to: 1 << 20,
            policy: Policy::default(),
            wait: Wait::default(),
            crew: None,
        }
    }

    pub fn up_to(self, up_to: u64) -> Self {
        RigCfgs { up_to, ..self }
    }

    pub fn wait(self, wait: Wait) -> Self {
        RigCfgs { wait, ..self }
    }

    pub fn policy(self, policy: Policy) -> Self {
        RigCfgs { policy, ..self }
    }

    pub fn staged(self, staged: bool) -> Self {
        RigCfgs { staged, ..self }
    }

    /// Returns sample `id` of [`source`], whose index is `id` + 100.
    pub fn sample(&self, id: u64) -> Sample {
        Sample {
            id,
            index: 100 + id,
            offset: (id * 977) as usize % (SOURCE - self.request),
            len: 1 + (id * 131 % self.request as u64) as u32,
            issued_ns: now_ns(),
            ..Sample::default()
        }
    }

    fn plan(&self) -> CrewPlan {
        let each = || CrewPlan::each(self.nics);
        self.crew.clone().unwrap_or_else(each)
    }

    fn threads(&self, name: &str) -> Vec<NicThreadCfgs> {
        let spin = Spin::new(self.wait.spin_ns);
        let thread = |i| NicThreadCfgs::new(format!("{name}-{i}"), spin, self.wait.tick_ns);
        (0..self.plan().shares()).map(thread).collect()
    }

    fn connection(&self, i: usize) -> ConnectionCfgs {
        ConnectionCfgs {
            peer: if self.peers { i } else { 0 },
            role: record::NodeRole::Both,
            nic_index: i % self.nics,
            slots: self.slots,
            response_stride: self.response,
            request_stride: self.request,
        }
    }

    /// Settings of a dispatcher whose samples lie in `source`.
    pub fn dispatch(&self, source: &Arc<Region>) -> DispatchCfgs {
        DispatchCfgs {
            policy: self.policy,
            sources: if self.staged {
                vec![]
            } else {
                vec![source.clone()]
            },
            staged_from: self.staged.then(|| source.clone()),
            connections: (0..self.connections).map(|i| self.connection(i)).collect(),
            post_up_to: self.up_to,
            echo: self.wait.echo,
            crew: Some(self.plan()),
            stream: self.stream,
            answers: self.answers.clone(),
            ..DispatchCfgs::default()
        }
    }

    /// Shares of a dispatcher, each with its completer.
    pub fn nics(&self, completer: impl Fn() -> Box<dyn Completer>) -> Vec<DispatchNic> {
        let nic = |cfgs| DispatchNic {
            cfgs,
            completer: completer(),
        };
        self.threads("front").into_iter().map(nic).collect()
    }

    /// Creates an arbiter of one peer with a rail per NIC; hold times are 1 to 2 ms.
    pub fn arbiter(&self) -> Option<RailArbiter> {
        if !self.policy.is_by_health() {
            return None;
        }
        let rails = self.nics as u8;
        let rail = |i: usize| ConnectionRail {
            peer: 0,
            rail: RailId((i % self.nics) as u8),
            target: 0,
            nic: i % self.nics,
        };
        let peer = PeerCfgs {
            policy: self.policy,
            health: HealthConfig {
                failed_hold_ms: 1,
                failed_hold_max_ms: 2,
                ..HealthConfig::default()
            },
            rails: self.nics,
            targets: vec![(0..rails).map(RailId).collect()],
        };
        let connections = (0..self.connections).map(rail).collect();
        let arbiter = RailArbiter::new(&[peer], connections);
        Some(arbiter.expect("sound"))
    }
}

/// Bytes of [`source`].
const SOURCE: usize = 1 << 20;

/// The memory of all samples.
pub fn source() -> Arc<Region> {
    let source = Arc::new(Region::new(SOURCE).expect("memory"));
    // SAFETY: no other reference to the region exists yet.
    let bytes = unsafe { source.bytes_mut(0, SOURCE) }.expect("inside");
    for (i, b) in bytes.iter_mut().enumerate() {
        *b = (i * 7 + i / 253) as u8;
    }
    source
}

/// A dispatcher and a server; the test creates their connections.
pub struct Rig {
    pub dispatcher: Dispatcher,
    pub server: Server,
    pub source: Arc<Region>,
    cfgs: RigCfgs,
}

impl Rig {
    /// Creates both ends, with one completer for each NIC thread of the dispatcher.
    pub fn new(
        cfgs: RigCfgs,
        service: &Arc<dyn Service>,
        completer: impl Fn() -> Box<dyn Completer>,
        owner: Arc<dyn Owner>,
    ) -> Self {
        let source = source();
        let dispatch = cfgs.dispatch(&source);
        let nics = cfgs.nics(completer);
        let dispatcher = Dispatcher::new(dispatch, nics, owner).expect("made");
        let on_lost: Arc<OnConnectionLost> = Arc::new(|_| {});
        let server = Server::with_crew(cfgs.threads("back"), &cfgs.plan(), service, &on_lost);
        Rig {
            dispatcher,
            server: server.expect("made"),
            source,
            cfgs,
        }
    }

    /// Joins all connections over TCP, and waits until they are up.
    pub fn connect_all(&self) {
        for connection in 0..self.cfgs.connections {
            let serve = Arc::new(ServeConnection::new(self.served(connection)).expect("memory"));
            let (near, far) = fabric::testkit::sockets();
            let link = |socket, end| tcp::link(socket, end, &tcp::TcpKeys::default());
            let near = link(near, self.dispatcher.endpoint(connection)).expect("linked");
            let far = link(far, serve.endpoint(64)).expect("linked");
            self.server.attach(connection % self.cfgs.nics, serve, far);
            self.dispatcher.attach(connection, 1, near);
        }
        let up = || self.dispatcher.connections_up();
        let all = self.cfgs.connections;
        eventually_or(|| format!("{} of {all} are up", up()), || up() == all);
    }

    fn served(&self, connection: usize) -> ServeConnectionCfgs {
        ServeConnectionCfgs {
            gpu: None,
            session: 1,
            connection: connection as u16,
            epoch: 1,
            slots: self.cfgs.slots,
            request_stride: self.cfgs.request,
            takes_options: true,
            response_stride: self.cfgs.response,
            stream: self.cfgs.stream,
        }
    }

    pub fn sample(&self, id: u64) -> Sample {
        self.cfgs.sample(id)
    }

    pub fn input(&self, id: u64) -> &[u8] {
        let s = self.sample(id);
        // SAFETY: nothing writes to the source after `new`.
        unsafe { self.source.bytes(s.offset, s.len as usize) }.expect("inside")
    }

    pub fn issue(&self, ids: Range<u64>) {
        let samples: Vec<_> = ids.map(|id| self.sample(id)).collect();
        self.dispatcher.issue(&samples);
    }

    #[track_caller]
    pub fn drain(&self) {
        let counts = || format!("{:?}", self.dispatcher.counts());
        eventually_or(counts, || self.dispatcher.outstanding() == 0);
    }
}
