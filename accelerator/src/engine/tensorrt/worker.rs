//! One thread's batches through a plan.

use std::{collections::HashMap, ffi::c_void, rc::Rc, sync::Arc};

use super::{
    TensorRt,
    plan::{Context, Plan},
    shim::Refused,
};
use crate::engine::{
    Batch, EngineError, Worker,
    cuda::{DeviceMemory, Graph, StreamWorker},
};

/// Largest batch whose kernels are recorded though its size is not listed: beyond it the GPU is
/// busy for longer than launching takes.
const RECORD_UP_TO: usize = 128;

/// Copies, kernels and the copy back on one stream. The plan is this worker's own: each of its
/// profiles can be used by one context, and each context by one thread.
pub(super) struct OnGpu {
    engine: Arc<TensorRt>,
    /// By size. They refer to the contexts' memory.
    graphs: HashMap<usize, Option<Graph>>,
    /// One for each profile.
    contexts: Vec<Context>,
    output: DeviceMemory,
    stream: StreamWorker,
}

impl OnGpu {
    /// On the thread that the worker will live on.
    pub fn new(engine: &Arc<TensorRt>, plan: Option<Plan>) -> Result<Self, EngineError> {
        let e = engine;
        // The buffers hold whatever the plan pads a batch to.
        let largest = e.sizes.largest();
        let largest = e.run_at(largest).map_or(largest, |(_, at)| at);
        let stream = StreamWorker::new(
            &e.device,
            &e.registry,
            &e.meter,
            &e.plan_model,
            largest,
            e.spin_us,
        )?;
        let output_bytes = e.plan_model.max_output_bytes().unwrap_or(0);
        let output = stream.memory(output_bytes.saturating_mul(largest))?;
        let plan = match plan {
            Some(plan) => plan,
            None => Plan::load(&e.library, &e.bytes)
                .map_err(|why| e.refusal("loading the plan", &why))?,
        };
        let plan = Rc::new(plan);
        let mut contexts = Vec::new();
        for profile in 0..e.profiles.len() {
            let refused = |why: Refused| e.refusal("making a context", &why);
            // SAFETY: the stream worker's stream is one of this GPU's, to which `StreamWorker::new`
            // bound the thread.
            let made = unsafe { Context::new(&plan, profile, stream.handle()) };
            let mut context = made.map_err(refused)?;
            let inputs = e.inputs.iter().enumerate();
            let addresses = inputs.map(|(i, tensor)| (*tensor, stream.input(i)));
            let output = std::iter::once((e.output, output.address() as *mut c_void));
            for (tensor, address) in addresses.chain(output) {
                // SAFETY: stream worker and output have room for the largest batch that is run, and
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
        self.engine.run_at(n).ok_or_else(|| EngineError::Run {
            engine: "tensorrt",
            batch: n,
            reason: "no profile of the plan takes it".to_owned(),
        })
    }

    /// Puts the kernels on the stream.
    fn compute(&mut self, profile: usize, at: usize) -> Result<(), EngineError> {
        if let Some(Some(graph)) = self.graphs.get(&at) {
            return self.stream.launch(graph);
        }
        enqueue(&mut self.contexts[profile], at, self.stream.handle())
    }

    /// Records the kernels of one size, which have run once. Where that fails they are launched one
    /// by one.
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
    // SAFETY: every tensor was bound when the context was made, for this stream; the profile was
    // chosen for this size; the thread was bound when the stream worker was made.
    let put = unsafe { context.enqueue(at, stream) };
    put.map_err(|why| EngineError::Run {
        engine: "tensorrt",
        batch: at,
        reason: why.to_string(),
    })
}

impl Worker for OnGpu {
    fn run(&mut self, batch: &mut Batch) -> Result<(), EngineError> {
        let n = batch.len();
        let (profile, at) = self.place(n)?;
        let output = self.output.address() as *const c_void;
        let widen = self.engine.widen;
        let staged = self.stream.stage(batch);
        let result = staged.and_then(|staged| {
            self.compute(profile, at)?;
            // SAFETY: the output holds `largest` samples, which `at` does not exceed; what is
            // behind `n` is padding, an earlier batch's or zeros.
            unsafe {
                self.stream
                    .finish(staged, (n, at), &[output], |i, response| {
                        if widen {
                            widened(response, |wide| batch.write(i, wide))
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
        let (profile, at) = self.place(batch.min(self.engine.sizes.largest()))?;
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
        // Before graphs and contexts go.
        self.stream.settle();
    }
}

/// 32-bit integers as 64-bit ones, which is what ONNX calls an argmax.
fn widened<R>(response: &[u8], write: impl FnOnce(&[u8]) -> R) -> R {
    let of = |four: &[u8]| {
        let mut bytes = [0; 4];
        bytes.copy_from_slice(four);
        i64::from(i32::from_le_bytes(bytes)).to_le_bytes()
    };
    match response.len() {
        // One class: the case that counts, without an allocation.
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
        assert_eq!(widened(&narrow, <[u8]>::to_vec), wide);
        assert_eq!(widened(&narrow[..4], <[u8]>::to_vec), wide[..8]);
    }
}
