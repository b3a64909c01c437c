//! Samples in the test's memory, and an origin that records the responses.

#[allow(dead_code, reason = "the tests of the pipeline use more of it")]
#[path = "../../../../tests/common/prompts.rs"]
mod prompts;

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::Duration,
};

use fabric::wire::Stream;
use prompts::{BLANK, Prompts};
use qdl::serve::{Finished, Part};

use crate::engine::{
    Engine, EngineError, EngineKind, EngineParams, Sequence, Streaming, http::Http,
    streaming::Outcome,
};

pub use qdl::testkit::eventually;

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
    prompts: Arc<Prompts>,
    /// Taking a part panics.
    pub panics: Arc<AtomicBool>,
    ends: Mutex<Vec<bool>>,
}

impl Samples {
    pub fn new(prompts: &[Vec<i32>], stream: Stream) -> Arc<Self> {
        Self::with_room(prompts, stream, ROOM)
    }

    /// Samples with slots for `room` tokens.
    pub fn with_room(prompts: &[Vec<i32>], stream: Stream, room: usize) -> Arc<Self> {
        Self::of_bytes(Prompts::bytes(prompts), stream, room)
    }

    pub fn of_bytes(inputs: Vec<Vec<u8>>, stream: Stream, room: usize) -> Arc<Self> {
        let ends = Mutex::new(vec![false; inputs.len()]);
        let panics = Arc::new(AtomicBool::new(false));
        let panics_now = panics.clone();
        let act = move |_: &Prompts, _: &Part| {
            assert!(!panics_now.load(SeqCst), "no part is taken");
        };
        Arc::new(Samples {
            prompts: Prompts::acting(inputs, room * 4, stream, act),
            panics,
            ends,
        })
    }

    pub fn submit(self: &Arc<Self>, i: usize, to: &dyn Streaming) {
        let samples = Arc::clone(self);
        let arrival = self.prompts.arrival(i);
        to.submit(Sequence::new(arrival, ROOM * 4, move |_: Outcome| {
            samples.ends.lock().expect("whole")[i] = true;
        }));
    }

    /// From now on no frontend waits for an answer.
    pub fn leave(&self) {
        self.prompts.leave();
    }

    pub fn ended(&self) -> usize {
        let ends = self.ends.lock().expect("whole");
        ends.iter().filter(|ended| **ended).count()
    }

    pub fn fate(&self, i: usize) -> Fate {
        let came = self.prompts.came(i);
        assert!(came.answered <= 1, "answered twice");
        let mut refused = self.prompts.refused();
        refused.retain(|(ticket, _)| *ticket == i as u64);
        assert!(refused.len() <= 1, "refused twice");
        Fate {
            answer: came.finished.map(|_| self.prompts.tokens(i)),
            parts: came.parts,
            finished: came.finished,
            refused: refused.pop().map(|(_, why)| why),
            ended: self.ends.lock().expect("whole")[i],
        }
    }

    /// Whether the room of this answer is still as it was made.
    pub fn is_blank(&self, i: usize) -> bool {
        let room = self.prompts.capacity();
        self.prompts.output(i, 0, room).iter().all(|b| *b == BLANK)
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
        let n = samples.prompts.len();
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
