//! Records kernels once and launches them with one call.

use std::{ptr, sync::Arc};

use cudarc::driver::sys::{self, CUgraphExec};

use super::{Device, stream::Stream};
use crate::engine::EngineError;

/// Recorded work of a stream, ready for launch.
#[derive(Debug)]
pub(in crate::engine) struct Graph {
    device: Arc<Device>,
    raw: CUgraphExec,
}

impl Graph {
    /// Records the work that `put` enqueues, without running it. The thread is bound to the GPU.
    ///
    /// # Errors
    /// The error of `put`, or the driver's if recording fails. The stream stays usable.
    pub(super) fn record(
        device: &Arc<Device>,
        stream: &Stream,
        put: impl FnOnce() -> Result<(), EngineError>,
    ) -> Result<Self, EngineError> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive, and only this thread uses it.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) };
        device.check("recording kernels", begun)?;
        let put = put();
        let mut graph = ptr::null_mut();
        // SAFETY: as above; the function writes the local `graph`.
        let ended = unsafe { sys::cuStreamEndCapture(stream.raw(), &mut graph) };
        let ended = device.check("recording kernels", ended);
        put?;
        ended?;
        let mut raw = ptr::null_mut();
        // SAFETY: the graph was just recorded; the function writes the local `raw`.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) };
        // SAFETY: this function owns the graph, and the instance does not need it.
        unsafe { sys::cuGraphDestroy(graph) };
        device.check("making a graph", made)?;
        Ok(Graph {
            device: device.clone(),
            raw,
        })
    }

    /// Enqueues the recorded work on the stream.
    ///
    /// # Errors
    /// The driver's error.
    pub(super) fn launch(&self, stream: &Stream) -> Result<(), EngineError> {
        // SAFETY: both are alive. The caller that recorded the graph keeps the memory it refers to.
        let result = unsafe { sys::cuGraphLaunch(self.raw, stream.raw()) };
        self.device.check("launching a graph", result)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: `self` owns the only handle; a running launch ends first.
        unsafe { sys::cuGraphExecDestroy(self.raw) };
    }
}
