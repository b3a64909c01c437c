//! The engines `http` and `vllm`: a language model's server, over one of two transports.
//!
//! ```text
//! NIC threads ── wake() ──> transport ── prompts ──> server: scheduler, GPUs
//!      origins <── push, finish ──┘  <── token ids ───┘
//! ```
//!
//! | module | purpose |
//! | --- | --- |
//! | [`account`] | limits of all requests; the check of each prompt and answer |
//! | [`roles`] | handles between a prefill node and a decode node |
//! | [`process`] | the server's process: start, readiness, last words, end |
//! | [`http`] | the transport of `http`: an API over HTTP, one request for each sequence |
//! | [`vllm`] | the transport of `vllm`: vLLM's engine core over ZeroMQ, one message a step |
//!
//! `docs/llm-servers.md` describes the errors and the fate of a sample.

mod account;
pub(crate) mod http;
pub(crate) mod keys;
mod process;
mod roles;
pub(crate) mod vllm;

use std::{
    sync::{
        Arc, OnceLock,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    time::{Duration, Instant},
};

use qdl::{model::ModelSpec, wire::Standing};
use record::{CacheState, OptionSet, PrefixCache, ServerVersion};

use super::{
    Engine, EngineError, Streaming,
    config::{AnswerSource, EngineKind},
    entry::EngineEntry,
    streaming::{OnFatal, SequenceSource, ServerCounts},
};
#[cfg(feature = "testkit")]
pub use http::fuzz_server_events;
use process::ServerProcess;
pub use vllm::{ModelFolder, has_vllm_run, newest_vllm};

/// The engine `http`.
pub type Http = ServerEngine<http::HttpTransport>;
/// The engine `vllm`.
pub type Vllm = ServerEngine<vllm::CoreTransport>;

pub(crate) const HTTP: EngineEntry = EngineEntry {
    keys: &["http", "threads", "role"],
    check: |engine, out| match &engine.http {
        Some(http) => http.check(engine.role, out),
        None => out.add(
            "engine",
            "engine `http` asks a server, and none is named",
            "add `http: {url: http://127.0.0.1:8000, dialect: vllm}`",
        ),
    },
    resolve: |engine, base| engine.http.iter_mut().for_each(|http| http.resolve(base)),
    start: |engine| {
        let http = engine.http.as_ref();
        http.map_or(Duration::ZERO, |http| http.ready() + 2 * http.first_token())
    },
    ..EngineEntry::of_tokens(EngineKind::Http, "http", AnswerSource::Server, |params| {
        Ok(Arc::new(Http::open(params)?))
    })
};

pub(crate) const VLLM: EngineEntry = EngineEntry {
    keys: &["vllm", "role"],
    check: |engine, out| match &engine.vllm {
        Some(vllm) => vllm.check(out),
        None => out.add(
            "engine",
            "engine `vllm` drives an engine core, and none is described",
            "add `vllm: {model: FOLDER}`, the folder of the model's `config.json`",
        ),
    },
    resolve: |engine, base| engine.vllm.iter_mut().for_each(|vllm| vllm.resolve(base)),
    start: |engine| {
        let vllm = engine.vllm.as_ref();
        vllm.map_or(Duration::ZERO, |vllm| vllm.ready() + 2 * vllm.step())
    },
    ..EngineEntry::of_tokens(EngineKind::Vllm, "vllm", AnswerSource::Server, |params| {
        Ok(Arc::new(Vllm::open(params)?))
    })
};

/// How an engine talks to its server.
pub trait Transport: Send + Sync {
    /// The engine's name.
    const NAME: &'static str;
    /// Connections to a server that is ready.
    type Connected;

    /// Starts the server's program, unless the user starts the server. Waits until the server is
    /// ready, and asks for its facts. The program's end during a run calls `fatal`.
    /// Error text: the server cannot be started or used.
    fn connect(
        &self,
        process: &ServerProcess,
        fatal: &OnFatal,
    ) -> Result<(ServerStart, Self::Connected), String>;

    /// Requests a short answer, then starts the threads of the sequences. `left` is the rest of the
    /// time until the server must be ready.
    /// Error text: the server does not answer as it should.
    fn run(
        &self,
        connected: Self::Connected,
        process: &Arc<ServerProcess>,
        left: Duration,
        source: Arc<dyn SequenceSource>,
        fatal: OnFatal,
    ) -> Result<(), String>;

    /// Limit of concurrent sequences of a server that works on `at_once`, and the reason.
    fn in_flight(&self, at_once: Option<usize>) -> (usize, String);

    /// See [`Streaming::options`].
    fn options(&self) -> OptionSet;

    /// See [`Streaming::wake`].
    fn wake(&self, source: &dyn SequenceSource);

    /// Drops the sequences and ends the threads, within `timeout`.
    fn stop(&self, timeout: Duration);

    /// See [`Streaming::standing`].
    fn standing(&self) -> Standing {
        Standing::Takes
    }

    /// See [`Streaming::server_counts`].
    fn server_counts(&self) -> ServerCounts {
        ServerCounts::default()
    }
}

/// What a start learns of the server.
pub struct ServerStart {
    /// Limit of concurrent sequences, and the reason.
    in_flight: (usize, String),
    cache: PrefixCache,
    /// `None` if the server does not say it.
    version: Option<ServerVersion>,
    /// Warnings for the operator, one sentence each.
    warnings: Vec<String>,
}

/// An engine on a language model's server.
pub struct ServerEngine<T: Transport> {
    model: ModelSpec,
    transport: T,
    process: Arc<ServerProcess>,
    started: OnceLock<ServerStart>,
    /// True from the beginning of the stop: errors are no longer reported.
    is_stopping: Arc<AtomicBool>,
}

impl<T: Transport> ServerEngine<T> {
    fn new(model: ModelSpec, transport: T, process: ServerProcess) -> Self {
        ServerEngine {
            model,
            transport,
            process: Arc::new(process),
            started: OnceLock::new(),
            is_stopping: Arc::default(),
        }
    }

    fn try_start(&self, source: Arc<dyn SequenceSource>, fatal: OnFatal) -> Result<(), String> {
        let (began, name) = (Instant::now(), &self.process.name);
        let (start, connected) = self.transport.connect(&self.process, &fatal)?;
        let (in_flight, why) = &start.in_flight;
        tracing::info!("{name}: at most {in_flight} sequences at once: {why}");
        for warning in &start.warnings {
            tracing::warn!("{name}: {warning}");
        }
        let set = self.started.set(start);
        set.map_err(|_| "it is started already".to_owned())?;
        let (process, left) = (&self.process, self.process.ready);
        let left = left.saturating_sub(began.elapsed());
        (self.transport).run(connected, process, left, source, fatal)
    }
}

impl<T: Transport> Engine for ServerEngine<T> {
    fn name(&self) -> &'static str {
        T::NAME
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn prefix_cache(&self) -> Option<PrefixCache> {
        let known = self.started.get().map(|start| start.cache.clone());
        Some(known.unwrap_or_else(|| PrefixCache {
            state: CacheState::Unknown,
            how: "its server has not been asked yet".to_owned(),
        }))
    }

    fn server(&self) -> Option<ServerVersion> {
        self.started.get()?.version.clone()
    }

    fn streaming(&self) -> Option<&dyn Streaming> {
        Some(self)
    }
}

impl<T: Transport> Streaming for ServerEngine<T> {
    fn start(&self, source: Arc<dyn SequenceSource>, fatal: OnFatal) -> Result<(), EngineError> {
        let is_stopping = self.is_stopping.clone();
        let fatal: OnFatal = Arc::new(move |error| {
            if !is_stopping.load(SeqCst) {
                fatal(error);
            }
        });
        self.try_start(source, fatal).map_err(|reason| {
            self.process.stop();
            self.process.error(&reason)
        })
    }

    fn in_flight(&self) -> usize {
        let known = self.started.get().map(|start| start.in_flight.0);
        known.unwrap_or_else(|| self.transport.in_flight(None).0)
    }

    fn options(&self) -> OptionSet {
        self.transport.options()
    }

    fn standing(&self) -> Standing {
        self.transport.standing()
    }

    fn server_counts(&self) -> ServerCounts {
        self.transport.server_counts()
    }

    fn wake(&self, source: &dyn SequenceSource) {
        self.transport.wake(source);
    }

    /// Ends the threads within `timeout`, then the server's program within its `stop_s`.
    fn stop(&self, timeout: Duration) {
        self.is_stopping.store(true, SeqCst);
        self.transport.stop(timeout);
        self.process.stop();
    }
}

impl<T: Transport> Drop for ServerEngine<T> {
    fn drop(&mut self) {
        self.process.stop();
    }
}
