//! The `http` engine: a language model's server on this machine, used over HTTP.
//!
//! ```text
//! NIC threads ── submit() ──> thread http-0 ──> one request per sequence ──> server
//!      origins <── push, finish ──┘  <── events: token ids ────────────────┘
//! ```
//!
//! The [`Origin`](qdl::serve::Origin) of a sample is the connection that delivered the sample, or
//! LoadGen in a single-process run. The answer goes back to the origin.
//!
//! | file | purpose |
//! | --- | --- |
//! | [`dialect`] | the API of each server: requests and events |
//! | [`client`] | HTTP connections: opens one for each concurrent request, and keeps it for reuse |
//! | [`events`] | events of a stream, of bounded size |
//! | [`stream`] | one answer from its request to its end |
//! | [`account`] | compares the received tokens with the counts that the server reports |
//! | [`dialect::trouble`] | errors: the message, and whose fault the error is |
//! | [`judge`] | the consequence of an error |
//! | [`standing`], [`recovery`] | a server that is busy or away; the wait for its return |
//! | [`start`] | queries before the first sample |
//! | [`threads`] | the client threads and the path of a sequence |
//! | [`counters`] | counts |
//!
//! `docs/llm-servers.md` describes the dialects, the errors and the fate of a sample.

mod account;
mod client;
mod counters;
mod dialect;
mod events;
#[cfg(feature = "testkit")]
mod fuzz;
mod judge;
mod recovery;
mod standing;
mod start;
mod stream;
mod threads;

#[cfg(test)]
mod tests;

use std::{
    sync::{
        Arc, Mutex, OnceLock,
        atomic::{
            AtomicBool,
            Ordering::{Relaxed, SeqCst},
        },
    },
    time::Duration,
};

#[cfg(feature = "testkit")]
pub use fuzz::server_events as fuzz_server_events;
use qdl::{
    model::{DType, ModelSpec, TensorSpec},
    wire::Standing,
};
use record::{CacheState, PrefixCache};

use self::{
    client::HttpClient,
    counters::Counters,
    dialect::AnswerParams,
    judge::{Judge, TRIAL},
    standing::ServerStanding,
    stream::LlmServer,
    threads::Threads,
};
use crate::{
    engine::{
        Engine, EngineError, EngineParams, Sequence, Streaming,
        program::{self, Launch, Program, room_for},
        streaming::{self, OnFatal},
    },
    lock,
};

const NAME: &str = "http";

pub struct Http {
    model: ModelSpec,
    count: usize,
    ask: AnswerParams,
    counters: Arc<Counters>,
    standing: Arc<ServerStanding>,
    program: Mutex<Option<Program>>,
    threads: OnceLock<Threads>,
    known: OnceLock<ServerStart>,
    /// True from the beginning of the stop: errors are no longer reported.
    is_stopping: Arc<AtomicBool>,
}

struct ServerStart {
    in_flight: usize,
    /// One sentence each: a prefix cache that is on, an unknown context.
    #[cfg_attr(not(test), allow(dead_code, reason = "the start has logged them"))]
    warnings: Vec<String>,
    cache: PrefixCache,
}

impl Http {
    /// Makes the engine from `engine.http`, `engine.threads` and the model's tensors. Sends no
    /// request yet: [`Streaming::start`] does.
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
        let max_tokens = streaming::answer_limit(keys, lengths, room)?;
        room_for(config.in_flight.unwrap_or(0)).map_err(|e| wrong("http.in_flight", &e))?;
        HttpClient::new(&config.url, config.connect()).map_err(|e| wrong("http.url", &e))?;
        Ok(Http {
            count: params.engine.threads,
            ask: AnswerParams::new(config, &model.name, max_prompt, max_tokens),
            model,
            counters: Arc::default(),
            standing: Arc::default(),
            program: Mutex::default(),
            threads: OnceLock::new(),
            known: OnceLock::new(),
            is_stopping: Arc::default(),
        })
    }

    fn server(&self) -> Result<LlmServer, String> {
        let config = &self.ask.config;
        Ok(LlmServer {
            client: HttpClient::new(&config.url, config.connect())?,
            dialect: dialect::of(config.dialect),
            ask: self.ask.clone(),
            counters: self.counters.clone(),
            standing: self.standing.clone(),
            in_flight: self.in_flight(),
        })
    }

    fn try_start(&self, fatal: &OnFatal) -> Result<(), String> {
        let config = &self.ask.config;
        let program = match &config.command[..] {
            [] => None,
            command => {
                if client::is_listening(&config.url) {
                    return Err(format!(
                        "something listens there already, and engine.http.command would start a \
                         second server: end it, or leave out engine.http.command (url: {})",
                        config.url
                    ));
                }
                let (fatal, url) = (fatal.clone(), config.url.clone());
                let on_end = move |reason| fatal(EngineError::Server { url, reason });
                let vars = config.env_file.as_deref();
                let launch = Launch {
                    key: "engine.http.command",
                    env: program::read_env("engine.http.env_file", vars)?,
                    command: command.to_vec(),
                    log: config.log.clone(),
                    grace: config.stop_within(),
                    ..Launch::default()
                };
                let program = Program::start(launch, on_end)?;
                tracing::info!("server started; its log is {}", config.log.display());
                Some(program)
            }
        };
        let exit = program.as_ref().map(|p| p.exit.clone());
        let mut slot = lock(&self.program);
        *slot = program;
        // The pipeline starts an engine on a thread without a runtime.
        let runtime = threads::runtime(self.count);
        let runtime = runtime.map_err(|e| format!("no thread to ask it from: {e}"))?;
        let server = runtime.block_on(self.query_server(slot.as_ref()))?;
        if let Some(program) = &*slot {
            program.need()?;
        }
        drop(slot);
        let judge = Judge::new(exit, TRIAL);
        let cache = self
            .known
            .get()
            .map_or(CacheState::Unknown, |k| k.cache.state);
        let threads = Threads::new(runtime, (server, cache), judge, fatal.clone());
        let set = self.threads.set(threads);
        set.map_err(|_| "it is started already".to_owned())
    }

    async fn query_server(&self, program: Option<&Program>) -> Result<LlmServer, String> {
        let config = &self.ask.config;
        let mut server = self.server()?;
        start::ready(&server.client, config, program).await?;
        let about = start::query_all(&server.client, server.dialect, &server.ask).await?;
        let (in_flight, why) = start::in_flight(about.at_once, config);
        room_for(in_flight).map_err(|e| format!("engine.http.in_flight: {e}"))?;
        tracing::info!(
            "server {}: at most {in_flight} requests at once: {why}",
            config.url
        );
        let (warnings, cache) = start::judge(about, server.dialect, &mut server.ask)?;
        for warning in &warnings {
            tracing::warn!("server {}: {warning}", config.url);
        }
        let _ = self.known.set(ServerStart {
            in_flight,
            warnings,
            cache,
        });
        server.in_flight = in_flight;
        judge::trial(&server, config.busy())
            .await
            .map_err(|e| e.to_string())?;
        Ok(server)
    }

    fn stop_program(&self) {
        let mut slot = lock(&self.program);
        if let Some(program) = slot.take()
            && let Err(e) = program.stop(self.ask.config.stop_within())
        {
            tracing::warn!("server {}: {e}", self.ask.config.url);
        }
    }
}

impl Engine for Http {
    fn name(&self) -> &'static str {
        NAME
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn prefix_cache(&self) -> Option<PrefixCache> {
        let known = self.known.get().map(|known| known.cache.clone());
        Some(known.unwrap_or_else(|| PrefixCache {
            state: CacheState::Unknown,
            how: "its server has not been asked yet".to_owned(),
        }))
    }

    fn streaming(&self) -> Option<&dyn Streaming> {
        Some(self)
    }
}

impl Streaming for Http {
    fn start(&self, fatal: OnFatal) -> Result<(), EngineError> {
        let is_stopping = self.is_stopping.clone();
        let fatal: OnFatal = Arc::new(move |error| {
            if !is_stopping.load(SeqCst) {
                fatal(error);
            }
        });
        self.try_start(&fatal).map_err(|reason| {
            self.stop_program();
            EngineError::Server {
                url: self.ask.config.url.clone(),
                reason,
            }
        })
    }

    fn in_flight(&self) -> usize {
        let known = self.known.get().map(|known| known.in_flight);
        known.unwrap_or_else(|| start::in_flight(None, &self.ask.config).0)
    }

    fn standing(&self) -> Standing {
        self.standing.of_node()
    }

    fn server_busy(&self) -> u64 {
        self.counters.busy.load(Relaxed)
    }

    fn submit(&self, sequence: Sequence) {
        // A sequence before the start is dropped: no thread can answer it.
        if let Some(threads) = self.threads.get() {
            threads.submit(sequence);
        }
    }

    /// Ends the threads within `timeout`, then our server process within `engine.http.stop_s`.
    fn stop(&self, timeout: Duration) {
        self.is_stopping.store(true, SeqCst);
        if let Some(threads) = self.threads.get() {
            threads.stop(timeout);
            tracing::info!("server {}: {}", self.ask.config.url, self.counters);
        }
        self.stop_program();
    }
}

impl Drop for Http {
    fn drop(&mut self) {
        self.stop_program();
    }
}
