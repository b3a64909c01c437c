//! Several GPUs behind one node, with an engine that needs no GPU: which GPU gets which samples,
//! and the record of each GPU.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicU64, Ordering::SeqCst},
    },
    time::Duration,
};

use accelerator::{
    engine::{Digest, EngineKind, EngineParams},
    pipeline::Options,
    pipelines::{self, Pipelines},
};
use fabric::{Region, clock};
use qdl::serve::{Arrival, Finished, Origin, Service};
use qdl::testkit::eventually;

const SAMPLE: usize = 64;

/// A connection whose samples go to one GPU, or to any.
struct Connection {
    gpu: Option<u32>,
    answered: AtomicU64,
    order: Mutex<Vec<u64>>,
}

impl Connection {
    fn new(gpu: Option<u32>) -> Arc<Self> {
        Arc::new(Connection {
            gpu,
            answered: AtomicU64::new(0),
            order: Mutex::default(),
        })
    }
}

impl Origin for Connection {
    fn refuse(&self, ticket: u64, why: &str) {
        panic!("sample {ticket}: {why}");
    }

    fn respond(&self, finished: &[Finished]) {
        let mut order = self.order.lock().expect("no panic");
        order.extend(finished.iter().map(|f| f.ticket));
        self.answered.fetch_add(finished.len() as u64, SeqCst);
    }

    fn gpu(&self) -> Option<u32> {
        self.gpu
    }
}

/// Inputs and outputs of `n` samples; each byte of sample `i` is `i`.
struct Memory {
    inputs: Arc<Region>,
    outputs: Region,
}

impl Memory {
    fn new(n: usize) -> Self {
        let inputs = Arc::new(Region::new(n * SAMPLE).expect("memory"));
        for i in 0..n {
            // SAFETY: no other code has the region yet.
            let sample = unsafe { inputs.bytes_mut(i * SAMPLE, SAMPLE) }.expect("inside");
            sample.fill(i as u8);
        }
        Memory {
            inputs,
            outputs: Region::new(n * 8).expect("memory"),
        }
    }

    fn arrivals(&self, samples: std::ops::Range<usize>, of: &Arc<Connection>) -> Vec<Arrival> {
        let each = |i: usize| {
            let input = self.inputs.at(i * SAMPLE, SAMPLE).expect("inside");
            let output = self.outputs.at(i * 8, 8).expect("inside");
            // SAFETY: the test keeps both regions until all samples are answered, and makes one
            // arrival per sample.
            unsafe {
                Arrival::new(
                    input,
                    SAMPLE as u32,
                    output,
                    8,
                    i as u64,
                    clock::now_ns(),
                    of.clone(),
                )
            }
        };
        samples.map(each).collect()
    }

    fn check(&self, n: usize) {
        for i in 0..n {
            // SAFETY: all samples are answered.
            let output = unsafe { self.outputs.bytes(i * 8, 8) }.expect("inside");
            assert_eq!(output, Digest::of(&[i as u8; SAMPLE]), "sample {i}");
        }
    }
}

fn start(gpus: &[usize], delay_us: u64) -> Pipelines {
    let mut params = EngineParams::new(EngineKind::Digest).with(|e| {
        e.max_batch = 8;
        e.threads = 2;
        e.delay_us = delay_us;
    });
    params.max_input = SAMPLE;
    let engines = pipelines::create(&params, gpus).expect("engines");
    Pipelines::start(engines, &Options::from(&params), |e| panic!("{e}")).expect("workers")
}

fn wait(pipelines: &Pipelines, connections: &[(&Arc<Connection>, u64)]) {
    eventually("not all are answered", || {
        !(connections
            .iter()
            .any(|(c, n)| c.answered.load(SeqCst) < *n)
            || pipelines.in_flight() > 0)
    });
}

/// Returns the number of samples of each GPU, from the records.
fn ran(pipelines: &Pipelines) -> Vec<(usize, u64)> {
    let records = pipelines.gpus();
    assert!(records.iter().all(|r| r.name == "digest"));
    records
        .iter()
        .map(|r| (r.index, r.batches.samples()))
        .collect()
}

#[test]
fn samples_go_to_the_gpu_of_their_connection() {
    // With and without worker threads.
    for delay_us in [0, 10] {
        let (memory, pipelines) = (Memory::new(250), start(&[3, 7], delay_us));
        let (a, b) = (Connection::new(Some(3)), Connection::new(Some(7)));
        pipelines.memory(&memory.inputs);
        // A burst of one NIC thread may hold samples of several connections.
        let mut burst = memory.arrivals(0..20, &a);
        burst.extend(memory.arrivals(20..100, &b));
        pipelines.arrived(&mut burst);
        assert!(burst.is_empty());
        pipelines.arrived(&mut memory.arrivals(100..250, &a));
        wait(&pipelines, &[(&a, 170), (&b, 80)]);
        memory.check(250);
        assert_eq!(ran(&pipelines), [(3, 170), (7, 80)], "delay {delay_us}");
        let totals = pipelines.totals();
        assert_eq!(totals.batches.samples(), 250);
        assert_eq!(totals.gpus, pipelines.gpus());
        pipelines.stop(Duration::from_secs(5)).expect("idle");
    }
}

#[test]
fn samples_of_no_gpu_are_shared_out() {
    let (memory, pipelines) = (Memory::new(256), start(&[0, 1, 2, 3], 50));
    let any = Connection::new(None);
    pipelines.arrived(&mut memory.arrivals(0..256, &any));
    wait(&pipelines, &[(&any, 256)]);
    memory.check(256);
    assert_eq!(ran(&pipelines), [(0, 64), (1, 64), (2, 64), (3, 64)]);
}

#[test]
fn a_gpu_that_nobody_serves_is_no_reason_to_lose_a_sample() {
    let (memory, pipelines) = (Memory::new(10), start(&[0, 1], 0));
    let lost = Connection::new(Some(9));
    pipelines.arrived(&mut memory.arrivals(0..10, &lost));
    wait(&pipelines, &[(&lost, 10)]);
    memory.check(10);
}

#[test]
fn a_single_pipeline_has_no_record_of_a_gpu_it_does_not_use() {
    let (memory, pipelines) = (Memory::new(10), start(&[0], 0));
    let of_another = Connection::new(Some(5));
    pipelines.arrived(&mut memory.arrivals(0..10, &of_another));
    wait(&pipelines, &[(&of_another, 10)]);
    assert!(pipelines.gpus().is_empty());
    assert_eq!(pipelines.counters().samples, 10);
    assert!(
        Pipelines::start(
            vec![],
            &Options::from(&EngineParams::new(EngineKind::Digest)),
            |_| {}
        )
        .is_err()
    );
}
