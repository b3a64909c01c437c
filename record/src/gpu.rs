//! Work of one GPU of an accelerator.

use serde::{Deserialize, Serialize};

use super::BatchSizes;

/// One GPU's counts and times. CUDA events on each batch's stream give the times. They are sums
/// over all batches; concurrent batches overlap, so a sum can exceed the run.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuRecord {
    /// Index of the GPU in CUDA.
    pub index: usize,
    /// Name of the GPU in the driver.
    pub name: String,
    /// Batches run, by size.
    pub batches: BatchSizes,
    /// Padding samples that fill batches up to a size that the engine runs; their answers are
    /// discarded.
    pub padded: u64,
    /// Copies of inputs to the GPU; one call that copies several pieces counts each piece.
    pub copies_in: u64,
    /// Bytes of `copies_in`, over PCIe.
    pub bytes_in: u64,
    /// Bytes of inputs already in GPU memory that were copied within it into one batch.
    pub gathered: u64,
    /// Batches read in place, where the NIC wrote the samples into GPU memory.
    pub in_place: u64,
    /// Fences after a NIC's writes to GPU memory: one per batch if the GPU needs it.
    pub fences: u64,
    /// Batches launched with one call, as a CUDA graph recorded in the warm-up.
    pub graphs: u64,
    /// Bytes of outputs copied to the host, over PCIe.
    pub bytes_out: u64,
    /// Microseconds of input copies.
    pub copy_in_us: u64,
    /// Microseconds of compute.
    pub compute_us: u64,
    /// Microseconds of output copies.
    pub copy_out_us: u64,
}

impl GpuRecord {
    /// Returns the counts since the earlier reading `before`.
    pub fn since(mut self, before: &GpuRecord) -> Self {
        self.batches = self.batches.since(&before.batches);
        for (now, then) in [
            (&mut self.padded, before.padded),
            (&mut self.copies_in, before.copies_in),
            (&mut self.bytes_in, before.bytes_in),
            (&mut self.gathered, before.gathered),
            (&mut self.in_place, before.in_place),
            (&mut self.fences, before.fences),
            (&mut self.graphs, before.graphs),
            (&mut self.bytes_out, before.bytes_out),
            (&mut self.copy_in_us, before.copy_in_us),
            (&mut self.compute_us, before.compute_us),
            (&mut self.copy_out_us, before.copy_out_us),
        ] {
            *now = now.saturating_sub(then);
        }
        self
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_record_since_another() {
        let mut before = GpuRecord {
            name: "H200".to_owned(),
            batches: BatchSizes::new(8),
            copies_in: 3,
            bytes_in: 100,
            ..GpuRecord::default()
        };
        before.batches.record(4);
        let mut after = before.clone();
        after.batches.record(8);
        after.batches.record(4);
        (after.copies_in, after.compute_us) = (5, 3000);
        after.graphs = 2;
        let d = after.since(&before);
        assert_eq!((d.copies_in, d.bytes_in, d.batches.samples()), (2, 0, 12));
        assert_eq!(d.graphs, 2);
    }
}
