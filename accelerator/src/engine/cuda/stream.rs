//! Streams and events.

use std::{sync::Arc, time::Duration};

use cudarc::driver::sys::{self, CUevent, CUresult, CUstream};
use fabric::clock;

use super::Device;
use crate::engine::EngineError;

/// A stream of its own: it waits for no other.
#[derive(Debug)]
pub(super) struct Stream {
    device: Arc<Device>,
    raw: CUstream,
}

impl Stream {
    /// One of the lowest priority, for kernels of models. The thread is bound.
    pub fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        Self::of(device, |least, _| least)
    }

    /// One of the highest priority, for the way of inputs: what a kernel does there goes before the
    /// kernels of models that wait for a free multiprocessor. Copy engines know no priorities. The
    /// thread is bound.
    pub fn urgent(device: &Arc<Device>) -> Result<Self, EngineError> {
        Self::of(device, |_, greatest| greatest)
    }

    /// `choose` has the least and the greatest priority; the greater, the lower the number.
    fn of(device: &Arc<Device>, choose: impl FnOnce(i32, i32) -> i32) -> Result<Self, EngineError> {
        let (mut least, mut greatest) = (0, 0);
        // SAFETY: both are locals that the function writes.
        let result = unsafe { sys::cuCtxGetStreamPriorityRange(&mut least, &mut greatest) };
        device.check("asking for priorities", result)?;
        let flags = sys::CUstream_flags_enum::CU_STREAM_NON_BLOCKING as u32;
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a local that the function writes.
        let result =
            unsafe { sys::cuStreamCreateWithPriority(&mut raw, flags, choose(least, greatest)) };
        device.check("making a stream", result)?;
        Ok(Stream {
            device: device.clone(),
            raw,
        })
    }

    pub fn raw(&self) -> CUstream {
        self.raw
    }

    /// What is put on it from now on runs once the event, recorded on another one, has passed. The
    /// CPU does not wait.
    pub fn after(&self, event: &Event) -> Result<(), EngineError> {
        // SAFETY: both are alive.
        let result = unsafe { sys::cuStreamWaitEvent(self.raw, event.raw, 0) };
        self.device.check("ordering two streams", result)
    }

    /// Waits until everything on it is done.
    pub fn synchronize(&self) -> Result<(), EngineError> {
        // SAFETY: the stream is alive.
        let result = unsafe { sys::cuStreamSynchronize(self.raw) };
        self.device.check("waiting for a stream", result)
    }
}

impl Drop for Stream {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more. What is still running on it ends first.
        unsafe { sys::cuStreamDestroy_v2(self.raw) };
    }
}

/// A point on a stream, with its time.
#[derive(Debug)]
pub(super) struct Event {
    device: Arc<Device>,
    raw: CUevent,
}

impl Event {
    /// The thread is bound. Waiting for it sleeps.
    pub fn new(device: &Arc<Device>) -> Result<Self, EngineError> {
        let mut raw = std::ptr::null_mut();
        // SAFETY: `raw` is a local that the function writes.
        let result = unsafe {
            sys::cuEventCreate(
                &mut raw,
                sys::CUevent_flags_enum::CU_EVENT_BLOCKING_SYNC as u32,
            )
        };
        device.check("making an event", result)?;
        Ok(Event {
            device: device.clone(),
            raw,
        })
    }

    pub fn record(&self, stream: &Stream) -> Result<(), EngineError> {
        // SAFETY: both are alive.
        let result = unsafe { sys::cuEventRecord(self.raw, stream.raw) };
        self.device.check("recording an event", result)
    }

    /// Waits until the point is passed: looks for `spin_ns`, then sleeps. This is where an error of
    /// a copy or a kernel comes to light.
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

    /// Time from this one to a later one, both passed.
    pub fn until(&self, later: &Event) -> Duration {
        let mut ms = 0f32;
        // SAFETY: both are alive, and `ms` is a local that the function writes.
        let result = unsafe { sys::cuEventElapsedTime_v2(&mut ms, self.raw, later.raw) };
        match result {
            CUresult::CUDA_SUCCESS => Duration::from_secs_f32((ms / 1000.0).max(0.0)),
            _ => Duration::ZERO,
        }
    }
}

impl Drop for Event {
    fn drop(&mut self) {
        // SAFETY: nobody has the handle any more.
        unsafe { sys::cuEventDestroy_v2(self.raw) };
    }
}
