//! Counts the work of a GPU: the workers write, any thread reads.

use std::{
    sync::{
        Mutex, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use fabric::clock::now_ns;
use qdl::rails::{Interior, Score};
use record::{BatchSizes, GpuRecord};

use super::Device;

/// Counts and times of one batch.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Done {
    /// Number of samples.
    pub samples: usize,
    /// Samples of padding.
    pub padded: usize,
    /// Copies of inputs.
    pub copies_in: u64,
    /// Bytes copied from the host.
    pub bytes_in: u64,
    /// Bytes copied within the GPU.
    pub gathered: u64,
    /// True if the kernels read the samples in place.
    pub in_place: bool,
    /// True if a fence was needed.
    pub fenced: bool,
    /// True if the kernels were launched as a graph.
    pub graph: bool,
    /// Bytes of outputs.
    pub bytes_out: u64,
    /// Time of input copies on the stream.
    pub copy_in: Duration,
    /// Time of the kernels.
    pub compute: Duration,
    /// Time of the output copy.
    pub copy_out: Duration,
}

/// Counts of a GPU since the start.
#[derive(Debug)]
pub struct Meter {
    sizes: Box<[AtomicU64]>,
    padded: AtomicU64,
    copies_in: AtomicU64,
    bytes_in: AtomicU64,
    gathered: AtomicU64,
    in_place: AtomicU64,
    fences: AtomicU64,
    graphs: AtomicU64,
    bytes_out: AtomicU64,
    copy_in_ns: AtomicU64,
    compute_ns: AtomicU64,
    copy_out_ns: AtomicU64,
    /// The path of inputs to the GPU, and whether any input was copied.
    interior: Mutex<(Interior, bool)>,
}

impl Meter {
    /// A meter for batches of up to `max_batch` samples.
    pub fn new(max_batch: usize) -> Self {
        Meter {
            sizes: (0..=max_batch).map(|_| AtomicU64::new(0)).collect(),
            padded: AtomicU64::new(0),
            copies_in: AtomicU64::new(0),
            bytes_in: AtomicU64::new(0),
            gathered: AtomicU64::new(0),
            in_place: AtomicU64::new(0),
            fences: AtomicU64::new(0),
            graphs: AtomicU64::new(0),
            bytes_out: AtomicU64::new(0),
            copy_in_ns: AtomicU64::new(0),
            compute_ns: AtomicU64::new(0),
            copy_out_ns: AtomicU64::new(0),
            interior: Mutex::new((Interior::new(now_ns()), false)),
        }
    }

    /// Counts a batch. One call per batch, so atomic additions are cheap enough.
    pub fn batch(&self, done: &Done) {
        self.observe(done);
        let last = self.sizes.len() - 1;
        self.sizes[done.samples.min(last)].fetch_add(1, Relaxed);
        let ns = |d: Duration| u64::try_from(d.as_nanos()).unwrap_or(u64::MAX);
        for (counter, n) in [
            (&self.padded, done.padded as u64),
            (&self.copies_in, done.copies_in),
            (&self.bytes_in, done.bytes_in),
            (&self.gathered, done.gathered),
            (&self.in_place, done.in_place.into()),
            (&self.fences, done.fenced.into()),
            (&self.graphs, done.graph.into()),
            (&self.bytes_out, done.bytes_out),
            (&self.copy_in_ns, ns(done.copy_in)),
            (&self.compute_ns, ns(done.compute)),
            (&self.copy_out_ns, ns(done.copy_out)),
        ] {
            counter.fetch_add(n, Relaxed);
        }
    }

    /// Score of the input copies: their time against the best time seen. Part of the score of the
    /// node's interior; `None` before the first copy.
    pub fn interior(&self, now_ns: u64) -> Option<Score> {
        let mut interior = self.interior.lock().unwrap_or_else(PoisonError::into_inner);
        interior.1.then(|| interior.0.score(now_ns))
    }

    fn observe(&self, done: &Done) {
        if done.copies_in == 0 || done.copy_in.is_zero() {
            return;
        }
        let len = u32::try_from(done.bytes_in).unwrap_or(u32::MAX);
        let ns = u64::try_from(done.copy_in.as_nanos()).unwrap_or(u64::MAX);
        let mut interior = self.interior.lock().unwrap_or_else(PoisonError::into_inner);
        interior.0.observe(len, ns);
        interior.1 = true;
    }

    /// The counts as a record of `device`.
    pub fn record(&self, device: &Device) -> GpuRecord {
        GpuRecord {
            index: device.index(),
            name: device.name().to_owned(),
            ..self.counts()
        }
    }

    fn counts(&self) -> GpuRecord {
        let sizes: Vec<u64> = self.sizes.iter().map(|n| n.load(Relaxed)).collect();
        GpuRecord {
            batches: BatchSizes::from_counts(&sizes),
            padded: self.padded.load(Relaxed),
            copies_in: self.copies_in.load(Relaxed),
            bytes_in: self.bytes_in.load(Relaxed),
            gathered: self.gathered.load(Relaxed),
            in_place: self.in_place.load(Relaxed),
            fences: self.fences.load(Relaxed),
            graphs: self.graphs.load(Relaxed),
            bytes_out: self.bytes_out.load(Relaxed),
            copy_in_us: self.copy_in_ns.load(Relaxed) / 1000,
            compute_us: self.compute_ns.load(Relaxed) / 1000,
            copy_out_us: self.copy_out_ns.load(Relaxed) / 1000,
            ..GpuRecord::default()
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn batches_add_up() {
        let meter = Meter::new(8);
        let done = Done {
            samples: 5,
            padded: 3,
            copies_in: 2,
            bytes_in: 50,
            gathered: 7,
            in_place: true,
            fenced: true,
            graph: false,
            bytes_out: 40,
            copy_in: Duration::from_nanos(700),
            compute: Duration::from_micros(9),
            copy_out: Duration::ZERO,
        };
        meter.batch(&done);
        meter.batch(&Done {
            samples: 99,
            graph: true,
            ..done
        });
        let r = meter.counts();
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
        let meter = Meter::new(8);
        assert_eq!(meter.interior(0), None);
        let copied = |us| Done {
            copies_in: 1,
            bytes_in: 1 << 20,
            copy_in: Duration::from_micros(us),
            ..Done::default()
        };
        let at = now_ns();
        (0..100).for_each(|_| meter.batch(&copied(20)));
        assert_eq!(meter.interior(at + 500 * MS), Some(Score::ONE));
        (0..100).for_each(|_| meter.batch(&copied(200)));
        let congested = meter.interior(at + 1_000 * MS).expect("there were copies");
        assert!(congested < Score::from_f32(0.5), "{congested:?}");
        // A batch in place has no copy, so it has no score.
        let other = Meter::new(8);
        other.batch(&Done {
            in_place: true,
            ..Done::default()
        });
        assert_eq!(other.interior(at), None);
    }
}
