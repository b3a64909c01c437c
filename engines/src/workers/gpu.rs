//! The worker on a GPU.

use std::{ffi::c_void, sync::Arc};

use qdl::model::ModelSpec;

use super::BatchModel;
use crate::{
    Batch, EngineError, Worker,
    cuda::{Gpu, Staged, StreamWorker},
};

/// A worker on a GPU. While this worker waits for kernels, other workers copy. Fields are
/// dropped in order: the model before the stream that its kernels use.
pub(crate) struct GpuWorker<M: BatchModel<StreamWorker>> {
    model: M,
    /// Address of each input on the GPU.
    inputs: Vec<*mut c_void>,
    stream: StreamWorker,
}

impl<M: BatchModel<StreamWorker>> GpuWorker<M> {
    /// Makes a worker on the calling thread, with the model that `load` loads for its stream.
    pub fn new(
        gpu: &Arc<Gpu>,
        spec: &ModelSpec,
        load: impl FnOnce(&StreamWorker) -> Result<M, EngineError>,
    ) -> Result<Self, EngineError> {
        let stream = StreamWorker::new(gpu, spec)?;
        Ok(GpuWorker {
            model: load(&stream)?,
            inputs: (0..spec.inputs.len()).map(|i| stream.input(i)).collect(),
            stream,
        })
    }

    /// Runs the staged batch at `at` samples, and passes the responses of the first `samples` to
    /// `each`.
    fn infer(
        &mut self,
        staged: Staged,
        (samples, at): (usize, usize),
        each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        if let Some(first) = self.inputs.first_mut() {
            *first = staged.in_place().unwrap_or(self.stream.input(0));
        }
        // Samples after the first `samples` are old data or zeros.
        // SAFETY: `StreamWorker::new` bound this thread. The inputs hold `max_batch` samples, which
        // `at` does not exceed, or are the batch's own memory, which the batch keeps. The outputs
        // have the model's shapes for `at` samples and live until `finish` has returned.
        unsafe {
            let finish = |stream: &mut StreamWorker, data: &[_]| {
                stream.finish(staged, (samples, at), data, each)
            };
            self.model.run(&mut self.stream, &self.inputs, at, finish)
        }
    }
}

impl<M: BatchModel<StreamWorker>> Worker for GpuWorker<M> {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let at = self.model.run_at(n)?;
        let staged = self.stream.stage(batch, M::IN_PLACE.then_some(at));
        let widens = self.model.widens();
        let write = |i, response: &[u8]| match widens {
            true => batch.write_widened(i, response),
            false => batch.write(i, response),
        };
        let result = staged.and_then(|staged| self.infer(staged, (n, at), write));
        if result.is_err() {
            self.stream.settle();
        }
        result
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let at = self.model.run_at(batch.min(self.stream.max_batch()))?;
        let staged = self.stream.stage_zeros(at)?;
        self.infer(staged, (0, at), |_, _| Ok(()))?;
        self.model.warmed(&self.stream, at);
        Ok(())
    }
}

impl<M: BatchModel<StreamWorker>> Drop for GpuWorker<M> {
    fn drop(&mut self) {
        // No kernel may run when the model is dropped.
        self.stream.settle();
    }
}
