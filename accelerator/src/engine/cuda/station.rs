//! One worker's place at a GPU: its stream, its buffers, and the way of a batch there and back.

use std::sync::Arc;

use cudarc::driver::sys::{self, CUdeviceptr};
use qdl::model::ModelSpec;

use super::{
    Device, Fence, Meter, Registry,
    graph::Graph,
    memory::{DeviceMemory, Pinned},
    meter::Done,
    pieces::{self, Piece, Pieces},
    registry::Place,
    stream::{Event, Stream},
};
use crate::engine::{Batch, EngineError, unpack::Unpacker};

/// So many pieces are copied one call each; more, in one call for all.
const PIECES_ONE_BY_ONE: usize = 3;

/// See the module. Made and used on one thread.
pub(in crate::engine) struct Station {
    device: Arc<Device>,
    registry: Arc<Registry>,
    meter: Arc<Meter>,
    stream: Stream,
    /// Before the copies, before the kernels, after them, after the copy back.
    events: [Event; 4],
    unpacker: Unpacker,
    /// Where a batch is unpacked whose samples cannot be copied as they lie; none for a single fixed input.
    unpacked: Vec<Pinned>,
    inputs: Vec<DeviceMemory>,
    outputs: Pinned,
    output_bytes: usize,
    max_batch: usize,
    spin_ns: u64,
    pieces: Pieces,
    lists: Lists,
}

/// Arguments of one `cuMemcpyBatchAsync`, kept from batch to batch.
#[derive(Debug, Default)]
struct Lists {
    to: Vec<CUdeviceptr>,
    from: Vec<CUdeviceptr>,
    bytes: Vec<usize>,
}

/// What a batch cost before its kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Staged {
    copies: u64,
    /// Bytes copied from the host's memory, and from the GPU's own.
    bytes: u64,
    gathered: u64,
    fenced: bool,
    in_place: Option<usize>,
}

impl Staged {
    /// Where the only input lies, in place of the station's, if the batch is read where it landed.
    pub fn in_place(&self) -> Option<*mut std::ffi::c_void> {
        self.in_place.map(|address| address as *mut _)
    }

    fn count(&mut self, piece: &Piece) {
        self.copies += 1;
        match piece.place {
            Place::Gpu(_) => self.gathered += piece.bytes as u64,
            Place::Registered | Place::Unregistered => self.bytes += piece.bytes as u64,
        }
    }
}

impl Station {
    /// Buffers for batches of up to `max_batch` samples of the model.
    ///
    /// # Errors
    /// Memory that cannot be had, or the tensor that cannot be served, and why.
    pub fn new(
        device: &Arc<Device>,
        registry: &Arc<Registry>,
        meter: &Arc<Meter>,
        model: &ModelSpec,
        max_batch: usize,
        spin_us: u64,
    ) -> Result<Self, EngineError> {
        device.bind()?;
        let param = |tensor: &str, reason: &str| EngineError::Param {
            field: "model",
            reason: format!("tensor `{tensor}` {reason}"),
        };
        let mut unpacker = Unpacker::new(model).map_err(|(t, why)| param(&t, &why))?;
        let output_bytes = model
            .max_output_bytes()
            .ok_or_else(|| param(&model.output.name, "is too large"))?;
        let whole = |bytes: usize| {
            bytes
                .checked_mul(max_batch)
                .ok_or_else(|| device.out_of_memory("taking memory for a batch"))
        };
        let stream = Stream::new(device)?;
        let (mut inputs, mut unpacked) = (Vec::new(), Vec::new());
        for i in 0..model.inputs.len() {
            let bytes = whole(unpacker.stride(i))?;
            inputs.push(DeviceMemory::new(device, &stream, bytes)?);
            if unpacker.single_fixed().is_none() {
                let pinned = Pinned::new(device, bytes)?;
                // SAFETY: the memory is initialised, `unpacked` keeps it for as long as the unpacker lives beside it, and
                // the only other access, a copy to the GPU, is over before a batch is unpacked again.
                unsafe { unpacker.lend(i, pinned.address(), pinned.len()) };
                unpacked.push(pinned);
            }
        }
        let event = || Event::new(device);
        let station = Station {
            events: [event()?, event()?, event()?, event()?],
            outputs: Pinned::new(device, whole(output_bytes)?)?,
            device: device.clone(),
            registry: registry.clone(),
            meter: meter.clone(),
            stream,
            unpacker,
            unpacked,
            inputs,
            output_bytes,
            max_batch,
            spin_ns: spin_us.saturating_mul(1000),
            pieces: Pieces::default(),
            lists: Lists::default(),
        };
        station.stream.synchronize()?;
        Ok(station)
    }

    /// The stream's handle, as CUDA's runtime takes it.
    pub fn stream(&self) -> *mut std::ffi::c_void {
        self.stream.raw().cast()
    }

    /// Address of input `index` on the GPU.
    pub fn input(&self, index: usize) -> *mut std::ffi::c_void {
        self.inputs[index].address() as *mut _
    }

    /// More memory on the GPU, zeros, for whoever has outputs of a fixed address.
    ///
    /// # Errors
    /// Memory that cannot be had.
    pub fn memory(&self, bytes: usize) -> Result<DeviceMemory, EngineError> {
        DeviceMemory::new(&self.device, &self.stream, bytes)
    }

    /// Records what `put` puts on the stream.
    ///
    /// # Errors
    /// What `put` says, or the driver.
    pub fn record(
        &self,
        put: impl FnOnce() -> Result<(), EngineError>,
    ) -> Result<Graph, EngineError> {
        Graph::record(&self.device, &self.stream, put)
    }

    /// Puts what was recorded on the stream.
    ///
    /// # Errors
    /// The driver's.
    pub fn launch(&self, graph: &Graph) -> Result<(), EngineError> {
        graph.launch(&self.stream)
    }

    /// Most samples of a batch.
    pub fn max_batch(&self) -> usize {
        self.max_batch
    }

    /// Puts the copies of a batch's inputs on the stream. Returns at once; the samples stay where they are until
    /// [`Station::finish`] or [`Station::settle`].
    ///
    /// # Errors
    /// A sample of a wrong length, a batch that is too large, or the driver's.
    pub fn stage(&mut self, batch: &mut Batch) -> Result<Staged, EngineError> {
        self.stage_with(batch, None)
    }

    /// The same; where the batch, run at `at` samples, can be read where it landed on the GPU, nothing is copied, and
    /// [`Staged::in_place`] says where it lies.
    ///
    /// # Errors
    /// As [`Station::stage`].
    pub fn stage_in_place(&mut self, batch: &mut Batch, at: usize) -> Result<Staged, EngineError> {
        self.stage_with(batch, Some(at))
    }

    fn stage_with(&mut self, batch: &mut Batch, at: Option<usize>) -> Result<Staged, EngineError> {
        if batch.len() > self.max_batch {
            return Err(EngineError::Run {
                engine: "cuda",
                batch: batch.len(),
                reason: format!("buffers are for {} samples", self.max_batch),
            });
        }
        self.unpacker.check(batch)?;
        self.events[0].record(&self.stream)?;
        let single = self.unpacker.single_fixed();
        let staged = match single.filter(|size| batch.sample_bytes() == Some(*size)) {
            Some(size) => self.copy_runs(batch, size, at)?,
            None if single.is_some() => self.copy_each(batch)?,
            None => self.copy_unpacked(batch)?,
        };
        batch.count_copies(staged.copies, staged.bytes + staged.gathered);
        self.events[1].record(&self.stream)?;
        Ok(staged)
    }

    /// The samples as they lie: one copy for each run; none where they are on the GPU, side by side.
    fn copy_runs(
        &mut self,
        batch: &Batch,
        size: usize,
        at: Option<usize>,
    ) -> Result<Staged, EngineError> {
        let Self { pieces, lists, .. } = self;
        let ranges = self.registry.ranges();
        let list = pieces.of(batch, size, &ranges);
        let mut staged = Staged::default();
        if list.iter().any(|p| matches!(p.place, Place::Gpu(_))) {
            // Once for the batch: all its samples have arrived.
            self.device.fence()?;
            staged.fenced = self.device.direct().fence == Fence::Flush;
        }
        let gpu = self.device.index();
        staged.in_place = at.and_then(|at| pieces::in_place(list, &ranges, gpu, size, at));
        drop(ranges);
        if staged.in_place.is_some() {
            return Ok(staged);
        }
        list.iter().for_each(|p| staged.count(p));
        let together = list.len() > PIECES_ONE_BY_ONE
            && self.device.copies_in_batches()
            && list.iter().all(|p| p.place != Place::Unregistered);
        let to = self.inputs[0].address();
        if together {
            copy_all(&self.device, &self.stream, to, list, lists)?;
        } else {
            for piece in list {
                copy(&self.device, &self.stream, to, piece)?;
            }
        }
        Ok(staged)
    }

    /// Samples of the one size that a single fixed input has, which the batch was not told of.
    fn copy_each(&mut self, batch: &Batch) -> Result<Staged, EngineError> {
        let size = self.unpacker.stride(0);
        let to = self.inputs[0].address();
        let mut staged = Staged::default();
        for i in 0..batch.len() {
            let piece = Piece {
                from: batch.arrivals()[i].address(),
                to: i * size,
                bytes: size,
                place: self.registry.ranges().at(batch.arrivals()[i].address()).0,
            };
            copy(&self.device, &self.stream, to, &piece)?;
            staged.count(&piece);
        }
        Ok(staged)
    }

    /// Several inputs, or ragged ones: unpacked and padded once on the way, then one copy for each input.
    fn copy_unpacked(&mut self, batch: &mut Batch) -> Result<Staged, EngineError> {
        self.unpacker.unpack(batch)?;
        let mut staged = Staged::default();
        for (i, memory) in self.inputs.iter().enumerate() {
            let piece = Piece {
                from: self.unpacked[i].address().as_ptr() as usize,
                to: 0,
                bytes: self.unpacker.stride(i) * batch.len(),
                place: Place::Registered,
            };
            copy(&self.device, &self.stream, memory.address(), &piece)?;
            staged.count(&piece);
        }
        Ok(staged)
    }

    /// For warming up: nothing is copied, the inputs are what they were, zeros at first.
    ///
    /// # Errors
    /// The driver's.
    pub fn stage_nothing(&mut self) -> Result<Staged, EngineError> {
        self.events[0].record(&self.stream)?;
        self.events[1].record(&self.stream)?;
        Ok(Staged::default())
    }

    /// After the kernels: copies the outputs of `samples` from `output` on the GPU back, waits for all of it, and gives
    /// them to `each`. `ran` is the size the kernels ran at.
    ///
    /// # Errors
    /// The driver's; an error of a copy or a kernel comes to light here. And what `each` says.
    ///
    /// # Safety
    /// `output` holds the outputs of `samples` samples on this GPU once the kernels on the stream are done, and until this
    /// returns.
    pub unsafe fn finish(
        &mut self,
        staged: Staged,
        (samples, ran): (usize, usize),
        output: *const std::ffi::c_void,
        mut each: impl FnMut(usize, &[u8]) -> Result<(), EngineError>,
    ) -> Result<(), EngineError> {
        self.events[2].record(&self.stream)?;
        let bytes = samples.min(self.max_batch) * self.output_bytes;
        if bytes > 0 {
            // SAFETY: the pinned buffer has room for `max_batch` outputs; the source is the caller's promise.
            let result = unsafe {
                sys::cuMemcpyDtoHAsync_v2(
                    self.outputs.address().as_ptr().cast(),
                    output as CUdeviceptr,
                    bytes,
                    self.stream.raw(),
                )
            };
            self.device.check("copying outputs", result)?;
        }
        self.events[3].record(&self.stream)?;
        self.events[3].wait(self.spin_ns)?;
        let [start, copied, computed, back] = &self.events;
        // Warming up is no batch.
        if samples > 0 {
            self.meter.batch(&Done {
                samples,
                padded: ran.saturating_sub(samples),
                copies_in: staged.copies,
                bytes_in: staged.bytes,
                gathered: staged.gathered,
                in_place: staged.in_place.is_some(),
                fenced: staged.fenced,
                bytes_out: bytes as u64,
                copy_in: start.until(copied),
                compute: copied.until(computed),
                copy_out: computed.until(back),
            });
        }
        if bytes == 0 {
            return (0..samples).try_for_each(|i| each(i, &[]));
        }
        // SAFETY: the event behind the copy has passed, and the next copy is put on the stream by `&mut self`.
        let outputs = unsafe { self.outputs.bytes(bytes) };
        for (i, output) in outputs.chunks_exact(self.output_bytes).enumerate() {
            each(i, output)?;
        }
        Ok(())
    }

    /// After an error: nothing on the stream reads a sample's memory any more when this returns.
    pub fn settle(&self) {
        // The error that matters has been seen.
        let _ = self.stream.synchronize();
    }
}

impl Drop for Station {
    fn drop(&mut self) {
        let _ = self.device.bind();
        self.settle();
    }
}

/// One piece.
fn copy(device: &Device, stream: &Stream, to: CUdeviceptr, p: &Piece) -> Result<(), EngineError> {
    let to = to + p.to as CUdeviceptr;
    // SAFETY: a piece lies in samples that the batch keeps readable, or in the unpacker's buffers, until the stream has been
    // waited for; it ends within `max_batch` samples of the input it goes to, which `stage` has checked. Memory of a GPU has
    // the same addresses on all of them.
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

/// All pieces with one call. Their memory is registered, or a GPU's.
fn copy_all(
    device: &Device,
    stream: &Stream,
    to: CUdeviceptr,
    pieces: &[Piece],
    lists: &mut Lists,
) -> Result<(), EngineError> {
    lists.to.clear();
    lists.from.clear();
    lists.bytes.clear();
    for p in pieces {
        lists.to.push(to + p.to as CUdeviceptr);
        lists.from.push(p.from as CUdeviceptr);
        lists.bytes.push(p.bytes);
    }
    // SAFETY: all fields are integers or enumerations for which zero is a value.
    let mut how: sys::CUmemcpyAttributes = unsafe { std::mem::zeroed() };
    how.srcAccessOrder = sys::CUmemcpySrcAccessOrder_enum::CU_MEMCPY_SRC_ACCESS_ORDER_STREAM;
    let mut first = 0;
    // SAFETY: the lists are equally long; each piece is as in `copy`; one set of attributes, for the first piece and all
    // behind it. The device has said that its driver knows the function.
    let result = unsafe {
        sys::cuMemcpyBatchAsync_v2(
            lists.to.as_mut_ptr(),
            lists.from.as_mut_ptr(),
            lists.bytes.as_mut_ptr(),
            pieces.len(),
            &mut how,
            &mut first,
            1,
            stream.raw(),
        )
    };
    device.check("copying inputs", result)
}
