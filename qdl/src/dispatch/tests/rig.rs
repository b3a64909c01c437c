//! A dispatcher and a server in one process, links between them, and a book of each sample's fate.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::{
    connection::Spin,
    rails::{ConnectionRail, FailbackCfgs, HealthCfgs, PeerCfgs, RailArbiterCfgs},
    response::RESPONSE_HEADER_BYTES,
    serve::{
        Arrival, Finished, ServeConnection, ServeConnectionCfgs, Server, Service, respond_all,
    },
};
use fabric::{Endpoint, Link, SourceId, os::Near, tcp, testkit::memory};

/// Largest burst that the issuing thread posts, as by default.
pub const DEFAULT: usize = 16 << 10;

const REQUEST: usize = 4096;
pub const RESPONSE: usize = RESPONSE_HEADER_BYTES + 8;

/// Answers at once with the digest of the input.
pub struct Digest;

impl Service for Digest {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let finished = arrivals.drain(..).map(|mut a| {
            let digest = xxh3_64(a.input()).to_le_bytes();
            a.output()[..8].copy_from_slice(&digest);
            let f = Finished {
                ticket: a.ticket(),
                len: 8,
                queue_us: 1,
                compute_us: 2,
                sent: crate::serve::Sent::default(),
            };
            (a, f)
        });
        respond_all(finished, &mut Vec::new());
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

/// Answers and events received. `answers` maps an id to the number of answers and the digest.
#[derive(Default)]
pub struct Book {
    pub answers: Mutex<HashMap<u64, (u32, Option<u64>)>>,
    pub events: Mutex<Vec<DispatchEvent>>,
    /// Samples with recorded times, and the payload bytes of their requests.
    pub recorded: AtomicU64,
    pub recorded_bytes: AtomicU64,
    /// Number of record calls.
    pub records: AtomicU64,
}

impl Book {
    fn enter(&self, id: u64, digest: Option<u64>) {
        let mut answers = self.answers.lock().expect("alive");
        let e = answers.entry(id).or_insert((0, None));
        e.0 += 1;
        e.1 = digest;
    }
}

struct BookKeeper(Arc<Book>);

impl Completer for BookKeeper {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        for r in responses {
            let digest = r.payload.try_into().ok().map(u64::from_le_bytes);
            self.0.enter(r.id, digest);
        }
    }
    fn record(&mut self, t: &SampleTimes, alike: u64) {
        assert_eq!((t.queue_us, t.compute_us, t.bytes_in), (1, 2, 8));
        let bytes = alike * u64::from(t.bytes_out);
        self.0.recorded.fetch_add(alike, Ordering::Relaxed);
        self.0.recorded_bytes.fetch_add(bytes, Ordering::Relaxed);
        self.0.records.fetch_add(1, Ordering::Relaxed);
    }
}

impl Owner for Book {
    fn complete_empty(&self, samples: &[Sample]) {
        samples.iter().for_each(|s| self.enter(s.id, None));
    }
    fn event(&self, event: DispatchEvent) {
        self.events.lock().expect("alive").push(event);
    }
}

/// Wait settings of NIC threads.
pub struct Wait {
    pub spin_ns: u64,
    pub tick_ns: u64,
    pub echo: EchoCfgs,
    /// Which of two NIC threads, at either end, polls which of two NICs.
    pub crew: CrewPlan,
}

impl Wait {
    /// Threads that sleep at once, without a tick that would wake them.
    pub fn asleep() -> Self {
        const HOUR: u64 = 3_600_000_000_000;
        Wait {
            spin_ns: 0,
            tick_ns: HOUR,
            echo: EchoCfgs {
                interval_ns: HOUR,
                timeout_ns: HOUR,
            },
            crew: CrewPlan::each(2),
        }
    }
}

impl Default for Wait {
    fn default() -> Self {
        Wait {
            spin_ns: 20_000,
            tick_ns: 5_000_000,
            echo: EchoCfgs {
                interval_ns: 10_000_000,
                timeout_ns: 200_000_000,
            },
            crew: CrewPlan::each(2),
        }
    }
}

pub struct Bench {
    pub dispatcher: Dispatcher,
    pub server: Server,
    pub book: Arc<Book>,
    pub source: Arc<Region>,
    pub lost: Arc<Mutex<mpsc::Receiver<crate::serve::ConnectionLost>>>,
}

pub enum Over {
    Memory,
    Tcp,
}

impl Over {
    /// Links for both ends, and the handle that cuts them.
    pub fn join(&self, a: Endpoint, b: Endpoint) -> (Link, Link, Option<memory::MemoryFaults>) {
        match self {
            Over::Memory => {
                let (near, far, faults) = memory::pair(a, b).expect("joined");
                (near, far, Some(faults))
            }
            Over::Tcp => {
                let listener = std::net::TcpListener::bind("127.0.0.1:0").expect("bound");
                let to = listener.local_addr().expect("bound");
                let sa = std::net::TcpStream::connect(to).expect("connected");
                let sb = listener.accept().expect("accepted").0;
                let cfgs = tcp::TcpCfgs::default();
                let link = |s, e| tcp::link(s, e, &cfgs).expect("linked");
                (link(sa, a), link(sb, b), None)
            }
        }
    }
}

impl Bench {
    pub fn new(
        connections: usize,
        slots: usize,
        service: Arc<dyn Service>,
        staged: bool,
        up_to: usize,
    ) -> Self {
        Bench::with(
            connections,
            slots,
            service,
            staged,
            up_to,
            Policy::default(),
            Wait::default(),
        )
    }

    /// Makes a bench by health, with a NIC for each of the two NIC threads.
    pub fn by_health(connections: usize, slots: usize, up_to: usize, policy: Policy) -> Self {
        Bench::by_health_waiting(connections, slots, up_to, policy, Wait::default())
    }

    /// Makes a bench by health with these wait settings.
    pub fn by_health_waiting(
        connections: usize,
        slots: usize,
        up_to: usize,
        policy: Policy,
        wait: Wait,
    ) -> Self {
        let service = Arc::new(Digest);
        let bench = Bench::with(connections, slots, service, false, up_to, policy, wait);
        bench.choosing_by_health(connections, policy)
    }

    /// Makes a bench by health with this service.
    pub fn by_health_of(
        service: Arc<dyn Service>,
        connections: usize,
        slots: usize,
        policy: Policy,
    ) -> Self {
        let wait = Wait::default();
        let bench = Bench::with(connections, slots, service, false, DEFAULT, policy, wait);
        bench.choosing_by_health(connections, policy)
    }

    fn choosing_by_health(self, connections: usize, policy: Policy) -> Self {
        let bench = self;
        let all = vec![RailId(0), RailId(1)];
        let arbiter = RailArbiter::new(&RailArbiterCfgs {
            peers: vec![PeerCfgs {
                policy: policy.by_health().expect("it is one"),
                health: HealthCfgs {
                    failed: FailbackCfgs {
                        first_ns: 1_000_000,
                        most_ns: 2_000_000,
                    },
                    ..HealthCfgs::default()
                },
                rails: 2,
                targets: vec![all],
            }],
            connections: (0..connections)
                .map(|i| ConnectionRail {
                    peer: 0,
                    rail: RailId((i % 2) as u8),
                    target: 0,
                    nic: i % 2,
                })
                .collect(),
        })
        .expect("sound");
        bench
            .dispatcher
            .choose_by_health(arbiter, 1_000_000, Box::new(|_| None));
        bench
    }

    #[allow(clippy::needless_pass_by_value, reason = "callers make it in place")]
    pub fn with(
        connections: usize,
        slots: usize,
        service: Arc<dyn Service>,
        staged: bool,
        up_to: usize,
        policy: Policy,
        wait: Wait,
    ) -> Self {
        let thread = |name: &str| NicThreadCfgs {
            name: name.into(),
            spin: Spin::new(wait.spin_ns),
            tick_ns: wait.tick_ns,
            near: Near::default(),
            begin: None,
        };
        let source = Arc::new(Region::new(1 << 20).expect("memory"));
        // SAFETY: only this function knows the region.
        for (i, b) in unsafe { source.bytes_mut(0, 1 << 20) }
            .expect("in")
            .iter_mut()
            .enumerate()
        {
            *b = (i * 7 + i / 253) as u8;
        }
        let book = Arc::new(Book::default());
        let connection = |i| ConnectionCfgs {
            peer: 0,
            nic_index: i % 2,
            slots,
            response_stride: RESPONSE,
            request_stride: REQUEST,
        };
        let cfgs = DispatchCfgs {
            policy,
            sources: if staged { vec![] } else { vec![source.clone()] },
            staged_from: staged.then(|| source.clone()),
            connections: (0..connections).map(connection).collect(),
            post_up_to: up_to as u64,
            echo: wait.echo,
            crew: Some(wait.crew.clone()),
            ..DispatchCfgs::default()
        };
        let rails = (0..wait.crew.shares())
            .map(|i| DispatchNic {
                cfgs: thread(&format!("front-{i}")),
                completer: Box::new(BookKeeper(book.clone())),
            })
            .collect();
        let (tell, lost) = mpsc::channel();
        let tell = Mutex::new(tell);
        let lost_connection: Arc<crate::serve::OnConnectionLost> = Arc::new(move |l| {
            let _ = tell.lock().expect("alive").send(l);
        });
        Bench {
            dispatcher: Dispatcher::new(cfgs, rails, book.clone()).expect("made"),
            server: Server::with_crew(
                (0..wait.crew.shares())
                    .map(|i| thread(&format!("back-{i}")))
                    .collect(),
                &wait.crew,
                &service,
                &lost_connection,
            )
            .expect("made"),
            book,
            source,
            lost: Arc::new(Mutex::new(lost)),
        }
    }

    /// Makes the server's end of a connection.
    pub fn serve_connection(&self, connection: usize, epoch: u32) -> Arc<ServeConnection> {
        let l = self.dispatcher.connection(connection);
        let cfgs = ServeConnectionCfgs {
            gpu: None,
            session: 1,
            connection: connection as u16,
            epoch,
            slots: l.slots,
            request_stride: l.request_stride,
            response_stride: l.response_stride,
            stream: fabric::wire::Stream::None,
        };
        Arc::new(ServeConnection::new(cfgs).expect("memory"))
    }

    /// Joins both ends of a connection.
    pub fn connect(
        &self,
        connection: usize,
        epoch: u32,
        over: &Over,
    ) -> Option<memory::MemoryFaults> {
        let serve = self.serve_connection(connection, epoch);
        let ends = (self.dispatcher.endpoint(connection), serve.endpoint(64));
        let (near, far, faults) = over.join(ends.0, ends.1);
        self.server.attach(connection % 2, serve, far);
        self.dispatcher.attach(connection, epoch, near);
        faults
    }

    pub fn sample(&self, id: u64) -> Sample {
        let len = 1 + (id * 131) as usize % REQUEST;
        let offset = (id * 977) as usize % (self.source.len() - REQUEST);
        Sample {
            id,
            index: id,
            source: SourceId(0),
            offset,
            len: len as u32,
            issued_ns: now_ns(),
            first: None,
            tries: Default::default(),
        }
    }

    /// Issues samples `0..n` in bursts of at most 150.
    pub fn issue_in_bursts(&self, n: u64) {
        let mut id = 0;
        for burst in (1..).map(|i: u64| 1 + i * i % 150) {
            let samples: Vec<_> = (id..(id + burst).min(n)).map(|i| self.sample(i)).collect();
            id += samples.len() as u64;
            self.dispatcher.issue(&samples);
            if id == n {
                break;
            }
        }
    }

    pub fn wait_up(&self, n: usize) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.dispatcher.connections_up() != n {
            assert!(
                Instant::now() < end,
                "{} connections up",
                self.dispatcher.connections_up()
            );
            std::thread::yield_now();
        }
    }

    /// Waits for `n` events: a connection is down shortly before its loss is reported.
    pub fn wait_events(&self, n: usize) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.book.events.lock().expect("alive").len() < n {
            assert!(Instant::now() < end, "nothing was told");
            std::thread::yield_now();
        }
    }

    pub fn first_byte(&self, id: u64) -> u8 {
        // SAFETY: no thread changes the source.
        unsafe { self.source.bytes(self.sample(id).offset, 1) }.expect("in")[0]
    }

    /// Checks that `n` samples were answered once with their own digest, and recorded.
    pub fn check(&self, n: u64) {
        self.check_answers(n);
        let bytes = (0..n).map(|id| u64::from(self.sample(id).len));
        self.check_recorded(n, bytes.sum());
        let c = self.dispatcher.counts();
        assert_eq!((c.issued, c.completed, c.completed_empty), (n, n, 0));
        assert_eq!(c.posted, n + c.again);
    }

    /// Checks that `n` samples were answered once with their own digest.
    pub fn check_answers(&self, n: u64) {
        let answers = self.book.answers.lock().expect("alive");
        assert_eq!(answers.len() as u64, n);
        for id in 0..n {
            let s = self.sample(id);
            // SAFETY: no thread changes the source.
            let bytes = unsafe { self.source.bytes(s.offset, s.len as usize) }.expect("in");
            assert_eq!(
                answers.get(&id),
                Some(&(1, Some(xxh3_64(bytes)))),
                "sample {id}"
            );
        }
    }

    /// Checks that the times of `n` samples with `bytes` payload bytes were recorded.
    pub fn check_recorded(&self, n: u64, bytes: u64) {
        let recorded = || self.book.recorded.load(Ordering::Relaxed);
        let end = Instant::now() + Duration::from_secs(10);
        // Recording is the last step of a turn, so wait for it.
        while recorded() < n && Instant::now() < end {
            std::thread::sleep(Duration::from_millis(1));
        }
        let recorded_bytes = self.book.recorded_bytes.load(Ordering::Relaxed);
        assert_eq!((recorded(), recorded_bytes), (n, bytes));
    }
}
