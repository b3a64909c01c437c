//! Samples in memory of the test, and an origin that checks every response.

// Each test file uses another part of this.
#![allow(dead_code, unused_imports)]

pub mod prompts;

use std::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex, PoisonError,
        atomic::{AtomicU32, AtomicUsize, Ordering::SeqCst},
    },
};

use accelerator::{
    engine::{EngineError, EngineParams, create},
    pipeline::{Options, Pipeline},
};
use fabric::clock;
use qdl::serve::{Arrival, Finished, Origin};

pub use qdl::testkit::eventually;

/// Returns the expected response to a sample.
pub type Answer = fn(&[u8]) -> Vec<u8>;

/// Memory for `n` inputs and `n` outputs; ticket `i` is sample `i`.
pub struct Samples {
    /// Words, so that the first sample is aligned for every element type.
    inputs: Box<[u64]>,
    places: Vec<(usize, usize)>,
    outputs: Box<[UnsafeCell<u8>]>,
    capacity: usize,
    answered: Vec<AtomicU32>,
    finished: Mutex<Vec<Finished>>,
    total: AtomicUsize,
    refused: Mutex<Vec<(u64, String)>>,
    /// Expected response, if the origin checks responses when they come.
    expect: Option<Answer>,
    /// The GPU that its connection belongs to.
    gpu: Option<u32>,
}

// SAFETY: only the one arrival that holds an output touches it, and the test only after the
// response.
unsafe impl Sync for Samples {}

impl Samples {
    /// `places` holds offset and length of each sample in `inputs`.
    pub fn new(
        inputs: &[u8],
        places: Vec<(usize, usize)>,
        capacity: usize,
        expect: Option<Answer>,
    ) -> Arc<Self> {
        Arc::new(Self::plain(inputs, places, capacity, expect))
    }

    fn plain(
        inputs: &[u8],
        places: Vec<(usize, usize)>,
        capacity: usize,
        expect: Option<Answer>,
    ) -> Self {
        let mut words = vec![0u64; inputs.len().div_ceil(8)].into_boxed_slice();
        for (word, bytes) in words.iter_mut().zip(inputs.chunks(8)) {
            let mut le = [0; 8];
            le[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(le);
        }
        assert!(places.iter().all(|(at, len)| at + len <= inputs.len()));
        let n = places.len();
        Samples {
            inputs: words,
            outputs: (0..n * capacity).map(|_| UnsafeCell::new(0xEE)).collect(),
            places,
            capacity,
            answered: (0..n).map(|_| AtomicU32::new(0)).collect(),
            finished: Mutex::new(Vec::new()),
            total: AtomicUsize::new(0),
            refused: Mutex::default(),
            expect,
            gpu: None,
        }
    }

    /// Samples of random sizes from a seed, one after the other.
    pub fn random(sizes: &[usize], capacity: usize, expect: Option<Answer>) -> Arc<Self> {
        Self::on_gpu(None, sizes, capacity, expect)
    }

    /// The same over a connection that belongs to a GPU.
    pub fn on_gpu(
        gpu: Option<u32>,
        sizes: &[usize],
        capacity: usize,
        expect: Option<Answer>,
    ) -> Arc<Self> {
        let mut bytes = vec![0; sizes.iter().sum()];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        let mut at = 0;
        let places = sizes.iter().map(|len| {
            at += len;
            (at - len, *len)
        });
        let places = places.collect();
        Arc::new(Samples {
            gpu,
            ..Self::plain(&bytes, places, capacity, expect)
        })
    }

    /// Arrivals of these samples.
    pub fn arrivals(self: &Arc<Self>, of: std::ops::Range<usize>) -> Vec<Arrival> {
        of.map(|i| self.arrival(i)).collect()
    }

    pub fn len(&self) -> usize {
        self.places.len()
    }

    pub fn input(&self, i: usize) -> &[u8] {
        let (at, len) = self.places[i];
        // SAFETY: `new` checked that the place lies inside the words, which are plain bytes.
        unsafe { std::slice::from_raw_parts(self.inputs.as_ptr().cast::<u8>().add(at), len) }
    }

    pub fn output(&self, i: usize) -> &[u8] {
        // SAFETY: as for `Sync`; the test calls this only after the response.
        unsafe { std::slice::from_raw_parts(self.outputs[i * self.capacity].get(), self.capacity) }
    }

    pub fn arrival(self: &Arc<Self>, i: usize) -> Arrival {
        let input = self.input(i);
        let output = self.outputs[i * self.capacity].get();
        let origin: Arc<dyn Origin> = Arc::clone(self) as Arc<dyn Origin>;
        // SAFETY: the origin owns input and output, the input is never written, and each test has
        // at most one living arrival per index, so no other code touches its output.
        unsafe {
            Arrival::new(
                input.as_ptr(),
                input.len() as u32,
                output,
                self.capacity as u32,
                i as u64,
                clock::now_ns(),
                origin,
            )
        }
    }

    pub fn answered(&self, i: usize) -> u32 {
        self.answered[i].load(SeqCst)
    }

    pub fn total(&self) -> usize {
        self.total.load(SeqCst)
    }

    pub fn finished(&self) -> Vec<Finished> {
        self.finished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    /// Tickets and reasons of refused samples.
    pub fn refused(&self) -> Vec<(u64, String)> {
        self.refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .clone()
    }

    pub fn assert_each_answered_once(&self) {
        for i in 0..self.len() {
            assert_eq!(self.answered(i), 1, "sample {i}");
        }
    }
}

impl Origin for Samples {
    fn gpu(&self) -> Option<u32> {
        self.gpu
    }

    fn refuse(&self, ticket: u64, why: &str) {
        self.refused
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .push((ticket, why.to_owned()));
    }

    fn respond(&self, finished: &[Finished]) {
        for f in finished {
            let i = f.ticket as usize;
            if let Some(expect) = self.expect {
                let got = &self.output(i)[..f.len as usize];
                assert_eq!(got, expect(self.input(i)), "response of sample {i}");
            }
            self.answered[i].fetch_add(1, SeqCst);
        }
        self.finished
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .extend_from_slice(finished);
        self.total.fetch_add(finished.len(), SeqCst);
    }
}

/// Callback for pipelines whose engine does not fail.
#[allow(clippy::needless_pass_by_value)]
pub fn no_error(e: EngineError) {
    panic!("unexpected: {e}");
}

/// A pipeline of this engine.
pub fn start(params: &EngineParams) -> Pipeline {
    let engine = create(params).unwrap_or_else(|e| panic!("{e}"));
    Pipeline::start(engine, &Options::from(params), no_error).expect("starts")
}
