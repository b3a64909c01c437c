//! Runs the batches of one worker thread through a compiled model.

use std::{ffi::c_void, ptr, sync::Arc};

use super::{Aoti, container::Container};
use crate::{
    Batch, EngineError, Worker,
    batch::{Outputs, Sizes, Unpacker},
    cuda::{Gpu, StreamWorker},
};

/// A worker on a GPU. While this worker waits for kernels, other workers copy.
pub(super) struct OnGpu {
    container: Arc<Container>,
    stream: StreamWorker,
    inputs: Vec<*mut c_void>,
    sizes: Sizes,
}

impl OnGpu {
    pub fn new(engine: &Aoti, gpu: &Arc<Gpu>) -> Result<Self, EngineError> {
        let stream = StreamWorker::new(gpu, &engine.model)?;
        let inputs = 0..engine.model.inputs.len();
        Ok(OnGpu {
            container: engine.container.clone(),
            inputs: inputs.map(|i| stream.input(i)).collect(),
            stream,
            sizes: engine.sizes.clone(),
        })
    }
}

impl Worker for OnGpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let at = self.sizes.run_at(n);
        let result = self.stream.stage(batch, Some(at)).and_then(|staged| {
            self.inputs[0] = staged.in_place().unwrap_or(self.stream.input(0));
            // Padding is old data or zeros. A batch in place has memory for `at` samples, which the
            // batch keeps. `StreamWorker::new` bound this thread.
            // SAFETY: the inputs hold `max_batch` samples, which `at` does not exceed, or are the
            // batch's own memory as above. The stream belongs to this worker's GPU; the output
            // lives until `finish` has returned.
            unsafe {
                let output = self.container.run(&self.inputs, at, self.stream.handle())?;
                self.stream
                    .finish(staged, (n, at), &[output.data()], |i, response| {
                        batch.write(i, response)
                    })
            }
        });
        if result.is_err() {
            self.stream.settle();
        }
        result
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let at = self.sizes.run_at(batch.min(self.stream.max_batch()));
        let staged = self.stream.stage_zeros(at)?;
        self.inputs[0] = self.stream.input(0);
        // SAFETY: as in `run`; the inputs are zeros.
        unsafe {
            let output = self.container.run(&self.inputs, at, self.stream.handle())?;
            self.stream
                .finish(staged, (0, at), &[output.data()], |_, _| Ok(()))
        }
    }
}

/// A worker on the CPU, which reads a batch of a single run in place.
pub(super) struct OnCpu {
    container: Arc<Container>,
    unpacker: Unpacker,
    inputs: Vec<*mut c_void>,
    outputs: Outputs,
    sizes: Sizes,
}

impl OnCpu {
    pub fn new(engine: &Aoti) -> Result<Self, EngineError> {
        let model = &engine.model;
        Ok(OnCpu {
            container: engine.container.clone(),
            unpacker: Unpacker::new(model)?,
            inputs: vec![ptr::null_mut(); model.inputs.len()],
            outputs: Outputs::new(model)?,
            sizes: engine.sizes.clone(),
        })
    }

    /// # Safety
    /// `in_place`, if given, is readable for `at` samples of the model's only input.
    unsafe fn infer(
        &mut self,
        n: usize,
        at: usize,
        in_place: Option<*const u8>,
        each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for (i, input) in self.inputs.iter_mut().enumerate() {
            *input = match in_place {
                Some(address) => address.cast_mut().cast(),
                None => self.unpacker.buffer(i).cast(),
            };
        }
        // SAFETY: each address holds `at` samples: guaranteed by the caller, or the unpacker's
        // buffer, which was grown for them. On the CPU the run ends before the function returns.
        let output = unsafe { self.container.run(&self.inputs, at, ptr::null_mut())? };
        let (data, bytes) = (output.data(), at * self.outputs.widths[0]);
        let bytes = match bytes > 0 && !data.is_null() {
            // SAFETY: the container checked shape, element type and contiguity, so `data` has `at`
            // outputs, and `output` keeps them while the slice lives.
            true => unsafe { std::slice::from_raw_parts(data.cast::<u8>(), bytes) },
            false => &[],
        };
        self.outputs.split(n, |_, _| bytes, each)
    }
}

impl Worker for OnCpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let at = self.sizes.run_at(n);
        let in_place = self.unpacker.put(batch, at)?;
        // SAFETY: the run holds the whole batch with samples of the model's size; the batch keeps
        // them until this function returns.
        unsafe { self.infer(n, at, in_place, |i, response| batch.write(i, response)) }
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let at = self.sizes.run_at(batch.min(self.sizes.largest));
        self.unpacker.clear(at);
        // SAFETY: no address is given.
        unsafe { self.infer(0, at, None, |_, _| Ok(())) }
    }
}
