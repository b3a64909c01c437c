//! Runs one [`Pipeline`] for each GPU of a node: an engine, queue, batcher and worker threads each.
//!
//! ```text
//! nics[0], gpu: 0 ── NIC thread ──┬── gpu 0 ──> queue ──> batcher ──> engine on GPU 0
//! nics[1], gpu: 1 ── NIC thread ──┼── gpu 1 ──> queue ──> batcher ──> engine on GPU 1
//! nics[2]         ── NIC thread ──┘── any ────> the pipeline with the fewest samples in flight
//! ```
//!
//! A sample's [`Origin`](qdl::serve::Origin) names its GPU: the GPU of its connection and slots.
//! With a single pipeline the samples go straight to it.

mod share;

use std::{cell::Cell, fmt, sync::Arc, time::Duration};

use fabric::{Region, clock::now_ns};
use qdl::{
    run::EngineTotals,
    serve::{Arrival, Service},
};
use record::{BatchSizes, EngineUse, GpuRecord, SequenceTotals};

use crate::{
    engine::{self, Engine, EngineError, EngineParams},
    pipeline::{Counters, Options, Pipeline, StopTimeout, WarmUp},
};

/// An engine and its GPU.
pub type Placed = (usize, Arc<dyn Engine>);

/// Makes an engine for each GPU, in that order; for engines without a GPU, one for each index.
///
/// # Errors
/// The first error of [`engine::create`].
pub fn create(params: &EngineParams, gpus: &[usize]) -> Result<Vec<Placed>, EngineError> {
    let each = |gpu: &usize| {
        let params = params.clone().with(|engine| engine.gpu = *gpu);
        Ok((*gpu, engine::create(&params)?))
    };
    gpus.iter().map(each).collect()
}

struct OfGpu {
    gpu: usize,
    pipeline: Pipeline,
}

/// The pipelines of a node; never empty.
pub struct Pipelines {
    first: OfGpu,
    others: Vec<OfGpu>,
}

impl Pipelines {
    /// Starts the pipelines one after the other, each as [`Pipeline::start`] does. Each pipeline
    /// calls `on_fatal` at most once; the caller keeps the first error. With several pipelines,
    /// their thread names include the GPU.
    ///
    /// # Errors
    /// As [`Pipeline::start`]; [`EngineError::Param`] if `engines` is empty.
    pub fn start(
        engines: Vec<Placed>,
        options: &Options,
        on_fatal: impl Fn(EngineError) + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        let several = engines.len() > 1;
        let on_fatal = Arc::new(on_fatal);
        let mut all = engines.into_iter().map(|(gpu, engine)| {
            let mut options = options.clone();
            if several {
                options.name = format!("gpu{gpu}-{}", options.name);
            }
            let told = on_fatal.clone();
            let near = options.near.get(&gpu).cloned().unwrap_or_default();
            let start = || Pipeline::start(engine, &options, move |e| told(e));
            let pipeline = near.run(start)?;
            Ok(OfGpu { gpu, pipeline })
        });
        let first = all.next().unwrap_or_else(|| {
            Err(EngineError::Param {
                field: "gpus",
                reason: "no GPU is listed".to_owned(),
            })
        })?;
        let others = all.collect::<Result<_, EngineError>>()?;
        Ok(Pipelines { first, others })
    }

    fn all(&self) -> impl Iterator<Item = &OfGpu> {
        std::iter::once(&self.first).chain(&self.others)
    }

    /// The engine of the first pipeline; all engines are of one kind and run one model.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        self.first.pipeline.engine()
    }

    /// Each pipeline with its GPU.
    pub fn each(&self) -> impl Iterator<Item = (usize, &Pipeline)> {
        self.all().map(|p| (p.gpu, &p.pipeline))
    }

    /// Warm-up times of the slowest pipeline; `None` where the engine answers inline.
    pub fn warm_up(&self) -> Option<WarmUp> {
        let all = self.all().filter_map(|p| p.pipeline.warm_up());
        all.reduce(|a, b| WarmUp {
            cold_us: a.cold_us.max(b.cold_us),
            warm_us: a.warm_us.max(b.warm_us),
        })
    }

    /// For engines that batch by themselves: start time of the slowest in milliseconds, and the sum
    /// of their limits of concurrent sequences.
    pub fn sequences(&self) -> Option<(u64, usize)> {
        let all = self.all().filter_map(|p| p.pipeline.sequences());
        all.reduce(|a, b| (a.0.max(b.0), a.1 + b.1))
    }

    /// Samples that all engines can work on at once: full batches of all workers, or sequences; 1
    /// for each engine that answers inline.
    pub fn at_once(&self) -> u64 {
        let each = self.all().map(|p| match p.pipeline.sequences() {
            Some((_, sequences)) => sequences as u64,
            None => {
                let engine = p.pipeline.used();
                engine.max_batch.saturating_mul(u64::from(engine.workers))
            }
        });
        each.map(|n| n.max(1)).fold(0, u64::saturating_add)
    }

    /// True if the NIC thread that received a sample answers it.
    pub fn runs_inline(&self) -> bool {
        self.first.pipeline.runs_inline()
    }

    /// Samples in flight in all pipelines.
    pub fn in_flight(&self) -> usize {
        self.all().map(|p| p.pipeline.in_flight()).sum()
    }

    /// Counts of all pipelines since the start.
    pub fn counters(&self) -> Counters {
        let mut sum = self.first.pipeline.counters();
        for p in &self.others {
            sum.add(&p.pipeline.counters());
        }
        sum
    }

    /// Totals of the engines, as the node reports them.
    pub fn totals(&self) -> EngineTotals {
        let counters = self.counters();
        EngineTotals {
            copies: counters.copies,
            batches: BatchSizes::from_counts(&counters.batch_sizes),
            sequences: self.sequences().map(|_| SequenceTotals {
                answered: counters.samples,
                tokens: counters.tokens,
            }),
            gpus: self.gpus(),
            used: self.used(),
            // A node has one score: that of its worst GPU.
            interior: self
                .all()
                .filter_map(|p| p.pipeline.engine().interior(now_ns()))
                .min(),
        }
    }

    /// Use of all engines together.
    pub fn used(&self) -> EngineUse {
        let mut sum = EngineUse::default();
        for one in self.all().map(|p| p.pipeline.used()) {
            sum.max_batch = sum.max_batch.max(one.max_batch);
            sum.workers += one.workers;
            sum.busy_us += one.busy_us;
            sum.batches += one.batches;
            sum.samples += one.samples;
            sum.decompressed.add(&one.decompressed);
        }
        sum
    }

    /// Records of the GPUs. Several engines without a GPU have a record each, with the engine's
    /// name in place of a GPU's.
    pub fn gpus(&self) -> Vec<GpuRecord> {
        let mut records = Vec::new();
        for p in self.all() {
            let own = p.pipeline.engine().gpus();
            if own.is_empty() && !self.others.is_empty() {
                let counters = p.pipeline.counters();
                records.push(GpuRecord {
                    index: p.gpu,
                    name: p.pipeline.engine().name().to_owned(),
                    batches: BatchSizes::from_counts(&counters.batch_sizes),
                    copies_in: counters.copies,
                    bytes_in: counters.copied_bytes,
                    ..GpuRecord::default()
                });
            }
            records.extend(own);
        }
        records
    }

    /// Stops the pipelines one after the other, as [`Pipeline::stop`] does, each within `timeout`.
    ///
    /// # Errors
    /// The first timeout; all pipelines are stopped nevertheless.
    pub fn stop(&self, timeout: Duration) -> Result<(), StopTimeout> {
        let mut result = Ok(());
        for p in self.all() {
            result = result.and(p.pipeline.stop(timeout));
        }
        result
    }

    fn position(&self, gpu: u32) -> Option<usize> {
        self.all().position(|p| p.gpu == gpu as usize)
    }

    /// Sorts a burst by GPU; samples without a GPU go to the pipelines with the fewest in flight.
    fn sort(&self, arrivals: &mut Vec<Arrival>, sorted: &mut Sorted) {
        let count = 1 + self.others.len();
        sorted.by_gpu.resize_with(count, Vec::new);
        for arrival in arrivals.drain(..) {
            match arrival.origin().gpu().and_then(|g| self.position(g)) {
                Some(at) => sorted.by_gpu[at].push(arrival),
                None => sorted.any.push(arrival),
            }
        }
        if sorted.any.is_empty() {
            return;
        }
        sorted.load.clear();
        let all = self.all().zip(&sorted.by_gpu);
        let load = all.map(|(p, mine)| p.pipeline.in_flight() + mine.len());
        sorted.load.extend(load);
        share::share(&sorted.load, sorted.any.len(), &mut sorted.shares);
        let mut any = sorted.any.drain(..);
        // Neighbours stay together: a pipeline's share is one contiguous part of the burst.
        for (mine, n) in sorted.by_gpu.iter_mut().zip(&sorted.shares) {
            mine.extend(any.by_ref().take(*n));
        }
    }
}

/// One burst, sorted by GPU.
#[derive(Default)]
struct Sorted {
    by_gpu: Vec<Vec<Arrival>>,
    any: Vec<Arrival>,
    load: Vec<usize>,
    shares: Vec<usize>,
}

thread_local! {
    /// Vectors without samples, kept so that a NIC thread allocates only while bursts grow.
    static SORTED: Cell<Option<Box<Sorted>>> = const { Cell::new(None) };
}

impl Service for Pipelines {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        if self.others.is_empty() {
            return self.first.pipeline.arrived(arrivals);
        }
        let mut sorted = SORTED.take().unwrap_or_default();
        self.sort(arrivals, &mut sorted);
        for (p, mine) in self.all().zip(&mut sorted.by_gpu) {
            if !mine.is_empty() {
                p.pipeline.arrived(mine);
                mine.clear();
            }
        }
        SORTED.set(Some(sorted));
    }

    fn memory(&self, inputs: &Arc<Region>) {
        for p in self.all() {
            p.pipeline.memory(inputs);
        }
    }

    fn slots(&self, gpu: Option<u32>, bytes: usize) -> Result<Arc<Region>, String> {
        let p = match gpu {
            Some(gpu) => self.all().find(|p| p.gpu == gpu as usize),
            None if self.others.is_empty() => Some(&self.first),
            None => None,
        };
        match p {
            Some(p) => p.pipeline.slots(gpu, bytes),
            None => Err("its NIC names no GPU, or one that has no engine".to_owned()),
        }
    }
}

impl fmt::Debug for Pipelines {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let each = self.all().map(|p| (p.gpu, &p.pipeline));
        f.debug_map().entries(each).finish()
    }
}
