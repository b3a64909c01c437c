//! Samples in the test's memory, and an origin that records the responses.

use std::{
    cell::UnsafeCell,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, AtomicUsize, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use fabric::clock;
use fabric::wire::Stream;
use qdl::serve::{Arrival, Finished, Origin, Part};

use crate::engine::{
    Engine, EngineError, EngineKind, EngineParams, Sequence, Streaming, http::Http,
    streaming::Outcome,
};

/// Limit of an answer in tokens.
pub const ROOM: usize = 64;
/// Limit of a prompt in ids.
pub const PROMPT: usize = 32;
/// Size of the vocabulary.
pub const VOCAB: usize = 1000;

/// Record of one sample.
#[derive(Clone, Debug, Default)]
pub struct Fate {
    pub parts: Vec<(u32, u32)>,
    pub answer: Option<Vec<i32>>,
    pub finished: Option<Finished>,
    pub refused: Option<String>,
    pub ended: bool,
}

/// Prompts and the memory for their answers. Ticket `i` is sample `i`.
pub struct Samples {
    inputs: Vec<Vec<u8>>,
    outputs: Vec<UnsafeCell<[u8; ROOM * 4]>>,
    room: usize,
    stream: Stream,
    pub gone: AtomicBool,
    /// True makes `part` panic.
    pub panics: AtomicBool,
    fates: Mutex<Vec<Fate>>,
    ended: AtomicUsize,
}

// SAFETY: only the arrival that holds an output accesses it, and `respond` after that arrival.
unsafe impl Sync for Samples {}

impl Samples {
    pub fn new(prompts: &[Vec<i32>], stream: Stream) -> Arc<Self> {
        Self::with_room(prompts, stream, ROOM)
    }

    /// Samples with slots for `room` tokens.
    pub fn with_room(prompts: &[Vec<i32>], stream: Stream, room: usize) -> Arc<Self> {
        let bytes = |p: &Vec<i32>| p.iter().flat_map(|id| id.to_le_bytes()).collect();
        Self::of_bytes(prompts.iter().map(bytes).collect(), stream, room)
    }

    pub fn of_bytes(inputs: Vec<Vec<u8>>, stream: Stream, room: usize) -> Arc<Self> {
        assert!(room <= ROOM);
        let n = inputs.len();
        Arc::new(Samples {
            inputs,
            outputs: (0..n).map(|_| UnsafeCell::new([0xEE; ROOM * 4])).collect(),
            room,
            stream,
            gone: AtomicBool::new(false),
            panics: AtomicBool::new(false),
            fates: Mutex::new(vec![Fate::default(); n]),
            ended: AtomicUsize::new(0),
        })
    }

    pub fn submit(self: &Arc<Self>, i: usize, to: &dyn Streaming) {
        let input = &self.inputs[i];
        let origin: Arc<dyn Origin> = Arc::clone(self) as Arc<dyn Origin>;
        // SAFETY: the origin owns both buffers and outlives the arrival; nothing writes the input,
        // and each test makes one arrival per index.
        let arrival = unsafe {
            Arrival::new(
                input.as_ptr(),
                input.len() as u32,
                self.outputs[i].get().cast(),
                (self.room * 4) as u32,
                i as u64,
                clock::now_ns(),
                origin,
            )
        };
        let samples = Arc::clone(self);
        to.submit(Sequence::new(arrival, ROOM * 4, move |_: Outcome| {
            samples.fates.lock().expect("whole")[i].ended = true;
            samples.ended.fetch_add(1, SeqCst);
        }));
    }

    pub fn ended(&self) -> usize {
        self.ended.load(SeqCst)
    }

    pub fn fate(&self, i: usize) -> Fate {
        self.fates.lock().expect("whole")[i].clone()
    }

    /// The bytes after the slot of an answer, which the engine must not write.
    pub fn behind(&self, i: usize) -> Vec<u8> {
        // SAFETY: as for `Sync`; called after the end of the sample.
        unsafe { (&(*self.outputs[i].get()))[self.room * 4..].to_vec() }
    }

    fn tokens(&self, i: usize, len: u32) -> Vec<i32> {
        // SAFETY: as for `Sync`: the arrival has passed the output to the origin.
        let bytes = unsafe { &(&(*self.outputs[i].get()))[..len as usize] };
        let (ids, rest) = bytes.as_chunks::<4>();
        assert!(rest.is_empty(), "whole ids");
        ids.iter().map(|id| i32::from_le_bytes(*id)).collect()
    }
}

impl Origin for Samples {
    fn respond(&self, finished: &[Finished]) {
        for f in finished {
            let i = f.ticket as usize;
            let answer = self.tokens(i, f.len);
            let fate = &mut self.fates.lock().expect("whole")[i];
            assert!(fate.answer.is_none(), "answered twice");
            fate.answer = Some(answer);
            fate.finished = Some(*f);
        }
    }

    fn refuse(&self, ticket: u64, why: &str) {
        let fate = &mut self.fates.lock().expect("whole")[ticket as usize];
        assert!(fate.refused.is_none(), "refused twice");
        fate.refused = Some(why.to_owned());
    }

    fn part(&self, part: &Part) {
        assert!(!self.panics.load(SeqCst), "no part is taken");
        let fate = &mut self.fates.lock().expect("whole")[part.ticket as usize];
        fate.parts.push((part.from, part.to));
    }

    fn stream(&self) -> Stream {
        self.stream
    }

    fn is_gone(&self) -> bool {
        self.gone.load(SeqCst)
    }
}

/// Prompts of every length, all different.
pub fn prompts(n: usize) -> Vec<Vec<i32>> {
    let id = |i: usize, k: usize| ((i * 31 + k * 7) % VOCAB) as i32;
    (0..n)
        .map(|i| (0..=i % PROMPT).map(|k| id(i, k)).collect())
        .collect()
}

/// The parameters of an engine for the server at `url`.
pub fn params(url: &str, dialect: qdl::config::Dialect) -> EngineParams {
    let mut params = EngineParams::new(EngineKind::Http);
    params.spec = Some(qdl::model::ModelSpec::of_tokens("m", PROMPT, ROOM));
    let mut http = qdl::config::HttpConfig::new(url, dialect);
    http.vocab = Some(VOCAB);
    http.connect_ms = 2000;
    http.first_token_s = 20;
    http.next_token_s = 20;
    http.busy_s = 5;
    params.engine.http = Some(http);
    params
}

/// An engine, and the errors that ended it.
pub struct Started {
    pub http: Arc<Http>,
    pub fatal: Arc<Mutex<Vec<String>>>,
}

impl Started {
    pub fn fatal(&self) -> Vec<String> {
        self.fatal.lock().expect("whole").clone()
    }

    /// Runs all samples, up to the engine's limit at once.
    pub fn run(&self, samples: &Arc<Samples>) {
        let n = samples.inputs.len();
        for i in 0..n {
            let most = self.http.in_flight();
            eventually("a place", || i - samples.ended() < most);
            samples.submit(i, &*self.http);
        }
        eventually("all samples end", || samples.ended() == n);
    }
}

impl Drop for Started {
    fn drop(&mut self) {
        self.http.stop(Duration::from_secs(10));
    }
}

/// Opens and starts the engine.
pub fn start(params: &EngineParams) -> Result<Started, EngineError> {
    let http = Arc::new(Http::open(params)?);
    assert!(http.counts_tokens() && http.streaming().is_some());
    let fatal: Arc<Mutex<Vec<String>>> = Arc::default();
    let told = fatal.clone();
    http.start(Arc::new(move |e| {
        told.lock().expect("whole").push(e.to_string())
    }))?;
    Ok(Started { http, fatal })
}

/// Waits until `holds` returns true; fails after 60 s.
pub fn eventually(what: &str, mut holds: impl FnMut() -> bool) {
    let deadline = Instant::now() + Duration::from_secs(60);
    while !holds() {
        assert!(Instant::now() < deadline, "in vain: {what}");
        std::thread::sleep(Duration::from_micros(200));
    }
}
