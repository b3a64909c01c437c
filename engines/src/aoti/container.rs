//! A compiled model, through the C interface that all compiled models have.

use std::{
    ffi::{CString, c_char, c_void},
    mem::ManuallyDrop,
    os::unix::ffi::OsStrExt,
    ptr,
};

use libloading::os::unix::{Library, RTLD_LOCAL, RTLD_NOW};
use qdl::model::ModelSpec;

use super::{
    package::Files,
    torch::{Torch, TorchTensor},
};
use crate::{EngineError, one_line};

type ModelHandle = *mut c_void;
type RunFn = unsafe extern "C" fn(
    ModelHandle,
    *mut TorchTensor,
    usize,
    *mut TorchTensor,
    usize,
    *mut c_void,
    *mut c_void,
) -> i32;

/// A model and its weights. Up to `runners` threads (see [`Container::open`]) may run it at a time.
pub(super) struct Container {
    torch: &'static Torch,
    handle: ModelHandle,
    run: RunFn,
    delete: unsafe extern "C" fn(ModelHandle) -> i32,
    gpu: Option<usize>,
    model: ModelSpec,
    /// Files from which the model loads each kernel at the kernel's first run.
    _files: Files,
}

// SAFETY: the container hands each run a free model of its pool, under its own lock; any thread may
// use its handle.
unsafe impl Send for Container {}
// SAFETY: as above.
unsafe impl Sync for Container {}

impl Container {
    /// Loads the model and its weights onto `gpu`, or for the CPU if `None`. The thread must be
    /// bound to the GPU.
    pub fn open(
        torch: &'static Torch,
        files: Files,
        gpu: Option<usize>,
        runners: usize,
        model: &ModelSpec,
    ) -> Result<Self, EngineError> {
        let refuse = |reason: String| EngineError::model(&files.package, reason);
        let unusable = |e: libloading::Error| {
            refuse(format!(
                "its library cannot be loaded ({}): export it with the PyTorch that runs it",
                one_line(&e.to_string())
            ))
        };
        // SAFETY: the library is a compiled model, whose initialisers only register its own
        // constants. The configuration names its file as code to run.
        let library = unsafe { Library::open(Some(&files.library), RTLD_NOW | RTLD_LOCAL) };
        // Never unload the library: the driver has the addresses of weights and kernels.
        let library = ManuallyDrop::new(library.map_err(unusable)?);
        macro_rules! function {
            ($t:ty, $name:literal) => {
                // SAFETY: the type is that of this function in aoti_runtime/interface.h, and the
                // library stays loaded.
                unsafe {
                    *library
                        .get::<$t>(concat!($name, "\0").as_bytes())
                        .map_err(unusable)?
                }
            };
        }
        let create = function!(
            unsafe extern "C" fn(*mut ModelHandle, usize, *const c_char, *const c_char) -> i32,
            "AOTInductorModelContainerCreateWithDevice"
        );
        type Count = unsafe extern "C" fn(ModelHandle, *mut usize) -> i32;
        let inputs = function!(Count, "AOTInductorModelContainerGetNumInputs");
        let outputs = function!(Count, "AOTInductorModelContainerGetNumOutputs");
        let run = function!(RunFn, "AOTInductorModelContainerRun");
        let delete = function!(
            unsafe extern "C" fn(ModelHandle) -> i32,
            "AOTInductorModelContainerDelete"
        );
        let device = gpu.map_or("cpu".to_owned(), |index| format!("cuda:{index}"));
        let text = |bytes: &[u8]| {
            CString::new(bytes)
                .map_err(|_| refuse("lies in a folder with a zero in its name".to_owned()))
        };
        let folder = files.library.parent().unwrap_or(&files.folder);
        let (device_text, folder) = (
            text(device.as_bytes())?,
            text(folder.as_os_str().as_bytes())?,
        );
        let mut handle = ptr::null_mut();
        // SAFETY: the function writes the local `handle`; both texts end in zero and live through
        // the call.
        let code = unsafe {
            create(
                &mut handle,
                runners.max(1),
                device_text.as_ptr(),
                folder.as_ptr(),
            )
        };
        if code != 0 || handle.is_null() {
            return Err(refuse(format!(
                "cannot be loaded to {device}; PyTorch's own line is above"
            )));
        }
        // The library is mapped and the weights are on the device. Delete the file now, so that a
        // killed program does not leave hundreds of MB behind.
        if let Err(e) = std::fs::remove_file(&files.library) {
            tracing::debug!("{}: {e}", files.library.display());
        }
        let container = Container {
            torch,
            handle,
            run,
            delete,
            gpu,
            model: model.clone(),
            _files: files,
        };
        for (what, count, want) in [
            ("inputs", inputs, model.inputs.len()),
            ("outputs", outputs, 1),
        ] {
            let mut has = 0;
            // SAFETY: the handle is alive; the function writes the local `has`.
            let code = unsafe { count(container.handle, &mut has) };
            if code != 0 || has != want {
                let reason = format!("has {has} {what}, and {want} are described");
                return Err(EngineError::model(&container._files.package, reason));
            }
        }
        Ok(container)
    }

    /// Enqueues a batch's kernels on the stream (on the CPU, runs the batch); returns the output.
    /// Error: PyTorch's error, or an output of a different shape than described.
    ///
    /// # Safety
    /// `inputs` has the address of each of the model's inputs, readable for `batch` samples until
    /// the stream has been waited for. On a GPU the inputs are in its memory, `stream` is one of
    /// its streams, and the thread is bound to it.
    pub unsafe fn run(
        &self,
        inputs: &[*mut c_void],
        batch: usize,
        stream: *mut c_void,
    ) -> Result<OwnedTensor, EngineError> {
        let failed = |reason: String| EngineError::run("aoti", batch, reason);
        let (kind, index) = match self.gpu {
            Some(index) => (self.torch.cuda, index as i32),
            None => (self.torch.cpu, 0),
        };
        // After an error, the drop of this vector deletes the tensors made so far.
        let mut tensors: Vec<OwnedTensor> = Vec::with_capacity(inputs.len());
        for (spec, address) in self.model.inputs.iter().zip(inputs) {
            let sizes: Vec<i64> = std::iter::once(batch)
                .chain(spec.shape.iter().copied())
                .map(|n| n as i64)
                .collect();
            let mut strides = vec![1i64; sizes.len()];
            for i in (1..sizes.len()).rev() {
                strides[i - 1] = strides[i] * sizes[i];
            }
            let mut tensor = ptr::null_mut();
            // SAFETY: sizes and strides have equal length and live through the call; the caller
            // guarantees the memory; the function writes the local `tensor`.
            let code = unsafe {
                (self.torch.from_blob)(
                    *address,
                    sizes.len() as i64,
                    sizes.as_ptr(),
                    strides.as_ptr(),
                    0,
                    self.torch.number(spec.dtype),
                    kind,
                    index,
                    &mut tensor,
                )
            };
            if code != 0 || tensor.is_null() {
                return Err(failed(format!("no tensor for input `{}`", spec.name)));
            }
            tensors.push(OwnedTensor::of(self.torch, tensor));
        }
        // The model consumes the handles of its inputs, also if the run fails.
        let mut handles: Vec<TorchTensor> =
            tensors.into_iter().map(OwnedTensor::into_raw).collect();
        let mut output = ptr::null_mut();
        // SAFETY: the handles are new and ownership passes to the call; `open` checked that there
        // is one output; the caller guarantees the stream. Null is no proxy executor: a model that
        // needs one fails with an error.
        let code = unsafe {
            (self.run)(
                self.handle,
                handles.as_mut_ptr(),
                handles.len(),
                &mut output,
                1,
                stream,
                ptr::null_mut(),
            )
        };
        if code != 0 || output.is_null() {
            return Err(failed("PyTorch's own line is above".to_owned()));
        }
        let output = OwnedTensor::of(self.torch, output);
        self.check(&output, batch).map_err(failed)?;
        Ok(output)
    }

    fn check(&self, output: &OwnedTensor, batch: usize) -> Result<(), String> {
        let t = self.torch;
        let (mut dtype, mut dim, mut sizes, mut contiguous) = (-1, 0i64, ptr::null_mut(), false);
        // SAFETY: the tensor is alive; each function writes one local. `sizes` points to `dim`
        // numbers that the tensor owns.
        let sizes: &[i64] = unsafe {
            let codes = (t.dtype)(output.tensor, &mut dtype)
                | (t.dim)(output.tensor, &mut dim)
                | (t.sizes)(output.tensor, &mut sizes)
                | (t.is_contiguous)(output.tensor, &mut contiguous);
            if codes != 0 || sizes.is_null() || dim < 0 {
                return Err("the output cannot be asked for its shape".to_owned());
            }
            std::slice::from_raw_parts(sizes, dim as usize)
        };
        let spec = &self.model.output;
        let want = std::iter::once(batch).chain(spec.shape.iter().copied());
        let same = sizes.len() == spec.shape.len() + 1
            && sizes.iter().zip(want).all(|(a, b)| *a == b as i64);
        if same && t.element(dtype) == Some(spec.dtype) && contiguous {
            return Ok(());
        }
        let dtype = t
            .element(dtype)
            .map_or_else(|| format!("type {dtype}"), |d| d.to_string());
        let how = if contiguous { "" } else { ", not contiguous" };
        Err(format!(
            "the output came as {dtype}{sizes:?}{how} for a batch of {batch} times {spec}"
        ))
    }
}

impl Drop for Container {
    fn drop(&mut self) {
        // SAFETY: no run is in progress, because each borrows `self`.
        unsafe { (self.delete)(self.handle) };
    }
}

/// A PyTorch tensor, deleted on drop.
pub(super) struct OwnedTensor {
    torch: &'static Torch,
    tensor: TorchTensor,
}

impl OwnedTensor {
    fn of(torch: &'static Torch, tensor: TorchTensor) -> Self {
        OwnedTensor { torch, tensor }
    }

    fn into_raw(self) -> TorchTensor {
        ManuallyDrop::new(self).tensor
    }

    /// Address of the first element; null for an empty tensor.
    pub fn data(&self) -> *const c_void {
        let mut data = ptr::null_mut();
        // SAFETY: the tensor is alive; the function writes the local `data`.
        unsafe { (self.torch.data)(self.tensor, &mut data) };
        data
    }
}

impl Drop for OwnedTensor {
    fn drop(&mut self) {
        // SAFETY: `self` owns the tensor, and drop runs once.
        unsafe { (self.torch.delete)(self.tensor) };
    }
}
