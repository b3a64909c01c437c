//! A plan on a GPU and its contexts, through the shim.

use std::{
    ffi::{CStr, c_void},
    ptr,
    rc::Rc,
    sync::Arc,
};

use qdl::model::DType;

use super::shim::{Library, MAX_NAME, MAX_RANK, RawTensor, TrtError, with_message};

#[derive(Clone, Debug, PartialEq, Eq)]
pub(super) struct PlanTensor {
    /// Index of the tensor for [`Context::bind`].
    pub index: usize,
    pub name: String,
    pub output: bool,
    /// Element type; `None` if the engine does not support the type.
    pub dtype: Option<DType>,
    /// True if the elements are contiguous.
    pub linear: bool,
    /// Dimensions with the batch first; -1 for a dynamic dimension.
    pub dims: Vec<i64>,
}

pub(super) struct TrtPlan {
    library: Arc<Library>,
    handle: *mut c_void,
}

// SAFETY: TensorRT allows an engine to move between threads; ownership and `&mut` ensure that one
// thread uses it at a time.
unsafe impl Send for TrtPlan {}

impl TrtPlan {
    /// Loads a plan. The thread must be bound to the GPU.
    pub fn load(library: &Arc<Library>, plan: &[u8]) -> Result<Self, TrtError> {
        let mut handle = ptr::null_mut();
        // SAFETY: the bytes live through the call; the shim writes only the local `handle`.
        let loaded = with_message(|why, room| unsafe {
            let bytes = plan.as_ptr().cast();
            (library.functions.load)(library.handle, bytes, plan.len(), &mut handle, why, room)
        });
        loaded.map_err(|(_, why)| why)?;
        Ok(TrtPlan {
            library: library.clone(),
            handle,
        })
    }

    /// The plan's tensors; an error if a tensor's name or rank exceeds the shim's limits.
    pub fn tensors(&self) -> Result<Vec<PlanTensor>, TrtError> {
        // SAFETY: the handle is alive.
        let count = unsafe { (self.library.functions.tensors)(self.handle) };
        let mut all = Vec::new();
        for index in 0..count {
            let mut raw = RawTensor {
                name: [0; MAX_NAME],
                is_output: 0,
                dtype: 0,
                linear: 0,
                rank: 0,
                dims: [0; MAX_RANK],
            };
            // SAFETY: the handle is alive; `raw` is a local of the type that the shim writes.
            let code = unsafe { (self.library.functions.tensor_at)(self.handle, index, &mut raw) };
            let rank = usize::try_from(raw.rank).unwrap_or(MAX_RANK + 1);
            if code != 0 || rank > MAX_RANK {
                return Err(TrtError(format!(
                    "tensor {index} has a name or a rank beyond all bounds"
                )));
            }
            raw.name[MAX_NAME - 1] = 0;
            // SAFETY: the last byte is zero.
            let name = unsafe { CStr::from_ptr(raw.name.as_ptr()) };
            all.push(PlanTensor {
                index: index as usize,
                name: name.to_string_lossy().into_owned(),
                output: raw.is_output != 0,
                dtype: match raw.dtype {
                    1 => Some(DType::U8),
                    2 => Some(DType::I8),
                    3 => Some(DType::I32),
                    4 => Some(DType::I64),
                    5 => Some(DType::F16),
                    6 => Some(DType::Bf16),
                    7 => Some(DType::F32),
                    _ => None,
                },
                linear: raw.linear != 0,
                dims: raw.dims[..rank].to_vec(),
            });
        }
        Ok(all)
    }

    /// Smallest and largest batch of each profile, as the profile gives them for `input`.
    pub fn profiles(&self, input: &PlanTensor) -> Result<Vec<(usize, usize)>, TrtError> {
        // SAFETY: the handle is alive.
        let count = unsafe { (self.library.functions.profiles)(self.handle) };
        let mut all = Vec::new();
        for profile in 0..count {
            let (mut least, mut most) = (0, 0);
            // SAFETY: the handle is alive; the shim writes only the two locals.
            let code = unsafe {
                (self.library.functions.batches)(
                    self.handle,
                    input.index as i32,
                    profile,
                    &mut least,
                    &mut most,
                )
            };
            match (usize::try_from(least), usize::try_from(most)) {
                (Ok(least), Ok(most)) if code == 0 => all.push((least, most)),
                _ => return Err(TrtError(format!("profile {profile} has no batch size"))),
            }
        }
        Ok(all)
    }
}

impl Drop for TrtPlan {
    fn drop(&mut self) {
        // SAFETY: the handle is alive; contexts hold references to the plan, so none is left.
        unsafe { (self.library.functions.unload)(self.handle) };
    }
}

/// An execution context of a plan: one profile on one stream.
pub(super) struct Context {
    handle: *mut c_void,
    plan: Rc<TrtPlan>,
    batch: usize,
}

impl Context {
    /// Makes a context for `profile` on `stream`. The thread must be bound to the GPU.
    ///
    /// # Safety
    /// `stream` is a stream of the plan's GPU.
    pub unsafe fn new(
        plan: &Rc<TrtPlan>,
        profile: usize,
        stream: *mut c_void,
    ) -> Result<Self, TrtError> {
        let mut handle = ptr::null_mut();
        // SAFETY: the plan is alive; the caller guarantees the stream; the shim writes only the
        // local `handle`.
        let made = with_message(|why, room| unsafe {
            (plan.library.functions.context_new)(
                plan.handle,
                profile as i32,
                stream,
                &mut handle,
                why,
                room,
            )
        });
        made.map_err(|(_, why)| why)?;
        Ok(Context {
            handle,
            plan: plan.clone(),
            batch: 0,
        })
    }

    /// Sets the address of the tensor with this index ([`PlanTensor::index`]).
    ///
    /// # Safety
    /// `address` is on the plan's GPU and has room for the profile's largest batch while the
    /// context lives.
    pub unsafe fn bind(&mut self, tensor: usize, address: *mut c_void) -> Result<(), TrtError> {
        // SAFETY: the context is alive; the caller guarantees the address.
        let bound = with_message(|why, room| unsafe {
            let bind = self.plan.library.functions.bind;
            bind(self.handle, tensor as i32, address, why, room)
        });
        bound.map_err(|(_, why)| why)
    }

    /// Enqueues the kernels for `batch` samples on `stream`.
    ///
    /// # Safety
    /// Every tensor is bound, the profile takes `batch`, the thread is bound to the GPU, and
    /// `stream` is the context's stream.
    pub unsafe fn enqueue(&mut self, batch: usize, stream: *mut c_void) -> Result<(), TrtError> {
        let f = &self.plan.library.functions;
        if self.batch != batch {
            // SAFETY: the context is alive.
            let set = with_message(|why, room| unsafe {
                (f.set_batch)(self.handle, batch as i64, why, room)
            });
            self.batch = 0;
            set.map_err(|(_, why)| why)?;
            self.batch = batch;
        }
        // SAFETY: the context is alive; the caller guarantees the other conditions.
        let put = with_message(|why, room| unsafe { (f.enqueue)(self.handle, stream, why, room) });
        put.map_err(|(_, why)| why)
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: the handle is alive; the owner has waited for the stream, so no kernel uses it.
        unsafe { (self.plan.library.functions.context_free)(self.handle) };
    }
}
