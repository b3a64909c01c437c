//! The GPU of an engine: the state that the workers share, and the counts of their batches.

use std::{
    sync::{Arc, Mutex, MutexGuard},
    time::Duration,
};

use fabric::{Region, clock::now_ns};
use qdl::rails::{Interior, Score};
use record::{BatchSizes, GpuRecord};

use super::{
    Device,
    registry::{self, MemoryKind},
    slots,
};
use crate::EngineError;
use fabric::os::lock;

/// A GPU that runs the batches of one engine.
#[derive(Debug)]
pub struct Gpu {
    pub(crate) device: Arc<Device>,
    /// Capacity of each worker's buffers, in samples.
    pub(super) max_batch: usize,
    /// Nanoseconds for which a waiting worker spins before it sleeps.
    pub(super) spin_ns: u64,
    counts: Mutex<GpuCounts>,
}

#[derive(Debug)]
struct GpuCounts {
    /// All counts except times.
    sums: GpuRecord,
    copy_in: Duration,
    compute: Duration,
    copy_out: Duration,
    /// Score of the input copies to the GPU, and true once any input was copied.
    interior: (Interior, bool),
}

/// Cost of a batch's inputs.
#[derive(Clone, Copy, Debug, Default)]
pub(crate) struct Staged {
    pub(super) copies: u64,
    /// Bytes copied from host memory; `gathered` counts bytes copied from GPU memory.
    pub(super) bytes: u64,
    pub(super) gathered: u64,
    pub(super) fenced: bool,
    pub(super) in_place: Option<usize>,
}

impl Staged {
    /// Address of the batch in its slots, if the kernels read the batch in place.
    pub fn in_place(&self) -> Option<*mut std::ffi::c_void> {
        self.in_place.map(|address| address as *mut _)
    }

    pub(super) fn count(&mut self, kind: MemoryKind, bytes: usize) {
        match kind {
            MemoryKind::Gpu(_) => self.gathered += bytes as u64,
            MemoryKind::Registered | MemoryKind::Unregistered => self.bytes += bytes as u64,
        }
    }
}

#[derive(Clone, Copy, Debug, Default)]
pub(super) struct BatchRun {
    pub samples: usize,
    pub padded: usize,
    pub staged: Staged,
    /// True if the kernels were launched as a graph.
    pub graph: bool,
    pub bytes_out: u64,
    pub copy_in: Duration,
    pub compute: Duration,
    pub copy_out: Duration,
}

impl Gpu {
    /// A GPU for batches that run at up to `max_batch` samples. A waiting worker spins for
    /// `spin_us` microseconds before it sleeps.
    pub(crate) fn new(device: Arc<Device>, max_batch: usize, spin_us: u64) -> Arc<Self> {
        Arc::new(Gpu {
            device,
            max_batch,
            spin_ns: spin_us.saturating_mul(1000),
            counts: Mutex::new(GpuCounts::new(max_batch)),
        })
    }

    /// Registers memory of samples, so that the driver copies from it without staging.
    pub(crate) fn register(&self, inputs: &Arc<Region>) {
        registry::register(&self.device, inputs);
    }

    pub(crate) fn slots(
        &self,
        engine: &'static str,
        bytes: usize,
    ) -> Result<Arc<Region>, EngineError> {
        slots::slots(engine, &self.device, bytes)
    }

    pub(super) fn count(&self, batch: &BatchRun) {
        self.counts().add(batch);
    }

    pub(crate) fn record(&self) -> GpuRecord {
        GpuRecord {
            index: self.device.index,
            name: self.device.name.clone(),
            ..self.counts().record()
        }
    }

    /// Score of the input copies at `now_ns`: their time against the best time so far. Part of the
    /// score of the node's interior; `None` before the first copy.
    pub(crate) fn interior(&self, now_ns: u64) -> Option<Score> {
        self.counts().score(now_ns)
    }

    /// Locks the counts; a worker does this once per batch.
    fn counts(&self) -> MutexGuard<'_, GpuCounts> {
        lock(&self.counts)
    }
}

impl GpuCounts {
    fn new(max_batch: usize) -> Self {
        GpuCounts {
            sums: GpuRecord {
                batches: BatchSizes::new(max_batch),
                ..GpuRecord::default()
            },
            copy_in: Duration::ZERO,
            compute: Duration::ZERO,
            copy_out: Duration::ZERO,
            interior: (Interior::new(now_ns()), false),
        }
    }

    fn add(&mut self, batch: &BatchRun) {
        let staged = &batch.staged;
        if staged.copies > 0 && !batch.copy_in.is_zero() {
            let len = u32::try_from(staged.bytes).unwrap_or(u32::MAX);
            let ns = u64::try_from(batch.copy_in.as_nanos()).unwrap_or(u64::MAX);
            self.interior.0.observe(len, ns);
            self.interior.1 = true;
        }
        self.sums.batches.record(batch.samples);
        self.sums.padded += batch.padded as u64;
        self.sums.copies_in += staged.copies;
        self.sums.bytes_in += staged.bytes;
        self.sums.gathered += staged.gathered;
        self.sums.in_place += u64::from(staged.in_place.is_some());
        self.sums.fences += u64::from(staged.fenced);
        self.sums.graphs += u64::from(batch.graph);
        self.sums.bytes_out += batch.bytes_out;
        self.copy_in += batch.copy_in;
        self.compute += batch.compute;
        self.copy_out += batch.copy_out;
    }

    fn record(&self) -> GpuRecord {
        let us = |d: Duration| u64::try_from(d.as_micros()).unwrap_or(u64::MAX);
        GpuRecord {
            copy_in_us: us(self.copy_in),
            compute_us: us(self.compute),
            copy_out_us: us(self.copy_out),
            ..self.sums.clone()
        }
    }

    fn score(&mut self, now_ns: u64) -> Option<Score> {
        let (interior, copied) = &mut self.interior;
        copied.then(|| interior.score(now_ns))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_add_up() {
        let mut counts = GpuCounts::new(8);
        let batch = BatchRun {
            samples: 5,
            padded: 3,
            staged: Staged {
                copies: 2,
                bytes: 50,
                gathered: 7,
                in_place: Some(64),
                fenced: true,
            },
            graph: false,
            bytes_out: 40,
            copy_in: Duration::from_nanos(700),
            compute: Duration::from_micros(9),
            copy_out: Duration::ZERO,
        };
        counts.add(&batch);
        counts.add(&BatchRun {
            samples: 99,
            graph: true,
            ..batch
        });
        let r = counts.record();
        assert_eq!(r.batches.iter().collect::<Vec<_>>(), [(5, 1), (8, 1)]);
        assert_eq!(
            (r.padded, r.copies_in, r.bytes_in, r.bytes_out),
            (6, 4, 100, 80)
        );
        assert_eq!((r.gathered, r.in_place, r.fences), (14, 2, 2));
        assert_eq!(r.graphs, 1);
        assert_eq!(
            (r.copy_in_us, r.compute_us),
            (1, 18),
            "nanoseconds are added first"
        );
    }

    #[test]
    fn copies_that_take_longer_than_they_did_lower_the_interiors_score() {
        const MS: u64 = 1_000_000;
        let mut counts = GpuCounts::new(8);
        assert_eq!(counts.score(0), None);
        let copied = |us| BatchRun {
            staged: Staged {
                copies: 1,
                bytes: 1 << 20,
                ..Staged::default()
            },
            copy_in: Duration::from_micros(us),
            ..BatchRun::default()
        };
        let at = now_ns();
        (0..100).for_each(|_| counts.add(&copied(20)));
        assert_eq!(counts.score(at + 500 * MS), Some(Score::ONE));
        (0..100).for_each(|_| counts.add(&copied(200)));
        let congested = counts.score(at + 1_000 * MS).expect("there were copies");
        assert!(congested < Score::from_f32(0.5), "{congested:?}");
        // A batch in place has no copy, so it has no score.
        let mut other = GpuCounts::new(8);
        other.add(&BatchRun::default());
        assert_eq!(other.score(at), None);
    }
}
