//! What a GPU of an accelerator did.

use serde::{Deserialize, Serialize};

use super::BatchSizes;

/// One GPU's part. Times are CUDA's own, between events on the batch's
/// stream, added up over all batches: those of batches that ran beside
/// each other overlap, so their sum can exceed the run's length.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct GpuRecord {
    /// Its index, as CUDA counts.
    pub index: usize,
    /// Its name, as the driver calls it.
    pub name: String,
    /// Batches it ran, by the number of samples in them.
    pub batches: BatchSizes,
    /// Samples that filled batches up to a size the
    /// engine runs, and whose answers were thrown away.
    pub padded: u64,
    /// Copies of inputs to the GPU; one call that copies several pieces counts each piece.
    pub copies_in: u64,
    /// Bytes of those, over PCIe.
    pub bytes_in: u64,
    /// Bytes of inputs that were in the GPU's memory
    /// already and were copied within it, into one batch.
    pub gathered: u64,
    /// Batches that were read where their samples landed in the GPU's memory, without any copy.
    pub in_place: u64,
    /// Fences behind a NIC's writes to the GPU's memory, one for a batch where the GPU needs it.
    pub fences: u64,
    /// Batches whose kernels were launched with one call,
    /// as a CUDA graph that was recorded while warming up.
    pub graphs: u64,
    /// Bytes of outputs back, over PCIe.
    pub bytes_out: u64,
    /// Microseconds of copies of inputs.
    pub copy_in_us: u64,
    /// Microseconds of compute.
    pub compute_us: u64,
    /// Microseconds of copies of outputs.
    pub copy_out_us: u64,
}

impl GpuRecord {
    /// What was done since an earlier state of the same record.
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
