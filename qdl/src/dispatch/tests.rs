//! Dispatcher against server, over the in-memory fabric and over sockets: every sample is answered with its
//! own response exactly once, whatever happens to the connections.

use std::{
    collections::HashMap,
    sync::{Arc, Mutex, mpsc},
    time::{Duration, Instant},
};

use xxhash_rust::xxh3::xxh3_64;

use super::*;
use crate::{
    fabric::{SourceId, memory, tcp},
    rails::{FailbackCfgs, HealthCfgs, LaneRail, PeerCfgs, RailArbiterCfgs},
    response::RESPONSE_HEADER_BYTES,
    serve::{Arrival, Finished, ServeLane, ServeLaneCfgs, Server, Service, respond_all},
};

const REQUEST: usize = 4096;
const RESPONSE: usize = RESPONSE_HEADER_BYTES + 8;

/// Answers at once with the digest of the input.
struct Digest;

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
            };
            (a, f)
        });
        respond_all(finished, &mut Vec::new());
    }
}

/// Keeps what it is given, so that samples stay in flight.
#[derive(Default)]
struct Hoard(Mutex<Vec<Arrival>>);

impl Service for Hoard {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        self.0.lock().expect("alive").append(arrivals);
    }
}

/// What came back: id -> (times, digest).
#[derive(Default)]
struct Book {
    answers: Mutex<HashMap<u64, (u32, Option<u64>)>>,
    events: Mutex<Vec<DispatchEvent>>,
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
    fn record(&mut self, t: &SampleTimes) {
        assert_eq!((t.queue_us, t.compute_us, t.bytes_in), (1, 2, 8));
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

/// How rail threads wait.
struct Wait {
    spin_ns: u64,
    tick_ns: u64,
    echo: EchoCfgs,
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
        }
    }
}

struct Bench {
    dispatcher: Dispatcher,
    server: Server,
    book: Arc<Book>,
    source: Arc<Region>,
    lost: Arc<Mutex<mpsc::Receiver<crate::serve::LaneLost>>>,
}

enum Over {
    Memory,
    Tcp,
}

impl Bench {
    fn new(
        lanes: usize,
        slots: usize,
        service: Arc<dyn Service>,
        staged: bool,
        up_to: usize,
    ) -> Self {
        Bench::with(
            lanes,
            slots,
            service,
            staged,
            up_to,
            Policy::default(),
            Wait::default(),
        )
    }

    /// By health: a rail for each of the two rail threads.
    fn by_health(lanes: usize, slots: usize, up_to: usize, policy: Policy) -> Self {
        let bench = Bench::with(
            lanes,
            slots,
            Arc::new(Digest),
            false,
            up_to,
            policy,
            Wait::default(),
        );
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
                sources: vec![all.clone()],
                targets: vec![all],
            }],
            lanes: (0..lanes)
                .map(|i| LaneRail {
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
    fn with(
        lanes: usize,
        slots: usize,
        service: Arc<dyn Service>,
        staged: bool,
        up_to: usize,
        policy: Policy,
        wait: Wait,
    ) -> Self {
        let rail = |name: &str| RailCfgs {
            name: name.into(),
            spin_ns: wait.spin_ns,
            tick_ns: wait.tick_ns,
            cpus: vec![],
        };
        let source = Arc::new(Region::new(1 << 20).expect("memory"));
        // SAFETY: nobody else knows the region yet.
        for (i, b) in unsafe { source.bytes_mut(0, 1 << 20) }
            .expect("in")
            .iter_mut()
            .enumerate()
        {
            *b = (i * 7 + i / 253) as u8;
        }
        let book = Arc::new(Book::default());
        let lane = |i| LaneCfgs {
            peer: 0,
            rail: i % 2,
            slots,
            response_stride: RESPONSE,
            request_stride: REQUEST,
        };
        let cfgs = DispatchCfgs {
            policy,
            sources: if staged { vec![] } else { vec![source.clone()] },
            staged_from: staged.then(|| source.clone()),
            lanes: (0..lanes).map(lane).collect(),
            issue_post_up_to: up_to,
            echo: wait.echo,
            ..DispatchCfgs::default()
        };
        let rails = (0..2)
            .map(|i| DispatchRail {
                cfgs: rail(&format!("front-{i}")),
                completer: Box::new(BookKeeper(book.clone())),
            })
            .collect();
        let (tell, lost) = mpsc::channel();
        let tell = Mutex::new(tell);
        let lost_lane: Arc<crate::serve::OnLaneLost> = Arc::new(move |l| {
            let _ = tell.lock().expect("alive").send(l);
        });
        Bench {
            dispatcher: Dispatcher::new(cfgs, rails, book.clone()).expect("made"),
            server: Server::new(vec![rail("back-0"), rail("back-1")], &service, &lost_lane)
                .expect("made"),
            book,
            source,
            lost: Arc::new(Mutex::new(lost)),
        }
    }

    fn connect(&self, lane: usize, epoch: u32, over: &Over) -> Option<memory::MemoryFaults> {
        let l = self.dispatcher.lane(lane);
        let serve = Arc::new(
            ServeLane::new(ServeLaneCfgs {
                gpu: None,
                session: 1,
                lane: lane as u16,
                epoch,
                slots: l.slots,
                request_stride: l.request_stride,
                response_stride: l.response_stride,
            })
            .expect("memory"),
        );
        let (a, b) = (self.dispatcher.endpoint(lane), serve.endpoint(64));
        let (near, far, faults) = match over {
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
                (
                    tcp::link(sa, a, &cfgs).expect("linked"),
                    tcp::link(sb, b, &cfgs).expect("linked"),
                    None,
                )
            }
        };
        self.server.attach(lane % 2, serve, far);
        self.dispatcher.attach(lane, epoch, near);
        faults
    }

    fn sample(&self, id: u64) -> Sample {
        let len = 1 + (id * 131) as usize % REQUEST;
        let offset = (id * 977) as usize % (self.source.len() - REQUEST);
        Sample {
            id,
            index: id,
            source: SourceId(0),
            offset,
            len: len as u32,
            issued_ns: now_ns(),
        }
    }

    fn wait_up(&self, n: usize) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.dispatcher.lanes_up() != n {
            assert!(
                Instant::now() < end,
                "{} lanes up",
                self.dispatcher.lanes_up()
            );
            std::thread::yield_now();
        }
    }

    /// A lane is down a moment before its loss is told.
    fn wait_events(&self, n: usize) {
        let end = Instant::now() + Duration::from_secs(10);
        while self.book.events.lock().expect("alive").len() < n {
            assert!(Instant::now() < end, "nothing was told");
            std::thread::yield_now();
        }
    }

    /// Every one of `n` samples was answered once, with its own digest.
    fn check(&self, n: u64) {
        let answers = self.book.answers.lock().expect("alive");
        assert_eq!(answers.len() as u64, n);
        for id in 0..n {
            let s = self.sample(id);
            // SAFETY: the source is never changed.
            let bytes = unsafe { self.source.bytes(s.offset, s.len as usize) }.expect("in");
            assert_eq!(
                answers.get(&id),
                Some(&(1, Some(xxh3_64(bytes)))),
                "sample {id}"
            );
        }
        let c = self.dispatcher.counts();
        assert_eq!((c.issued, c.completed, c.completed_empty), (n, n, 0));
        assert_eq!(c.posted, n + c.again);
    }
}

fn everything_comes_back(over: &Over, staged: bool, up_to: usize) {
    let b = Bench::new(4, 16, Arc::new(Digest), staged, up_to);
    (0..4).for_each(|lane| {
        b.connect(lane, 1, over);
    });
    b.wait_up(4);
    let n = 20_000u64;
    let mut id = 0;
    for burst in (1..).map(|i: u64| 1 + i * i % 150) {
        let samples: Vec<_> = (id..(id + burst).min(n)).map(|i| b.sample(i)).collect();
        id += samples.len() as u64;
        b.dispatcher.issue(&samples);
        if id == n {
            break;
        }
    }
    assert!(
        b.dispatcher.drain(Duration::from_secs(30)),
        "{:?}",
        b.dispatcher.counts()
    );
    b.dispatcher.stop();
    b.check(n);
    let staged_copies: u64 = b.dispatcher.lane_counts().iter().map(|l| l.staged).sum();
    assert_eq!(staged_copies, if staged { n } else { 0 });
}

#[test]
fn a_connection_counts_what_it_did_and_the_counts_agree() {
    let b = Bench::new(2, 8, Arc::new(Digest), false, 1 << 20);
    (0..2).for_each(|lane| {
        b.connect(lane, 1, &Over::Tcp);
    });
    b.wait_up(2);
    let n = 20;
    for id in 0..n {
        // Longer than the rail threads spin, so that what comes finds them asleep.
        std::thread::sleep(Duration::from_millis(2));
        b.dispatcher.issue(&[b.sample(id)]);
        assert!(b.dispatcher.drain(Duration::from_secs(10)));
    }
    b.dispatcher.stop();
    let lanes = b.dispatcher.lane_counts();
    let sum = |f: fn(&LaneCounts) -> u64| lanes.iter().map(f).sum::<u64>();
    assert_eq!(sum(|l| l.sent.writes), n);
    assert_eq!(sum(|l| l.received.writes), n);
    assert_eq!(sum(|l| l.received.bytes), n * RESPONSE as u64);
    assert!(lanes.iter().all(|l| l.in_flight_max == 1), "{lanes:?}");
    assert!(sum(|l| l.wakeups) > 0, "nothing woke a sleeper: {lanes:?}");
    let sleeps = b.dispatcher.counts().sleeps;
    assert!(sum(|l| l.wakeups) <= 2 * sleeps, "{sleeps}: {lanes:?}");
    assert!(sum(|l| l.sent.syscalls) >= n && sum(|l| l.received.syscalls) >= n);
    assert!(sum(|l| l.sent.copies) <= n);
}

#[test]
fn everything_comes_back_over_memory() {
    everything_comes_back(&Over::Memory, false, 1 << 20);
}

#[test]
fn everything_comes_back_over_tcp_posted_by_the_issuer() {
    everything_comes_back(&Over::Tcp, false, 1 << 20);
}

#[test]
fn everything_comes_back_over_tcp_posted_by_rail_threads() {
    everything_comes_back(&Over::Tcp, false, 0);
}

#[test]
fn staged_samples_are_copied_once_each() {
    everything_comes_back(&Over::Tcp, true, 1 << 20);
}

#[test]
fn samples_of_a_lost_lane_go_again_over_another() {
    cut_and_make_again(&Bench::new(3, 8, Arc::new(Digest), false, 1 << 20));
}

/// Every policy by health, with samples posted by the issuer or by the rail threads.
fn by_health(then: impl Fn(&Bench)) {
    let delta = Score::from_steps(8192);
    let spray = |above_only| Policy::HealthSpray { delta, above_only };
    for (policy, up_to) in [
        (Policy::Best, 1 << 20),
        (Policy::HealthBestFit, 0),
        (spray(false), 1 << 20),
        (spray(true), 0),
    ] {
        let b = Bench::by_health(3, 8, up_to, policy);
        then(&b);
        let rails = b.dispatcher.rail_report(0);
        let picked: u64 = rails.iter().map(|r| r.picked).sum();
        assert!(picked >= b.dispatcher.counts().posted, "{rails:?}");
        // Every pick has ended, in an answer or by being taken back.
        assert!(rails.iter().all(|r| r.assigned_bytes == 0), "{rails:?}");
    }
}

#[test]
fn by_health_samples_of_a_lost_lane_go_again_over_another() {
    by_health(|b| {
        cut_and_make_again(b);
        let events = b.book.events.lock().expect("alive");
        let rail = |e: &&DispatchEvent| matches!(e, DispatchEvent::Rail { .. });
        assert!(events.iter().filter(rail).count() >= 2, "{events:?}");
    });
}

#[test]
fn by_health_everything_comes_back_in_bursts_of_any_size() {
    by_health(|b| {
        (0..3).for_each(|lane| {
            b.connect(lane, 1, &Over::Tcp);
        });
        b.wait_up(3);
        let (n, mut id) = (6_000u64, 0);
        for burst in (1..).map(|i: u64| 1 + i * i % 150) {
            let samples: Vec<_> = (id..(id + burst).min(n)).map(|i| b.sample(i)).collect();
            id += samples.len() as u64;
            b.dispatcher.issue(&samples);
            if id == n {
                break;
            }
        }
        let drained = b.dispatcher.drain(Duration::from_secs(30));
        assert!(drained, "{:?}", b.dispatcher.counts());
        b.check(n);
    });
}

#[test]
fn by_health_an_abort_completes_what_waits() {
    by_health(|b| {
        // No lane ever comes up.
        let samples: Vec<_> = (0..50).map(|i| b.sample(i)).collect();
        b.dispatcher.issue(&samples);
        assert_eq!(b.dispatcher.outstanding(), 50);
        b.dispatcher.abort("test");
        b.dispatcher.issue(&[b.sample(50)]);
        assert!(b.dispatcher.drain(Duration::from_secs(10)));
        let answers = b.book.answers.lock().expect("alive");
        assert!(answers.len() == 51 && answers.values().all(|a| *a == (1, None)));
    });
}

fn cut_and_make_again(b: &Bench) {
    let mut faults: Vec<_> = (0..3).map(|l| b.connect(l, 1, &Over::Memory)).collect();
    b.wait_up(3);
    let n = 6000u64;
    let mut epochs = [1u32; 3];
    for id in 0..n {
        let s = b.sample(id);
        b.dispatcher.issue(&[s]);
        if id % 100 == 50 {
            let lane = (id / 100) as usize % 3;
            if let Some(f) = faults[lane].take() {
                f.cut();
                // The lane is down before it is made again.
                let seen = |e: &DispatchEvent| {
                    matches!(e, DispatchEvent::LaneLost { lane: l, epoch, .. }
                        if (*l, *epoch) == (lane, epochs[lane]))
                };
                let end = Instant::now() + Duration::from_secs(10);
                while !b.book.events.lock().expect("alive").iter().any(seen) {
                    assert!(
                        Instant::now() < end,
                        "the loss of lane {lane} was never told"
                    );
                    std::thread::yield_now();
                }
                epochs[lane] += 1;
                faults[lane] = b.connect(lane, epochs[lane], &Over::Memory);
            }
        }
    }
    assert!(
        b.dispatcher.drain(Duration::from_secs(30)),
        "{:?}",
        b.dispatcher.counts()
    );
    b.check(n);
    assert_eq!(b.dispatcher.counts().lanes_lost, 60);
}

#[test]
fn re_dispatch_sends_what_was_in_flight_again() {
    // The first service answers nothing, so everything sent is in flight when its lane is cut.
    let b = Bench::new(2, 32, Arc::new(Hoard::default()), false, 1 << 20);
    let fault = b.connect(0, 1, &Over::Memory);
    b.wait_up(1);
    let samples: Vec<_> = (0..40).map(|i| b.sample(i)).collect();
    b.dispatcher.issue(&samples);
    std::thread::sleep(Duration::from_millis(20));
    fault.expect("memory").cut();
    b.wait_up(0);
    let back = Bench::new(2, 32, Arc::new(Digest), false, 1 << 20);
    // Lane 1 leads to a server that answers.
    let l = b.dispatcher.lane(1);
    let serve = Arc::new(
        ServeLane::new(ServeLaneCfgs {
            gpu: None,
            session: 1,
            lane: 1,
            epoch: 1,
            slots: l.slots,
            request_stride: l.request_stride,
            response_stride: l.response_stride,
        })
        .expect("memory"),
    );
    let (near, far, _) =
        memory::pair(b.dispatcher.endpoint(1), serve.endpoint(64)).expect("joined");
    back.server.attach(0, serve, far);
    b.dispatcher.attach(1, 1, near);
    assert!(
        b.dispatcher.drain(Duration::from_secs(10)),
        "{:?}",
        b.dispatcher.counts()
    );
    b.check(40);
    assert_eq!(
        b.dispatcher.counts().again,
        32,
        "as many as there were slots"
    );
}

#[test]
fn a_peer_that_says_nothing_is_given_up_and_an_abort_completes_everything() {
    let b = Bench::new(1, 8, Arc::new(Digest), false, 1 << 20);
    // A link whose far end nobody polls: the peer is stopped, its memory still there.
    let l = b.dispatcher.lane(0);
    let serve = ServeLane::new(ServeLaneCfgs {
        gpu: None,
        session: 1,
        lane: 0,
        epoch: 1,
        slots: l.slots,
        request_stride: l.request_stride,
        response_stride: l.response_stride,
    })
    .expect("memory");
    let (near, _far, _) =
        memory::pair(b.dispatcher.endpoint(0), serve.endpoint(64)).expect("joined");
    b.dispatcher.attach(0, 1, near);
    b.wait_up(1);
    let samples: Vec<_> = (0..100).map(|i| b.sample(i)).collect();
    b.dispatcher.issue(&samples);
    b.wait_up(0);
    b.wait_events(1);
    {
        let events = b.book.events.lock().expect("alive");
        let DispatchEvent::LaneLost { cause, again, .. } = &events[0] else {
            panic!("{events:?}")
        };
        assert!(cause.to_string().contains("no sign of life"), "{cause}");
        assert_eq!(*again, 8);
    }
    assert_eq!(b.dispatcher.outstanding(), 100);
    b.dispatcher.abort("test");
    b.dispatcher.issue(&[b.sample(100)]);
    assert!(b.dispatcher.drain(Duration::from_secs(10)));
    let answers = b.book.answers.lock().expect("alive");
    assert_eq!(answers.len(), 101);
    assert!(
        answers.values().all(|a| *a == (1, None)),
        "each once, and empty"
    );
}

#[test]
fn a_lane_is_quiet_when_no_arrival_reads_it() {
    let hoard = Arc::new(Hoard::default());
    let b = Bench::new(1, 8, hoard.clone(), false, 1 << 20);
    let fault = b.connect(0, 1, &Over::Memory).expect("memory");
    b.wait_up(1);
    b.dispatcher.issue(&[b.sample(0), b.sample(1)]);
    let end = Instant::now() + Duration::from_secs(10);
    while hoard.0.lock().expect("alive").len() < 2 {
        assert!(Instant::now() < end, "nothing arrived");
    }
    fault.cut();
    let lost = b
        .lost
        .lock()
        .expect("alive")
        .recv_timeout(Duration::from_secs(10));
    assert_eq!(lost.expect("told").epoch, 1);
    let arrivals = std::mem::take(&mut *hoard.0.lock().expect("alive"));
    // The batch may go on reading; its answers go nowhere.
    assert_eq!(xxh3_64(arrivals[0].input()), {
        let s = b.sample(0);
        // SAFETY: the source is never changed.
        xxh3_64(unsafe { b.source.bytes(s.offset, s.len as usize) }.expect("in"))
    });
    let origin = Arc::downgrade(arrivals[0].origin());
    let mut arrivals = arrivals;
    Digest.arrived(&mut arrivals);
    assert_eq!(
        origin.strong_count(),
        0,
        "the lane's memory is let go with its last reader"
    );
}

/// Keeps the first samples, so that there is company for ever, and answers the others at once.
struct Company {
    kept: Hoard,
    wanted: usize,
    came: AtomicU64,
}

impl Service for Company {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let came = arrivals.len() as u64;
        {
            let mut kept = self.kept.0.lock().expect("alive");
            while kept.len() < self.wanted {
                let Some(a) = arrivals.pop() else { break };
                kept.push(a);
            }
        }
        Digest.arrived(arrivals);
        self.came.fetch_add(came, Ordering::SeqCst);
    }
}

#[test]
fn a_doorbell_that_waits_is_rung_though_nobody_comes_by() {
    const HOUR: u64 = 3_600_000_000_000;
    let company = Arc::new(Company {
        kept: Hoard::default(),
        wanted: 20,
        came: AtomicU64::new(0),
    });
    // Threads that sleep at once, and nothing that wakes them by and by.
    let wait = Wait {
        spin_ns: 0,
        tick_ns: HOUR,
        echo: EchoCfgs {
            interval_ns: HOUR,
            timeout_ns: HOUR,
        },
    };
    let b = Bench::with(
        1,
        64,
        company.clone(),
        false,
        1 << 20,
        Policy::default(),
        wait,
    );
    b.connect(0, 1, &Over::Tcp);
    b.wait_up(1);
    let mut id = 0;
    for round in 0..3_000u64 {
        // One rings; those right behind it may wait.
        for _ in 0..1 + round % 4 {
            b.dispatcher.issue(&[b.sample(id)]);
            id += 1;
        }
        let end = Instant::now() + Duration::from_secs(20);
        while company.came.load(Ordering::SeqCst) < id {
            assert!(Instant::now() < end, "a sample was posted and never left");
            std::thread::yield_now();
        }
    }
    let mut kept = std::mem::take(&mut *company.kept.0.lock().expect("alive"));
    Digest.arrived(&mut kept);
    assert!(b.dispatcher.drain(Duration::from_secs(20)));
    b.dispatcher.stop();
    b.check(id);
}

fn warm_up(b: &Bench, sizes: u64, budget: Duration) -> Result<WarmUpReport, WarmUpError> {
    b.dispatcher.warm_up(&WarmUpCfgs {
        samples: (0..sizes).map(|i| b.sample(i)).collect(),
        budget,
        deadline: Duration::from_millis(500),
    })
}

#[test]
fn a_warm_up_goes_over_every_lane_and_counts_apart() {
    let health = Policy::HealthBestFit;
    for over in [Over::Memory, Over::Tcp] {
        for b in [
            Bench::new(3, 8, Arc::new(Digest), true, 1 << 20),
            Bench::by_health(3, 8, 1 << 20, health),
        ] {
            (0..3).for_each(|i| drop(b.connect(i, 1, &over)));
            b.wait_up(3);
            let r = warm_up(&b, 4, Duration::from_secs(60)).expect("warm");
            assert_eq!((r.lanes.len(), r.sizes, r.at_once), (3, (4, 4), 8));
            assert!(r.lanes.iter().all(|l| l.warm_ns.is_some()));
            // One cold, three other sizes, five warm; 2, 4 and 8 at once.
            assert_eq!(r.samples, 3 * (1 + 3 + 5 + 14));
            assert_eq!(b.dispatcher.counts().posted, 0);
            let samples: Vec<_> = (0..50).map(|i| b.sample(i)).collect();
            b.dispatcher.issue(&samples);
            assert!(b.dispatcher.drain(Duration::from_secs(20)));
            b.dispatcher.stop();
            // No completer saw any of it.
            b.check(50);
            let counts = b.dispatcher.counts();
            assert_eq!(
                (counts.issued, counts.completed, counts.posted),
                (50, 50, 50)
            );
            let lanes = b.dispatcher.lane_counts();
            let sum = |f: fn(&LaneCounts) -> u64| lanes.iter().map(f).sum::<u64>();
            assert_eq!((sum(|l| l.posted), sum(|l| l.taken)), (50, 50));
            assert_eq!(lanes.iter().map(|l| l.warmed).collect::<Vec<_>>(), [23; 3]);
            assert_eq!(sum(|l| l.sent.writes), 50 + r.samples);
            assert!(sum(|l| l.staged) <= 50);
        }
    }
}

#[test]
fn a_budget_that_is_gone_still_sends_one_over_every_lane() {
    let b = Bench::new(4, 8, Arc::new(Digest), false, 1 << 20);
    (0..4).for_each(|i| drop(b.connect(i, 1, &Over::Memory)));
    b.wait_up(4);
    let r = warm_up(&b, 3, Duration::ZERO).expect("warm");
    assert_eq!((r.samples, r.sizes, r.at_once), (4, (1, 3), 1));
    assert!(r.lanes.iter().all(|l| l.warm_ns.is_none()));
}

#[test]
fn a_warm_up_fails_by_the_lane_that_does_not_answer_is_lost_or_down() {
    let minute = Duration::from_secs(60);
    // Nobody answers.
    let b = Bench::new(2, 8, Arc::new(Hoard::default()), false, 1 << 20);
    (0..2).for_each(|i| drop(b.connect(i, 1, &Over::Tcp)));
    b.wait_up(2);
    let failed = warm_up(&b, 1, minute).expect_err("no answer");
    assert!(
        matches!(failed, WarmUpError::Silent { lane: 0, .. }),
        "{failed:?}"
    );
    // The second is lost while the first owes an answer.
    let b = Arc::new(Bench::new(2, 8, Arc::new(Hoard::default()), false, 1 << 20));
    b.connect(0, 1, &Over::Memory);
    let fault = b.connect(1, 1, &Over::Memory).expect("memory");
    b.wait_up(2);
    let own = b.clone();
    let warm = std::thread::spawn(move || warm_up(&own, 1, minute));
    let end = Instant::now() + Duration::from_secs(10);
    while b.dispatcher.shared.lanes[0].tracker.in_flight() == 0 {
        assert!(Instant::now() < end, "never sent");
    }
    fault.cut();
    let failed = warm.join().expect("returns").expect_err("lost");
    assert!(
        matches!(failed, WarmUpError::Lost { lane: 1, .. }),
        "{failed:?}"
    );
    b.wait_events(1);
    b.dispatcher.give_up(0, 1, Broken::Closed);
    b.wait_events(2);
    b.connect(0, 2, &Over::Memory);
    b.wait_up(1);
    // And down it stays.
    let failed = warm_up(&b, 1, Duration::ZERO).expect_err("down");
    assert_eq!(failed, WarmUpError::Down { lane: 1 });
    assert_eq!(b.dispatcher.outstanding(), 0);
    assert_eq!(b.dispatcher.counts().again, 0);
}
