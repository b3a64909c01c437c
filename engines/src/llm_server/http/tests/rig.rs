//! An engine for a scripted server, and samples for it.

use std::sync::Arc;

use crate::config::{Dialect, HttpConfig};
use fabric::wire::Stream;
use qdl::model::ModelSpec;

use super::server::Server;
use crate::{
    EngineError, EngineKind, EngineParams, llm_server::Http, samples, streaming::TOKEN_BYTES,
};

pub(crate) use crate::{
    processes,
    samples::{SampleRecord, Samples},
};
pub use qdl::testkit::eventually;

pub(crate) type Started = samples::Started<Http>;

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

pub fn start(params: &EngineParams) -> Result<Started, EngineError> {
    samples::Started::new(Arc::new(Http::open(params)?), ROOM * TOKEN_BYTES)
}

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
    let samples = started.run_prompts(&[vec![1, 2, 3]], Stream::First);
    (samples.record(0), started.fatal())
}
