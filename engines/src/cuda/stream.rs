//! CUDA streams, events and graphs of recorded kernels, destroyed on drop.

use std::{sync::Arc, time::Duration};

use cudarc::driver::sys::{self, CUevent, CUgraphExec, CUresult, CUstream};
use fabric::clock;

use super::Device;
use crate::EngineError;

/// A stream that does not synchronise with the default stream.
#[derive(Debug)]
pub(super) struct CudaStream {
    device: Arc<Device>,
    pub(super) raw: CUstream,
}

impl CudaStream {
    /// A stream of the lowest priority, for model kernels. The thread must be bound to the GPU.
    pub fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        Self::of(device, |least, _| least)
    }

    /// A stream of the highest priority, for inputs: its kernels start before waiting model
    /// kernels. Copy engines have no priorities. The thread must be bound to the GPU.
    pub fn urgent(device: &Arc<Device>) -> Result<Self, EngineError> {
        Self::of(device, |_, greatest| greatest)
    }

    /// `choose` gets the lowest and the highest priority; a higher priority is a smaller number.
    fn of(device: &Arc<Device>, choose: impl FnOnce(i32, i32) -> i32) -> Result<Self, EngineError> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: the function writes two locals.
        let result = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        device.check("asking for priorities", result)?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function writes the local `raw`.
        let result =
            unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, choose(least, greatest)) };
        device.check("making a stream", result)?;
        Ok(CudaStream {
            device: device.clone(),
            raw,
        })
    }

    /// Makes later work on this stream wait for an event of another stream. The CPU does not wait.
    pub fn after(&self, event: &CudaEvent) -> Result<(), EngineError> {
        // SAFETY: both are alive.
        let result = unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) };
        self.device.check("ordering two streams", result)
    }

    /// Waits for all work on the stream.
    pub fn synchronize(&self) -> Result<(), EngineError> {
        // SAFETY: the stream is alive.
        let result = unsafe { sys::cuStreamSynchronize(self.raw) };
        self.device.check("waiting for a stream", result)
    }
}

impl Drop for CudaStream {
    fn drop(&mut self) {
        // SAFETY: `self` owns the only handle. Running work ends first.
        unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

#[derive(Debug)]
pub(super) struct CudaEvent {
    device: Arc<Device>,
    raw: CUevent,
}

impl CudaEvent {
    /// Makes an event on which `cuEventSynchronize` sleeps. Bind the thread to the GPU first.
    pub fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: the function writes the local `raw`.
        let result = unsafe {
            sys::cuEventCreate(
                &mut raw,
                sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32,
            )
        };
        device.check("making an event", result)?;
        Ok(CudaEvent {
            device: device.clone(),
            raw,
        })
    }

    pub fn record(&self, stream: &CudaStream) -> Result<(), EngineError> {
        // SAFETY: both are alive.
        let result = unsafe { sys::cuEventRecord(self.raw, stream.raw) };
        self.device.check("recording an event", result)
    }

    /// Waits until the stream has passed the event: polls for `spin_ns` nanoseconds, then sleeps.
    /// Returns errors of earlier copies and kernels.
    pub fn wait(&self, spin_ns: u64) -> Result<(), EngineError> {
        let until = clock::now_ns().saturating_add(spin_ns);
        loop {
            // SAFETY: the event is alive.
            match unsafe { sys::cuEventQuery(self.raw) } {
                CUresult::CUDA_ERROR_NOT_READY if clock::now_ns() < until => std::hint::spin_loop(),
                CUresult::CUDA_ERROR_NOT_READY => break,
                result => return self.device.check("running a batch", result),
            }
        }
        // SAFETY: the event is alive.
        let result = unsafe { sys::cuEventSynchronize(self.raw) };
        self.device.check("running a batch", result)
    }

    /// Time from this event to `later`; the streams must have passed both. Zero after an error.
    pub fn until(&self, later: &CudaEvent) -> Duration {
        let mut ms = 0f32;
        // SAFETY: both are alive; the function writes the local `ms`.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut ms, self.raw, later.raw) };
        match result {
            CUresult::CUDA_SUCCESS => Duration::from_secs_f32((ms / 1000.0).max(0.0)),
            _ => Duration::ZERO,
        }
    }
}

impl Drop for CudaEvent {
    fn drop(&mut self) {
        // SAFETY: `self` owns the only handle.
        unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}

#[derive(Debug)]
pub(crate) struct KernelGraph {
    device: Arc<Device>,
    raw: CUgraphExec,
}

impl KernelGraph {
    /// Records the work that `put` enqueues, without running it. Bind the thread to the GPU first.
    /// Error: the error of `put`, or the driver's if recording fails. The stream stays usable.
    pub(super) fn record(
        device: &Arc<Device>,
        stream: &CudaStream,
        put: impl FnOnce() -> Result<(), EngineError>,
    ) -> Result<Self, EngineError> {
        let mode = sys::CUstreamCaptureMode_enum::CU_STREAM_CAPTURE_MODE_THREAD_LOCAL;
        // SAFETY: the stream is alive, and only this thread uses it.
        let begun = unsafe { sys::cuStreamBeginCapture_v2(stream.raw, mode) };
        device.check("recording kernels", begun)?;
        let put = put();
        let mut graph = std::ptr::null_mut();
        // SAFETY: as above; the function writes the local `graph`.
        let ended = unsafe { sys::cuStreamEndCapture(stream.raw, &mut graph) };
        let ended = device.check("recording kernels", ended);
        put?;
        ended?;
        let mut raw = std::ptr::null_mut();
        // SAFETY: the graph was just recorded; the function writes the local `raw`.
        let made = unsafe { sys::cuGraphInstantiateWithFlags(&mut raw, graph, 0) };
        // SAFETY: this function owns the graph, and the instance does not need it.
        unsafe { sys::cuGraphDestroy(graph) };
        device.check("making a graph", made)?;
        Ok(KernelGraph {
            device: device.clone(),
            raw,
        })
    }

    pub(super) fn launch(&self, stream: &CudaStream) -> Result<(), EngineError> {
        // SAFETY: both are alive. The caller that recorded the graph keeps the memory it refers to.
        let result = unsafe { sys::cuGraphLaunch(self.raw, stream.raw) };
        self.device.check("launching a graph", result)
    }
}

impl Drop for KernelGraph {
    fn drop(&mut self) {
        // SAFETY: `self` owns the only handle; a running launch ends first.
        unsafe { sys::cuGraphExecDestroy(self.raw) };
    }
}
