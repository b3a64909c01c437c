//! From samples in slots to one buffer per input tensor, for whatever cannot be run where it
//! landed: several runs, several inputs, ragged inputs.
//!
//! A slot holds a sample's tensors in the model's order, back to back, each at its true length:
//!
//! ```text
//! slot    | ids: 3 rows | mask: 3 rows | segments: 3 rows |
//! ids     | 3 rows, zeros up to the largest | next sample ...
//! ```
//!
//! All ragged tensors of one sample have the same number of rows (elements along their first
//! dimension), so the sample's length alone tells how many.

use std::{mem::size_of, ptr};

use qdl::model::{ModelSpec, TensorSpec};

use super::{Batch, EngineError, Lengths, lengths};

/// A cache line, and the alignment that every element type and vector instruction is content with.
#[derive(Clone, Copy, Debug)]
#[repr(C, align(64))]
struct Line([u8; 64]);

/// Bytes that begin at a multiple of 64.
#[derive(Debug, Default)]
struct Memory(Vec<Line>);

impl Memory {
    fn grow(&mut self, bytes: usize) {
        let lines = bytes.div_ceil(size_of::<Line>());
        if lines > self.0.len() {
            self.0.resize(lines, Line([0; 64]));
        }
    }

    fn bytes(&mut self) -> &mut [u8] {
        let len = self.0.len() * size_of::<Line>();
        // SAFETY: `Line` is `len / Vec::len` bytes of `u8` without padding (its size equals its
        // alignment), all of them initialised, and `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.0.as_mut_ptr().cast::<u8>(), len) }
    }
}

#[derive(Debug)]
struct Field {
    /// Bytes of a sample at its largest: the stride of the buffer.
    bytes: usize,
    /// Bytes of one row where the tensor is ragged.
    row: Option<usize>,
    buffer: Memory,
}

/// Where one tensor of a sample lies.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Part {
    /// Which input it is.
    pub input: usize,
    /// Its first byte in the sample.
    pub at: usize,
    /// How many it has there.
    pub bytes: usize,
    /// And at its largest.
    pub room: usize,
}

/// Unpacks batches of one model.
#[derive(Debug)]
pub(super) struct Unpacker {
    lengths: Lengths,
    fields: Vec<Field>,
}

impl Unpacker {
    /// # Errors
    /// The name of the tensor that cannot be unpacked, and why.
    pub fn new(model: &ModelSpec) -> Result<Self, (String, String)> {
        let lengths = Lengths::of_inputs(model).map_err(|e| (e.tensor, e.reason.to_owned()))?;
        let field = |t: &TensorSpec| {
            let bytes = t.bytes().unwrap_or_default();
            let rows = t.shape.first().filter(|_| t.ragged);
            Field {
                bytes,
                row: rows.map(|rows| bytes / rows),
                buffer: Memory::default(),
            }
        };
        Ok(Unpacker {
            fields: model.inputs.iter().map(field).collect(),
            lengths,
        })
    }

    /// The one size that every sample has, where a sample is a single tensor that is not ragged:
    /// then a run of samples can be used where it lies.
    pub fn single_fixed(&self) -> Option<usize> {
        match &self.fields[..] {
            [
                Field {
                    bytes, row: None, ..
                },
            ] => Some(*bytes),
            _ => None,
        }
    }

    /// The tensors of a sample of `len` bytes; none where no sample has that length.
    pub fn parts(&self, len: usize) -> Option<impl Iterator<Item = Part>> {
        let rows = self.lengths.rows(len)?;
        let parts = self.fields.iter().enumerate();
        Some(parts.scan(0, move |next, (input, f)| {
            let bytes = f.row.map_or(f.bytes, |row| row * rows);
            let at = *next;
            *next += bytes;
            Some(Part {
                input,
                at,
                bytes,
                room: f.bytes,
            })
        }))
    }

    /// True where samples of input `index` have different lengths.
    pub fn is_ragged(&self, index: usize) -> bool {
        self.fields[index].row.is_some()
    }

    /// Bytes of input `index` of a sample at its largest.
    pub fn stride(&self, index: usize) -> usize {
        self.fields[index].bytes
    }

    /// Makes room for `batch` samples.
    pub fn grow(&mut self, batch: usize) {
        for f in &mut self.fields {
            f.buffer.grow(f.bytes * batch);
        }
    }

    /// Makes room for `batch` samples, and fills it with zeros.
    pub fn clear(&mut self, batch: usize) {
        self.grow(batch);
        for f in &mut self.fields {
            f.buffer.bytes()[..f.bytes * batch].fill(0);
        }
    }

    /// Makes room for `at` samples, and fills what is behind the first `n` with zeros.
    pub fn pad(&mut self, n: usize, at: usize) {
        self.grow(at);
        for f in &mut self.fields {
            f.buffer.bytes()[f.bytes * n.min(at)..f.bytes * at].fill(0);
        }
    }

    /// Copies the batch into the buffers: a single fixed tensor with one copy per run, anything
    /// else with one copy per sample and tensor. The buffers' tails behind short tensors are
    /// zeroed.
    ///
    /// # Errors
    /// [`EngineError::SampleSize`] names a sample of a wrong length; nothing may be run then.
    pub fn unpack(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        self.check(batch)?;
        if batch.on_device() {
            return Err(EngineError::Run {
                engine: "unpack",
                batch: batch.len(),
                reason: "samples in the memory of a GPU cannot be unpacked on the CPU".to_owned(),
            });
        }
        self.grow(batch.len());
        let (mut copies, mut copied) = (0, 0);
        let size = self.single_fixed();
        if let Some(size) = size.filter(|_| batch.sample_bytes() == size) {
            let buffer = self.fields[0].buffer.bytes();
            for &run in batch.runs() {
                let to = &mut buffer[run.first * size..][..run.count * size];
                // The batch's runs were found with this very size, and every sample has it
                // (`check`).
                // SAFETY: so `run.count * size` bytes lie from `run_address` on, which the batch's
                // arrivals keep readable and nobody writes; the buffer belongs to `self`, and `to`
                // is as long.
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
    ///
    /// # Errors
    /// [`EngineError::SampleSize`] for the first wrong one.
    pub fn check(&self, batch: &Batch) -> Result<(), EngineError> {
        for i in 0..batch.len() {
            self.rows(batch.input_len(i))?;
        }
        Ok(())
    }

    fn rows(&self, len: usize) -> Result<usize, EngineError> {
        let rows = self.lengths.rows(len);
        rows.ok_or_else(|| lengths::refusal(&self.lengths, len))
    }

    /// The buffer of input `index`.
    pub fn buffer(&mut self, index: usize) -> *mut u8 {
        self.fields[index].buffer.bytes().as_mut_ptr()
    }
}
