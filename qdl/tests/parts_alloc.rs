//! A part of an answer causes no allocation at either end. A separate program, because it counts
//! allocations of the whole process.
#![cfg(not(qdl_loom))]

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering},
        mpsc,
    },
    time::Duration,
};

use fabric::{
    testkit::counting::{Counting, of_process as asked, of_thread},
    wire::Stream,
};
use qdl::{
    dispatch::{Completer, DispatchEvent, Owner, Part, Response, Sample},
    serve::{self, Arrival, Finished, Sent, Service, respond_all},
    testkit::rig::{Over, Rig, RigCfgs, Wait, finished},
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
    let finished = finished(&arrival, 4 * TOKENS as u32, sent);
    respond_all([(arrival, finished)], scratch);
    allocated
}

#[test]
fn a_part_allocates_nothing() {
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
    rig.connect_all(Over::Tcp);
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
