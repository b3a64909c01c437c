//! Workers of the engines that run a batch by one call of a runtime: a [`BatchModel`] on the CPU
//! ([`CpuWorker`]) or on a GPU ([`GpuWorker`]).

mod gpu;

use std::{ffi::c_void, ptr};

use qdl::model::ModelSpec;

use crate::{
    Batch, EngineError, Worker,
    batch::{Outputs, Unpacker},
};

pub(crate) use gpu::GpuWorker;

/// A loaded model, for one worker. `S` is the worker's stream: on the CPU there is none, `()`.
pub(crate) trait BatchModel<S> {
    /// On a GPU, the model reads inputs at any address, so a batch in its slots needs no copy.
    const IN_PLACE: bool = false;

    /// Size at which `n` samples run: the rest of the batch is padding.
    /// Error: the model runs no batch of this size.
    fn run_at(&self, n: usize) -> Result<usize, EngineError>;

    /// Runs `at` samples, on a GPU as kernels on `stream`. Calls `done` with the address of each
    /// output in the model's order. Each output has the shape and element type that the model
    /// describes, for `at` samples, and lives until `done` has returned.
    /// Error: the runtime's, an output of a shape that is not described, or the error of `done`.
    ///
    /// # Safety
    /// `inputs` has the address of each input, which the model's device may read for `at` samples
    /// until `done` has returned. On a GPU, the thread is bound to the GPU of `stream`.
    unsafe fn run(
        &mut self,
        stream: &mut S,
        inputs: &[*mut c_void],
        at: usize,
        done: impl FnOnce(&mut S, &[*const c_void]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError>;

    /// Whether the outputs are integers of 32 bits where the configuration has 64. Only
    /// [`GpuWorker`] widens.
    fn widens(&self) -> bool {
        false
    }

    /// Called after a warm-up of `at` samples.
    fn warmed(&mut self, stream: &S, at: usize) {
        let _ = (stream, at);
    }
}

/// A worker on the CPU, which reads a batch of a single run in place.
pub(crate) struct CpuWorker<M> {
    model: M,
    unpacker: Unpacker,
    outputs: Outputs,
    /// Address of each input.
    inputs: Vec<*mut c_void>,
}

impl<M: BatchModel<()>> CpuWorker<M> {
    pub fn new(spec: &ModelSpec, model: M) -> Result<Self, EngineError> {
        Ok(CpuWorker {
            model,
            unpacker: Unpacker::new(spec)?,
            outputs: Outputs::new(spec)?,
            inputs: vec![ptr::null_mut(); spec.inputs.len()],
        })
    }

    /// Runs a batch padded to `at` samples, and passes the responses of the first `samples`, the
    /// real ones, to `each`. `in_place` is the address of the samples; `None` if they are in the
    /// unpacker's buffers.
    ///
    /// # Safety
    /// `in_place`, if given, is readable for `at` samples of the model's only input.
    unsafe fn infer(
        &mut self,
        (samples, at): (usize, usize),
        in_place: Option<*const u8>,
        each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for (i, input) in self.inputs.iter_mut().enumerate() {
            *input = match in_place {
                Some(address) => address.cast_mut().cast(),
                None => self.unpacker.buffer(i).cast(),
            };
        }
        let outputs = &mut self.outputs;
        let split = |(): &mut (), data: &[*const c_void]| {
            let tensor = |(data, width): (&*const c_void, &usize)| match at * width {
                0 => &[][..],
                _ if data.is_null() => &[],
                // SAFETY: the model has checked shape and element type of each output, so that
                // `data` has `at` outputs, which live until this closure has returned.
                bytes => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) },
            };
            let tensors: Vec<&[u8]> = data.iter().zip(&outputs.widths).map(tensor).collect();
            outputs.split(samples, |o, _| tensors[o], each)
        };
        // SAFETY: each address holds `at` samples: guaranteed by the caller, or the unpacker's
        // buffer, which was grown for them and stays unchanged until the run has returned.
        unsafe { self.model.run(&mut (), &self.inputs, at, split) }
    }
}

impl<M: BatchModel<()>> Worker for CpuWorker<M> {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let at = self.model.run_at(n)?;
        let in_place = self.unpacker.put(batch, at)?;
        // SAFETY: the run holds the whole batch with samples of the model's size; the batch keeps
        // them until this function returns.
        unsafe { self.infer((n, at), in_place, |i, response| batch.write(i, response)) }
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let at = self.model.run_at(batch)?;
        self.unpacker.clear(at);
        // SAFETY: no address is given.
        unsafe { self.infer((0, at), None, |_, _| Ok(())) }
    }
}
