//! The transport of the engine `http`: an API of a language model's server over HTTP.
//!
//! The [`Origin`](qdl::serve::Origin) of a sample is the connection that delivered the sample, or
//! LoadGen in a single-process run. The answer goes back to the origin.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`dialect`] | the table of dialects: requests, and queries at the start |
//! | [`chunk`] | the events of an answer, of every dialect |
//! | [`client`] | HTTP connections: opens one for each concurrent request, and keeps it for reuse |
//! | [`events`] | events of a stream, of bounded size |
//! | [`stream`] | one answer from its request to its end |
//! | [`trouble`] | errors: the message, and whose fault the error is |
//! | [`judge`] | the consequence of an error |
//! | [`standing`], [`recovery`] | a server that is busy or away; the wait for its return |
//! | [`start`] | queries before the first sample |
//! | [`threads`] | the client threads and the path of a sequence |
//! | [`counters`] | counts |

mod chunk;
mod client;
mod counters;
mod dialect;
mod events;
#[cfg(feature = "testkit")]
mod fuzz;
mod judge;
pub(crate) mod keys;
mod recovery;
mod standing;
mod start;
mod stream;
mod threads;
mod trouble;

#[cfg(test)]
mod tests;

use std::{
    sync::{Arc, OnceLock, atomic::Ordering::Relaxed},
    time::Duration,
};

#[cfg(feature = "testkit")]
pub use fuzz::server_events as fuzz_server_events;
use qdl::{
    model::{DType, TensorSpec},
    wire::Standing,
};
use record::{CacheState, OptionSet};
use tokio::runtime::Runtime;

use self::{
    client::HttpClient,
    counters::Counters,
    dialect::{AnswerParams, Dialect},
    judge::{Judge, TRIAL},
    standing::ServerStanding,
    stream::LlmServer,
    threads::Threads,
};
use super::{
    Http, ServerStart, Transport,
    account::{answer_limit, in_flight},
    process::ServerProcess,
};
use crate::{
    EngineError, EngineParams,
    child::{Launch, room_for},
    streaming::{OnFatal, SequenceSource, ServerCounts},
};

/// Requests to a server over HTTP, one for each sequence.
pub struct HttpTransport {
    /// Number of client threads.
    count: usize,
    ask: AnswerParams,
    counters: Arc<Counters>,
    standing: Arc<ServerStanding>,
    threads: OnceLock<Threads>,
}

impl Http {
    /// Makes the engine from `engine.http`, `engine.threads` and the model's tensors. Sends no
    /// request yet: [`Streaming::start`](crate::Streaming) does.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let wrong = |field, reason: &str| EngineError::param(field, reason.to_owned());
        let Some(config) = params.engine.http.clone() else {
            return Err(wrong("http", "no server is named"));
        };
        let spec = params.spec.clone().filter(|spec| {
            let ids = |t: &TensorSpec| t.dtype == DType::I32 && t.shape.len() == 1;
            // A prompt may have a fixed length; the answer's length varies.
            let is_answer = ids(&spec.output) && spec.output.ragged;
            spec.inputs.len() == 1 && spec.inputs.iter().all(ids) && is_answer
        });
        let Some(model) = spec else {
            let reason = "the model must have one input and a ragged output, i32 of one dimension";
            return Err(wrong("http", reason));
        };
        let (max_prompt, room) = (model.inputs[0].shape[0], model.output.shape[0]);
        let keys = ["http.max_tokens", "http.min_tokens"];
        let lengths = (config.max_tokens, config.min_tokens);
        let max_tokens = answer_limit(keys, lengths, room)?;
        room_for(config.in_flight.unwrap_or(0)).map_err(|e| wrong("http.in_flight", &e))?;
        HttpClient::new(&config.url, config.connect()).map_err(|e| wrong("http.url", &e))?;
        let process = ServerProcess::new(
            HttpTransport::NAME,
            format!("server {}", config.url),
            &config.log,
            [config.ready(), config.stop_within()],
        );
        let transport = HttpTransport {
            count: params.engine.threads,
            ask: AnswerParams::new(
                config,
                &model.name,
                max_prompt,
                max_tokens,
                params.engine.role,
            ),
            counters: Arc::default(),
            standing: Arc::default(),
            threads: OnceLock::new(),
        };
        Ok(Self::new(model, transport, process))
    }
}

impl HttpTransport {
    fn server(&self) -> Result<LlmServer, String> {
        let config = &self.ask.config;
        Ok(LlmServer {
            client: HttpClient::new(&config.url, config.connect())?,
            dialect: Dialect::of(config.dialect),
            ask: self.ask.clone(),
            counters: self.counters.clone(),
            standing: self.standing.clone(),
            in_flight: self.in_flight(None).0,
            cache: CacheState::Unknown,
        })
    }
}

impl Transport for HttpTransport {
    const NAME: &'static str = super::HTTP.name;
    type Connected = (Runtime, LlmServer);

    fn connect(
        &self,
        process: &ServerProcess,
        fatal: &OnFatal,
    ) -> Result<(ServerStart, Self::Connected), String> {
        let config = &self.ask.config;
        let is_own = !config.command.is_empty();
        if is_own {
            if client::is_listening(&config.url) {
                return Err(format!(
                    "something listens there already, and engine.http.command would start a \
                     second server: end it, or leave out engine.http.command (url: {})",
                    config.url
                ));
            }
            let launch = Launch {
                command: config.command.clone(),
                ..Launch::default()
            };
            process.start(config.env_file.as_deref(), launch, Some(fatal.clone()))?;
        }
        // The pipeline starts an engine on a thread without a runtime.
        let runtime = threads::runtime(self.count);
        let runtime = runtime.map_err(|e| format!("no thread to ask it from: {e}"))?;
        let mut server = self.server()?;
        process.wait(|| Ok(runtime.block_on(start::unready(&server.client, is_own))))?;
        let about = start::query_all(&server.client, server.dialect, &server.ask);
        let about = runtime.block_on(about)?;
        let in_flight = self.in_flight(about.at_once);
        room_for(in_flight.0).map_err(|e| format!("engine.http.in_flight: {e}"))?;
        server.in_flight = in_flight.0;
        let (warnings, cache) = start::judge(about, server.dialect, &mut server.ask)?;
        server.cache = cache.state;
        let start = ServerStart {
            in_flight,
            cache,
            version: None,
            warnings,
        };
        Ok((start, (runtime, server)))
    }

    fn run(
        &self,
        (runtime, server): Self::Connected,
        process: &Arc<ServerProcess>,
        _left: Duration,
        _source: Arc<dyn SequenceSource>,
        fatal: OnFatal,
    ) -> Result<(), String> {
        let tried = runtime.block_on(judge::trial(&server, self.ask.config.busy()));
        tried.map_err(|e| e.to_string())?;
        process.need()?;
        let judge = Judge::new(process.exit(), TRIAL);
        let _ = self
            .threads
            .set(Threads::new(runtime, server, judge, fatal));
        Ok(())
    }

    fn in_flight(&self, at_once: Option<usize>) -> (usize, String) {
        in_flight(at_once, self.ask.config.in_flight, "engine.http.in_flight")
    }

    fn options(&self) -> OptionSet {
        let own = Dialect::of(self.ask.config.dialect).options;
        self.ask.limits.role.options(own)
    }

    fn wake(&self, source: &dyn SequenceSource) {
        if let Some(threads) = self.threads.get() {
            threads.wake(source);
        }
    }

    fn stop(&self, timeout: Duration) {
        if let Some(threads) = self.threads.get() {
            threads.stop(timeout);
            tracing::info!("server {}: {}", self.ask.config.url, self.counters);
        }
    }

    fn standing(&self) -> Standing {
        self.standing.of_node()
    }

    fn server_counts(&self) -> ServerCounts {
        let busy = self.counters.busy.load(Relaxed);
        ServerCounts {
            busy,
            ..self.counters.fetched.counts()
        }
    }
}
