//! One sample that has arrived and waits for the engine, wherever it came from.

use std::{fmt, sync::Arc};

use fabric::Region;
use fabric::wire::Stream;

/// What became of an [`Arrival`].
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Finished {
    /// The origin's name for the sample ([`Arrival::ticket`]).
    pub ticket: u64,
    /// Bytes of the response that the engine wrote to the output.
    pub len: u32,
    /// Microseconds between arrival and the start of its batch.
    pub queue_us: u32,
    /// Microseconds its batch took in the engine.
    pub compute_us: u32,
    /// What went before, where it was answered in parts.
    pub sent: Sent,
}

/// What of an answer has been sent in parts.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Sent {
    /// Bytes of the output.
    pub bytes: u32,
    /// In how many parts.
    pub parts: u32,
    /// Microseconds from the sample's arrival to each part's posting, added up.
    pub sum_us: u64,
}

/// A part of an answer that goes on: bytes of the output that are final.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Part {
    /// The origin's name for the sample ([`Arrival::ticket`]).
    pub ticket: u64,
    /// Where in the output it begins: where the part before it ended.
    pub from: u32,
    /// Where it ends. Never where it begins.
    pub to: u32,
    /// Microseconds between arrival and the engine taking the sample.
    pub queue_us: u32,
    /// Microseconds from then to now.
    pub compute_us: u32,
}

/// Where arrivals come from and their responses go: a connection of the fabric, or LoadGen itself
/// when everything runs in one process.
pub trait Origin: Send + Sync {
    /// Sends the responses of samples of this origin. Called with as many at once as a batch holds,
    /// so that they leave with one doorbell. The outputs belong to the origin from here on.
    fn respond(&self, finished: &[Finished]);

    /// Answers a sample with a reason in the place of its answer, or of the rest of it: it cannot
    /// be run, or its run failed. The connection and its other samples go on.
    fn refuse(&self, ticket: u64, why: &str);

    /// A sample has ended with neither answer nor refusal: whoever had it dropped it, as it must be
    /// once nothing that is sent arrives ([`Origin::is_gone`]), or where the engine has failed. Of
    /// this, [`Origin::respond`] and [`Origin::refuse`] one comes once for each sample.
    fn dropped(&self, ticket: u64) {
        let _ = ticket;
    }

    /// Sends a part of an answer; more follow, and [`Origin::respond`] with the last. The bytes of
    /// the output up to [`Part::to`] belong to the origin from here on. Called only where
    /// [`Origin::stream`] asks for parts, one after the other for each sample.
    fn part(&self, part: &Part) {
        let _ = part;
    }

    /// Which parts of an answer are wanted before its end.
    fn stream(&self) -> Stream {
        Stream::None
    }

    /// True once nothing that is sent arrives any more: whoever still works on a sample of this
    /// origin drops it.
    fn is_gone(&self) -> bool {
        false
    }

    /// The GPU whose engine its samples are meant for; `None` where any will do.
    fn gpu(&self) -> Option<u32> {
        None
    }
}

/// One sample: its input where it landed, room for its output where it will be sent from.
///
/// Dropping an arrival without answering leaves its slot taken until its connection ends, which is
/// what must happen to a sample whose connection is gone; its origin counts it
/// ([`Origin::dropped`]).
pub struct Arrival {
    input: *const u8,
    len: u32,
    output: *mut u8,
    capacity: u32,
    ticket: u64,
    arrived_ns: u64,
    /// The input lies in memory of a device.
    on_device: bool,
    /// Its origin is told how it ended, or is about to be.
    ended: bool,
    origin: Arc<dyn Origin>,
}

// SAFETY: the two addresses belong to this arrival
// alone (see `new`) and may be used from any thread.
unsafe impl Send for Arrival {}
// SAFETY: `&Arrival` gives only shared access to the input, which nobody writes.
unsafe impl Sync for Arrival {}

impl Arrival {
    /// # Safety
    /// As long as the arrival lives, and until its response is given to `origin`, `input` must
    /// (unless [`Arrival::on_device`] follows) be readable for `len` bytes that nobody writes, and
    /// `output` writable for `capacity` bytes that nobody else touches; `origin` keeps both alive.
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
            on_device: false,
            ended: false,
            origin,
        }
    }

    /// The same sample; where `on_device`, its input lies in memory of a device
    /// ([`Region::of_device`](fabric::Region::of_device)): what [`Arrival::new`] asks of the
    /// input holds for the device, and this process does not follow its address.
    #[must_use]
    pub fn on_device(mut self, on_device: bool) -> Self {
        self.on_device = on_device;
        self
    }

    /// True where the input lies in memory of a device:
    /// its address and length are all there is here.
    pub fn is_on_device(&self) -> bool {
        self.on_device
    }

    /// The sample's bytes, at their true length; none where they lie in memory of a device.
    pub fn input(&self) -> &[u8] {
        if self.on_device {
            return &[];
        }
        // SAFETY: promised in `new`.
        unsafe { std::slice::from_raw_parts(self.input, self.len as usize) }
    }

    /// Its true length in bytes, wherever it lies.
    pub fn input_len(&self) -> usize {
        self.len as usize
    }

    /// Address of the input: neighbours whose addresses
    /// differ by exactly the sample size form a run.
    pub fn address(&self) -> usize {
        self.input as usize
    }

    /// Room for the response.
    pub fn output(&mut self) -> &mut [u8] {
        // SAFETY: promised in `new`; `&mut self` makes the access exclusive.
        unsafe { std::slice::from_raw_parts_mut(self.output, self.capacity as usize) }
    }

    /// The same from byte `at` on, empty beyond its end: where what lies before has been given to
    /// the origin in parts ([`Origin::part`]), which reads it while more is written behind.
    pub fn output_from(&mut self, at: usize) -> &mut [u8] {
        let at = at.min(self.capacity as usize);
        // SAFETY: promised in `new` for all of the room, of which this is the end.
        unsafe { std::slice::from_raw_parts_mut(self.output.add(at), self.capacity as usize - at) }
    }

    /// Bytes of that room.
    pub fn output_len(&self) -> usize {
        self.capacity as usize
    }

    /// The origin's name for it.
    pub fn ticket(&self) -> u64 {
        self.ticket
    }

    /// When it arrived, on this process's [`fabric::clock`].
    pub fn arrived_ns(&self) -> u64 {
        self.arrived_ns
    }

    /// Gives it back without an answer: [`Origin::refuse`]. Its output belongs to the origin from
    /// here on.
    pub fn refuse(mut self, why: &dyn fmt::Display) {
        self.ended = true;
        let (origin, ticket) = (Arc::clone(&self.origin), self.ticket);
        // Before the origin may use its slot again.
        drop(self);
        origin.refuse(ticket, &why.to_string());
    }

    /// Answers it, by itself: [`Origin::respond`]. Its output belongs to the origin from here on.
    pub fn respond(mut self, finished: &Finished) {
        self.ended = true;
        let origin = Arc::clone(&self.origin);
        // Before the origin may use its slot again.
        drop(self);
        origin.respond(std::slice::from_ref(finished));
    }

    /// Where its response goes.
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

/// Gives the responses of a batch to their origins, neighbours of one origin in one call.
///
/// `scratch` is emptied and reused, so that no memory is allocated once it has grown.
pub fn respond_all(
    batch: impl IntoIterator<Item = (Arrival, Finished)>,
    scratch: &mut Vec<Finished>,
) {
    scratch.clear();
    // The first of neighbours stands for their origin: nothing else of it is used any more, and the
    // others are dropped where they are.
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

/// Takes arrivals from a NIC thread.
pub trait Service: Send + Sync {
    /// Called on the NIC thread with all that one poll brought; takes them out of `arrivals` and
    /// returns soon. What the service does inline delays every connection of the NIC.
    fn arrived(&self, arrivals: &mut Vec<Arrival>);

    /// Called once for each piece of memory that samples will lie in, before the first of them: the
    /// place to register it with a device. On a thread of its own, so that it may take its time.
    fn memory(&self, inputs: &Arc<Region>) {
        let _ = inputs;
    }

    /// Memory of a GPU for the slots of a connection, at least `bytes`
    /// of it: of `gpu`, or of the only one. Called before the connection
    /// is made; samples that land there are read by that GPU alone.
    ///
    /// # Errors
    /// Why there is none, in words; then the slots are in the host's memory.
    fn slots(&self, gpu: Option<u32>, bytes: usize) -> Result<Arc<Region>, String> {
        let _ = (gpu, bytes);
        Err("nothing here reads slots in the memory of a GPU".to_owned())
    }
}
