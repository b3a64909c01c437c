//! Runs the batches of one worker thread through a plan.

use std::{collections::HashMap, ffi::c_void, rc::Rc, sync::Arc};

use super::{
    TensorRt,
    plan::{Context, TrtPlan},
    shim::TrtError,
};
use crate::{
    Batch, EngineError, Worker,
    cuda::{DeviceMemory, KernelGraph, StreamWorker},
};

/// Largest batch, besides the listed sizes, whose kernels the worker records as a graph. Kernels of
/// larger batches take longer than their launches.
const RECORD_UP_TO: usize = 128;

/// A worker on a GPU. The worker owns its plan, because each profile allows one context, and each
/// context one thread.
pub(super) struct OnGpu {
    engine: Arc<TensorRt>,
    /// Graphs by batch size; `None` if recording failed. Graphs refer to the contexts' memory.
    graphs: HashMap<usize, Option<KernelGraph>>,
    contexts: Vec<Context>,
    output: DeviceMemory,
    stream: StreamWorker,
}

impl OnGpu {
    /// Makes a worker on the calling thread, with `plan`, or a plan loaded from the plan's file.
    pub fn new(engine: &Arc<TensorRt>, plan: Option<TrtPlan>) -> Result<Self, EngineError> {
        let e = engine;
        let stream = StreamWorker::new(&e.gpu, &e.plan_model)?;
        let output_bytes = e.plan_model.max_output_bytes().unwrap_or(0);
        let output = stream.memory(output_bytes.saturating_mul(stream.max_batch()))?;
        let plan = match plan {
            Some(plan) => plan,
            None => TrtPlan::load(&e.library, &e.bytes)
                .map_err(|why| e.refusal("loading the plan", &why))?,
        };
        let plan = Rc::new(plan);
        let mut contexts = Vec::new();
        for profile in 0..e.profiles.len() {
            let refused = |why: TrtError| e.refusal("making a context", &why);
            // SAFETY: `StreamWorker::new` made the stream on this GPU and bound the thread.
            let made = unsafe { Context::new(&plan, profile, stream.handle()) };
            let mut context = made.map_err(refused)?;
            let inputs = e.inputs.iter().enumerate();
            let addresses = inputs.map(|(i, tensor)| (*tensor, stream.input(i)));
            let output = std::iter::once((e.output, output.address() as *mut c_void));
            for (tensor, address) in addresses.chain(output) {
                // SAFETY: the buffers of `stream` and `output` have room for the largest batch, and
                // outlive the contexts.
                unsafe { context.bind(tensor, address) }.map_err(refused)?;
            }
            contexts.push(context);
        }
        Ok(OnGpu {
            engine: engine.clone(),
            graphs: HashMap::new(),
            contexts,
            output,
            stream,
        })
    }

    fn place(&self, n: usize) -> Result<(usize, usize), EngineError> {
        self.engine
            .run_at(n)
            .ok_or_else(|| EngineError::run("tensorrt", n, "no profile of the plan takes it"))
    }

    fn compute(&mut self, profile: usize, at: usize) -> Result<(), EngineError> {
        if let Some(Some(graph)) = self.graphs.get(&at) {
            return self.stream.launch(graph);
        }
        enqueue(&mut self.contexts[profile], at, self.stream.handle())
    }

    /// Records the kernels of size `at`, after their first run. If recording fails, later runs
    /// launch the kernels one by one.
    fn record(&mut self, profile: usize, at: usize) {
        let wanted = at <= RECORD_UP_TO || self.engine.sizes.is_listed(at);
        if !wanted || self.graphs.contains_key(&at) {
            return;
        }
        let (context, stream) = (&mut self.contexts[profile], self.stream.handle());
        let recorded = self.stream.record(|| enqueue(context, at, stream));
        if let Err(e) = &recorded {
            tracing::debug!("kernels for a batch of {at} are launched one by one: {e}");
        }
        self.graphs.insert(at, recorded.ok());
    }
}

fn enqueue(context: &mut Context, at: usize, stream: *mut c_void) -> Result<(), EngineError> {
    // SAFETY: `new` bound every tensor for this stream and the thread to the GPU; the profile was
    // chosen for this size.
    let put = unsafe { context.enqueue(at, stream) };
    put.map_err(|why| EngineError::run("tensorrt", at, why.to_string()))
}

impl Worker for OnGpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let (profile, at) = self.place(n)?;
        let output = self.output.address() as *const c_void;
        let widen = self.engine.widen;
        let staged = self.stream.stage(batch, None);
        let result = staged.and_then(|staged| {
            self.compute(profile, at)?;
            // SAFETY: the output holds `largest` samples, and `at` is at most that; samples after
            // `n` are padding with old data or zeros.
            unsafe {
                self.stream
                    .finish(staged, (n, at), &[output], |i, response| {
                        if widen {
                            widen_each(response, |wide| batch.write(i, wide))
                        } else {
                            batch.write(i, response)
                        }
                    })
            }
        });
        if result.is_err() {
            self.stream.settle();
        }
        result
    }

    fn warm_up(&mut self, batch: usize) -> Result<(), EngineError> {
        let (profile, at) = self.place(batch.min(self.engine.sizes.largest))?;
        let output = self.output.address() as *const c_void;
        let staged = self.stream.stage_zeros(at)?;
        self.compute(profile, at)?;
        // SAFETY: as in `run`; the inputs are zeros.
        unsafe {
            self.stream
                .finish(staged, (0, at), &[output], |_, _| Ok(()))?;
        }
        self.record(profile, at);
        Ok(())
    }
}

impl Drop for OnGpu {
    fn drop(&mut self) {
        // No kernel may run when graphs and contexts are dropped.
        self.stream.settle();
    }
}

/// Converts 32-bit integers to 64-bit, the output type of ONNX's argmax.
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
