//! Kernels that are recorded once and launched as one.

use std::{ptr, sync::Arc};

use cudarc::driver::sys::{self, CUgraphExec};

use super::{Device, stream::Stream};
use crate::engine::EngineError;

/// What was put on a stream, ready to be put there again with one call.
#[derive(Debug)]
pub(in crate::engine) struct Graph {
    device: Arc<Device>,
    raw: CUgraphExec,
}

impl Graph {
    /// Records what `put` puts on the stream; nothing of it runs. The thread is bound.
    ///
    /// # Errors
    /// What `put` says, or the driver where something cannot be recorded. The stream is usable
    /// again either way.
    pub(super) fn record(
        device: &Arc<Device>,
        stream: &Stream,
        put: impl FnOnce() -> Result<(), EngineError>,
    ) -> Result<Self, EngineError> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive, and this thread is the only one that uses it.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.raw(), mode) };
        device.check("recording kernels", begun)?;
        let put = put();
        let mut graph = ptr::null_mut();
        // SAFETY: as above; `graph` is a local that is written.
        let ended = unsafe { sys::cuStreamEndCapture(stream.raw(), &mut graph) };
        let ended = device.check("recording kernels", ended);
        put?;
        ended?;
        let mut raw = ptr::null_mut();
        // SAFETY: the graph was just recorded; `raw` is a local that is written.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) };
        // SAFETY: the graph is ours, and what was made of it does not need it.
        unsafe { sys::cuGraphDestroy(graph) };
        device.check("making a graph", made)?;
        Ok(Graph {
            device: device.clone(),
            raw,
        })
    }

    /// Puts all of it on the stream.
    ///
    /// # Errors
    /// The driver's.
    pub(super) fn launch(&self, stream: &Stream) -> Result<(), EngineError> {
        // SAFETY: both are alive. What the graph refers to is kept by whoever recorded it.
        let result = unsafe { sys::cuGraphLaunch(self.raw, stream.raw()) };
        self.device.check("launching a graph", result)
    }
}

impl Drop for Graph {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more; what still runs of it ends first.
        unsafe { sys::cuGraphExecDestroy(self.raw) };
    }
}
