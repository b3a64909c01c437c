//! Prompts in memory of the test, and an origin that takes answers in parts and checks each part
//! against the contract.

use std::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
};

use fabric::{clock, wire::Stream};
use qdl::serve::{Arrival, Finished, Origin, Part};

/// Initial value of each output byte.
pub const BLANK: u8 = 0xEE;

/// Everything that arrived for one prompt.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Came {
    /// Begin and end of each part.
    pub parts: Vec<(u32, u32)>,
    /// Bytes of all parts, copied when each part came.
    pub bytes: Vec<u8>,
    /// Sum of the times from arrival to each part, in microseconds.
    pub sum_us: u64,
    /// The response.
    pub finished: Option<Finished>,
    /// Number of responses.
    pub answered: usize,
}

/// Called with each part, before the part is recorded.
type OnPart = Box<dyn Fn(&Prompts, &Part) + Send + Sync>;

/// Prompts; ticket `i` is prompt `i`.
pub struct Prompts {
    inputs: Vec<Vec<u8>>,
    outputs: Box<[UnsafeCell<u8>]>,
    /// Size of each output, in bytes.
    capacity: usize,
    stream: Stream,
    came: Vec<Mutex<Came>>,
    gone: AtomicBool,
    refused: Mutex<Vec<(u64, String)>>,
    dropped: AtomicUsize,
    total: AtomicUsize,
    on_part: Option<OnPart>,
}

// SAFETY: the one arrival that holds an output writes it. The origin and the test read a byte only
// after a part or response that covers it.
unsafe impl Sync for Prompts {}
// SAFETY: as for `Sync`; no field is bound to a thread.
unsafe impl Send for Prompts {}

impl Prompts {
    pub fn new(prompts: &[Vec<i32>], capacity: usize, stream: Stream) -> Arc<Self> {
        Self::of_bytes(Self::bytes(prompts), capacity, stream)
    }

    /// With something that happens at each part; of any bytes.
    pub fn acting(
        inputs: Vec<Vec<u8>>,
        capacity: usize,
        stream: Stream,
        on_part: impl Fn(&Prompts, &Part) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let mut this = Self::raw(inputs, capacity, stream);
        this.on_part = Some(Box::new(on_part));
        Arc::new(this)
    }

    /// Of any bytes.
    pub fn of_bytes(inputs: Vec<Vec<u8>>, capacity: usize, stream: Stream) -> Arc<Self> {
        Arc::new(Self::raw(inputs, capacity, stream))
    }

    /// Prompts as they lie in a slot.
    pub fn bytes(prompts: &[Vec<i32>]) -> Vec<Vec<u8>> {
        let bytes = |p: &Vec<i32>| p.iter().flat_map(|id| id.to_le_bytes()).collect();
        prompts.iter().map(bytes).collect()
    }

    fn raw(inputs: Vec<Vec<u8>>, capacity: usize, stream: Stream) -> Self {
        let cells = (0..inputs.len() * capacity).map(|_| UnsafeCell::new(BLANK));
        Prompts {
            came: inputs.iter().map(|_| Mutex::default()).collect(),
            inputs,
            outputs: cells.collect(),
            capacity,
            stream,
            gone: AtomicBool::new(false),
            refused: Mutex::default(),
            dropped: AtomicUsize::new(0),
            total: AtomicUsize::new(0),
            on_part: None,
        }
    }

    pub fn len(&self) -> usize {
        self.inputs.len()
    }

    pub fn arrival(self: &Arc<Self>, i: usize) -> Arrival {
        self.arrival_of(i, self.inputs[i].len())
    }

    /// Arrival of prompt `i` with this many bytes of its prompt.
    pub fn arrival_of(self: &Arc<Self>, i: usize, len: usize) -> Arrival {
        let input = &self.inputs[i][..len];
        let output = self.outputs[i * self.capacity..].as_ptr();
        let output = UnsafeCell::raw_get(output);
        // SAFETY: the origin owns input and output, the input is never written, and each test has
        // at most one living arrival per index, so no other code touches its output.
        unsafe {
            Arrival::new(
                input.as_ptr(),
                len as u32,
                output,
                self.capacity as u32,
                i as u64,
                clock::now_ns(),
                Arc::clone(self) as Arc<dyn Origin>,
            )
        }
    }

    pub fn arrivals(self: &Arc<Self>) -> Vec<Arrival> {
        (0..self.len()).map(|i| self.arrival(i)).collect()
    }

    /// Returns bytes of an output. Bytes beyond the received parts may be read only after the
    /// arrival has ended.
    pub fn output(&self, i: usize, from: usize, to: usize) -> Vec<u8> {
        assert!(to <= self.capacity, "past the slot");
        let at = i * self.capacity;
        let cells = &self.outputs[at + from..at + to];
        // SAFETY: as for `Sync`, or by the condition above.
        cells.iter().map(|c| unsafe { *c.get() }).collect()
    }

    pub fn came(&self, i: usize) -> Came {
        self.lock(i).clone()
    }

    /// Returns the tokens of prompt `i`, from its parts and its response.
    pub fn tokens(&self, i: usize) -> Vec<i32> {
        let came = self.lock(i);
        let (ids, rest) = came.bytes.as_chunks::<4>();
        assert_eq!(rest, [0u8; 0], "a part of a token");
        ids.iter().map(|b| i32::from_le_bytes(*b)).collect()
    }

    /// Bytes of each output.
    pub fn capacity(&self) -> usize {
        self.capacity
    }

    /// Prompts answered.
    pub fn total(&self) -> usize {
        self.total.load(SeqCst)
    }

    /// Ends the connection: from now on the origin counts as gone.
    pub fn leave(&self) {
        self.gone.store(true, SeqCst);
    }

    /// Returns the number of samples dropped without an answer.
    pub fn dropped(&self) -> usize {
        self.dropped.load(SeqCst)
    }

    pub fn refused(&self) -> Vec<(u64, String)> {
        let refused = self.refused.lock();
        refused.unwrap_or_else(PoisonError::into_inner).clone()
    }

    fn lock(&self, i: usize) -> MutexGuard<'_, Came> {
        self.came[i].lock().unwrap_or_else(PoisonError::into_inner)
    }
}

impl Origin for Prompts {
    fn part(&self, part: &Part) {
        if let Some(act) = &self.on_part {
            act(self, part);
        }
        let i = part.ticket as usize;
        let mut came = self.lock(i);
        assert!(came.finished.is_none(), "a part after the last");
        assert_eq!(
            part.from as usize,
            came.bytes.len(),
            "behind the one before"
        );
        assert!(part.to > part.from, "an empty part");
        assert_ne!(self.stream, Stream::None, "nobody wants parts");
        came.parts.push((part.from, part.to));
        came.sum_us += u64::from(part.queue_us) + u64::from(part.compute_us);
        let bytes = self.output(i, part.from as usize, part.to as usize);
        came.bytes.extend(bytes);
    }

    fn respond(&self, finished: &[Finished]) {
        for f in finished {
            let i = f.ticket as usize;
            let mut came = self.lock(i);
            assert_eq!(f.sent.bytes as usize, came.bytes.len());
            assert_eq!(f.sent.parts as usize, came.parts.len());
            assert_eq!(f.sent.sum_us, came.sum_us);
            let bytes = self.output(i, came.bytes.len(), f.len as usize);
            came.bytes.extend(bytes);
            assert_eq!(
                came.bytes,
                self.output(i, 0, f.len as usize),
                "what was sent has changed since"
            );
            came.finished = Some(*f);
            came.answered += 1;
        }
        self.total.fetch_add(finished.len(), SeqCst);
    }

    fn refuse(&self, ticket: u64, why: &str) {
        let mut refused = self.refused.lock().unwrap_or_else(PoisonError::into_inner);
        refused.push((ticket, why.to_owned()));
    }

    fn dropped(&self, _: u64) {
        self.dropped.fetch_add(1, SeqCst);
    }

    fn stream(&self) -> Stream {
        self.stream
    }

    fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }
}
