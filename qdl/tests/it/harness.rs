//! Nodes that answer with digests, a frontend's cluster that verifies them, and a record of each
//! sample's result.

use std::{
    net::SocketAddr,
    path::Path,
    sync::{
        Arc, Mutex,
        atomic::{AtomicU32, AtomicU64, Ordering},
    },
};

use fabric::{Region, clock::now_ns};
use qdl::{
    config::{self, FrontendConfig, NicConfig},
    dispatch::{Completer, Response, Sample},
    model::ModelSpec,
    run::{Cluster, ClusterEvent, LoadingNode, NodeParams, SampleMemory, Stop},
    serve::Service,
    testkit::eventually_or,
};
use xxhash_rust::xxh3::xxh3_64;

pub use qdl::testkit::rig::Digest;

pub const LARGEST: usize = 150_528;

pub fn tcp_nic() -> NicConfig {
    NicConfig::tcp("127.0.0.1:0".parse().expect("address"))
}

pub struct Running {
    pub stop: Stop,
    pub address: SocketAddr,
    pub thread: Option<std::thread::JoinHandle<()>>,
}

/// Settings of a node. By default it is `acc-a`, with one TCP NIC, and answers with digests.
pub struct NodeSetup {
    pub name: &'static str,
    pub control: String,
    /// Key of its policy of authentication, as its configuration says it.
    pub auth: String,
    /// Bytes of its memory budget.
    pub memory: usize,
    pub nics: Vec<NicConfig>,
    pub service: Arc<dyn Service>,
    pub model: ModelSpec,
}

impl Default for NodeSetup {
    fn default() -> Self {
        NodeSetup {
            name: "acc-a",
            control: "127.0.0.1:0".to_owned(),
            auth: "auth: none".to_owned(),
            memory: 1 << 30,
            nics: vec![tcp_nic()],
            service: Arc::new(Digest),
            model: model(),
        }
    }
}

impl Running {
    pub fn named(name: &'static str) -> Running {
        Running::start(NodeSetup {
            name,
            ..NodeSetup::default()
        })
    }

    pub fn over(nics: Vec<NicConfig>) -> Running {
        Running::start(NodeSetup {
            nics,
            ..NodeSetup::default()
        })
    }

    pub fn start(setup: NodeSetup) -> Running {
        let text = format!(
            "node: {}\ncontrol: {{listen: '{}'}}\n{}\nengine: {{kind: digest}}\nnics: \
             [{{listen: '127.0.0.1:0'}}]\nmodel: {{name: {}, max_input_bytes: {LARGEST}}}\n\
             deadlines: {{drain_ms: 2000}}\nmemory_mib: {}\n",
            setup.name,
            setup.control,
            setup.auth,
            setup.model.name,
            setup.memory.div_ceil(1 << 20)
        );
        let mut config = config::parse_accelerator(&text, "test.yaml", Path::new("."))
            .unwrap_or_else(|e| panic!("{e}"));
        config.nics = setup.nics;
        let params = NodeParams {
            sut_name: format!("{} (digest)", setup.name),
            ..NodeParams::new("digest", setup.model)
        };
        let loading = LoadingNode::listen(&config).expect("a free port");
        let address = loading.control_address();
        let node = loading.start(params, &setup.service).expect("started");
        let stop = node.stopper();
        let thread = std::thread::spawn(move || drop(node.run_with(&mut |_| ())));
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

/// Samples of 1 byte to the maximum, log-uniform, back to back in one region.
pub struct Samples {
    pub region: Arc<Region>,
    pub table: Vec<(usize, u32, u64)>,
}

impl Samples {
    pub fn new(count: usize, seed: u64) -> Samples {
        let size = |i: usize| {
            let u = (xxh3_64(&(seed ^ i as u64).to_le_bytes()) >> 11) as f64 / (1u64 << 53) as f64;
            ((LARGEST as f64).powf(u) as usize).clamp(1, LARGEST)
        };
        let total = (0..count).map(size).sum();
        let region = Arc::new(Region::new(total).expect("memory"));
        // SAFETY: no other reference to the region exists yet.
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

/// A counter for each sample issued, and the expected digest.
pub struct Book {
    pub seen: Vec<AtomicU32>,
    pub wrong: AtomicU64,
    pub empty: AtomicU64,
    pub samples: Samples,
    pub aborted: Mutex<Option<String>>,
    pub notes: Mutex<Vec<String>>,
}

pub struct Checker(Arc<Book>);

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
}

impl Book {
    fn note_event(&self, event: ClusterEvent<'_>) {
        match event {
            ClusterEvent::CompleteEmpty(samples) => {
                for s in samples {
                    self.seen[s.id as usize].fetch_add(1, Ordering::Relaxed);
                    self.empty.fetch_add(1, Ordering::Relaxed);
                }
            }
            ClusterEvent::Aborted(cause) => {
                *self.aborted.lock().expect("alive") = Some(cause.to_owned());
            }
            ClusterEvent::Note(line) | ClusterEvent::Waiting(line) => {
                self.notes.lock().expect("alive").push(line.to_owned());
            }
        }
    }
}

pub struct Front {
    pub cluster: Cluster,
    pub book: Arc<Book>,
}

pub fn config(nodes: &[&Running], connections: usize, extra: &str) -> FrontendConfig {
    let nics = format!("  - address: 127.0.0.1\n    connections: {connections}\n    slots: 64\n");
    config_with(nodes, &nics, extra)
}

pub fn config_with(nodes: &[&Running], nics: &str, extra: &str) -> FrontendConfig {
    let addresses: Vec<_> = nodes.iter().map(|n| n.address).collect();
    config_at(&addresses, nics, extra)
}

pub fn config_at(addresses: &[SocketAddr], nics: &str, extra: &str) -> FrontendConfig {
    let accelerators: String = addresses
        .iter()
        .map(|a| format!("  - control: '{a}'\n"))
        .collect();
    let text = format!(
        "node: front\nmodel:\n  name: {}\n  inputs: [{{name: input, dtype: u8, shape: [{LARGEST}], ragged: true}}]\n  \
         output: {{name: output, dtype: u8, shape: [8]}}\ndataset: {{kind: random, count: 16, max_bytes: {LARGEST}}}\n\
         accelerators:\n{accelerators}nics:\n{nics}{extra}",
        model().name
    );
    config::parse_frontend(&text, "test.yaml", Path::new(".")).unwrap_or_else(|e| panic!("{e}"))
}

impl Front {
    /// Connects the frontend; on failure returns the error's text.
    pub fn try_connect(
        config: &FrontendConfig,
        samples: usize,
        total: usize,
    ) -> Result<Front, String> {
        Self::try_connect_with(config, samples, total, &mut |_, c| c)
    }

    /// Like [`Self::try_connect`], with a wrapper around the completer of each rail.
    pub fn try_connect_with(
        config: &FrontendConfig,
        samples: usize,
        total: usize,
        around: &mut dyn FnMut(usize, Box<dyn Completer>) -> Box<dyn Completer>,
    ) -> Result<Front, String> {
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
        let mut completer = |rail| around(rail, Box::new(Checker(book.clone())));
        let notebook = book.clone();
        let on_event = Arc::new(move |event: ClusterEvent<'_>| notebook.note_event(event));
        let cluster = Cluster::connect(config, memory, &mut completer, on_event)
            .map_err(|e| e.to_string())?;
        Ok(Front { cluster, book })
    }

    pub fn connect(config: &FrontendConfig, samples: usize, total: usize) -> Front {
        Self::try_connect(config, samples, total).unwrap_or_else(|e| panic!("{e}"))
    }

    pub fn sample(&self, id: usize) -> Sample {
        let index = (xxh3_64(&id.to_le_bytes()) % self.book.samples.table.len() as u64) as usize;
        let (offset, len, _) = self.book.samples.table[index];
        Sample {
            id: id as u64,
            index: index as u64,
            offset,
            len,
            issued_ns: now_ns(),
            ..Sample::default()
        }
    }

    pub fn issue(&self, ids: std::ops::Range<usize>) {
        let samples: Vec<_> = ids.map(|i| self.sample(i)).collect();
        self.cluster.dispatcher().issue(&samples);
    }

    /// Issues `0..total` in bursts of 1 to 4098 samples, as LoadGen's queries may be. No burst
    /// begins while more than `outstanding` samples are outstanding.
    pub fn issue_in_bursts(&self, total: usize, outstanding: u64) {
        let mut at = 0;
        let mut burst = 1;
        while at < total {
            let end = (at + burst).min(total);
            self.issue(at..end);
            at = end;
            burst = burst * 7 % 4099;
            // LoadGen's lead over the system is limited, as is the memory.
            while self.cluster.dispatcher().outstanding() > outstanding {
                std::thread::yield_now();
            }
        }
    }

    pub fn wait_done(&self) {
        eventually_or(
            || format!("{} outstanding", self.cluster.dispatcher().outstanding()),
            || self.cluster.dispatcher().outstanding() == 0,
        );
    }

    pub fn wait_noted(&self, text: &str) {
        let notes = || self.book.notes.lock().expect("alive").join("\n");
        eventually_or(|| format!("{text}: {}", notes()), || notes().contains(text));
    }

    /// Checks that every sample completed once, correctly, unrefused; returns how many went again.
    pub fn check(self) -> u64 {
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
        let counts = report.ledger;
        assert_eq!((counts.issued, counts.answered), (n, n));
        assert_eq!(counts.posted, n + counts.redispatched);
        counts.redispatched
    }
}

pub fn model() -> ModelSpec {
    ModelSpec::opaque("digest", LARGEST, 8)
}
