//! Copies samples from slots to one buffer per input tensor. A batch needs copies if it has several
//! runs, several inputs or ragged inputs; other batches run in place.
//!
//! A slot holds a sample's tensors in the model's order, back to back, without padding:
//!
//! ```text
//! slot    | ids: 3 rows | mask: 3 rows | segments: 3 rows |
//! ids     | 3 rows, zeros up to the largest | next sample ...
//! ```
//!
//! All ragged tensors of one sample have the same number of rows (elements along their first
//! dimension), so the sample's length determines it.

use std::{mem::size_of, ptr};

use qdl::model::{Lengths, ModelSpec, TensorSpec};

use super::Batch;
use crate::EngineError;

/// A cache line. The alignment of 64 bytes suits every element type and vector instruction.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct CacheLine([u8; 64]);

#[derive(Debug, Default)]
struct AlignedBytes(Vec<CacheLine>);

impl AlignedBytes {
    fn grow(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(size_of::<CacheLine>());
        if lines > self.0.len() {
            self.0.resize(lines, CacheLine([0; 64]));
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let len = self.0.len() * size_of::<CacheLine>();
        // SAFETY: a `CacheLine` is 64 initialised bytes without padding (its size equals its
        // alignment), and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<u8>(), len) }
    }
}

#[derive(Debug)]
struct InputBuffer {
    /// Bytes of this input in the largest sample: the distance of samples in the buffer.
    bytes: usize,
    row: Option<usize>,
    buffer: AlignedBytes,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(crate) struct TensorPart {
    pub input: usize,
    /// Offset of the tensor's first byte in the sample.
    pub at: usize,
    pub bytes: usize,
    pub room: usize,
}

/// The error for a tensor that this engine cannot take or give.
pub(crate) fn unsuited(tensor: &str, reason: &str) -> EngineError {
    EngineError::param("model", format!("tensor `{tensor}` {reason}"))
}

#[derive(Debug)]
pub(crate) struct Unpacker {
    lengths: Lengths,
    fields: Vec<InputBuffer>,
    /// Alignment of the first input's elements, in bytes.
    align: usize,
}

impl Unpacker {
    /// Error: names the tensor that cannot be unpacked, and the reason.
    pub fn new(model: &ModelSpec) -> Result<Self, EngineError> {
        let lengths = Lengths::of_inputs(model).map_err(|e| unsuited(&e.tensor, e.reason))?;
        let field = |t: &TensorSpec| {
            let bytes = t.bytes().unwrap_or_default();
            let rows = t.shape.first().filter(|_| t.ragged);
            InputBuffer {
                bytes,
                row: rows.map(|rows| bytes / rows),
                buffer: AlignedBytes::default(),
            }
        };
        Ok(Unpacker {
            fields: model.inputs.iter().map(field).collect(),
            lengths,
            align: model.inputs.first().map_or(1, |t| t.dtype.bytes()),
        })
    }

    /// Bytes of every sample, if a sample is a single tensor of fixed size. Only then can a batch
    /// run in place.
    pub fn single_fixed(&self) -> Option<usize> {
        match &self.fields[..] {
            [
                InputBuffer {
                    bytes, row: None, ..
                },
            ] => Some(*bytes),
            _ => None,
        }
    }

    /// The tensors of a sample of `len` bytes; `None` if the model cannot have that length.
    pub fn parts(&self, len: usize) -> Option<impl Iterator<Item = TensorPart>> {
        let rows = self.lengths.rows(len)?;
        let parts = self.fields.iter().enumerate();
        Some(parts.scan(0, move |next, (input, f)| {
            let bytes = f.row.map_or(f.bytes, |row| row * rows);
            let at = *next;
            *next += bytes;
            Some(TensorPart {
                input,
                at,
                bytes,
                room: f.bytes,
            })
        }))
    }

    /// True if input `index` has a variable length.
    pub fn is_ragged(&self, index: usize) -> bool {
        self.fields[index].row.is_some()
    }

    pub fn stride(&self, index: usize) -> usize {
        self.fields[index].bytes
    }

    fn grow(&mut self, batch: usize) {
        for f in &mut self.fields {
            f.buffer.grow(f.bytes * batch);
        }
    }

    /// Grows the buffers to `batch` samples and zeroes these samples.
    pub fn clear(&mut self, batch: usize) {
        self.grow(batch);
        for f in &mut self.fields {
            f.buffer.bytes()[..f.bytes * batch].fill(0);
        }
    }

    /// Prepares a batch that runs at `at` samples. Returns the batch's address if it can be read in
    /// place. Otherwise copies the batch into the buffers, and zeros behind it, and returns `None`.
    pub fn put(&mut self, batch: &mut Batch, at: usize) -> Result<Option<*const u8>, EngineError> {
        if let Some(address) = self.in_place(batch, at) {
            return Ok(Some(address));
        }
        self.grow(at);
        self.unpack(batch)?;
        let n = batch.len().min(at);
        for f in &mut self.fields {
            f.buffer.bytes()[f.bytes * n..f.bytes * at].fill(0);
        }
        Ok(None)
    }

    /// The address of a batch that can be read in place: one aligned run of exactly `at` samples.
    fn in_place(&self, batch: &Batch, at: usize) -> Option<*const u8> {
        let [run] = batch.runs() else {
            return None;
        };
        let size = self.single_fixed()?;
        let address = batch.run_address(*run);
        let aligned = (address as usize).is_multiple_of(self.align);
        // A single sample may have any length, and a batch with padding needs memory after it.
        let fits =
            at == batch.len() && batch.sample_bytes() == Some(size) && batch.input_len(0) == size;
        (fits && aligned).then_some(address)
    }

    /// Copies the batch into the buffers. A single tensor of fixed size takes one copy per run;
    /// other inputs take one copy per sample and tensor. Zeros follow short tensors.
    /// Error: a sample of a wrong length, or in GPU memory. After an error, the batch must not run.
    fn unpack(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        self.check(batch)?;
        if batch.on_device() {
            return Err(EngineError::run(
                "unpack",
                batch.len(),
                "samples in the memory of a GPU cannot be unpacked on the CPU",
            ));
        }
        self.grow(batch.len());
        let (mut copies, mut copied) = (0, 0);
        let size = self.single_fixed();
        if let Some(size) = size.filter(|_| batch.sample_bytes() == size) {
            let buffer = self.fields[0].buffer.bytes();
            for &run in batch.runs() {
                let to = &mut buffer[run.first * size..][..run.count * size];
                // The batch formed its runs with this size, and every sample has it (`check`).
                // SAFETY: so `run.count * size` bytes lie at `run_address`, which the batch's
                // arrivals keep readable and unchanged. The buffer belongs to `self`, and `to` has
                // that length.
                unsafe {
                    ptr::copy_nonoverlapping(batch.run_address(run), to.as_mut_ptr(), to.len());
                }
                copies += 1;
                copied += to.len() as u64;
            }
        } else {
            for i in 0..batch.len() {
                let sample = batch.input(i);
                let rows = self.rows(sample.len())?;
                let mut rest = sample;
                for f in &mut self.fields {
                    let (part, tail) = rest.split_at(f.row.map_or(f.bytes, |row| row * rows));
                    let to = &mut f.buffer.bytes()[i * f.bytes..][..f.bytes];
                    to[..part.len()].copy_from_slice(part);
                    to[part.len()..].fill(0);
                    rest = tail;
                    copies += 1;
                    copied += part.len() as u64;
                }
            }
        }
        batch.count_copies(copies, copied);
        Ok(())
    }

    /// Checks every sample's length.
    pub fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        for i in 0..batch.len() {
            self.rows(batch.input_len(i))?;
        }
        Ok(())
    }

    fn rows(&self, len: usize) -> Result<usize, EngineError> {
        let rows = self.lengths.rows(len);
        rows.ok_or_else(|| EngineError::sample_size(&self.lengths, len))
    }

    pub fn buffer(&mut self, index: usize) -> *mut u8 {
        self.fields[index].buffer.bytes().as_mut_ptr()
    }
}
