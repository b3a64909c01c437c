//! Copies pieces with the copy engines: one call for each, or one call for all.

use cudarc::driver::sys::{self, CUdeviceptr};

use super::{Device, pieces::Piece, registry::Place, stream::Stream};
use crate::engine::EngineError;

/// Arguments of one `cuMemcpyBatchAsync`, reused for every batch.
#[derive(Debug, Default)]
pub(super) struct Lists {
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    bytes: Vec<usize>,
}

/// Copies one piece.
///
/// # Errors
/// The driver's error.
///
/// # Safety
/// The source is readable and the destination writable until the stream has been waited for. The
/// thread is bound to the GPU.
pub(super) unsafe fn one(device: &Device, stream: &Stream, p: &Piece) -> Result<(), EngineError> {
    let to = p.to as CUdeviceptr;
    // SAFETY: guaranteed by the caller. A GPU's memory has the same address on all GPUs.
    let result = unsafe {
        match p.place {
            Place::Gpu(_) => sys::cuMemcpyAsync(to, p.from as CUdeviceptr, p.bytes, stream.raw()),
            Place::Registered | Place::Unregistered => {
                sys::cuMemcpyHtoDAsync_v2(to, p.from as *const _, p.bytes, stream.raw())
            }
        }
    };
    device.check("copying inputs", result)
}

impl Lists {
    /// Copies all pieces with one call. Their memory is registered or a GPU's, and the driver has
    /// the function.
    ///
    /// # Errors
    /// The driver's error.
    ///
    /// # Safety
    /// As for [`one`], for each piece.
    pub unsafe fn all(
        &mut self,
        device: &Device,
        stream: &Stream,
        pieces: &[Piece],
    ) -> Result<(), EngineError> {
        self.to.clear();
        self.from.clear();
        self.bytes.clear();
        for p in pieces {
            self.to.push(p.to as CUdeviceptr);
            self.from.push(p.from as CUdeviceptr);
            self.bytes.push(p.bytes);
        }
        // SAFETY: all fields are integers or enumerations for which zero is valid.
        let mut how: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
        how.srcAccessOrder = sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
        let mut first = 0;
        // SAFETY: the lists have equal length; the caller guarantees each piece; the one set of
        // attributes holds from the first piece on.
        let result = unsafe {
            sys::cuMemcpyBatchAsync_v2(
                self.to.as_mut_ptr(),
                self.from.as_mut_ptr(),
                self.bytes.as_mut_ptr(),
                pieces.len(),
                &mut how,
                &mut first,
                1,
                stream.raw(),
            )
        };
        device.check("copying inputs", result)
    }
}
