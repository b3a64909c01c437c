//! An engine for a scripted server, and samples for it.

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use fabric::wire::Stream;
use qdl::{
    config::{Dialect, HttpConfig},
    model::ModelSpec,
};

use super::server::Server;
use crate::engine::{
    Engine, EngineError, EngineKind, EngineParams, Streaming, http::Http, streaming::TOKEN_BYTES,
};

pub use crate::engine::testkit::{
    processes,
    samples::{SampleRecord, Samples},
};
pub use qdl::testkit::eventually;

/// Limit of an answer in tokens.
pub const ROOM: usize = 64;
/// Limit of a prompt in ids.
pub const PROMPT: usize = 32;
pub const VOCAB: usize = 1000;

/// Prompts with slots for the longest answer.
pub fn samples(prompts: &[Vec<i32>], stream: Stream) -> Arc<Samples> {
    Samples::prompts(prompts, ROOM * TOKEN_BYTES, stream)
}

/// Prompts of every length, all different.
pub fn prompts(n: usize) -> Vec<Vec<i32>> {
    let id = |i: usize, k: usize| ((i * 31 + k * 7) % VOCAB) as i32;
    (0..n)
        .map(|i| (0..=i % PROMPT).map(|k| id(i, k)).collect())
        .collect()
}

/// The parameters of an engine for the server at `url`.
pub fn params(url: &str, dialect: Dialect) -> EngineParams {
    let mut params = EngineParams::new(EngineKind::Http);
    params.spec = Some(ModelSpec::of_tokens("m", PROMPT, ROOM));
    let mut http = HttpConfig::new(url, dialect);
    http.vocab = Some(VOCAB);
    http.connect_ms = 2000;
    http.first_token_s = 20;
    http.next_token_s = 20;
    http.busy_s = 5;
    params.engine.http = Some(http);
    params
}

/// An engine, and the error that ended it.
pub struct Started {
    pub http: Arc<Http>,
    pub fatal: Arc<Mutex<Option<String>>>,
}

impl Started {
    pub fn fatal(&self) -> Option<String> {
        self.fatal.lock().expect("whole").clone()
    }

    /// Submits all samples, up to `most` at once.
    pub fn submit(&self, samples: &Arc<Samples>, most: usize) {
        for i in 0..samples.len() {
            eventually("a place", || i - samples.ended() < most);
            self.http.submit(samples.sequence(i, ROOM * TOKEN_BYTES));
        }
    }

    /// Runs all samples, up to the engine's limit at once.
    pub fn run(&self, samples: &Arc<Samples>) {
        self.submit(samples, self.http.in_flight());
        eventually("all samples end", || samples.ended() == samples.len());
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
    assert!(http.streaming().is_some());
    let fatal: Arc<Mutex<Option<String>>> = Arc::default();
    let first = fatal.clone();
    http.start(Arc::new(move |e| {
        first
            .lock()
            .expect("whole")
            .get_or_insert_with(|| e.to_string());
    }))?;
    Ok(Started { http, fatal })
}

/// An engine for `server`, with a changed configuration.
pub fn started(server: &Server, dialect: Dialect, change: impl FnOnce(&mut HttpConfig)) -> Started {
    let mut params = params(&server.url, dialect);
    change(params.engine.http.as_mut().expect("http"));
    start(&params).unwrap_or_else(|e| panic!("{e}"))
}

/// Runs one sample; returns its record and the error that ended the engine.
pub fn run_one(
    server: &Server,
    dialect: Dialect,
    change: impl FnOnce(&mut HttpConfig),
) -> (SampleRecord, Option<String>) {
    let started = started(server, dialect, change);
    let samples = samples(&[vec![1, 2, 3]], Stream::First);
    started.run(&samples);
    (samples.record(0), started.fatal())
}
