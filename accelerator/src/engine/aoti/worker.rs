//! One thread's batches through a compiled model.

use std::{ffi::c_void, ptr, sync::Arc};

use super::{Aoti, container::Container};
use crate::engine::{
    Batch, EngineError, Worker,
    cuda::{Device, Meter, Registry, StreamWorker},
    sizes::Sizes,
    unpack::Unpacker,
};

/// On a GPU: copies, kernels and the copy back on one stream; while this thread waits for them,
/// another's batch is copied.
pub(super) struct OnGpu {
    container: Arc<Container>,
    stream: StreamWorker,
    inputs: Vec<*mut c_void>,
    sizes: Sizes,
}

impl OnGpu {
    pub fn new(
        engine: &Aoti,
        device: &Arc<Device>,
        registry: &Arc<Registry>,
        meter: &Arc<Meter>,
    ) -> Result<Self, EngineError> {
        let (model, spin_us) = (&engine.model, engine.spin_us);
        let stream = StreamWorker::new(
            device,
            registry,
            meter,
            model,
            engine.sizes.largest(),
            spin_us,
        )?;
        Ok(OnGpu {
            container: engine.container.clone(),
            inputs: (0..model.inputs.len()).map(|i| stream.input(i)).collect(),
            stream,
            sizes: engine.sizes.clone(),
        })
    }
}

impl Worker for OnGpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let at = self.sizes.run_at(n);
        let result = self.stream.stage_in_place(batch, at).and_then(|staged| {
            self.inputs[0] = staged.in_place().unwrap_or(self.stream.input(0));
            // The padding is what an earlier batch left, or zeros. Where the batch is read in
            // place, `at` samples of memory are there, and the batch keeps them. This thread was
            // bound when the stream was made.
            // SAFETY: the stream worker's inputs hold `max_batch` samples, which `at` does not
            // exceed, or are the batch's own, as above; the stream is the stream worker's own; the
            // output stays alive until `finish` has returned.
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

/// On the CPU: a single run is read where it lies.
pub(super) struct OnCpu {
    container: Arc<Container>,
    unpacker: Unpacker,
    inputs: Vec<*mut c_void>,
    output_bytes: usize,
    /// Elements of the first input are so many bytes, and begin at a multiple of it.
    align: usize,
    sizes: Sizes,
}

impl OnCpu {
    pub fn new(engine: &Aoti) -> Result<Self, EngineError> {
        let model = &engine.model;
        let refuse = |tensor: &str, reason: &str| EngineError::Param {
            field: "model",
            reason: format!("tensor `{tensor}` {reason}"),
        };
        Ok(OnCpu {
            container: engine.container.clone(),
            unpacker: Unpacker::new(model).map_err(|(t, why)| refuse(&t, &why))?,
            inputs: vec![ptr::null_mut(); model.inputs.len()],
            output_bytes: model
                .max_output_bytes()
                .ok_or_else(|| refuse(&model.output.name, "is too large"))?,
            align: model.inputs.first().map_or(1, |t| t.dtype.bytes()),
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
        mut each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        for (i, input) in self.inputs.iter_mut().enumerate() {
            *input = match in_place {
                Some(address) => address.cast_mut().cast(),
                None => self.unpacker.buffer(i).cast(),
            };
        }
        // SAFETY: each address holds `at` samples: the caller's promise, or the unpacker's buffer,
        // which was grown for them. On the CPU the run is over when the function returns.
        let output = unsafe { self.container.run(&self.inputs, at, ptr::null_mut())? };
        let data = output.data();
        if self.output_bytes == 0 || data.is_null() {
            return (0..n).try_for_each(|i| each(i, &[]));
        }
        // SAFETY: the container checked shape, element type and that nothing lies between: `at`
        // outputs from `data` on, which `output` keeps while the slice lives.
        let bytes =
            unsafe { std::slice::from_raw_parts(data.cast::<u8>(), at * self.output_bytes) };
        for (i, response) in bytes.chunks_exact(self.output_bytes).take(n).enumerate() {
            each(i, response)?;
        }
        Ok(())
    }
}

impl Worker for OnCpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let at = self.sizes.run_at(n);
        let size = self.unpacker.single_fixed();
        let in_place = match batch.runs() {
            [run]
                if at == n && size == Some(batch.input_len(0)) && batch.sample_bytes() == size =>
            {
                Some(batch.run_address(*run))
                    .filter(|address| (*address as usize).is_multiple_of(self.align))
            }
            _ => None,
        };
        if in_place.is_none() {
            self.unpacker.grow(at);
            self.unpacker.unpack(batch)?;
        }
        // SAFETY: a run that holds the whole batch, of samples of the model's size, which the batch
        // keeps until this returns.
        unsafe { self.infer(n, at, in_place, |i, response| batch.write(i, response)) }
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let at = self.sizes.run_at(batch.min(self.sizes.largest()));
        self.unpacker.clear(at);
        // SAFETY: no address is given.
        unsafe { self.infer(0, at, None, |_, _| Ok(())) }
    }
}
