//! Runs the batches of one worker thread through a plan.

use std::{collections::HashMap, ffi::c_void, rc::Rc, sync::Arc};

use super::{
    TensorRt,
    plan::{Context, TrtPlan},
    shim::TrtError,
};
use crate::{
    EngineError,
    cuda::{DeviceMemory, KernelGraph, StreamWorker},
    workers::BatchModel,
};

/// Largest batch, besides the listed sizes, whose kernels the worker records as a graph. Kernels of
/// larger batches take longer than their launches.
const RECORD_UP_TO: usize = 128;

/// A plan for one worker, because each profile allows one context, and each context one thread.
pub(super) struct PlanRunner {
    engine: Arc<TensorRt>,
    /// Graphs by batch size; `None` if recording failed. Graphs refer to the contexts' memory.
    graphs: HashMap<usize, Option<KernelGraph>>,
    contexts: Vec<Context>,
    output: DeviceMemory,
}

impl PlanRunner {
    /// Makes contexts of `plan`, or of a plan loaded from the plan's file, for `stream`.
    pub fn new(
        engine: &Arc<TensorRt>,
        plan: Option<TrtPlan>,
        stream: &StreamWorker,
    ) -> Result<Self, EngineError> {
        let e = engine;
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
            // SAFETY: the worker has bound this thread to the GPU, on which it made the stream.
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
        Ok(PlanRunner {
            engine: engine.clone(),
            graphs: HashMap::new(),
            contexts,
            output,
        })
    }

    /// Profile and size for a batch of `n`.
    fn choose(&self, n: usize) -> Result<(usize, usize), EngineError> {
        let chosen = self.engine.profiles.choose(n);
        chosen.ok_or_else(|| EngineError::run("tensorrt", n, "no profile of the plan takes it"))
    }
}

fn enqueue(context: &mut Context, at: usize, stream: *mut c_void) -> Result<(), EngineError> {
    // SAFETY: `new` bound every tensor for this stream and the thread to the GPU; the profile was
    // chosen for this size.
    let put = unsafe { context.enqueue(at, stream) };
    put.map_err(|why| EngineError::run("tensorrt", at, why.to_string()))
}

impl BatchModel<StreamWorker> for PlanRunner {
    fn run_at(&self, n: usize) -> Result<usize, EngineError> {
        let (_, at) = self.choose(self.engine.sizes.run_at(n))?;
        Ok(at)
    }

    fn widens(&self) -> bool {
        self.engine.widen
    }

    /// The contexts have the addresses of the inputs.
    unsafe fn run(
        &mut self,
        stream: &mut StreamWorker,
        _inputs: &[*mut c_void],
        at: usize,
        done: impl FnOnce(&mut StreamWorker, &[*const c_void]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        match self.graphs.get(&at) {
            Some(Some(graph)) => stream.launch(graph)?,
            _ => {
                let (profile, _) = self.choose(at)?;
                enqueue(&mut self.contexts[profile], at, stream.handle())?;
            }
        }
        done(stream, &[self.output.address() as *const c_void])
    }

    /// Records the kernels of size `at`, after their first run. If recording fails, later runs
    /// launch the kernels one by one.
    fn warmed(&mut self, stream: &StreamWorker, at: usize) {
        let wanted = at <= RECORD_UP_TO || self.engine.sizes.is_listed(at);
        if !wanted || self.graphs.contains_key(&at) {
            return;
        }
        let Ok((profile, _)) = self.choose(at) else {
            return;
        };
        let (context, handle) = (&mut self.contexts[profile], stream.handle());
        let recorded = stream.record(|| enqueue(context, at, handle));
        if let Err(e) = &recorded {
            tracing::debug!("kernels for a batch of {at} are launched one by one: {e}");
        }
        self.graphs.insert(at, recorded.ok());
    }
}
