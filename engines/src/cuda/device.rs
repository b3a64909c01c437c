//! One GPU and its properties, through the installed driver.

use std::{
    ffi::CStr,
    fmt,
    sync::{Arc, OnceLock},
};

use cudarc::driver::sys::{self, CUcontext, CUdevice, CUresult};

use crate::EngineError;

/// A GPU and its primary context, which CUDA's runtime and all CUDA libraries share. The context is
/// never released, because libraries that were loaded for the context cannot be unloaded.
pub struct Device {
    pub index: usize,
    /// The driver's name of the GPU.
    pub name: String,
    /// Compute capability, major and minor.
    pub capability: (i32, i32),
    context: CUcontext,
    /// True if the driver has `cuMemcpyBatchAsync` (CUDA 13), which copies many pieces in one call.
    pub(super) copies_in_batches: bool,
    /// Support for NICs that write to this GPU's memory.
    pub direct: Direct,
}

/// Support of a GPU and its driver for NICs that write to GPU memory (GPUDirect RDMA).
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Direct {
    /// True if NICs may write to GPU memory.
    pub supported: bool,
    /// True if the driver exports GPU memory as a dma-buf.
    pub dma_buf: bool,
    /// The operation needed between a NIC's write and a kernel that reads the written data.
    pub fence: Fence,
}

/// The operation that makes a NIC's writes to GPU memory visible to kernels.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Fence {
    /// No operation: kernels see all completed writes.
    NotNeeded,
    /// `cuFlushGPUDirectRDMAWrites`, once per batch.
    Flush,
    /// The driver offers no operation to the CPU: NICs must not write to GPU memory.
    Impossible,
}

impl Fence {
    /// Derives the fence from two device attributes: ordering and flush options of RDMA writes.
    fn of(ordering: i32, options: i32) -> Self {
        const TO_OWNER: i32 =
            sys::CUGPUDirectRDMAWritesOrdering_enum::CU_GPU_DIRECT_RDMA_WRITES_ORDERING_OWNER
                as i32;
        const BY_HOST: i32 =
            sys::CUflushGPUDirectRDMAWritesOptions_enum::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_OPTION_HOST
                as i32;
        match (ordering >= TO_OWNER, options & BY_HOST != 0) {
            (true, _) => Fence::NotNeeded,
            (false, true) => Fence::Flush,
            (false, false) => Fence::Impossible,
        }
    }
}

// SAFETY: any thread may use a context handle; the driver synchronises.
unsafe impl Send for Device {}
// SAFETY: as above.
unsafe impl Sync for Device {}

impl Device {
    /// Opens the GPU with this index.
    /// Error: no driver, no such GPU, or a driver error.
    pub fn open(index: usize) -> Result<Arc<Self>, EngineError> {
        if !driver_present() {
            return Err(EngineError::engine(
                "there is no NVIDIA driver here (no libcuda.so.1): run on a machine with a GPU, or \
                 use a model compiled for the CPU",
            ));
        }
        let check = |verb, result| check(index, verb, result);
        // SAFETY: the library is present. `cuInit` has no precondition, and every out pointer is a
        // local of the type that the function writes.
        unsafe {
            match sys::cuInit(0) {
                CUresult::CUDA_ERROR_NO_DEVICE => {
                    return Err(no_gpu(index, 0));
                }
                result => check("starting the driver", result)?,
            }
            let mut found = 0;
            check("counting GPUs", sys::cuDeviceGetCount(&mut found))?;
            let found = usize::try_from(found).unwrap_or(0);
            if index >= found {
                return Err(no_gpu(index, found));
            }
            let mut device: CUdevice = 0;
            check("opening", sys::cuDeviceGet(&mut device, index as i32))?;
            let mut name = [0; 128];
            check(
                "asking for its name",
                sys::cuDeviceGetName(name.as_mut_ptr(), 127, device),
            )?;
            let attribute = |which| {
                let mut value = 0;
                check(
                    "asking for an attribute",
                    sys::cuDeviceGetAttribute(&mut value, which, device),
                )
                .map(|()| value)
            };
            use sys::CUdevice_attribute_enum as A;
            let capability = (
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MAJOR)?,
                attribute(A::CU_DEVICE_ATTRIBUTE_COMPUTE_CAPABILITY_MINOR)?,
            );
            // A driver that does not know an attribute lacks the feature.
            let asked = |which| attribute(which).unwrap_or(0);
            let direct = Direct {
                supported: asked(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_SUPPORTED) != 0,
                dma_buf: asked(A::CU_DEVICE_ATTRIBUTE_DMA_BUF_SUPPORTED) != 0,
                fence: Fence::of(
                    asked(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_WRITES_ORDERING),
                    asked(A::CU_DEVICE_ATTRIBUTE_GPU_DIRECT_RDMA_FLUSH_WRITES_OPTIONS),
                ),
            };
            let mut context = std::ptr::null_mut();
            check(
                "making its context",
                sys::cuDevicePrimaryCtxRetain(&mut context, device),
            )?;
            Ok(Arc::new(Device {
                index,
                name: CStr::from_ptr(name.as_ptr()).to_string_lossy().into_owned(),
                capability,
                context,
                copies_in_batches: sys::culib()
                    .get::<unsafe extern "C" fn()>(b"cuMemcpyBatchAsync_v2\0")
                    .is_ok(),
                direct,
            }))
        }
    }

    /// Makes a NIC's earlier writes to this GPU's memory visible to kernels. The thread must be
    /// bound to the GPU.
    pub(super) fn fence(&self) -> Result<(), EngineError> {
        use sys::{
            CUflushGPUDirectRDMAWritesScope_enum as Scope,
            CUflushGPUDirectRDMAWritesTarget_enum as Target,
        };
        if self.direct.fence != Fence::Flush {
            return Ok(());
        }
        // SAFETY: the call has no pointers; the attribute says that the driver has the function.
        let result = unsafe {
            sys::cuFlushGPUDirectRDMAWrites(
                Target::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TARGET_CURRENT_CTX,
                Scope::CU_FLUSH_GPU_DIRECT_RDMA_WRITES_TO_OWNER,
            )
        };
        self.check("waiting for writes of a NIC", result)
    }

    /// Binds the calling thread to the GPU. Each thread must call this before other driver calls.
    pub fn bind(&self) -> Result<(), EngineError> {
        // SAFETY: the context is never released.
        self.check("binding a thread", unsafe {
            sys::cuCtxSetCurrent(self.context)
        })
    }

    /// Free and total bytes of GPU memory; zeros on an error. The thread must be bound to the GPU.
    pub fn memory(&self) -> (usize, usize) {
        let (mut free, mut total) = (0, 0);
        // SAFETY: the function writes two locals.
        let result = unsafe { sys::cuMemGetInfo_v2(&mut free, &mut total) };
        match result {
            CUresult::CUDA_SUCCESS => (free, total),
            _ => (0, 0),
        }
    }

    /// Converts a result of the driver. `verb` names the failed action in the message.
    pub(super) fn check(&self, verb: &'static str, result: CUresult) -> Result<(), EngineError> {
        if result == CUresult::CUDA_ERROR_OUT_OF_MEMORY {
            return Err(self.out_of_memory(verb));
        }
        check(self.index, verb, result)
    }

    /// The error for a lack of GPU memory, with free memory. The thread must be bound to the GPU.
    pub(crate) fn out_of_memory(&self, verb: &'static str) -> EngineError {
        let (free, total) = self.memory();
        EngineError::engine(format!(
            "GPU {}: {verb}: out of memory, {} MiB of {} MiB are free: lower engine.max_batch or \
             engine.threads",
            self.index,
            free >> 20,
            total >> 20
        ))
    }
}

impl fmt::Debug for Device {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Device({}: {})", self.index, self.name)
    }
}

fn no_gpu(index: usize, found: usize) -> EngineError {
    let reason = format!("there is no GPU {index}; this machine has {found}, counted from 0");
    EngineError::param("gpu", reason)
}

fn driver_present() -> bool {
    static PRESENT: OnceLock<bool> = OnceLock::new();
    // SAFETY: loading the driver's library runs its initialisers, which have no precondition.
    *PRESENT.get_or_init(|| unsafe { sys::is_culib_present() })
}

fn check(gpu: usize, verb: &'static str, result: CUresult) -> Result<(), EngineError> {
    if result == CUresult::CUDA_SUCCESS {
        return Ok(());
    }
    let text = |ask: unsafe fn(CUresult, *mut *const std::ffi::c_char) -> CUresult| {
        let mut text = std::ptr::null();
        // SAFETY: the function writes the address of a static string, or null.
        unsafe {
            if ask(result, &mut text) != CUresult::CUDA_SUCCESS || text.is_null() {
                return format!("{result:?}");
            }
            CStr::from_ptr(text).to_string_lossy().into_owned()
        }
    };
    let (name, text) = (text(sys::cuGetErrorName), text(sys::cuGetErrorString));
    Err(EngineError::engine(format!(
        "GPU {gpu}: {verb}: {name} ({text})"
    )))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_fence_is_needed_where_writes_are_in_no_order() {
        // Ordering: 0 none, 100 for the owner, 200 for all devices. Options: bit 0 flush by the
        // host, bit 1 on a stream.
        for (ordering, options, fence) in [
            (0, 3, Fence::Flush),
            (0, 1, Fence::Flush),
            (0, 2, Fence::Impossible),
            (0, 0, Fence::Impossible),
            (100, 0, Fence::NotNeeded),
            (200, 3, Fence::NotNeeded),
        ] {
            assert_eq!(Fence::of(ordering, options), fence, "{ordering} {options}");
        }
    }

    /// On a machine with a driver, the index does not exist.
    #[test]
    fn no_driver_or_no_such_gpu_is_one_clear_line() {
        let text = Device::open(4096)
            .expect_err("no machine has it")
            .to_string();
        assert!(
            text.contains("no NVIDIA driver") || text.contains("no GPU 4096"),
            "{text}"
        );
        assert!(!text.contains('\n'));
    }
}
