//! A sample that has arrived from the fabric or from LoadGen and waits for the engine.

use std::{fmt, sync::Arc};

use crate::request::{OptionsError, RequestOptions};
use fabric::Region;
use fabric::wire::Stream;

/// Result of an [`Arrival`] that the engine has answered.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// Ticket of the sample ([`Arrival::ticket`]).
    pub ticket: u64,
    /// Bytes of the response that the engine wrote to the output.
    pub len: u32,
    /// Microseconds from the sample's arrival to the start of its batch.
    pub queue_us: u32,
    /// Microseconds that the sample's batch spent in the engine.
    pub compute_us: u32,
    /// Parts of the answer sent before; zero for an answer in one piece.
    pub sent: Sent,
}

impl Finished {
    /// Makes the result of an answer of `len` bytes in one piece, without times.
    pub fn new(arrival: &Arrival, len: u32) -> Self {
        Finished {
            ticket: arrival.ticket(),
            len,
            queue_us: 0,
            compute_us: 0,
            sent: Sent::default(),
        }
    }
}

/// Totals of the parts of an answer sent so far.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of the output sent.
    pub bytes: u32,
    /// Number of parts.
    pub parts: u32,
    /// Sum over the parts of the microseconds from the sample's arrival to the part's posting.
    pub sum_us: u64,
}

impl Sent {
    /// The part that ends at `to`, of an answer whose earlier parts have these totals. Counts it.
    pub fn next(&mut self, ticket: u64, to: u32, (queue_us, compute_us): (u32, u32)) -> OutputPart {
        let from = self.bytes;
        self.bytes = to;
        self.parts += 1;
        self.sum_us += u64::from(queue_us) + u64::from(compute_us);
        OutputPart {
            ticket,
            from,
            to,
            queue_us,
            compute_us,
        }
    }
}

/// A part of an unfinished answer: a range of final bytes of the output.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct OutputPart {
    /// Ticket of the sample ([`Arrival::ticket`]).
    pub ticket: u64,
    /// Offset in the output: the end of the part before, or 0.
    pub from: u32,
    /// End offset; greater than `from`.
    pub to: u32,
    /// Microseconds from the sample's arrival until the engine took the sample.
    pub queue_us: u32,
    /// Microseconds from when the engine took the sample until this part was final.
    pub compute_us: u32,
}

/// Source of arrivals and sink of their responses: a connection, or LoadGen in a one-process run.
pub trait Origin: Send + Sync {
    /// Sends responses of this origin's samples, up to a whole batch per call, so that one doorbell
    /// suffices. From the call on, the origin owns the outputs.
    fn respond(&self, finished: &[Finished]);

    /// Sends a refusal in place of an answer or of its unsent rest: the engine could not run the
    /// sample. The connection and its other samples go on.
    fn refuse(&self, ticket: u64, why: &str);

    /// Returns a sample that the engine cannot run for now, through no fault of the sample.
    fn give_back(&self, ticket: u64, why: &str) {
        self.refuse(ticket, why);
    }

    /// Whether a sample given back can run on another accelerator. If not, an engine that cannot
    /// run samples for now keeps it until it can.
    fn has_elsewhere(&self) -> bool {
        false
    }

    /// Records that a sample was dropped without answer or refusal, because the origin is gone
    /// ([`Origin::is_gone`]), the sample is cancelled ([`Origin::is_cancelled`]), or the engine
    /// failed. The origin may reuse the slot only from this call on. Each sample ends with
    /// exactly one call of [`Origin::respond`], [`Origin::refuse`] or this method.
    fn dropped(&self, ticket: u64) {
        let _ = ticket;
    }

    /// Sends parts of answers, but not the last parts, which [`Origin::respond`] sends, with one
    /// doorbell. From the call on, the origin owns each output up to [`OutputPart::to`]. Called
    /// only if [`Origin::stream`] asks for parts, and in order for each sample.
    fn parts(&self, parts: &[OutputPart]) {
        let _ = parts;
    }

    /// Whether the origin wants answers in parts, and in which.
    fn stream(&self) -> Stream {
        Stream::None
    }

    /// Whether responses can no longer be delivered. Threads then drop this origin's samples.
    fn is_gone(&self) -> bool {
        false
    }

    /// Whether the frontend has cancelled the sample. An engine may drop it ([`Origin::dropped`]),
    /// and may answer it.
    fn is_cancelled(&self, ticket: u64) -> bool {
        let _ = ticket;
        false
    }

    /// GPU whose engine must run the samples; `None` for any GPU.
    fn gpu(&self) -> Option<u32> {
        None
    }
}

/// One sample: the input in the fabric's slot, and an output buffer that the origin sends from.
///
/// An arrival dropped without an answer leaves its slot in use until its connection ends: drop one
/// only if the connection is lost. The origin refuses a dropped arrival whose sample is cancelled,
/// and counts each drop ([`Origin::dropped`]).
pub struct Arrival {
    input: *const u8,
    len: u32,
    output: *mut u8,
    capacity: u32,
    ticket: u64,
    arrived_ns: u64,
    /// Bytes of the block of options in front of the input.
    options: u16,
    on_device: bool,
    /// The origin has got the response or refusal, or gets it from the current call.
    ended: bool,
    origin: Arc<dyn Origin>,
}

// SAFETY: by `new`, no thread writes the input and no other thread accesses the output.
unsafe impl Send for Arrival {}
// SAFETY: `&Arrival` gives only shared access to the input, which no thread writes.
unsafe impl Sync for Arrival {}

impl Arrival {
    /// # Safety
    /// Until the arrival's response is given to `origin`: `input` must be readable for `len` bytes
    /// that no thread writes, unless [`Arrival::on_device`] follows. `output` must be writable for
    /// `capacity` bytes that no other thread accesses. `origin` must keep both alive.
    pub unsafe fn new(
        input: *const u8,
        len: u32,
        output: *mut u8,
        capacity: u32,
        ticket: u64,
        arrived_ns: u64,
        origin: Arc<dyn Origin>,
    ) -> Self {
        Arrival {
            input,
            len,
            output,
            capacity,
            ticket,
            arrived_ns,
            options: 0,
            on_device: false,
            ended: false,
            origin,
        }
    }

    /// With `on_device`, marks the input as device memory
    /// ([`Region::of_device`](fabric::Region::of_device)). The promise of [`Arrival::new`] then
    /// holds for the device, and this process does not dereference the input's address.
    #[must_use]
    pub fn on_device(mut self, on_device: bool) -> Self {
        self.on_device = on_device;
        self
    }

    /// Takes the first `bytes` bytes of the input, in host memory, as the request's options.
    #[must_use]
    pub fn behind_options(mut self, bytes: u16) -> Self {
        self.options = bytes.min(u16::try_from(self.len).unwrap_or(u16::MAX));
        self.input = self.input.wrapping_add(usize::from(self.options));
        self.len -= u32::from(self.options);
        self
    }

    /// The request's options ([`crate::request`]): most requests have none.
    ///
    /// # Errors
    /// [`OptionsError`] is the reason to refuse the sample.
    pub fn options(&self) -> Result<RequestOptions, OptionsError> {
        let bytes = usize::from(self.options);
        // SAFETY: `behind_options` moved `input` by these bytes, which `new` promises readable.
        let block = unsafe { std::slice::from_raw_parts(self.input.sub(bytes), bytes) };
        RequestOptions::decode(block)
    }

    /// Whether the input lies in a device's memory: this process knows only its address and length.
    pub fn is_on_device(&self) -> bool {
        self.on_device
    }

    /// The sample's bytes, at their true length; empty if the input lies in a device's memory.
    pub fn input(&self) -> &[u8] {
        if self.on_device {
            return &[];
        }
        // SAFETY: the caller of `new` promised that `input` is readable for `len` bytes.
        unsafe { std::slice::from_raw_parts(self.input, self.len as usize) }
    }

    /// True length of the input in bytes, in host or device memory.
    pub fn input_len(&self) -> usize {
        self.len as usize
    }

    /// Address of the input. Samples are contiguous if their addresses differ by the sample size.
    pub fn address(&self) -> usize {
        self.input as usize
    }

    /// Output buffer for the response.
    pub fn output(&mut self) -> &mut [u8] {
        // SAFETY: `new` promises `capacity` writable bytes; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.output, self.capacity as usize) }
    }

    /// The output buffer from byte `offset` on; empty beyond its end. The origin may read earlier
    /// parts ([`Origin::parts`]) while the caller writes behind them.
    pub fn output_from(&mut self, offset: usize) -> &mut [u8] {
        let offset = offset.min(self.capacity as usize);
        // SAFETY: by `new`, this arrival alone accesses `capacity` bytes; `offset` is at most that.
        unsafe {
            std::slice::from_raw_parts_mut(self.output.add(offset), self.capacity as usize - offset)
        }
    }

    /// Length of the output buffer in bytes.
    pub fn output_len(&self) -> usize {
        self.capacity as usize
    }

    /// The origin's identifier of the sample.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// Arrival time on this process's [`fabric::clock`].
    pub fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// Refuses the sample ([`Origin::refuse`]). From the call on, the origin owns the output.
    pub fn refuse(mut self, why: &dyn fmt::Display) {
        self.ended = true;
        let (origin, ticket) = (Arc::clone(&self.origin), self.ticket);
        // Drop before the origin may use the slot again.
        drop(self);
        origin.refuse(ticket, &why.to_string());
    }

    /// Gives the sample back ([`Origin::give_back`]). From the call on, the origin owns the output.
    pub fn give_back(mut self, why: &str) {
        self.ended = true;
        let (origin, ticket) = (Arc::clone(&self.origin), self.ticket);
        // Drop before the origin may use the slot again.
        drop(self);
        origin.give_back(ticket, why);
    }

    /// Answers one sample ([`Origin::respond`]). From the call on, the origin owns the output.
    pub fn respond(mut self, finished: &Finished) {
        self.ended = true;
        let origin = Arc::clone(&self.origin);
        // Drop before the origin may use the slot again.
        drop(self);
        origin.respond(std::slice::from_ref(finished));
    }

    /// Whether an answer is wanted: the origin is not gone, and the sample is not cancelled.
    pub fn is_wanted(&self) -> bool {
        !self.origin.is_gone() && !self.origin.is_cancelled(self.ticket)
    }

    /// The origin that gets the response.
    pub fn origin(&self) -> &Arc<dyn Origin> {
        &self.origin
    }
}

impl Drop for Arrival {
    fn drop(&mut self) {
        if !self.ended {
            self.origin.dropped(self.ticket);
        }
    }
}

impl fmt::Debug for Arrival {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "Arrival(ticket {}, {} bytes)", self.ticket, self.len)
    }
}

/// Sends the responses of a batch to their origins, with one call per sequence of equal origins.
///
/// Clears and reuses `scratch`, so a warm `scratch` costs no allocation.
pub fn respond_all(
    batch: impl IntoIterator<Item = (Arrival, Finished)>,
    scratch: &mut Vec<Finished>,
) {
    scratch.clear();
    // The first arrival of a sequence keeps the origin alive and is not used otherwise. The loop
    // drops the sequence's later arrivals.
    let mut current: Option<Arrival> = None;
    for (mut arrival, finished) in batch {
        arrival.ended = true;
        match &current {
            Some(first) if Arc::ptr_eq(&first.origin, &arrival.origin) => {}
            before => {
                if let Some(before) = before {
                    before.origin.respond(scratch);
                    scratch.clear();
                }
                current = Some(arrival);
            }
        }
        scratch.push(finished);
    }
    if let Some(last) = current {
        last.origin.respond(scratch);
        scratch.clear();
    }
}

/// Consumer of a NIC thread's arrivals.
pub trait Service: Send + Sync {
    /// Takes the arrivals of one poll out of `arrivals`, on the NIC thread. Must return quickly:
    /// its duration delays every connection of the NIC.
    fn arrived(&self, arrivals: &mut Vec<Arrival>);

    /// Registers a region of sample memory with a device. Called once per region, before its first
    /// sample, on a separate thread, so this call may take long.
    fn memory(&self, inputs: &Arc<Region>) {
        let _ = inputs;
    }

    /// Allocates at least `bytes` of a GPU's memory for a connection's slots, on `gpu` or on the
    /// only GPU. Called before the connection is opened. Only that GPU may read samples that land
    /// there.
    ///
    /// # Errors
    /// No such memory is available; the error says why. The slots are then in host memory.
    fn slots(&self, gpu: Option<u32>, bytes: usize) -> Result<Arc<Region>, String> {
        let _ = (gpu, bytes);
        Err("nothing here reads slots in the memory of a GPU".to_owned())
    }
}
