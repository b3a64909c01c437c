//! Runs one [`Pipeline`] for each GPU of a node: an engine, queue, batcher and worker threads each.
//!
//! ```text
//! nics[0], gpu: 0 ── NIC thread ──┬── gpu 0 ──> queue ──> batcher ──> engine on GPU 0
//! nics[1], gpu: 1 ── NIC thread ──┼── gpu 1 ──> queue ──> batcher ──> engine on GPU 1
//! nics[2]         ── NIC thread ──┘── any ────> the pipeline with the fewest samples in flight
//! ```
//!
//! A sample's [`Origin`](qdl::serve::Origin) names the GPU of the sample's connection and slots.
//! With a single pipeline, all samples go to that pipeline, whatever the GPU.

use std::{cell::Cell, sync::Arc, time::Duration};

use fabric::{Region, clock::now_ns};
use qdl::{
    run::EngineTotals,
    serve::{Arrival, Service},
    wire::Standing,
};
use record::{EngineUse, GpuRecord, SequenceTotals};

use crate::{
    Engine, EngineError, EngineParams, Streaming,
    pipeline::{Counters, Options, Pipeline, WarmUp},
};

type EngineOfGpu = (usize, Arc<dyn Engine>);

/// Makes one engine for each entry of `gpus`, in that order. Engines on the CPU ignore the entry.
///
/// # Errors
/// The first error of [`crate::create`].
pub fn create(params: &EngineParams, gpus: &[usize]) -> Result<Vec<EngineOfGpu>, EngineError> {
    let each = |gpu: &usize| {
        let params = params.clone().with(|engine| engine.gpu = *gpu);
        Ok((*gpu, crate::create(&params)?))
    };
    gpus.iter().map(each).collect()
}

/// The pipelines of a node, each with its GPU; never empty.
pub struct Pipelines(Vec<(usize, Pipeline)>);

impl Pipelines {
    /// Starts the pipelines one after the other with [`Pipeline::start`]. Each pipeline calls
    /// `on_fatal` at most once, so `on_fatal` may run several times. With several pipelines, the
    /// thread names include the GPU.
    ///
    /// # Errors
    /// As [`Pipeline::start`]; `engines` is empty.
    pub fn start(
        engines: Vec<EngineOfGpu>,
        options: &Options,
        on_fatal: impl Fn(EngineError) + Send + Sync + 'static,
    ) -> Result<Self, EngineError> {
        if engines.is_empty() {
            return Err(EngineError::param("gpus", "no GPU is listed"));
        }
        let several = engines.len() > 1;
        let on_fatal = Arc::new(on_fatal);
        let start = |(gpu, engine)| {
            let mut options = options.clone();
            if several {
                options.name = format!("gpu{gpu}-{}", options.name);
            }
            let on_fatal = on_fatal.clone();
            let near = options.near.get(&gpu).cloned().unwrap_or_default();
            let pipeline = near.run(|| Pipeline::start(engine, &options, move |e| on_fatal(e)))?;
            Ok((gpu, pipeline))
        };
        let all = engines.into_iter().map(start);
        Ok(Pipelines(all.collect::<Result<_, EngineError>>()?))
    }

    fn all(&self) -> impl Iterator<Item = &Pipeline> {
        self.0.iter().map(|(_, pipeline)| pipeline)
    }

    /// The engine of the first pipeline; all engines are of one kind and run one model.
    pub fn engine(&self) -> &Arc<dyn Engine> {
        self.0[0].1.engine()
    }

    /// Each pipeline with the index of its GPU.
    pub fn each(&self) -> &[(usize, Pipeline)] {
        &self.0
    }

    /// Warm-up times of the slowest pipeline; `None` where the engine answers inline.
    pub fn warm_up(&self) -> Option<WarmUp> {
        self.all().filter_map(Pipeline::warm_up).reduce(WarmUp::max)
    }

    /// For engines that batch by themselves: milliseconds that the slowest took to start, and the
    /// sum of their limits of concurrent sequences. `None` for other engines.
    pub fn sequences(&self) -> Option<(u64, usize)> {
        let all = self.all().filter_map(Pipeline::sequences);
        all.reduce(|a, b| (a.0.max(b.0), a.1 + b.1))
    }

    /// Number of samples that all engines can run at once: full batches of all workers, or the
    /// limits of concurrent sequences. An engine that answers inline counts 1.
    pub fn at_once(&self) -> u64 {
        let each = self.all().map(|p| match p.sequences() {
            Some((_, sequences)) => sequences as u64,
            None => {
                let engine = p.used();
                engine.max_batch.saturating_mul(u64::from(engine.workers))
            }
        });
        each.map(|n| n.max(1)).fold(0, u64::saturating_add)
    }

    /// True if the NIC thread that received a sample answers it.
    pub fn runs_inline(&self) -> bool {
        self.0[0].1.runs_inline()
    }

    /// Samples in flight in all pipelines.
    pub fn in_flight(&self) -> usize {
        self.all().map(Pipeline::in_flight).sum()
    }

    /// Counts of all pipelines since the start.
    pub fn counters(&self) -> Counters {
        let mut sum = Counters::default();
        self.all().for_each(|p| sum.add(&p.counters()));
        sum
    }

    /// Sums over all engines since the start, as the node reports them.
    pub fn totals(&self) -> EngineTotals {
        let counters = self.counters();
        EngineTotals {
            copies: counters.copies,
            batches: counters.batch_sizes,
            sequences: self.sequences().map(|_| SequenceTotals {
                answered: counters.samples,
                tokens: counters.tokens,
            }),
            gpus: self.gpus(),
            used: self.used(),
            standing: self.standing(),
            progress: counters.batches + counters.made,
            // The node's score is the score of its worst GPU.
            interior: self
                .all()
                .filter_map(|p| p.engine().interior(now_ns()))
                .min(),
        }
    }

    /// Whether the node takes samples: the standing of the first engine that takes none.
    pub fn standing(&self) -> Standing {
        let each = self.all().map(|p| p.engine().streaming());
        let mut each = each.flatten().map(Streaming::standing);
        each.find(|s| *s != Standing::Takes).unwrap_or_default()
    }

    /// Use of all engines: the largest batch, and sums of the rest.
    pub fn used(&self) -> EngineUse {
        let mut sum = EngineUse::default();
        for one in self.all().map(Pipeline::used) {
            sum.max_batch = sum.max_batch.max(one.max_batch);
            sum.workers += one.workers;
            sum.busy_us += one.busy_us;
            sum.batches += one.batches;
            sum.samples += one.samples;
            sum.server_busy += one.server_busy;
            sum.nans += one.nans;
            sum.handles += one.handles;
            sum.fetched_tokens += one.fetched_tokens;
            sum.transfer_bytes += one.transfer_bytes;
            sum.transfer_us += one.transfer_us;
            sum.events.merge(&one.events);
        }
        sum
    }

    /// Records of the GPUs. If several engines run on the CPU, each has a record with the engine's
    /// name in place of a GPU's name.
    pub fn gpus(&self) -> Vec<GpuRecord> {
        let mut records = Vec::new();
        for (gpu, p) in &self.0 {
            let own = p.engine().gpus();
            if own.is_empty() && self.0.len() > 1 {
                let counters = p.counters();
                records.push(GpuRecord {
                    index: *gpu,
                    name: p.engine().name().to_owned(),
                    batches: counters.batch_sizes,
                    copies_in: counters.copies,
                    bytes_in: counters.copied_bytes,
                    ..GpuRecord::default()
                });
            }
            records.extend(own);
        }
        records
    }

    /// Calls [`Pipeline::stop`] for one pipeline after the other, each with the full `timeout`.
    ///
    /// # Errors
    /// The first timeout. The function stops the other pipelines nevertheless.
    pub fn stop(&self, timeout: Duration) -> Result<(), String> {
        let mut result = Ok(());
        for p in self.all() {
            result = result.and(p.stop(timeout));
        }
        result
    }

    fn position(&self, gpu: u32) -> Option<usize> {
        self.0.iter().position(|(of, _)| *of == gpu as usize)
    }

    /// Sorts a burst by GPU. Samples without one go to the pipelines with the fewest in flight.
    fn sort(&self, arrivals: &mut Vec<Arrival>, sorted: &mut Sorted) {
        sorted.by_gpu.resize_with(self.0.len(), Vec::new);
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
        let load = all.map(|(p, mine)| (p.in_flight() + mine.len(), 0));
        sorted.load.extend(load);
        for _ in 0..sorted.any.len() {
            let least = sorted.load.iter_mut().min_by_key(|(load, _)| *load);
            if let Some((load, share)) = least {
                (*load, *share) = (*load + 1, *share + 1);
            }
        }
        let mut any = sorted.any.drain(..);
        // Each pipeline gets one contiguous part of the burst, so neighbours stay together.
        for (mine, (_, share)) in sorted.by_gpu.iter_mut().zip(&sorted.load) {
            mine.extend(any.by_ref().take(*share));
        }
    }
}

/// One burst, sorted by GPU.
#[derive(Default)]
struct Sorted {
    by_gpu: Vec<Vec<Arrival>>,
    any: Vec<Arrival>,
    /// For each pipeline: its samples in flight, and the number that it gets from `any`.
    load: Vec<(usize, usize)>,
}

thread_local! {
    /// Empty vectors, kept so that a NIC thread allocates only while bursts grow.
    static SORTED: Cell<Option<Box<Sorted>>> = const { Cell::new(None) };
}

impl Service for Pipelines {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        if let [(_, single)] = &self.0[..] {
            return single.arrived(arrivals);
        }
        let mut sorted = SORTED.take().unwrap_or_default();
        self.sort(arrivals, &mut sorted);
        for (p, mine) in self.all().zip(&mut sorted.by_gpu) {
            if !mine.is_empty() {
                p.arrived(mine);
                mine.clear();
            }
        }
        SORTED.set(Some(sorted));
    }

    fn memory(&self, inputs: &Arc<Region>) {
        for p in self.all() {
            p.memory(inputs);
        }
    }

    fn slots(&self, gpu: Option<u32>, bytes: usize) -> Result<Arc<Region>, String> {
        let at = match gpu {
            Some(gpu) => self.position(gpu),
            None => (self.0.len() == 1).then_some(0),
        };
        match at {
            Some(at) => self.0[at].1.slots(gpu, bytes),
            None => Err("its NIC names no GPU, or one that has no engine".to_owned()),
        }
    }
}
