//! Runs decoder steps of several sequences on ONNX Runtime, with keys and values in place.
//!
//! For each layer, one tensor holds the keys of all slots and one the values. A step has the same
//! slots as input and output, so the runtime copies no keys or values. The binding of the `ort`
//! crate clones its values, so this module calls the C API.

use std::{
    ffi::{CStr, c_void},
    ptr::{self, NonNull},
};

use ort::{
    AsPointer,
    memory::{Allocator, MemoryInfo},
    session::Session,
    sys::{self, ONNXTensorElementDataType as Element},
    value::Tensor,
};

use super::{
    graph::{DecoderGraph, IDS, LONGEST, NEXT, USED},
    schedule::SlotMove,
};
use crate::one_line;

/// The most likely next token, then the second most likely.
pub(super) type Candidates = [i64; 2];

#[derive(Clone, Copy, Debug)]
pub(super) struct StepRow<'t> {
    pub tokens: &'t [i64],
    pub held: usize,
}

/// A session, the slots of its sequences, and the buffers of a step.
pub(super) struct Decoder {
    /// The runtime accesses bound memory only within [`Decoder::run`].
    binding: Binding,
    /// Keys and values of each layer, each a tensor of f32 [slots, heads, context, width].
    caches: Vec<Cache>,
    /// Declared after the caches, so dropped after them: the allocator frees their memory.
    _allocator: Allocator,
    cache_memory: MemoryInfo<'static>,
    cpu: MemoryInfo<'static>,
    /// Declared after binding and caches, so dropped after them.
    session: Session,
    graph: DecoderGraph,
    slots: usize,
    context: usize,
    /// True if [`Decoder::move_slot`] is allowed: the caches are in CPU memory.
    pub can_move: bool,
    ids: Vec<i64>,
    used: Vec<i32>,
    next: Vec<Candidates>,
}

struct Cache {
    _tensor: Tensor<f32>,
    address: NonNull<f32>,
}

// SAFETY: `address` points into the tensor, which any thread may own.
unsafe impl Send for Cache {}

impl Decoder {
    /// Makes a decoder with `slots` slots of `context` positions in `memory`, else in CPU memory.
    pub fn new(
        session: Session,
        graph: DecoderGraph,
        slots: usize,
        context: usize,
        memory: Option<MemoryInfo<'static>>,
    ) -> Result<Self, String> {
        let said = |e: ort::Error| one_line(&e.to_string());
        let on_cpu = memory.is_none();
        let cache_memory = memory.unwrap_or_default();
        let allocator = Allocator::new(&session, cache_memory.clone()).map_err(said)?;
        let shape = [slots, graph.heads, context, graph.width];
        let elements = shape.iter().product();
        let cache = |_| {
            let mut tensor = Tensor::<f32>::new(&allocator, shape).map_err(said)?;
            let address = NonNull::new(tensor.data_ptr_mut().cast::<f32>());
            let address = address.ok_or_else(|| "no memory for keys and values".to_owned())?;
            if on_cpu {
                // SAFETY: the tensor is new, has `elements` elements in this process's memory, and
                // only this function has its address.
                unsafe { address.write_bytes(0, elements) };
            }
            Ok::<_, String>(Cache {
                _tensor: tensor,
                address,
            })
        };
        Ok(Decoder {
            binding: Binding::new(&session)?,
            caches: (0..graph.caches.len())
                .map(cache)
                .collect::<Result<_, _>>()?,
            _allocator: allocator,
            cache_memory,
            cpu: MemoryInfo::default(),
            session,
            graph,
            slots,
            context,
            can_move: on_cpu,
            ids: Vec::new(),
            used: Vec::new(),
            next: Vec::new(),
        })
    }

    /// Copies the first `held` keys and values of each head to another slot.
    pub fn move_slot(&mut self, m: SlotMove) {
        let DecoderGraph { heads, width, .. } = self.graph;
        let head = self.context * width;
        let slot = heads * head;
        assert!(self.can_move && m.from < self.slots && m.to < self.slots);
        assert!(m.from != m.to && m.held <= self.context);
        for cache in &self.caches {
            for h in 0..heads {
                let (from, to) = (m.from * slot + h * head, m.to * slot + h * head);
                // SAFETY: both slots lie within the tensor, which is in this process's memory, and
                // `held` positions of a head lie within the slot (asserted above). The slots differ
                // (asserted), so the ranges do not overlap. `self` is exclusive, so no step runs.
                unsafe {
                    let cache = cache.address.as_ptr();
                    ptr::copy_nonoverlapping(cache.add(from), cache.add(to), m.held * width);
                }
            }
        }
    }

    /// Runs the model on the tokens of the rows, which are in the slots from `first` on. Returns
    /// the candidates for each row's next token. All rows have the same number of tokens.
    /// Error text: a row does not fit its slot, or the runtime's message.
    pub fn step<'t>(
        &mut self,
        first: usize,
        rows: impl Iterator<Item = StepRow<'t>>,
    ) -> Result<&[Candidates], String> {
        self.ids.clear();
        self.used.clear();
        for row in rows {
            let held = i32::try_from(row.held).unwrap_or(i32::MAX);
            if row.held > self.context || row.tokens.is_empty() || row.tokens.len() > row.held {
                return Err(format!(
                    "{held} positions of {}, {} of them new",
                    self.context,
                    row.tokens.len()
                ));
            }
            self.ids.extend_from_slice(row.tokens);
            self.used.push(held - 1);
        }
        let (count, all) = (self.used.len(), self.ids.len());
        if count == 0 || !all.is_multiple_of(count) || first + count > self.slots {
            return Err(format!(
                "{all} tokens of {count} sequences from slot {first} on"
            ));
        }
        self.next.clear();
        self.next.resize(count, [0; 2]);
        self.run(first, count)
            .map_err(|e| one_line(&e.to_string()))?;
        Ok(&self.next)
    }

    /// Binds the buffers and runs the session; `step` has filled `ids`, `used` and `next`.
    fn run(&mut self, first: usize, rows: usize) -> ort::Result<()> {
        let each = (self.ids.len() / rows) as i64;
        let rows_i = rows as i64;
        let mut longest = self.used.iter().max().map_or(0, |most| most + 1);
        let (ids, used) = (self.ids.as_mut_ptr(), self.used.as_mut_ptr());
        let next = self.next.as_mut_ptr();
        let longest: *mut i32 = &mut longest;
        let DecoderGraph { heads, width, .. } = self.graph;
        let slot = heads * self.context * width;
        let shape = [rows_i, heads as i64, self.context as i64, width as i64];
        // `ids` has `rows * each` elements, `used` has `rows`, and `next` twice as many, all filled
        // by `step`. A cache has `slots` slots and `first + rows <= slots` (checked in `step`).
        // SAFETY: each view covers memory that this object or the stack frame owns, at least as
        // large as its shape (see above). The memory neither moves nor is freed before `run`
        // returns; later steps bind every view again before use.
        unsafe {
            let (i64s, i32s) = (
                Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64,
                Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT32,
            );
            let view = TensorView::new(&self.cpu, ids.cast(), &[rows_i, each], i64s)?;
            self.binding.input(IDS, &view)?;
            let view = TensorView::new(&self.cpu, used.cast(), &[rows_i], i32s)?;
            self.binding.input(USED, &view)?;
            let view = TensorView::new(&self.cpu, longest.cast(), &[], i32s)?;
            self.binding.input(LONGEST, &view)?;
            let view = TensorView::new(&self.cpu, next.cast(), &[rows_i, 2], i64s)?;
            self.binding.output(NEXT, &view)?;
            for (cache, (past, present)) in self.caches.iter().zip(&self.graph.caches) {
                let address = cache.address.as_ptr().add(first * slot);
                let f32s = Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_FLOAT;
                let view = TensorView::new(&self.cache_memory, address.cast(), &shape, f32s)?;
                self.binding.input(past, &view)?;
                self.binding.output(present, &view)?;
            }
            self.binding.run(&mut self.session)
        }
    }
}

fn check(status: sys::OrtStatusPtr) -> ort::Result<()> {
    // SAFETY: each caller passes a status that a function of the runtime has just returned, and
    // this call consumes it.
    unsafe { ort::Error::result_from_status(status) }
}

/// A tensor over borrowed memory.
struct TensorView(NonNull<sys::OrtValue>);

impl TensorView {
    /// # Safety
    /// `memory` must contain `address` with the number of elements of `shape`, for as long as the
    /// runtime accesses the view or a binding of it.
    unsafe fn new(
        memory: &MemoryInfo<'static>,
        address: *mut c_void,
        shape: &[i64],
        element: Element,
    ) -> ort::Result<Self> {
        let size = match element {
            Element::ONNX_TENSOR_ELEMENT_DATA_TYPE_INT64 => 8,
            _ => 4,
        };
        let elements: i64 = shape.iter().product();
        let mut made = ptr::null_mut();
        // SAFETY: the pointers and lengths are those of living slices; the caller guarantees the
        // memory at `address`.
        check(unsafe {
            (ort::api().CreateTensorWithDataAsOrtValue)(
                memory.ptr(),
                address,
                elements as usize * size,
                shape.as_ptr(),
                shape.len(),
                element,
                &mut made,
            )
        })?;
        let made = NonNull::new(made).ok_or_else(|| ort::Error::new("no tensor was made"))?;
        Ok(TensorView(made))
    }
}

impl Drop for TensorView {
    fn drop(&mut self) {
        // SAFETY: made by `new` and released once; a binding holds its own reference.
        unsafe { (ort::api().ReleaseValue)(self.0.as_ptr()) }
    }
}

struct Binding(NonNull<sys::OrtIoBinding>);

// SAFETY: the runtime binds no object to a thread, and only the owner uses the binding.
unsafe impl Send for Binding {}

impl Binding {
    fn new(session: &Session) -> Result<Self, String> {
        let mut made = ptr::null_mut();
        // SAFETY: the session lives; the runtime guards its state behind the mutable pointer.
        check(unsafe { (ort::api().CreateIoBinding)(session.ptr().cast_mut(), &mut made) })
            .map_err(|e| one_line(&e.to_string()))?;
        NonNull::new(made)
            .map(Binding)
            .ok_or_else(|| "no binding was made".to_owned())
    }

    fn input(&mut self, name: &CStr, view: &TensorView) -> ort::Result<()> {
        // SAFETY: binding and view live, and the name ends with a zero. A second binding of a name
        // replaces the first.
        check(unsafe { (ort::api().BindInput)(self.0.as_ptr(), name.as_ptr(), view.0.as_ptr()) })
    }

    fn output(&mut self, name: &CStr, view: &TensorView) -> ort::Result<()> {
        // SAFETY: as for `input`.
        check(unsafe { (ort::api().BindOutput)(self.0.as_ptr(), name.as_ptr(), view.0.as_ptr()) })
    }

    /// # Safety
    /// All bound memory must still be as its view describes.
    unsafe fn run(&mut self, session: &mut Session) -> ort::Result<()> {
        // SAFETY: session and binding live, and `&mut` excludes other users; the caller guarantees
        // the bound memory. Null means no run options.
        check(unsafe {
            (ort::api().RunWithBinding)(session.ptr().cast_mut(), ptr::null(), self.0.as_ptr())
        })
    }
}

impl Drop for Binding {
    fn drop(&mut self) {
        // SAFETY: made by `new` and released once.
        unsafe { (ort::api().ReleaseIoBinding)(self.0.as_ptr()) }
    }
}
