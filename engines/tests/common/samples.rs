//! Samples in memory of the test, and an origin that takes answers, whole or in parts, and checks
//! them against the contract.

use std::{
    cell::UnsafeCell,
    collections::VecDeque,
    ops::Range,
    sync::{
        Arc, Mutex, MutexGuard, PoisonError,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::Duration,
};

use fabric::{clock, wire::Stream};
use qdl::{
    serve::{Arrival, Finished, Origin, OutputPart},
    testkit::eventually,
};

use super::{Engine, EngineError, Sequence, SequenceOutcome, SequenceSource, Streaming};

/// Initial value of each output byte.
pub const BLANK: u8 = 0xEE;

/// Returns the expected response to a sample.
pub type Answer = fn(&[u8]) -> Vec<u8>;

/// Called with each part, before the part is recorded.
type OnPart = Box<dyn Fn(&Samples, &OutputPart) + Send + Sync>;

#[derive(Clone, Debug, Default, PartialEq)]
pub struct SampleRecord {
    pub parts: Vec<(u32, u32)>,
    /// Bytes of all parts, copied when each part came, then those of the response.
    pub bytes: Vec<u8>,
    /// Sum of the times from arrival to each part, in microseconds.
    pub sum_us: u64,
    pub finished: Option<Finished>,
    pub answered: usize,
    pub refused: Option<String>,
    pub ended: Option<SequenceOutcome>,
}

impl SampleRecord {
    pub fn answer(&self) -> Option<Vec<i32>> {
        assert!(self.answered <= 1, "answered twice");
        let (ids, rest) = self.bytes.as_chunks::<4>();
        assert_eq!(rest, [0u8; 0], "a part of a token");
        let ids = ids.iter().map(|b| i32::from_le_bytes(*b));
        self.finished.map(|_| ids.collect())
    }
}

/// Memory for inputs and outputs; ticket `i` is sample `i`.
pub struct Samples {
    /// Words, so that the first sample is aligned for every element type.
    inputs: Box<[u64]>,
    /// Offset and length of each sample in `inputs`.
    spans: Vec<(usize, usize)>,
    outputs: Box<[UnsafeCell<u8>]>,
    capacity: usize,
    records: Vec<Mutex<SampleRecord>>,
    total: AtomicUsize,
    ended: AtomicUsize,
    dropped: AtomicUsize,
    /// Expected response, if the origin checks responses when they come.
    expect: Option<Answer>,
    stream: Stream,
    on_part: Option<OnPart>,
    gone: AtomicBool,
    /// Samples given back have no other place.
    alone: AtomicBool,
    gpu: Option<u32>,
}

// SAFETY: the one arrival that holds an output writes it. The origin and the test read a byte only
// after a part or response that covers it.
unsafe impl Sync for Samples {}
// SAFETY: as for `Sync`; no field is bound to a thread.
unsafe impl Send for Samples {}

impl Samples {
    /// `spans` holds offset and length of each sample in `inputs`; outputs have `capacity` bytes.
    pub fn new(
        inputs: &[u8],
        spans: Vec<(usize, usize)>,
        capacity: usize,
        expect: Option<Answer>,
    ) -> Arc<Self> {
        let mut samples = Self::plain(inputs, spans, capacity);
        samples.expect = expect;
        Arc::new(samples)
    }

    /// Samples of random bytes, one after the other.
    pub fn random(sizes: &[usize], capacity: usize, expect: Option<Answer>) -> Arc<Self> {
        Self::on_gpu(None, sizes, capacity, expect)
    }

    /// The same over a connection that belongs to a GPU.
    pub fn on_gpu(
        gpu: Option<u32>,
        sizes: &[usize],
        capacity: usize,
        expect: Option<Answer>,
    ) -> Arc<Self> {
        let mut bytes = vec![0; sizes.iter().sum()];
        fastrand::Rng::with_seed(1).fill(&mut bytes);
        let mut samples = Self::plain(&bytes, spans(sizes.iter().copied()), capacity);
        (samples.expect, samples.gpu) = (expect, gpu);
        Arc::new(samples)
    }

    /// Prompts of token ids, whose answers may come in parts.
    pub fn prompts(prompts: &[Vec<i32>], capacity: usize, stream: Stream) -> Arc<Self> {
        Self::acting(prompts, capacity, stream, |_, _| ())
    }

    /// Prompts with something that happens at each part.
    pub fn acting(
        prompts: &[Vec<i32>],
        capacity: usize,
        stream: Stream,
        on_part: impl Fn(&Samples, &OutputPart) + Send + Sync + 'static,
    ) -> Arc<Self> {
        let bytes = prompts.iter().flatten().flat_map(|id| id.to_le_bytes());
        let spans = spans(prompts.iter().map(|p| 4 * p.len()));
        let mut samples = Self::plain(&bytes.collect::<Vec<_>>(), spans, capacity);
        samples.stream = stream;
        samples.on_part = Some(Box::new(on_part));
        Arc::new(samples)
    }

    fn plain(inputs: &[u8], spans: Vec<(usize, usize)>, capacity: usize) -> Self {
        let mut words = vec![0u64; inputs.len().div_ceil(8)].into_boxed_slice();
        for (word, bytes) in words.iter_mut().zip(inputs.chunks(8)) {
            let mut le = [0; 8];
            le[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_ne_bytes(le);
        }
        assert!(spans.iter().all(|(at, len)| at + len <= inputs.len()));
        let outputs = (0..spans.len() * capacity).map(|_| UnsafeCell::new(BLANK));
        Samples {
            inputs: words,
            outputs: outputs.collect(),
            records: spans.iter().map(|_| Mutex::default()).collect(),
            spans,
            capacity,
            total: AtomicUsize::new(0),
            ended: AtomicUsize::new(0),
            dropped: AtomicUsize::new(0),
            expect: None,
            stream: Stream::None,
            on_part: None,
            gone: AtomicBool::new(false),
            alone: AtomicBool::new(false),
            gpu: None,
        }
    }

    pub fn len(&self) -> usize {
        self.spans.len()
    }

    pub fn input(&self, i: usize) -> &[u8] {
        let (at, len) = self.spans[i];
        // SAFETY: `plain` checked that the span lies inside the words, which are plain bytes.
        unsafe { std::slice::from_raw_parts(self.inputs.as_ptr().cast::<u8>().add(at), len) }
    }

    /// An output, after the arrival has ended.
    pub fn output(&self, i: usize) -> &[u8] {
        self.received(i, 0..self.capacity)
    }

    fn received(&self, i: usize, range: Range<usize>) -> &[u8] {
        let cells = &self.outputs[i * self.capacity..][..self.capacity][range];
        // SAFETY: as for `Sync`.
        unsafe { std::slice::from_raw_parts(cells.as_ptr().cast::<u8>(), cells.len()) }
    }

    pub fn arrival(self: &Arc<Self>, i: usize) -> Arrival {
        let input = self.input(i);
        let output = UnsafeCell::raw_get(self.outputs[i * self.capacity..].as_ptr());
        // SAFETY: the origin owns input and output, the input is never written, and each test has
        // at most one living arrival per index, so no other code touches its output.
        unsafe {
            Arrival::new(
                input.as_ptr(),
                input.len() as u32,
                output,
                self.capacity as u32,
                i as u64,
                clock::now_ns(),
                Arc::clone(self) as Arc<dyn Origin>,
            )
        }
    }

    pub fn arrivals(self: &Arc<Self>, of: Range<usize>) -> Vec<Arrival> {
        of.map(|i| self.arrival(i)).collect()
    }

    pub fn all(self: &Arc<Self>) -> Vec<Arrival> {
        self.arrivals(0..self.len())
    }

    pub fn sequence(self: &Arc<Self>, i: usize, output_bytes: usize) -> Sequence {
        let samples = Arc::downgrade(self);
        let on_end = move |outcome| {
            if let Some(samples) = samples.upgrade() {
                let before = samples.lock(i).ended.replace(outcome);
                assert_eq!(before, None, "it ends once");
                samples.ended.fetch_add(1, SeqCst);
            }
        };
        Sequence::new(self.arrival(i), output_bytes, Arc::new(on_end))
    }

    pub fn ended(&self) -> usize {
        self.ended.load(SeqCst)
    }

    pub fn record(&self, i: usize) -> SampleRecord {
        self.lock(i).clone()
    }

    pub fn answer(&self, i: usize) -> Option<Vec<i32>> {
        self.lock(i).answer()
    }

    pub fn total(&self) -> usize {
        self.total.load(SeqCst)
    }

    pub fn finished(&self) -> Vec<Finished> {
        let each = (0..self.len()).filter_map(|i| self.lock(i).finished);
        each.collect()
    }

    /// Tickets and reasons of refused samples.
    pub fn refused(&self) -> Vec<(u64, String)> {
        let each = (0..self.len()).filter_map(|i| Some((i as u64, self.record(i).refused?)));
        each.collect()
    }

    pub fn dropped(&self) -> usize {
        self.dropped.load(SeqCst)
    }

    /// Ends the connection: from now on the origin counts as gone.
    pub fn leave(&self) {
        self.gone.store(true, SeqCst);
    }

    /// From now on, samples given back have no other place, as in a run without a network.
    pub fn stay(&self) {
        self.alone.store(true, SeqCst);
    }

    pub fn assert_each_answered_once(&self) {
        for i in 0..self.len() {
            assert_eq!(self.lock(i).answered, 1, "sample {i}");
        }
    }

    fn lock(&self, i: usize) -> MutexGuard<'_, SampleRecord> {
        self.records[i]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

/// Offset and length of samples one after the other.
fn spans(sizes: impl Iterator<Item = usize>) -> Vec<(usize, usize)> {
    let mut at = 0;
    let span = |len| {
        at += len;
        (at - len, len)
    };
    sizes.map(span).collect()
}

impl Samples {
    fn part(&self, part: &OutputPart) {
        if let Some(act) = &self.on_part {
            act(self, part);
        }
        let i = part.ticket as usize;
        let mut record = self.lock(i);
        assert!(record.finished.is_none(), "a part after the last");
        let before = record.bytes.len();
        assert_eq!(part.from as usize, before, "behind the one before");
        assert!(part.to > part.from, "an empty part");
        assert_ne!(self.stream, Stream::None, "parts are not wanted");
        record.parts.push((part.from, part.to));
        record.sum_us += u64::from(part.queue_us) + u64::from(part.compute_us);
        let bytes = self.received(i, before..part.to as usize);
        record.bytes.extend_from_slice(bytes);
    }
}

impl Origin for Samples {
    fn gpu(&self) -> Option<u32> {
        self.gpu
    }

    fn parts(&self, parts: &[OutputPart]) {
        parts.iter().for_each(|part| self.part(part));
    }

    fn respond(&self, finished: &[Finished]) {
        for f in finished {
            let (i, len) = (f.ticket as usize, f.len as usize);
            let mut record = self.lock(i);
            let before = record.bytes.len();
            assert_eq!(f.sent.bytes as usize, before);
            assert_eq!(f.sent.parts as usize, record.parts.len());
            assert_eq!(f.sent.sum_us, record.sum_us);
            let got = self.received(i, 0..len);
            record.bytes.extend_from_slice(&got[before..]);
            assert_eq!(record.bytes, got, "what was sent has changed since");
            if let Some(expect) = self.expect {
                assert_eq!(got, expect(self.input(i)), "response of sample {i}");
            }
            record.finished = Some(*f);
            record.answered += 1;
        }
        self.total.fetch_add(finished.len(), SeqCst);
    }

    fn refuse(&self, ticket: u64, why: &str) {
        let before = self.lock(ticket as usize).refused.replace(why.to_owned());
        assert_eq!(before, None, "refused twice");
    }

    fn give_back(&self, ticket: u64, why: &str) {
        self.refuse(ticket, &format!("given back: {why}"));
    }

    fn has_elsewhere(&self) -> bool {
        !self.alone.load(SeqCst)
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

/// Sequences that wait for an engine, without a limit.
#[derive(Default)]
struct Waiting(Mutex<VecDeque<Sequence>>);

impl SequenceSource for Waiting {
    fn next(&self) -> Option<Sequence> {
        self.0.lock().expect("whole").pop_front()
    }

    fn has_next(&self) -> bool {
        !self.0.lock().expect("whole").is_empty()
    }
}

/// A started engine, which dropping stops, and the error that ended it.
pub struct Started<E: Engine + ?Sized> {
    pub engine: Arc<E>,
    /// Folder of its server's files, if it has one.
    pub folder: Option<tempfile::TempDir>,
    waiting: Arc<Waiting>,
    output_bytes: usize,
    fatal: Arc<Mutex<Option<String>>>,
}

impl<E: Engine + ?Sized> Started<E> {
    /// Starts an engine whose answers have up to `output_bytes`.
    pub fn new(engine: Arc<E>, output_bytes: usize) -> Result<Self, EngineError> {
        let fatal: Arc<Mutex<Option<String>>> = Arc::default();
        let first = fatal.clone();
        let streaming = engine.streaming().expect("it batches by itself");
        let waiting: Arc<Waiting> = Arc::default();
        let on_fatal = move |e: EngineError| {
            let mut first = first.lock().expect("whole");
            first.get_or_insert_with(|| e.to_string());
        };
        streaming.start(waiting.clone(), Arc::new(on_fatal))?;
        Ok(Started {
            engine,
            folder: None,
            waiting,
            output_bytes,
            fatal,
        })
    }

    pub fn streaming(&self) -> &dyn Streaming {
        self.engine.streaming().expect("it batches by itself")
    }

    pub fn fatal(&self) -> Option<String> {
        self.fatal.lock().expect("whole").clone()
    }

    pub fn submit_one(&self, samples: &Arc<Samples>, i: usize) {
        let sequence = samples.sequence(i, self.output_bytes);
        self.waiting.0.lock().expect("whole").push_back(sequence);
        self.streaming().wake(&*self.waiting);
    }

    /// Submits all samples, up to `most` at once.
    pub fn submit(&self, samples: &Arc<Samples>, most: usize) {
        for i in 0..samples.len() {
            eventually("a place", || i - samples.ended() < most);
            self.submit_one(samples, i);
        }
    }

    /// Runs these prompts, up to the engine's limit at once.
    pub fn run_prompts(&self, prompts: &[Vec<i32>], stream: Stream) -> Arc<Samples> {
        let samples = Samples::prompts(prompts, self.output_bytes, stream);
        self.run(&samples);
        samples
    }

    /// Runs all samples, up to the engine's limit at once.
    pub fn run(&self, samples: &Arc<Samples>) {
        self.submit(samples, self.streaming().in_flight());
        eventually("all samples end", || samples.ended() == samples.len());
    }
}

impl<E: Engine + ?Sized> Drop for Started<E> {
    fn drop(&mut self) {
        self.streaming().stop(Duration::from_secs(60));
    }
}
