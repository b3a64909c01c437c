//! A batch: samples in order, which of them lie side by side, and where their responses go.

use qdl::serve::Arrival;

use super::{Decompressed, Decompressor, EngineError};

/// Samples of one batch whose inputs lie side by side in memory.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Run {
    /// Index of the first sample in the batch.
    pub first: usize,
    /// Number of samples, at least 1.
    pub count: usize,
}

/// Work that a batch cost beside the model itself.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct BatchCounts {
    /// Copies of inputs.
    pub copies: u64,
    /// Bytes of inputs copied.
    pub copied_bytes: u64,
    /// Its samples, where they were compressed.
    pub decompressed: Decompressed,
}

/// Samples that run together. Never empty when an engine sees it.
///
/// The vectors inside are reused from batch to batch.
#[derive(Debug, Default)]
pub struct Batch {
    arrivals: Vec<Arrival>,
    lens: Vec<u32>,
    runs: Vec<Run>,
    sample_bytes: Option<usize>,
    counts: BatchCounts,
    /// Where samples are compressed: whose memory they are read in.
    decompressor: Option<Decompressor>,
}

impl Batch {
    /// An empty batch with room for `max_batch` samples.
    pub fn with_capacity(max_batch: usize) -> Self {
        Batch {
            arrivals: Vec::with_capacity(max_batch),
            lens: Vec::with_capacity(max_batch),
            runs: Vec::with_capacity(max_batch),
            sample_bytes: None,
            counts: BatchCounts::default(),
            decompressor: None,
        }
    }

    /// The same, for samples that are compressed: [`Batch::decompress`] comes before anybody reads
    /// one.
    #[must_use]
    pub fn decompressing(mut self, decompressor: Option<Decompressor>) -> Self {
        self.decompressor = decompressor;
        self
    }

    /// Puts samples in with `put`, then finds the runs.
    ///
    /// With a fixed sample size the samples are put in the order of their addresses, so that
    /// neighbours in memory become neighbours in the batch whichever way they arrived; otherwise
    /// they keep their order and each is a run of its own.
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
        if self.decompressor.is_none() {
            self.find_runs();
        }
    }

    /// Decompresses its samples, where they are compressed: from then on they are those, and so are
    /// the runs. Without the batcher's lock, on the worker's own time.
    ///
    /// # Errors
    /// A sample that is none; the samples stay as they came, for another try.
    pub fn decompress(&mut self) -> Result<(), EngineError> {
        let Some(decompressor) = &mut self.decompressor else {
            return Ok(());
        };
        self.counts.decompressed = decompressor.run(&self.arrivals, self.sample_bytes)?;
        self.runs.clear();
        self.find_runs();
        Ok(())
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
                _ => self.runs.push(Run { first: i, count: 1 }),
            }
            // A sample of another size ends its run: what follows it does not lie where the next
            // one would begin.
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

    /// True before the batcher has put anything in, and after the responses were taken.
    pub fn is_empty(&self) -> bool {
        self.arrivals.is_empty()
    }

    /// The samples as they arrived, in batch order.
    pub fn arrivals(&self) -> &[Arrival] {
        &self.arrivals
    }

    /// The runs, in batch order; together they cover every sample once.
    pub fn runs(&self) -> &[Run] {
        &self.runs
    }

    /// Where the bytes of a run begin. A run of several samples is `count` times the fixed size
    /// given to [`Batch::fill`], without a gap; a run of one is as long as its sample. Readable as
    /// long as the samples are in the batch, by the GPU alone where [`Batch::on_device`] says so.
    pub fn run_address(&self, run: Run) -> *const u8 {
        self.address(run.first) as *const u8
    }

    /// True where a sample lies in memory of a GPU, which this process does not read: its addresses
    /// are for that GPU.
    pub fn on_device(&self) -> bool {
        self.arrivals.iter().any(Arrival::is_on_device)
    }

    /// The fixed size given to [`Batch::fill`], in bytes.
    pub fn sample_bytes(&self) -> Option<usize> {
        self.sample_bytes
    }

    /// Where one sample begins.
    pub fn address(&self, index: usize) -> usize {
        match &self.decompressor {
            Some(decompressor) => decompressor.place(index).0,
            None => self.arrivals[index].address(),
        }
    }

    /// One sample's length, wherever it lies.
    pub fn input_len(&self, index: usize) -> usize {
        match &self.decompressor {
            Some(decompressor) => decompressor.place(index).1,
            None => self.arrivals[index].input_len(),
        }
    }

    /// One sample's bytes.
    pub fn input(&self, index: usize) -> &[u8] {
        match &self.decompressor {
            Some(decompressor) => decompressor.sample(index),
            None => self.arrivals[index].input(),
        }
    }

    /// Writes one sample's response.
    ///
    /// # Errors
    /// [`EngineError::OutputRoom`] where it does not fit.
    pub fn write(&mut self, index: usize, response: &[u8]) -> Result<(), EngineError> {
        self.lens[index] = write_response(&mut self.arrivals[index], response)?;
        Ok(())
    }

    /// One sample's output and the length of its response, for engines that write in place.
    pub fn output(&mut self, index: usize) -> (&mut [u8], &mut u32) {
        (self.arrivals[index].output(), &mut self.lens[index])
    }

    /// Counts copies of inputs.
    pub fn count_copies(&mut self, copies: u64, bytes: u64) {
        self.counts.copies += copies;
        self.counts.copied_bytes += bytes;
    }

    /// What was counted since [`Batch::fill`].
    pub fn counts(&self) -> BatchCounts {
        self.counts
    }

    /// Takes samples and response lengths out, in batch order.
    pub fn take(&mut self) -> impl Iterator<Item = (Arrival, u32)> {
        self.runs.clear();
        self.arrivals.drain(..).zip(self.lens.drain(..))
    }

    /// Drops the samples unanswered.
    pub fn clear(&mut self) {
        self.arrivals.clear();
        self.lens.clear();
        self.runs.clear();
    }
}

/// Copies a response into an arrival's output and gives its length.
pub(super) fn write_response(arrival: &mut Arrival, response: &[u8]) -> Result<u32, EngineError> {
    let output = arrival.output();
    let room = output.len();
    let too_long = EngineError::OutputRoom {
        need: response.len(),
        room,
    };
    let Ok(len) = u32::try_from(response.len()) else {
        return Err(too_long);
    };
    match output.get_mut(..response.len()) {
        Some(output) => output.copy_from_slice(response),
        None => return Err(too_long),
    }
    Ok(len)
}
