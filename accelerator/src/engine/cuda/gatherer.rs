//! A kernel that gathers a batch: it reads samples where they landed, in registered memory of the
//! host or on the GPU, and writes the model's inputs, padded where they are ragged. One launch for
//! a batch, however many pieces it has.
//!
//! The kernel's text and what it is told lie in [`super::gather`].
//!
//! A copy engine moves large pieces as fast as PCIe is, and takes half a microsecond or more for
//! each, however small. So pieces that are large or few go by the copy engine, and small ones by
//! the kernel ([`super::pieces::way`]).

#[cfg(test)]
mod tests;

use std::{ptr, sync::Arc};

use cudarc::driver::sys;

use super::{
    Device,
    gather::{Chunk, List, most},
    kernel::Kernel,
    memory::Pinned,
    stream::Stream,
};
use crate::engine::EngineError;

/// Threads of a block.
const THREADS: u32 = 256;
/// Most blocks: so many keep PCIe busy, and leave the multiprocessors to the model's kernels.
const BLOCKS: u32 = 32;
const WARP: u32 = 32;

/// One worker's use of the kernel: its list, in memory that the GPU reads.
#[derive(Debug)]
pub(super) struct Gatherer {
    kernel: Arc<Kernel>,
    list: Pinned,
    chunks: usize,
}

impl Gatherer {
    /// For `pieces` pieces of up to `room` bytes for each of the `rooms`. The thread is bound.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn new(
        device: &Arc<Device>,
        kernel: Arc<Kernel>,
        pieces: usize,
        rooms: impl Iterator<Item = usize>,
    ) -> Result<Self, EngineError> {
        let most = rooms.map(|room| most(pieces, room));
        let chunks = most.fold(0, usize::saturating_add);
        let bytes = chunks.checked_mul(size_of::<Chunk>());
        let bytes = bytes.ok_or_else(|| device.out_of_memory("taking memory for a list"))?;
        Ok(Gatherer {
            kernel,
            list: Pinned::new(device, bytes)?,
            chunks,
        })
    }

    /// Has `fill` write the list, and puts the kernel on the stream. False, and nothing is on the
    /// stream, where `fill` says so. The thread is bound.
    ///
    /// # Errors
    /// The driver's.
    ///
    /// # Safety
    /// What the list says is readable and writable for the GPU until the stream has been waited
    /// for; and so it has since this was called before.
    pub unsafe fn launch(
        &mut self,
        device: &Device,
        stream: &Stream,
        fill: impl FnOnce(&mut List<'_>) -> bool,
    ) -> Result<bool, EngineError> {
        let address = self.list.address().as_ptr().cast::<Chunk>();
        // SAFETY: pinned memory begins with a page, `chunks` of them were allocated, every bit
        // pattern is a chunk, and the kernel that read it last is done: the caller's promise.
        let chunks = unsafe { std::slice::from_raw_parts_mut(address, self.chunks) };
        let mut list = List::new(chunks);
        if !fill(&mut list) {
            return Ok(false);
        }
        let Ok(mut count) = u32::try_from(list.len()) else {
            return Ok(false);
        };
        if count == 0 {
            return Ok(true);
        }
        let mut chunks = address as sys::CUdeviceptr;
        let mut arguments = [(&raw mut chunks).cast(), (&raw mut count).cast()];
        let blocks = count.div_ceil(THREADS / WARP).min(BLOCKS);
        // SAFETY: the function takes a pointer and a 32-bit number; the driver copies both before
        // it returns. The rest is the caller's promise.
        let result = unsafe {
            sys::cuLaunchKernel(
                self.kernel.function(),
                blocks,
                1,
                1,
                THREADS,
                1,
                1,
                0,
                stream.raw(),
                arguments.as_mut_ptr(),
                ptr::null_mut(),
            )
        };
        device.check("gathering inputs", result)?;
        Ok(true)
    }
}
