//! Binds `libqdl_tensorrt.so`, the C interface of `engines/tensorrt/shim.h`: change both.

use std::{
    ffi::{CStr, CString, c_char, c_void},
    fmt,
    os::unix::ffi::OsStrExt,
    path::{Path, PathBuf},
    ptr,
    sync::Arc,
};

use super::{Precision, order::Order};
use crate::EngineError;
use libloading::os::unix::{Library as Loaded, RTLD_LOCAL, RTLD_NOW};

/// `QDL_TRT_ABI`.
const ABI: i32 = 1;
pub(super) const MAX_RANK: usize = 8;
pub(super) const MAX_NAME: usize = 256;
/// Size of the buffer for a message of TensorRT, in bytes.
const MAX_WHY: usize = 1024;

/// `QDL_TRT_VERSION`, the only code with special advice.
const CODE_VERSION: i32 = 2;

/// Limit of scratch memory for kernels while a plan is built, in bytes.
const WORKSPACE: u64 = 4 << 30;

type Log = extern "C" fn(i32, *const c_char);

/// `qdl_trt_tensor`.
#[repr(C)]
pub(super) struct RawTensor {
    pub name: [c_char; MAX_NAME],
    pub is_output: i32,
    pub dtype: i32,
    pub linear: i32,
    pub rank: i32,
    pub dims: [i64; MAX_RANK],
}

/// `qdl_trt_build`.
#[repr(C)]
pub(super) struct RawBuild {
    onnx: *const c_char,
    plan: *const c_char,
    precision: i32,
    level: i32,
    batches: *const i32,
    profiles: i32,
    workspace: u64,
}

macro_rules! functions {
    ($($field:ident: $symbol:literal => fn($($argument:ty),*) $(-> $result:ty)?;)*) => {
        pub(super) struct Functions {
            $(pub $field: unsafe extern "C" fn($($argument),*) $(-> $result)?,)*
        }

        impl Functions {
            /// # Safety
            /// The library stays loaded and has the interface version [`ABI`].
            unsafe fn of(library: &Loaded) -> Result<Self, libloading::Error> {
                // SAFETY: the types are those of shim.h.
                unsafe {
                    Ok(Functions {
                        $($field: *library.get(concat!($symbol, "\0").as_bytes())?,)*
                    })
                }
            }
        }
    };
}

functions! {
    headers: "qdl_trt_headers" => fn() -> i32;
    open: "qdl_trt_open" => fn(*const c_char, Option<Log>, *mut *mut c_void, *mut c_char, usize) -> i32;
    version: "qdl_trt_version" => fn(*const c_void) -> i32;
    build: "qdl_trt_build_plan" => fn(*mut c_void, *const c_char, *const RawBuild, *mut c_char, usize) -> i32;
    load: "qdl_trt_load" => fn(*mut c_void, *const c_void, usize, *mut *mut c_void, *mut c_char, usize) -> i32;
    unload: "qdl_trt_unload" => fn(*mut c_void);
    tensors: "qdl_trt_tensors" => fn(*const c_void) -> i32;
    tensor_at: "qdl_trt_tensor_at" => fn(*const c_void, i32, *mut RawTensor) -> i32;
    profiles: "qdl_trt_profiles" => fn(*const c_void) -> i32;
    batches: "qdl_trt_batches" => fn(*const c_void, i32, i32, *mut i64, *mut i64) -> i32;
    context_new: "qdl_trt_context_new" => fn(*mut c_void, i32, *mut c_void, *mut *mut c_void, *mut c_char, usize) -> i32;
    context_free: "qdl_trt_context_free" => fn(*mut c_void);
    bind: "qdl_trt_bind" => fn(*mut c_void, i32, *mut c_void, *mut c_char, usize) -> i32;
    set_batch: "qdl_trt_set_batch" => fn(*mut c_void, i64, *mut c_char, usize) -> i32;
    enqueue: "qdl_trt_enqueue" => fn(*mut c_void, *mut c_void, *mut c_char, usize) -> i32;
}

/// TensorRT's message, in one line.
#[derive(Debug)]
pub(super) struct TrtError(pub String);

impl fmt::Display for TrtError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.0.trim())
    }
}

impl TrtError {
    /// True if memory was exhausted; TensorRT has no code for it.
    pub fn out_of_memory(&self) -> bool {
        let text = self.0.to_lowercase().replace(['_', '-'], " ");
        text.contains("out of memory") || text.contains("outofmemory")
    }
}

/// Calls `f` with a buffer for a message and converts its code to a result.
pub(super) fn with_message(
    f: impl FnOnce(*mut c_char, usize) -> i32,
) -> Result<(), (i32, TrtError)> {
    let mut why = [0; MAX_WHY];
    let code = f(why.as_mut_ptr(), why.len());
    if code == 0 {
        return Ok(());
    }
    why[MAX_WHY - 1] = 0;
    // SAFETY: the last byte is zero.
    let text = unsafe { CStr::from_ptr(why.as_ptr()) };
    Err((code, TrtError(text.to_string_lossy().into_owned())))
}

extern "C" fn log(severity: i32, text: *const c_char) {
    // SAFETY: the shim passes a zero-terminated text that lives through the call.
    let text = unsafe { CStr::from_ptr(text) }.to_string_lossy();
    // Errors are also returned as results, so they are logged at debug level.
    if severity <= 2 {
        tracing::debug!("TensorRT: {text}");
    } else {
        tracing::trace!("TensorRT: {text}");
    }
}

fn c_path(path: &Path) -> Result<CString, EngineError> {
    CString::new(path.as_os_str().as_bytes())
        .map_err(|_| EngineError::library("tensorrt", path, "its name has a zero in it"))
}

/// TensorRT's library behind the shim. Neither is ever unloaded.
pub(super) struct Library {
    pub path: PathBuf,
    pub(super) functions: Functions,
    pub(super) handle: *mut c_void,
}

// SAFETY: after `open` the handle is only read, except for the log, which has its own lock.
// TensorRT allows loading engines from several threads.
unsafe impl Send for Library {}
// SAFETY: as above.
unsafe impl Sync for Library {}

impl Library {
    /// Opens the shim and the library that `find` returns for the version of the shim's headers.
    pub fn open(
        shim: &Path,
        find: impl FnOnce(i32) -> Result<PathBuf, EngineError>,
    ) -> Result<Arc<Self>, EngineError> {
        let unusable = |path: &Path, reason| EngineError::library("tensorrt", path, reason);
        let of_shim = |e: libloading::Error| unusable(shim, e.to_string());
        // SAFETY: the shim has no initialisers except those of the C++ library.
        let loaded = unsafe { Loaded::open(Some(shim), RTLD_NOW | RTLD_LOCAL) }.map_err(of_shim)?;
        // Never unloaded: its objects refer to its code.
        let loaded = std::mem::ManuallyDrop::new(loaded);
        // SAFETY: `qdl_trt_abi` has this type in every version of the shim, so this call is valid
        // before the version is known.
        let abi = unsafe {
            let abi = loaded.get::<unsafe extern "C" fn() -> i32>(b"qdl_trt_abi\0");
            abi.map_err(of_shim)?()
        };
        if abi != ABI {
            return Err(unusable(
                shim,
                format!(
                    "has interface {abi}, and {ABI} is wanted: build it again, cargo xtask tensorrt"
                ),
            ));
        }
        // SAFETY: the interface version is checked, and the library is never unloaded.
        let functions = unsafe { Functions::of(&loaded) }.map_err(of_shim)?;
        // SAFETY: the function has no arguments and returns a number.
        let headers = unsafe { (functions.headers)() };
        let path = find(headers)?;
        let name = c_path(&path)?;
        let mut handle = ptr::null_mut();
        // SAFETY: the name ends in zero, `log` has the type of shim.h, and the shim writes only the
        // local `handle`.
        let opened = with_message(|why, room| unsafe {
            (functions.open)(name.as_ptr(), Some(log), &mut handle, why, room)
        });
        if let Err((code, why)) = opened {
            let advice = match code {
                CODE_VERSION => ": build it with the headers of that version, cargo xtask tensorrt",
                _ => "",
            };
            return Err(unusable(&path, format!("{why}{advice}")));
        }
        Ok(Arc::new(Library {
            path,
            functions,
            handle,
        }))
    }

    /// TensorRT's version, such as `8.6.0`.
    pub fn version(&self) -> String {
        // SAFETY: the handle is alive.
        let v = unsafe { (self.functions.version)(self.handle) };
        format!("{}.{}.{}", v / 10_000, v / 100 % 100, v % 100)
    }

    /// Builds a plan and writes it to `plan`. The thread must be bound to the GPU. The builder's
    /// memory is not freed: the process must end afterwards.
    pub fn build(&self, order: &Order, parser: &Path, plan: &Path) -> Result<(), EngineError> {
        let (parser, from, to) = (c_path(parser)?, c_path(&order.onnx)?, c_path(plan)?);
        let batches: Vec<i32> = order
            .profiles
            .iter()
            .map(|n| i32::try_from(*n).unwrap_or(i32::MAX))
            .collect();
        let how = RawBuild {
            onnx: from.as_ptr(),
            plan: to.as_ptr(),
            precision: match order.precision {
                Precision::Fp32 => 0,
                Precision::Fp16 => 1,
                Precision::Int8 => 2,
            },
            level: order.optimization_level.map_or(-1, i32::from),
            batches: batches.as_ptr(),
            profiles: batches.len() as i32,
            workspace: WORKSPACE,
        };
        // SAFETY: every pointer in `how` points to a local that lives through the call; `profiles`
        // is the length of `batches`.
        let built = with_message(|why, room| unsafe {
            (self.functions.build)(self.handle, parser.as_ptr(), &how, why, room)
        });
        built.map_err(|(_, why)| {
            EngineError::model(&order.onnx, format!("TensorRT {}: {why}", self.version()))
        })
    }
}

impl fmt::Debug for Library {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "TensorRT {} ({})", self.version(), self.path.display())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_for_a_lack_of_memory() {
        for text in [
            "[defaultAllocator.cpp::allocate::31] Error Code 1: Cuda Runtime (out of memory)",
            "Requested amount of GPU memory (4 bytes) could not be allocated: OutOfMemory",
        ] {
            assert!(TrtError(text.to_owned()).out_of_memory(), "{text}");
        }
        assert!(!TrtError("Serialization assertion failed".to_owned()).out_of_memory());
    }

    fn lean() -> Arc<Library> {
        let variable = |name: &str| PathBuf::from(std::env::var_os(name).unwrap_or_default());
        let folder = variable("QDL_TENSORRT");
        Library::open(&variable("QDL_TENSORRT_SHIM"), |headers| {
            crate::tensorrt::find_library(Some(&folder), headers)
        })
        .unwrap_or_else(|e| panic!("{e}"))
    }

    #[test]
    #[ignore = "wants a shim and a TensorRT: cargo xtask tensorrt --check"]
    fn lean_the_library_says_its_version() {
        assert_eq!(lean().version(), "11.4.0");
    }

    /// Without a driver the runtime cannot be made; with one the bytes are an invalid plan. Both
    /// give one line.
    #[test]
    #[ignore = "wants a shim and a TensorRT: cargo xtask tensorrt --check"]
    fn lean_bytes_that_are_no_plan() {
        let why = crate::tensorrt::plan::TrtPlan::load(&lean(), &[7; 300])
            .err()
            .expect("refused");
        let text = why.to_string();
        assert!(!text.is_empty() && !text.contains('\n'), "{text}");
        assert!(!why.out_of_memory(), "{text}");
    }

    #[test]
    #[ignore = "wants a shim and a TensorRT: cargo xtask tensorrt --check"]
    fn lean_a_runtime_builds_no_plan() {
        let order = Order {
            shim: PathBuf::new(),
            library: PathBuf::new(),
            onnx: "/nowhere/m.onnx".into(),
            plan: "/nowhere/m.plan".into(),
            precision: Precision::Int8,
            profiles: vec![8],
            optimization_level: None,
            gpu: 0,
        };
        let built = lean().build(&order, Path::new("/nowhere/p.so"), &order.plan);
        let text = built.expect_err("refused").to_string();
        assert_eq!(
            text,
            "model file /nowhere/m.onnx: TensorRT 11.4.0: has no builder: it runs plans and makes none"
        );
    }

    #[test]
    fn a_line_that_fills_the_room_ends() {
        let (code, why) = with_message(|why, room| {
            // SAFETY: the buffer has `room` bytes.
            unsafe { why.cast::<u8>().write_bytes(b'x', room) };
            4
        })
        .expect_err("a code");
        assert_eq!((code, why.0.len()), (4, MAX_WHY - 1));
    }
}
