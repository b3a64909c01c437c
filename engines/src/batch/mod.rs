//! The samples of a batch in order, their runs in memory, and the lengths of their responses.

mod outputs;
mod sizes;
mod unpack;

use qdl::serve::Arrival;

use super::EngineError;
pub(super) use {outputs::Outputs, sizes::Sizes, unpack::Unpacker};

/// Samples of one batch whose inputs are contiguous in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct SampleRun {
    /// Index of the first sample in the batch.
    pub first: usize,
    /// Number of samples, at least 1.
    pub count: usize,
}

/// Work for a batch besides running the model.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Number of copies of inputs.
    pub copies: u64,
    /// Bytes of inputs copied.
    pub copied_bytes: u64,
}

/// Samples that run together; never empty in an engine.
///
/// The vectors are reused from batch to batch.
#[derive(Debug)]
pub struct Batch {
    arrivals: Vec<Arrival>,
    lens: Vec<u32>,
    runs: Vec<SampleRun>,
    sample_bytes: Option<usize>,
    counts: BatchCounts,
}

impl Batch {
    /// An empty batch with room for `max_batch` samples.
    pub fn new(max_batch: usize) -> Self {
        Batch {
            arrivals: Vec::with_capacity(max_batch),
            lens: Vec::with_capacity(max_batch),
            runs: Vec::with_capacity(max_batch),
            sample_bytes: None,
            counts: BatchCounts::default(),
        }
    }

    /// Calls `put` to append samples, then finds the runs.
    ///
    /// With a fixed sample size, sorts the samples by address, so that neighbours in memory are
    /// neighbours in the batch. Otherwise the samples keep their order and each is a separate run.
    pub fn fill(&mut self, sample_bytes: Option<usize>, put: impl FnOnce(&mut Vec<Arrival>)) {
        put(&mut self.arrivals);
        if sample_bytes.is_some() && !self.arrivals.is_sorted_by_key(Arrival::address) {
            self.arrivals.sort_unstable_by_key(Arrival::address);
        }
        self.sample_bytes = sample_bytes;
        self.counts = BatchCounts::default();
        self.lens.clear();
        self.lens.resize(self.arrivals.len(), 0);
        self.runs.clear();
        self.find_runs();
    }

    fn find_runs(&mut self) {
        let sample_bytes = self.sample_bytes;
        let mut next_address = None;
        for i in 0..self.arrivals.len() {
            let (address, len) = (self.address(i), self.input_len(i));
            let right_size = sample_bytes == Some(len);
            let joins = right_size && next_address == Some(address);
            match self.runs.last_mut() {
                Some(run) if joins => run.count += 1,
                _ => self.runs.push(SampleRun { first: i, count: 1 }),
            }
            // A sample of another size ends its run: the next sample begins a new one.
            next_address = match sample_bytes {
                Some(n) if right_size => address.checked_add(n),
                _ => None,
            };
        }
    }

    /// Number of samples.
    pub fn len(&self) -> usize {
        self.arrivals.len()
    }

    /// True before the batcher has added samples and after [`Batch::take`].
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// The samples as they arrived, in batch order.
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// The runs, in batch order; together they cover every sample once.
    pub fn runs(&self) -> &[SampleRun] {
        &self.runs
    }

    /// Address of a run. A run of several samples has `count` times the fixed size of
    /// [`Batch::fill`], without gaps; a run of one has the length of its sample. The memory is
    /// readable while the samples are in the batch; with [`Batch::on_device`], only by the GPU.
    pub fn run_address(&self, run: SampleRun) -> *const u8 {
        self.address(run.first) as *const u8
    }

    /// True if any sample is in GPU memory. Only that GPU can read the sample's address.
    pub fn on_device(&self) -> bool {
        self.arrivals.iter().any(Arrival::is_on_device)
    }

    /// The fixed size given to [`Batch::fill`], in bytes.
    pub fn sample_bytes(&self) -> Option<usize> {
        self.sample_bytes
    }

    /// Address of a sample.
    pub fn address(&self, index: usize) -> usize {
        self.arrivals[index].address()
    }

    /// Length of a sample in bytes.
    pub fn input_len(&self, index: usize) -> usize {
        self.arrivals[index].input_len()
    }

    /// The bytes of a sample.
    pub fn input(&self, index: usize) -> &[u8] {
        self.arrivals[index].input()
    }

    /// Writes the response of a sample.
    ///
    /// # Errors
    /// The response does not fit.
    pub fn write(&mut self, index: usize, response: &[u8]) -> Result<(), EngineError> {
        let output = self.arrivals[index].output();
        let (need, room) = (response.len(), output.len());
        let too_long = || EngineError::output_room(need, room);
        let len = u32::try_from(need).map_err(|_| too_long())?;
        let output = output.get_mut(..need).ok_or_else(too_long)?;
        output.copy_from_slice(response);
        self.lens[index] = len;
        Ok(())
    }

    /// Like [`Batch::write`], but widens integers of 32 bits to 64: ONNX's argmax makes i64.
    pub(super) fn write_widened(
        &mut self,
        index: usize,
        response: &[u8],
    ) -> Result<(), EngineError> {
        widen_each(response, |wide| self.write(index, wide))
    }

    /// Output slot and response length of a sample, for engines that write into the slot.
    pub fn output(&mut self, index: usize) -> (&mut [u8], &mut u32) {
        (self.arrivals[index].output(), &mut self.lens[index])
    }

    /// Adds `copies` copies of `bytes` bytes together to the counts.
    pub fn count_copies(&mut self, copies: u64, bytes: u64) {
        self.counts.copies += copies;
        self.counts.copied_bytes += bytes;
    }

    /// The work since the last [`Batch::fill`].
    pub fn counts(&self) -> BatchCounts {
        self.counts
    }

    /// Removes the samples with the lengths of their responses, in batch order.
    pub fn take(&mut self) -> impl Iterator<Item = (Arrival, u32)> {
        self.runs.clear();
        self.arrivals.drain(..).zip(self.lens.drain(..))
    }

    /// Drops the samples unanswered.
    pub fn clear(&mut self) {
        drop(self.take());
    }
}

/// Converts 32-bit integers to 64-bit.
fn widen_each<R>(response: &[u8], write: impl FnOnce(&[u8]) -> R) -> R {
    let of = |four: &[u8]| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(four);
        i64::from(i32::from_le_bytes(bytes)).to_le_bytes()
    };
    match response.len() {
        // The common case, one class, needs no allocation.
        4 => write(&of(response)),
        _ => write(&response.chunks_exact(4).flat_map(of).collect::<Vec<u8>>()),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn integers_keep_their_value_when_they_widen() {
        let narrow: Vec<u8> = [7i32, -3, i32::MIN]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        let wide: Vec<u8> = [7i64, -3, i64::from(i32::MIN)]
            .iter()
            .flat_map(|n| n.to_le_bytes())
            .collect();
        assert_eq!(widen_each(&narrow, <[u8]>::to_vec), wide);
        assert_eq!(widen_each(&narrow[..4], <[u8]>::to_vec), wide[..8]);
    }
}
