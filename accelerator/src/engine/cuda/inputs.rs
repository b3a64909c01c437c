//! The way of a batch's inputs: from the slots its samples landed in to where the model's kernels
//! read them.

use std::sync::Arc;

use cudarc::driver::sys::CUdeviceptr;
use qdl::{config::Gather, model::ModelSpec};

use super::{
    Device, Fence, Registry,
    copies::{self, Lists},
    gather::List,
    gatherer::Gatherer,
    memory::{DeviceMemory, Pinned},
    pieces::{self, Piece, Pieces, Way},
    registry::{Place, Ranges},
    stream::{Event, Stream},
};
use crate::engine::{Batch, EngineError, unpack::Unpacker};

/// One worker's inputs, and the stream that brings them. Made and used on one thread.
pub(super) struct Inputs {
    device: Arc<Device>,
    registry: Arc<Registry>,
    stream: Stream,
    asked: Gather,
    unpacker: Unpacker,
    /// Where a batch is unpacked that the kernel cannot gather; none for a single fixed input.
    unpacked: Vec<Pinned>,
    memory: Vec<DeviceMemory>,
    pieces: Pieces,
    lists: Lists,
    /// None where the kernel is not wanted, or the driver has none.
    gatherer: Option<Gatherer>,
}

/// What a batch cost before its kernels.
#[derive(Clone, Copy, Debug, Default)]
pub(in crate::engine) struct Staged {
    pub(super) copies: u64,
    /// Bytes copied from the host's memory, and from the GPU's own.
    pub(super) bytes: u64,
    pub(super) gathered: u64,
    pub(super) fenced: bool,
    /// A kernel gathered it.
    pub(super) kernel: bool,
    in_place: Option<usize>,
}

impl Staged {
    /// Where the only input lies, in place of the stream worker's, if the batch is read where it
    /// landed.
    pub fn in_place(&self) -> Option<*mut std::ffi::c_void> {
        self.in_place.map(|address| address as *mut _)
    }

    fn count(&mut self, place: Place, bytes: usize) {
        match place {
            Place::Gpu(_) => self.gathered += bytes as u64,
            Place::Registered | Place::Unregistered => self.bytes += bytes as u64,
        }
    }
}

impl Inputs {
    /// Buffers for batches of up to `max_batch` samples of the model. The thread is bound.
    ///
    /// # Errors
    /// Memory that cannot be had, the tensor that cannot be served, or a kernel that is asked for
    /// and not there.
    pub fn new(
        device: &Arc<Device>,
        registry: &Arc<Registry>,
        model: &ModelSpec,
        max_batch: usize,
        asked: Gather,
    ) -> Result<Self, EngineError> {
        let mut unpacker = Unpacker::new(model).map_err(|(tensor, why)| EngineError::Param {
            field: "model",
            reason: format!("tensor `{tensor}` {why}"),
        })?;
        let stream = Stream::urgent(device)?;
        let (mut memory, mut unpacked) = (Vec::new(), Vec::new());
        for i in 0..model.inputs.len() {
            let bytes = unpacker.stride(i).checked_mul(max_batch);
            let bytes = bytes.ok_or_else(|| device.out_of_memory("taking memory for a batch"))?;
            memory.push(DeviceMemory::new(device, &stream, bytes)?);
            if unpacker.single_fixed().is_none() {
                let pinned = Pinned::new(device, bytes)?;
                // SAFETY: the memory is initialised, `unpacked` keeps it for as long as the
                // unpacker lives beside it, and the only other access, a copy to the GPU, is over
                // before a batch is unpacked again.
                unsafe { unpacker.lend(i, pinned.address(), pinned.len()) };
                unpacked.push(pinned);
            }
        }
        let kernel = match asked {
            Gather::Copies => None,
            Gather::Auto | Gather::Kernel => device.gather(),
        };
        if kernel.is_none() && asked == Gather::Kernel {
            return Err(EngineError::Param {
                field: "gather",
                reason: format!("{device:?} cannot run the kernel: remove `gather: kernel`"),
            });
        }
        let rooms = (0..model.inputs.len()).map(|i| unpacker.stride(i));
        let gatherer = kernel.map(|kernel| Gatherer::new(device, kernel, max_batch, rooms));
        let inputs = Inputs {
            gatherer: gatherer.transpose()?,
            device: device.clone(),
            registry: registry.clone(),
            stream,
            asked,
            unpacker,
            unpacked,
            memory,
            pieces: Pieces::default(),
            lists: Lists::default(),
        };
        inputs.stream.synchronize()?;
        Ok(inputs)
    }

    /// Address of input `index` on the GPU.
    pub fn address(&self, index: usize) -> CUdeviceptr {
        self.memory[index].address()
    }

    /// Puts the copies of a batch on the stream, between the two events. The batch fits. Where `at`
    /// is given and the batch, run at that size, can be read where it landed on the GPU, nothing is
    /// copied.
    ///
    /// # Errors
    /// A sample of a wrong length, or the driver's.
    pub fn put(
        &mut self,
        batch: &mut Batch,
        at: Option<usize>,
        [before, after]: [&Event; 2],
    ) -> Result<Staged, EngineError> {
        self.unpacker.check(batch)?;
        before.record(&self.stream)?;
        let single = self.unpacker.single_fixed();
        let staged = match single.filter(|size| batch.sample_bytes() == Some(*size)) {
            Some(size) => self.runs(batch, size, at)?,
            None if single.is_some() => self.each(batch)?,
            None => match self.gathered(batch)? {
                Some(staged) => staged,
                None => self.unpacked(batch)?,
            },
        };
        batch.count_copies(staged.copies, staged.bytes + staged.gathered);
        after.record(&self.stream)?;
        Ok(staged)
    }

    /// So many samples of zeros, between the two events.
    ///
    /// # Errors
    /// The driver's.
    pub fn put_zeros(
        &mut self,
        samples: usize,
        [before, after]: [&Event; 2],
    ) -> Result<Staged, EngineError> {
        before.record(&self.stream)?;
        for (i, memory) in self.memory.iter().enumerate() {
            let bytes = self.unpacker.stride(i).saturating_mul(samples);
            memory.clear(&self.device, &self.stream, bytes)?;
        }
        after.record(&self.stream)?;
        Ok(Staged::default())
    }

    /// Nothing on the stream reads a sample's memory any more when this returns.
    pub fn settle(&self) -> Result<(), EngineError> {
        self.stream.synchronize()
    }

    /// The samples as they lie: their runs; nothing where they are on the GPU, side by side.
    fn runs(
        &mut self,
        batch: &Batch,
        size: usize,
        at: Option<usize>,
    ) -> Result<Staged, EngineError> {
        let ranges = self.registry.ranges();
        let list = self.pieces.of(batch, size, &ranges);
        let gpu = self.device.index();
        let mut staged = Staged {
            in_place: at.and_then(|at| pieces::in_place(list, &ranges, gpu, size, at)),
            ..Staged::default()
        };
        drop(ranges);
        if list.iter().any(|p| matches!(p.place, Place::Gpu(_))) {
            staged.fenced = fenced(&self.device)?;
        }
        if staged.in_place.is_some() {
            return Ok(staged);
        }
        list.iter().for_each(|p| staged.count(p.place, p.bytes));
        let (device, stream, to) = (&self.device, &self.stream, self.memory[0].address());
        let kernel = self.gatherer.as_ref().map(|_| gpu);
        let way = pieces::way(self.asked, list, kernel, device.copies_in_batches());
        if let (Way::Kernel, Some(gatherer)) = (way, &mut self.gatherer) {
            // SAFETY: pieces lie in samples that the batch keeps readable until the worker has
            // waited for its kernels, which run after this stream; they end within `max_batch`
            // samples of the input, as the batch does.
            let launched = unsafe {
                gatherer.launch(device, stream, |chunks| {
                    list.iter()
                        .all(|p| chunks.add(p.from as u64, to + p.to as u64, p.bytes, p.bytes))
                })?
            };
            if launched {
                (staged.copies, staged.kernel) = (1, true);
                return Ok(staged);
            }
        }
        staged.copies = list.len() as u64;
        // SAFETY: as above.
        unsafe {
            match way {
                Way::Together => self.lists.all(device, stream, to, list)?,
                Way::OneByOne | Way::Kernel => list
                    .iter()
                    .try_for_each(|p| copies::one(device, stream, to, p))?,
            }
        }
        Ok(staged)
    }

    /// Samples of the one size that a single fixed input has, which the batch was not told of.
    fn each(&mut self, batch: &Batch) -> Result<Staged, EngineError> {
        let size = self.unpacker.stride(0);
        let mut staged = Staged::default();
        for i in 0..batch.len() {
            let from = batch.address(i);
            let piece = Piece {
                from,
                to: i * size,
                bytes: size,
                place: self.registry.ranges().at(from).0,
            };
            let to = self.memory[0].address();
            // SAFETY: as in `runs`.
            unsafe { copies::one(&self.device, &self.stream, to, &piece)? };
            staged.count(piece.place, piece.bytes);
            staged.copies += 1;
        }
        Ok(staged)
    }

    /// Several inputs, or ragged ones, by the kernel: each tensor of each sample to its place, and
    /// zeros behind it. Nothing where there is no kernel, or it cannot read a sample where it lies.
    fn gathered(&mut self, batch: &Batch) -> Result<Option<Staged>, EngineError> {
        let Some(gatherer) = &mut self.gatherer else {
            return Ok(None);
        };
        let mut staged = Staged {
            copies: 1,
            kernel: true,
            ..Staged::default()
        };
        if !readable(
            batch,
            &self.registry.ranges(),
            self.device.index(),
            &mut staged,
        ) {
            return Ok(None);
        }
        if staged.gathered > 0 {
            staged.fenced = fenced(&self.device)?;
        }
        let (unpacker, memory) = (&self.unpacker, &self.memory);
        // SAFETY: samples are readable until the worker has waited for its kernels, which run after
        // this stream; a batch has no more samples than the inputs have room for, and each tensor
        // ends within its sample's room.
        let launched = unsafe {
            gatherer.launch(&self.device, &self.stream, |chunks| {
                let samples = (0..batch.len()).map(|i| (batch.address(i), batch.input_len(i)));
                list_of(unpacker, samples, |input| memory[input].address(), chunks)
            })?
        };
        Ok(launched.then_some(staged))
    }

    /// The same on the CPU: unpacked and padded once on the way, then one copy for each input.
    fn unpacked(&mut self, batch: &mut Batch) -> Result<Staged, EngineError> {
        self.unpacker.unpack(batch)?;
        let mut staged = Staged::default();
        for (i, memory) in self.memory.iter().enumerate() {
            let piece = Piece {
                from: self.unpacked[i].address().as_ptr() as usize,
                to: 0,
                bytes: self.unpacker.stride(i) * batch.len(),
                place: Place::Registered,
            };
            // SAFETY: the piece lies in the unpacker's buffers, which nobody writes before the
            // stream has been waited for, and ends within `max_batch` samples, as the batch does.
            unsafe { copies::one(&self.device, &self.stream, memory.address(), &piece)? };
            staged.count(piece.place, piece.bytes);
            staged.copies += 1;
        }
        Ok(staged)
    }
}

/// Once for a batch of which a part is in the GPU's memory, when all its samples have arrived. True
/// where that did anything.
fn fenced(device: &Device) -> Result<bool, EngineError> {
    device.fence()?;
    Ok(device.direct().fence == Fence::Flush)
}

/// Lists each tensor of each sample (its address and length), and where it goes in the inputs.
/// False where that cannot be.
pub(super) fn list_of(
    unpacker: &Unpacker,
    samples: impl Iterator<Item = (usize, usize)>,
    input: impl Fn(usize) -> CUdeviceptr,
    chunks: &mut List<'_>,
) -> bool {
    let mut samples = samples.enumerate();
    samples.all(|(i, (address, len))| {
        unpacker.parts(len).is_some_and(|mut parts| {
            parts.all(|p| {
                let (from, to) = (address + p.at, input(p.input) + (i * p.room) as u64);
                chunks.add(from as u64, to, p.bytes, p.room)
            })
        })
    })
}

/// True where this GPU's kernels can read every sample where it lies, each within one range; their
/// bytes are counted.
fn readable(batch: &Batch, ranges: &Ranges, gpu: usize, staged: &mut Staged) -> bool {
    (0..batch.len()).all(|i| {
        let (place, alike) = ranges.at(batch.address(i));
        staged.count(place, batch.input_len(i));
        place.readable_on(gpu) && alike >= batch.input_len(i)
    })
}
