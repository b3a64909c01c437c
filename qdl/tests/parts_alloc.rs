//! A part of an answer causes no allocation at either end. A separate program, because it counts
//! allocations of the whole process.
#![cfg(not(qdl_loom))]

use std::{
    net::{TcpListener, TcpStream},
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use fabric::testkit::counting::{Counting, of_process as asked, of_thread};
use fabric::{Region, SourceId, clock::now_ns, os::Near, tcp, wire::Stream};
use qdl::testkit::eventually;
use qdl::{
    connection::{NicThreadCfgs, Spin},
    dispatch::{
        Completer, ConnectionCfgs, DispatchCfgs, DispatchEvent, DispatchNic, Dispatcher, Owner,
        Part, Response, Sample, SampleTimes,
    },
    serve::{
        self, Arrival, Finished, OnConnectionLost, Sent, ServeConnection, ServeConnectionCfgs,
        Server, Service, respond_all,
    },
};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

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
    fn parts(&mut self, parts: &mut dyn ExactSizeIterator<Item = Part<'_>>) {
        for p in parts {
            self.0.parts.fetch_add(1, Ordering::Relaxed);
            self.0
                .firsts
                .fetch_add(u64::from(p.first), Ordering::Relaxed);
            let bytes = p.payload.len() as u64;
            self.0.bytes.fetch_add(bytes, Ordering::Relaxed);
        }
    }
    fn record(&mut self, _: &SampleTimes, _: u64) {}
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
        origin.part(&serve::Part {
            ticket: arrival.ticket(),
            from: sent.bytes,
            to,
            queue_us: 0,
            compute_us: 0,
        });
        sent.bytes = to;
        sent.parts += 1;
        // Parts posted together leave together: the NIC thread needs a turn between them.
        std::thread::yield_now();
    }
    let allocated = of_thread() - before;
    let finished = Finished {
        ticket: arrival.ticket(),
        len: 4 * TOKENS as u32,
        queue_us: 0,
        compute_us: 0,
        sent,
    };
    respond_all([(arrival, finished)], scratch);
    allocated
}

fn thread(name: &str) -> NicThreadCfgs {
    NicThreadCfgs {
        name: name.to_owned(),
        spin: Spin::new(20_000),
        tick_ns: 5_000_000,
        near: Near::default(),
        begin: None,
    }
}

#[test]
fn a_part_allocates_nothing() {
    let counts = Arc::new(Counts::default());
    let source = Arc::new(Region::new(4096).expect("memory"));
    let connection = ConnectionCfgs {
        peer: 0,
        nic_index: 0,
        slots: 8,
        response_stride: RESPONSE,
        request_stride: 64,
    };
    let cfgs = DispatchCfgs {
        sources: vec![source],
        connections: vec![connection],
        stream: Stream::All,
        ..DispatchCfgs::default()
    };
    let front = DispatchNic {
        cfgs: thread("front"),
        completer: Box::new(Counter(counts.clone())),
    };
    let dispatcher = Dispatcher::new(cfgs, vec![front], Arc::new(Nobody)).expect("made");
    let (give, take) = mpsc::sync_channel(64);
    let service: Arc<dyn Service> = Arc::new(Give(Mutex::new(give)));
    let lost: Arc<OnConnectionLost> = Arc::new(|_| {});
    let server = Server::new(vec![thread("back")], &service, &lost).expect("made");
    let serve = ServeConnection::new(ServeConnectionCfgs {
        gpu: None,
        session: 1,
        connection: 0,
        epoch: 1,
        slots: 8,
        request_stride: 64,
        response_stride: RESPONSE,
        stream: Stream::All,
    });
    let serve = Arc::new(serve.expect("memory"));
    let listener = TcpListener::bind("127.0.0.1:0").expect("bound");
    let near = TcpStream::connect(listener.local_addr().expect("bound")).expect("connected");
    let far = listener.accept().expect("accepted").0;
    let tcp = tcp::TcpCfgs::default();
    let far = tcp::link(far, serve.endpoint(64), &tcp).expect("linked");
    let near = tcp::link(near, dispatcher.endpoint(0), &tcp).expect("linked");
    server.attach(0, serve, far);
    dispatcher.attach(0, 1, near);
    let patience = Duration::from_secs(20);
    eventually("it does not come up", || dispatcher.connections_up() >= 1);

    let mut scratch = Vec::with_capacity(1);
    let mut round = |n: u64| {
        let mut allocated = 0;
        for id in 0..n {
            dispatcher.issue(&[Sample {
                id,
                index: id,
                source: SourceId(0),
                offset: 0,
                len: 8,
                issued_ns: now_ns(),
                first: None,
                tries: Default::default(),
            }]);
            let arrival = take.recv_timeout(patience).expect("it arrives");
            allocated += answer(arrival, &mut scratch);
            assert!(dispatcher.drain(patience));
        }
        allocated
    };
    // The first round grows all buffers.
    round(4);
    let (before, samples) = (asked(), 40);
    let of_engine = round(samples);
    let allocated = asked() - before;
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
