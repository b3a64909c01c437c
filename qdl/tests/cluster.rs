//! A frontend's cluster against real nodes over loopback sockets, all in one process: what LoadGen and the
//! engines would see, without either.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use qdl::{
    clock::now_ns,
    config::{self, FrontendConfig},
    control::{Auth, Timing},
    dispatch::{Completer, Response, Sample, SampleTimes},
    fabric::{Region, SourceId, tcp::TcpCfgs},
    model::ModelSpec,
    rail::RailCfgs,
    serve::{Arrival, Finished, Service, respond_all},
    session::{Cluster, ClusterListener, Node, NodeNic, NodeParams, SampleMemory, Stop},
};
use xxhash_rust::xxh3::xxh3_64;

const LARGEST: usize = 150_528;

/// Answers with the digest of the sample.
struct Digest;

impl Service for Digest {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        let each = arrivals.drain(..).map(|mut a| {
            let digest = xxh3_64(a.input()).to_le_bytes();
            a.output()[..8].copy_from_slice(&digest);
            let done = Finished {
                ticket: a.ticket(),
                len: 8,
                queue_us: 0,
                compute_us: 0,
            };
            (a, done)
        });
        respond_all(each, &mut Vec::new());
    }
}

struct Running {
    stop: Stop,
    address: SocketAddr,
    thread: Option<std::thread::JoinHandle<()>>,
}

impl Running {
    fn start(name: &str, control: &str, model: &ModelSpec, memory: usize) -> Running {
        let params = NodeParams {
            node: name.to_owned(),
            sut_name: format!("{name} (digest)"),
            control: control.parse().expect("address"),
            auth: Auth::Unset,
            model: model.clone(),
            nics: vec![NodeNic {
                listen: "127.0.0.1:0".parse().expect("address"),
                rail: RailCfgs {
                    name: format!("{name}-rail"),
                    spin_ns: 20_000,
                    tick_ns: 10_000_000,
                    cpus: vec![],
                },
                tcp: TcpCfgs::default(),
            }],
            memory,
            timing: Timing::default(),
            drain: Duration::from_secs(2),
            once: false,
            engine: Arc::new(Default::default),
        };
        let service: Arc<dyn Service> = Arc::new(Digest);
        let node = Node::start(params, &service).expect("started");
        let (stop, address) = (node.stopper(), node.control_address());
        let thread = std::thread::spawn(move || {
            node.run();
        });
        Running {
            stop,
            address,
            thread: Some(thread),
        }
    }
}

impl Drop for Running {
    fn drop(&mut self) {
        self.stop.stop("the test is over");
        if let Some(t) = self.thread.take() {
            let _ = t.join();
        }
    }
}

/// Samples of sizes from 1 byte to the largest, log-uniform, back to back in one region.
struct Samples {
    region: Arc<Region>,
    table: Vec<(usize, u32, u64)>,
}

impl Samples {
    fn new(count: usize, seed: u64) -> Samples {
        let size = |i: usize| {
            let u = (xxh3_64(&(seed ^ i as u64).to_le_bytes()) >> 11) as f64 / (1u64 << 53) as f64;
            ((LARGEST as f64).powf(u) as usize).clamp(1, LARGEST)
        };
        let total = (0..count).map(size).sum();
        let region = Arc::new(Region::new(total).expect("memory"));
        // SAFETY: nobody else knows the region yet.
        let bytes = unsafe { region.bytes_mut(0, total) }.expect("in bounds");
        for (i, chunk) in bytes.chunks_mut(8).enumerate() {
            let word = xxh3_64(&(seed.wrapping_add(i as u64)).to_le_bytes()).to_le_bytes();
            chunk.copy_from_slice(&word[..chunk.len()]);
        }
        let mut at = 0;
        let table = (0..count)
            .map(|i| {
                let (offset, len) = (at, size(i));
                at += len;
                (offset, len as u32, xxh3_64(&bytes[offset..offset + len]))
            })
            .collect();
        Samples { region, table }
    }
}

/// One counter for each sample issued, and the digest it must have.
struct Book {
    seen: Vec<AtomicU32>,
    wrong: AtomicU64,
    empty: AtomicU64,
    samples: Samples,
    aborted: Mutex<Option<String>>,
    notes: Mutex<Vec<String>>,
}

struct Checker(Arc<Book>);

impl Completer for Checker {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        for r in responses {
            self.0.seen[r.id as usize].fetch_add(1, Ordering::Relaxed);
            let digest = self.0.samples.table[r.index as usize].2;
            if r.payload != digest.to_le_bytes() {
                self.0.wrong.fetch_add(1, Ordering::Relaxed);
            }
        }
    }
    fn record(&mut self, _times: &SampleTimes) {}
}

impl ClusterListener for Book {
    fn complete_empty(&self, samples: &[Sample]) {
        for s in samples {
            self.seen[s.id as usize].fetch_add(1, Ordering::Relaxed);
            self.empty.fetch_add(1, Ordering::Relaxed);
        }
    }
    fn aborted(&self, cause: &str) {
        *self.aborted.lock().expect("alive") = Some(cause.to_owned());
    }
    fn note(&self, line: &str) {
        self.notes.lock().expect("alive").push(line.to_owned());
    }
}

struct Front {
    cluster: Cluster,
    book: Arc<Book>,
}

fn config(
    nodes: &[&Running],
    model: &ModelSpec,
    connections: usize,
    extra: &str,
) -> FrontendConfig {
    let accelerators: String = nodes
        .iter()
        .map(|n| format!("  - control: {}\n", n.address))
        .collect();
    let text = format!(
        "node: front\nmodel:\n  name: {}\n  inputs: [{{name: input, dtype: u8, shape: [{LARGEST}], ragged: true}}]\n  \
         output: {{name: output, dtype: u8, shape: [8]}}\ndataset: {{kind: random, count: 16, max_bytes: {LARGEST}}}\n\
         accelerators:\n{accelerators}nics:\n  - address: 127.0.0.1\n    connections: {connections}\n    slots: 64\n{extra}",
        model.name
    );
    config::parse_frontend(&text, "test.yaml", std::path::Path::new("."))
        .unwrap_or_else(|e| panic!("{e}"))
}

impl Front {
    fn connect(config: &FrontendConfig, samples: usize, total: usize) -> Front {
        let samples = Samples::new(samples, 7);
        let memory = SampleMemory {
            sources: vec![samples.region.clone()],
            staged_from: None,
        };
        let book = Arc::new(Book {
            seen: (0..total).map(|_| AtomicU32::new(0)).collect(),
            wrong: AtomicU64::new(0),
            empty: AtomicU64::new(0),
            samples,
            aborted: Mutex::default(),
            notes: Mutex::default(),
        });
        let mut completer = |_| -> Box<dyn Completer> { Box::new(Checker(book.clone())) };
        let cluster = Cluster::connect(config, memory, &mut completer, book.clone())
            .unwrap_or_else(|e| panic!("{e}"));
        Front { cluster, book }
    }

    fn sample(&self, id: usize) -> Sample {
        let index = (xxh3_64(&id.to_le_bytes()) % self.book.samples.table.len() as u64) as usize;
        let (offset, len, _) = self.book.samples.table[index];
        Sample {
            id: id as u64,
            index: index as u64,
            source: SourceId(0),
            offset,
            len,
            issued_ns: now_ns(),
        }
    }

    fn issue(&self, ids: std::ops::Range<usize>) {
        let samples: Vec<_> = ids.map(|i| self.sample(i)).collect();
        self.cluster.issue(&samples);
    }

    fn wait_done(&self) {
        let end = Instant::now() + Duration::from_secs(120);
        while self.cluster.outstanding() > 0 {
            assert!(
                Instant::now() < end,
                "{} outstanding",
                self.cluster.outstanding()
            );
            std::thread::sleep(Duration::from_millis(1));
        }
    }

    /// Every sample completed once and right; returns how many went again.
    fn check(self) -> u64 {
        let n = self.book.seen.len() as u64;
        let report = self.cluster.finish();
        let once = |s: &AtomicU32| s.load(Ordering::Relaxed) == 1;
        assert!(self.book.seen.iter().all(once), "each sample once");
        assert_eq!(
            self.book.wrong.load(Ordering::Relaxed),
            0,
            "each with its own digest"
        );
        assert_eq!(self.book.empty.load(Ordering::Relaxed), 0);
        assert_eq!((report.dispatch.issued, report.dispatch.completed), (n, n));
        assert_eq!(report.dispatch.posted, n + report.dispatch.again);
        report.dispatch.again
    }
}

fn model() -> ModelSpec {
    ModelSpec::opaque("digest", LARGEST, 8)
}

fn million() -> usize {
    // The whole million takes a release build; the suite runs a part of it every time.
    std::env::var("QDL_DIGEST_SAMPLES")
        .ok()
        .and_then(|n| n.parse().ok())
        .unwrap_or(100_000)
}

#[test]
fn every_response_is_the_digest_of_its_own_sample() {
    let m = model();
    let (a, b) = (
        Running::start("acc-a", "127.0.0.1:0", &m, 1 << 30),
        Running::start("acc-b", "127.0.0.1:0", &m, 1 << 30),
    );
    let total = million();
    let front = Front::connect(&config(&[&a, &b], &m, 3, ""), 2048, total);
    let (name, _) = front.cluster.name();
    assert_eq!(name, "Network SUT: acc-a (digest) + acc-b (digest)");
    // As LoadGen would: a long query, many short ones, and everything between.
    let mut at = 0;
    let mut burst = 1;
    while at < total {
        let end = (at + burst).min(total);
        front.issue(at..end);
        at = end;
        burst = burst * 7 % 4099;
        // LoadGen does not outrun the system for ever; nor does its memory.
        while front.cluster.outstanding() > 20_000 {
            std::thread::yield_now();
        }
    }
    front.wait_done();
    assert_eq!(front.check(), 0, "nothing went again");
}

#[test]
fn the_run_goes_on_when_one_of_two_accelerators_dies_and_uses_it_again_when_it_is_back() {
    let m = model();
    let a = Running::start("acc-a", "127.0.0.1:0", &m, 1 << 30);
    let b = Running::start("acc-b", "127.0.0.1:0", &m, 1 << 30);
    let address = a.address;
    let total = 60_000;
    let front = Front::connect(&config(&[&a, &b], &m, 2, ""), 512, total);
    front.issue(0..20_000);
    drop(a);
    front.issue(20_000..40_000);
    front.wait_done();
    let again = Running::start("acc-a", &address.to_string(), &m, 1 << 30);
    let end = Instant::now() + Duration::from_secs(20);
    while !front
        .book
        .notes
        .lock()
        .unwrap()
        .iter()
        .any(|n| n.contains("is back"))
    {
        assert!(
            Instant::now() < end,
            "{:?}",
            front.book.notes.lock().expect("alive")
        );
        std::thread::sleep(Duration::from_millis(5));
    }
    front.issue(40_000..60_000);
    front.wait_done();
    assert!(front.cluster.name().0.contains("acc-a"));
    front.check();
    drop(again);
}

#[test]
fn with_no_accelerator_left_the_run_is_aborted_within_the_deadline_and_names_the_peer() {
    let m = model();
    let a = Running::start("acc-a", "127.0.0.1:0", &m, 1 << 30);
    let extra = "deadlines: {lost_ms: 2500, echo_interval_ms: 50, echo_timeout_ms: 300}\n";
    let front = Front::connect(&config(&[&a], &m, 2, extra), 64, 1000);
    front.issue(0..500);
    drop(a);
    let end = Instant::now() + Duration::from_secs(20);
    while front.book.aborted.lock().expect("alive").is_none() {
        assert!(Instant::now() < end, "never aborted");
        std::thread::sleep(Duration::from_millis(5));
    }
    front.issue(500..1000);
    front.wait_done();
    let cause = front
        .book
        .aborted
        .lock()
        .expect("alive")
        .clone()
        .expect("aborted");
    assert!(
        cause.contains("acc-a (127.0.0.1:") && cause.contains("lost"),
        "{cause}"
    );
    assert!(front.cluster.name().0.contains("acc-a (no answer)"));
    let Front { cluster, book } = front;
    cluster.finish();
    assert!(
        book.seen.iter().all(|s| s.load(Ordering::Relaxed) == 1),
        "each once"
    );
    assert!(book.empty.load(Ordering::Relaxed) >= 500);
}

#[test]
fn slots_beyond_the_memory_budget_are_refused_in_words() {
    let m = model();
    let a = Running::start("acc-a", "127.0.0.1:0", &m, 1 << 20);
    let c = config(&[&a], &m, 2, "");
    let samples = Samples::new(1, 1);
    let memory = SampleMemory {
        sources: vec![samples.region.clone()],
        staged_from: None,
    };
    struct Nobody;
    impl ClusterListener for Nobody {
        fn complete_empty(&self, _: &[Sample]) {}
        fn aborted(&self, _: &str) {}
        fn note(&self, _: &str) {}
    }
    struct Nothing;
    impl Completer for Nothing {
        fn complete(&mut self, _: &mut dyn ExactSizeIterator<Item = Response<'_>>) {}
        fn record(&mut self, _: &SampleTimes) {}
    }
    let error = Cluster::connect(&c, memory, &mut |_| Box::new(Nothing), Arc::new(Nobody))
        .err()
        .expect("refused")
        .to_string();
    assert!(
        error.contains("memory_mib") && error.contains("acc-a"),
        "{error}"
    );
}
