//! Opens PyTorch's libraries once per process and finds the functions that the engine calls.

use std::{
    ffi::c_void,
    path::{Path, PathBuf},
    sync::Mutex,
};

use libloading::os::unix::{Library, RTLD_GLOBAL, RTLD_NOW};
use qdl::model::DType;

use crate::{EngineError, search};
use fabric::os::lock;

pub(super) type TorchTensor = *mut c_void;

/// Libraries in the order of their dependencies. Compiled models need `libtorch.so`, an empty one.
const ON_CPU: [&str; 3] = ["libc10.so", "libtorch_cpu.so", "libtorch.so"];
const ON_GPU: [&str; 5] = [
    "libc10.so",
    "libtorch_cpu.so",
    "libc10_cuda.so",
    "libtorch_cuda.so",
    "libtorch.so",
];

/// Functions of PyTorch's stable C interface. Each returns 0, or logs to standard error and fails.
pub(super) struct Torch {
    pub from_blob: unsafe extern "C" fn(
        *mut c_void,
        i64,
        *const i64,
        *const i64,
        i64,
        i32,
        i32,
        i32,
        *mut TorchTensor,
    ) -> i32,
    pub delete: unsafe extern "C" fn(TorchTensor) -> i32,
    pub data: unsafe extern "C" fn(TorchTensor, *mut *mut c_void) -> i32,
    pub dtype: unsafe extern "C" fn(TorchTensor, *mut i32) -> i32,
    pub dim: unsafe extern "C" fn(TorchTensor, *mut i64) -> i32,
    pub sizes: unsafe extern "C" fn(TorchTensor, *mut *mut i64) -> i32,
    pub is_contiguous: unsafe extern "C" fn(TorchTensor, *mut bool) -> i32,
    pub cpu: i32,
    pub cuda: i32,
    dtypes: [(DType, i32); 7],
    with_cuda: bool,
}

/// The functions of the opened libraries, which cannot be unloaded.
static TORCH: Mutex<Option<&'static Torch>> = Mutex::new(None);

impl Torch {
    /// Opens the libraries. If suitable ones are open, returns their functions instead.
    pub fn load(configured: Option<&Path>, cuda: bool) -> Result<&'static Torch, EngineError> {
        let mut torch = lock(&TORCH);
        if let Some(t) = *torch
            && (t.with_cuda || !cuda)
        {
            return Ok(t);
        }
        let folder = find_libraries(configured)?;
        let loaded: &'static Torch = Box::leak(Box::new(open(&folder, cuda)?));
        *torch = Some(loaded);
        Ok(loaded)
    }

    /// PyTorch's code for an element type; -1 if PyTorch has no such type.
    pub fn number(&self, dtype: DType) -> i32 {
        let found = self.dtypes.iter().find(|(d, _)| *d == dtype);
        found.map_or(-1, |(_, n)| *n)
    }

    /// The element type for PyTorch's code `number`; `None` if the engine has no such type.
    pub fn element(&self, number: i32) -> Option<DType> {
        let found = self.dtypes.iter().find(|(_, n)| *n == number);
        found.map(|(d, _)| *d)
    }
}

/// Finds the folder of PyTorch's libraries: the configured path, of the folder or a file inside;
/// else the environment variable `QDL_TORCH`; else the `torch` package of the active virtual
/// environment, or of any Python on the `PATH`.
/// Error: lists every searched path. A named path without the libraries is
/// an error, without a search elsewhere.
pub fn find_libraries(configured: Option<&Path>) -> Result<PathBuf, EngineError> {
    let candidates = match search::named_path(configured, "QDL_TORCH") {
        Some(path) if path.is_file() => path.parent().map(Path::to_owned).into_iter().collect(),
        Some(path) => vec![path],
        None => {
            let packages = search::python_packages().into_iter();
            packages.map(|folder| folder.join("torch/lib")).collect()
        }
    };
    search::find_first(
        &candidates,
        |folder| folder.join("libtorch_cpu.so").is_file(),
        "PyTorch's libraries were",
        "`pip install torch`, or name their folder in engine.library or QDL_TORCH",
    )
}

fn open(folder: &Path, cuda: bool) -> Result<Torch, EngineError> {
    let unusable = |path: &Path, e: libloading::Error| EngineError::library("aoti", path, e);
    let names: &[&str] = if cuda { &ON_GPU } else { &ON_CPU };
    let mut libraries = Vec::new();
    for name in names {
        let path = folder.join(name);
        // SAFETY: these are PyTorch's libraries, whose initialisers run as in any program that uses
        // them. Compiled models need their symbols, so the symbols are global.
        let library = unsafe { Library::open(Some(&path), RTLD_NOW | RTLD_GLOBAL) };
        libraries.push(library.map_err(|e| unusable(&path, e))?);
    }
    let path = folder.join("libtorch_cpu.so");
    let library = &libraries[1];
    macro_rules! function {
        ($name:literal) => {
            // SAFETY: the type is that of this function in PyTorch's stable C interface
            // (aoti_torch/c/shim.h). The library is never unloaded.
            unsafe {
                *library
                    .get(concat!($name, "\0").as_bytes())
                    .map_err(|e| unusable(&path, e))?
            }
        };
    }
    let number = |name: &'static str| -> Result<i32, EngineError> {
        // SAFETY: as above; each function has no arguments and returns a number.
        unsafe {
            let f = library
                .get::<unsafe extern "C" fn() -> i32>(name.as_bytes())
                .map_err(|e| unusable(&path, e))?;
            Ok(f())
        }
    };
    let torch = Torch {
        from_blob: function!("aoti_torch_create_tensor_from_blob"),
        delete: function!("aoti_torch_delete_tensor_object"),
        data: function!("aoti_torch_get_data_ptr"),
        dtype: function!("aoti_torch_get_dtype"),
        dim: function!("aoti_torch_get_dim"),
        sizes: function!("aoti_torch_get_sizes"),
        is_contiguous: function!("aoti_torch_is_contiguous"),
        cpu: number("aoti_torch_device_type_cpu\0")?,
        cuda: number("aoti_torch_device_type_cuda\0")?,
        dtypes: [
            (DType::U8, number("aoti_torch_dtype_uint8\0")?),
            (DType::I8, number("aoti_torch_dtype_int8\0")?),
            (DType::I32, number("aoti_torch_dtype_int32\0")?),
            (DType::I64, number("aoti_torch_dtype_int64\0")?),
            (DType::F16, number("aoti_torch_dtype_float16\0")?),
            (DType::Bf16, number("aoti_torch_dtype_bfloat16\0")?),
            (DType::F32, number("aoti_torch_dtype_float32\0")?),
        ],
        with_cuda: cuda,
    };
    // The libraries stay loaded.
    libraries.into_iter().for_each(std::mem::forget);
    Ok(torch)
}
