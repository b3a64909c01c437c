//! What a sample meets allocates nothing: choosing a rail, recording, a part of an answer.
use std::{
    hint::black_box,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    thread,
    time::Duration,
};

use fabric::{
    testkit::counting::{of_process, of_thread},
    wire::Stream,
};
use qdl::{
    config::HealthConfig,
    counters::{Live, Recorder, SampleTimes},
    dispatch::{Completer, DispatchEvent, Owner, Response, ResponsePart, Sample},
    rails::{ConnectionRail, Load, MAX_RAILS, PeerCfgs, Policy, RailArbiter, RailId, Score},
    serve::{Arrival, Finished, Sent, Service, respond_all},
    testkit::rig::{Rig, RigCfgs, Wait, finished},
};
use record::BatchSizes;

use super::alone;

fn allocations(f: impl FnOnce()) -> u64 {
    let before = of_thread();
    f();
    of_thread() - before
}

#[test]
fn each_kind_of_allocation_counts_once_and_for_its_thread() {
    let _alone = alone();
    assert_eq!(allocations(|| drop(black_box(Box::new(1u64)))), 1, "plain");
    assert_eq!(allocations(|| drop(black_box(vec![0u8; 100]))), 1, "zeroed");
    let mut grows = Vec::<u64>::with_capacity(1);
    let grow = || black_box(&mut grows).reserve_exact(1000);
    assert_eq!(allocations(grow), 1, "grown");
    assert_eq!(allocations(|| drop(grows)), 0, "given back");

    let (go, wait) = mpsc::sync_channel::<()>(0);
    let other = thread::spawn(move || {
        wait.recv().expect("a start");
        allocations(|| (0..10).for_each(|_| drop(black_box(Box::new(1u64)))))
    });
    let (own, all) = (of_thread(), of_process());
    go.send(()).expect("it waits");
    assert_eq!(other.join().expect("ended"), 10);
    // `join` and `send` may allocate a little, but fewer than ten times.
    assert!(of_process() >= all + 10 && of_thread() < own + 10);
}

/// Two peers with this many rails each, and a connection over each rail to each of eight targets,
/// which have one own rail each: samples also cross the peer's node.
fn arbiter(policy: Policy, rails: usize) -> RailArbiter {
    let all: Vec<_> = (0..rails).map(|r| RailId(r as u8)).collect();
    let peer = PeerCfgs {
        policy,
        health: HealthConfig::default(),
        rails,
        targets: (0..8).map(|t| vec![all[t % rails]]).collect(),
    };
    let connection = |i: usize| ConnectionRail {
        peer: i / (8 * rails),
        rail: RailId((i / 8 % rails) as u8),
        target: i % 8,
        nic: i / 8 % rails,
    };
    let connections = (0..16 * rails).map(connection).collect();
    RailArbiter::new(&[peer.clone(), peer], connections).expect("good")
}

#[test]
fn choosing_a_connection_allocates_nothing() {
    let _alone = alone();
    let spray = Policy::HealthSpray {
        delta: Score::from_f32(0.25),
        above_only: false,
    };
    for rails in [1, 8, MAX_RAILS] {
        for policy in [Policy::Best, Policy::HealthBestFit, spray] {
            let arbiter = arbiter(policy, rails);
            let mut changes = 0;
            let choose = || {
                for connection in 0..16 * rails {
                    arbiter.connection_up(0, connection, &mut |_| changes += 1);
                }
                for i in 0..2000u64 {
                    let (now, len) = (i * 100_000, 64 << (i % 12));
                    let load = |connection: usize| Load {
                        up: true,
                        in_flight: connection % 3,
                        slots: 8,
                    };
                    let connection = arbiter.pick(now, len, load).expect("room");
                    let is_slow = (connection / 8).is_multiple_of(rails);
                    arbiter.complete(connection, len, if is_slow { 200_000 } else { 10_000 });
                    arbiter.tick(now, &mut |_, _| changes += 1);
                    if i % 500 == 499 {
                        // All connections of a rail: the rail is lost, and back.
                        let rail = connection / 8 * 8;
                        for c in rail..rail + 8 {
                            arbiter.connection_lost(now, c, None, false, &mut |_| changes += 1);
                        }
                        for c in rail..rail + 8 {
                            arbiter.connection_up(now, c, &mut |_| changes += 1);
                        }
                    }
                }
            };
            assert_eq!(allocations(choose), 0, "{policy:?}, {rails} rails");
            assert!(changes >= 2 * rails, "something happened");
        }
    }
}

#[test]
fn recording_allocates_nothing() {
    let _alone = alone();
    let live = Arc::new(Live::new(1));
    let mut recorder = Recorder::new(live.clone(), 0);
    let mut sizes = BatchSizes::new(1024);
    let record = || {
        for i in 0..200_000u64 {
            // Every magnitude up to an hour, and beyond the histograms' maximum.
            let long = 1u64 << (i % 45);
            recorder.record(&SampleTimes {
                issued_ns: 0,
                posted_ns: i,
                seen_ns: i + long,
                completed_ns: i + 2 * long,
                queue_us: i as u32,
                compute_us: 7,
                bytes_out: 150_528,
                bytes_in: 8,
                ..SampleTimes::default()
            });
            sizes.record((i % 1500) as usize);
            if i % 64 == 0 {
                recorder.show(i * 100_000);
                black_box(live.figures());
            }
        }
    };
    assert_eq!(allocations(record), 0, "in 200,000 samples");
    assert_eq!(recorder.completed(), 200_000);
}

const TOKENS: usize = 500;
const RESPONSE: usize = 16 + 4 * TOKENS + 16;

#[derive(Default)]
struct Counts {
    parts: AtomicU64,
    firsts: AtomicU64,
    bytes: AtomicU64,
    ends: AtomicU64,
}

struct Counter(Arc<Counts>);

impl Completer for Counter {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        for r in responses {
            assert_eq!(r.payload.len(), 4 * TOKENS);
            self.0.ends.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = ResponsePart<'_>>) {
        for p in parts {
            self.0.parts.fetch_add(1, Ordering::Relaxed);
            self.0
                .firsts
                .fetch_add(u64::from(p.has_first_token), Ordering::Relaxed);
            let bytes = p.payload.len() as u64;
            self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
}

struct Nobody;

impl Owner for Nobody {
    fn complete_empty(&self, _: &[Sample]) {}
    fn event(&self, event: DispatchEvent) {
        panic!("{event:?}");
    }
}

struct Give(Mutex<mpsc::SyncSender<Arrival>>);

impl Service for Give {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let to = self.0.lock().expect("alive");
        arrivals.drain(..).for_each(|a| to.send(a).expect("room"));
    }
}

/// Answers with one part per token. Returns the allocations of this thread for the parts.
fn answer(mut arrival: Arrival, scratch: &mut Vec<Finished>) -> u64 {
    let origin = arrival.origin().clone();
    let mut sent = Sent::default();
    let before = of_thread();
    for i in 0..TOKENS {
        arrival.output_from(4 * i)[..4].copy_from_slice(&(i as u32).to_le_bytes());
        let to = 4 * (i as u32 + 1);
        if i + 1 == TOKENS {
            break;
        }
        origin.parts(&[sent.next(arrival.ticket(), to, (0, 0))]);
        // Parts posted together leave together: the NIC thread needs a turn between them.
        thread::yield_now();
    }
    let allocated = of_thread() - before;
    let finished = finished(&arrival, 4 * TOKENS as u32, sent);
    respond_all([(arrival, finished)], scratch);
    allocated
}

/// Both ends count for the whole process.
#[test]
fn a_part_allocates_nothing() {
    let _alone = alone();
    let counts = Arc::new(Counts::default());
    let (give, take) = mpsc::sync_channel(64);
    let service: Arc<dyn Service> = Arc::new(Give(Mutex::new(give)));
    let cfgs = RigCfgs {
        nics: 1,
        request: 64,
        response: RESPONSE,
        stream: Stream::All,
        ..RigCfgs::new(1, 8).wait(Wait::patient())
    };
    let counter = || -> Box<dyn Completer> { Box::new(Counter(counts.clone())) };
    let rig = Rig::new(cfgs, &service, counter, Arc::new(Nobody));
    rig.connect_all();
    let patience = Duration::from_secs(20);

    let mut scratch = Vec::with_capacity(1);
    let mut round = |n: u64| {
        let mut allocated = 0;
        for id in 0..n {
            rig.issue(id..id + 1);
            let arrival = take.recv_timeout(patience).expect("it arrives");
            allocated += answer(arrival, &mut scratch);
            rig.drain();
        }
        allocated
    };
    // The first round grows all buffers.
    round(4);
    let (before, samples) = (of_process(), 40);
    let of_engine = round(samples);
    let allocated = of_process() - before;
    assert_eq!(of_engine, 0, "on the engine's thread");
    let parts = counts.parts.load(Ordering::Relaxed);
    assert!(parts > samples * 10, "{parts} parts");
    // A channel allocates a block now and then, for samples and not for parts.
    assert!(
        allocated <= samples,
        "{allocated} allocations in {parts} parts"
    );
    assert_eq!(counts.firsts.load(Ordering::Relaxed), samples + 4);
    assert_eq!(counts.ends.load(Ordering::Relaxed), samples + 4);
    assert!(counts.bytes.load(Ordering::Relaxed) < (samples + 4) * 4 * TOKENS as u64);
}
