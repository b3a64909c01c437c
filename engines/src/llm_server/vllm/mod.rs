//! The transport of the engine `vllm`: the engine core of vLLM, without its HTTP server.
//!
//! ```text
//! NIC threads ── wake() ──> thread vllm ── ADD ──> core: scheduler, GPUs
//!    origins <── push, finish ──┘  <── one message per step: token ids ──┘
//! ```
//!
//! | file | purpose |
//! | --- | --- |
//! | [`start`], [`handshake`] | the core's command and sockets; the handshake |
//! | [`drive`] | the thread: requests, steps, aborts, deadlines |
//! | [`messages`], [`zmtp`] | the messages of the protocol and their framing |
//! | [`versions`] | the table of vLLM's versions: places of fields, evidence |
//! | [`model`] | facts from the model's folder |

mod drive;
mod handshake;
pub(crate) mod keys;
mod messages;
mod model;
mod start;
#[cfg(test)]
mod tests;
mod versions;
mod zmtp;

use std::{
    sync::{
        Arc, Once,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::config::{MAX_IN_FLIGHT, VllmConfig};
use record::{CacheState, OptionSet, PrefixCache};

use self::{
    drive::{Driver, Wake},
    handshake::{Connected, Handshake, Listeners},
    messages::Sampling,
};
pub use self::{
    model::ModelFolder,
    versions::{has_vllm_run, newest_vllm},
};
use super::{
    ServerStart, Transport, Vllm,
    account::{self, Limits},
    process::ServerProcess,
    roles::{self, Fetched},
};
use crate::{
    EngineError, EngineParams,
    child::ExitStatus,
    streaming::{EngineThread, OnFatal, SequenceSource, ServerCounts, TokenModel},
};

/// Messages to the engine cores of vLLM.
pub struct CoreTransport {
    config: VllmConfig,
    /// The registration gives the context.
    limits: Limits,
    /// Most tokens in a prompt.
    max_prompt: usize,
    sampling: Sampling,
    thread: Arc<EngineThread>,
    wake: Arc<Wake>,
    /// NaNs in the logits of all tokens.
    nans: Arc<AtomicU64>,
    fetched: Arc<Fetched>,
    /// Done once the log has said what carries KV caches.
    transport: Once,
}

impl Vllm {
    /// Makes the engine from `engine.vllm` and the files of the model's folder. Starts no core yet:
    /// [`Streaming::start`](crate::Streaming) does.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let wrong = |field, reason: String| EngineError::param(field, reason);
        let Some(config) = params.engine.vllm.clone() else {
            return Err(wrong("vllm", "no core is described".to_owned()));
        };
        let model = TokenModel::of(CoreTransport::NAME, params.spec.as_ref())?;
        let folder = ModelFolder::read(&config.model).map_err(|e| wrong("vllm.model", e))?;
        if folder.has_experts && config.data_parallel > 1 {
            return Err(wrong("vllm.data_parallel", handshake::EXPERTS.to_owned()));
        }
        let Some(vocab) = config.vocab.or(folder.vocab).filter(|vocab| *vocab > 1) else {
            let reason = "config.json of the model says no vocab_size: give engine.vllm.vocab";
            return Err(wrong("vllm.vocab", reason.to_owned()));
        };
        let keys = ["vllm.max_tokens", "vllm.min_tokens"];
        let lengths = (config.max_tokens, config.min_tokens);
        let max_tokens = account::answer_limit(keys, lengths, model.answer)?;
        let eos = match config.ignore_eos {
            true => Vec::new(),
            false => config.eos.clone().unwrap_or(folder.eos),
        };
        if eos.is_empty() && !config.ignore_eos {
            let reason = "the files of the model name no end of sequence: give engine.vllm.eos, \
                          or set ignore_eos: true";
            return Err(wrong("vllm.eos", reason.to_owned()));
        }
        let ends: Vec<u32> = eos.iter().chain(&config.stop).copied().collect();
        if let Some(id) = ends.iter().find(|id| **id as usize >= vocab) {
            let reason = format!("id {id} of `eos` or `stop` is beyond the vocabulary of {vocab}");
            return Err(wrong("vllm.stop", reason));
        }
        let process = ServerProcess::new(
            CoreTransport::NAME,
            "vLLM's engine core".to_owned(),
            &config.log,
            [config.ready(), config.stop_within()],
        );
        let transport = CoreTransport {
            sampling: Sampling::new(config.temperature, &eos, &config.stop, params.engine.role),
            limits: Limits {
                engine: CoreTransport::NAME,
                vocab,
                context: 0,
                min_tokens: config.min_tokens,
                max_tokens,
                ends,
                stops: config.stop.clone(),
                are_all_ends: true,
                counts_answers: false,
                role: params.engine.role,
            },
            max_prompt: model.prompt,
            thread: Arc::default(),
            wake: Arc::new(Wake::new().map_err(|e| wrong("vllm", format!("no socket: {e}")))?),
            nans: Arc::default(),
            fetched: Arc::default(),
            transport: Once::new(),
            config,
        };
        Ok(Self::new(model.spec, transport, process))
    }
}

impl Transport for CoreTransport {
    const NAME: &'static str = super::VLLM.name;
    type Connected = Connected;

    fn connect(
        &self,
        process: &ServerProcess,
        _fatal: &OnFatal,
    ) -> Result<(ServerStart, Connected), String> {
        let config = &self.config;
        let listeners = Listeners::bind(config.listen)?;
        let port = listeners.port()?;
        match config.listen {
            // The thread of the cores sees the exit, and reports it with its own words.
            None => process.start(
                config.env_file.as_deref(),
                start::launch(config, port, self.limits.role)?,
                None,
            )?,
            Some(address) => tracing::info!(
                "waiting for a core at {address}: `vllm serve {} --headless \
                 --data-parallel-address {} --data-parallel-rpc-port {port} ...`",
                config.model.display(),
                address.ip()
            ),
        }
        let mut handshake = Handshake::new(config.data_parallel, &listeners);
        process.wait(|| Ok((!handshake.step()?).then(|| handshake.stage())))?;
        let connected = handshake.finish()?;
        let (registration, cores) = (&connected.registration, connected.inputs.len());
        tracing::info!("vLLM {}: {cores} cores", registration.vllm_version);
        let (context, answer) = (registration.max_model_len, self.limits.max_tokens);
        let mut warnings: Vec<_> = connected.version.warning().into_iter().collect();
        if self.max_prompt + answer > context {
            warnings.push(format!(
                "prompts of {} and answers of {answer} tokens exceed its context of {context}: \
                 longer answers end there",
                self.max_prompt
            ));
        }
        let start = ServerStart {
            in_flight: self.in_flight(registration.max_num_seqs),
            cache: PrefixCache {
                state: CacheState::Off,
                how: "started with --no-enable-prefix-caching; each request skips the cache, and \
                      each answer counts no cached token"
                    .to_owned(),
            },
            version: Some(connected.version.record()),
            warnings,
        };
        Ok((start, connected))
    }

    fn run(
        &self,
        connected: Connected,
        process: &Arc<ServerProcess>,
        left: Duration,
        source: Arc<dyn SequenceSource>,
        fatal: OnFatal,
    ) -> Result<(), String> {
        let limits = Limits {
            context: connected.registration.max_model_len,
            ..self.limits.clone()
        };
        let step = self.config.step();
        let mut driver = Driver::new(
            (limits, self.sampling.clone(), step),
            connected,
            source,
            (self.thread.clone(), self.wake.clone()),
            (self.nans.clone(), self.fetched.clone()),
        );
        let tried = driver.try_cores(left.max(step));
        tried.map_err(|reason| process.last_words(&reason))?;
        let (process, exit) = (process.clone(), process.exit());
        let started = self.thread.start(Self::NAME, fatal, move || {
            let run = driver.run(|| exit.as_ref().and_then(ExitStatus::now));
            run.map_err(|reason| process.error(&process.last_words(&reason)))
        });
        started.map_err(|e| e.to_string())
    }

    /// Of all cores together. Each core may say how many sequences it runs, if `args` do not.
    fn in_flight(&self, at_once: Option<usize>) -> (usize, String) {
        let args = &self.config.args;
        let of_args = args.iter().enumerate().find_map(|(i, arg)| {
            let value = match arg.split_once('=') {
                Some(("--max-num-seqs", value)) => Some(value),
                None if arg == "--max-num-seqs" => args.get(i + 1).map(String::as_str),
                _ => None,
            };
            value?.parse::<usize>().ok()
        });
        let (set, key) = (self.config.in_flight, "engine.vllm.in_flight");
        let (each, why) = account::in_flight(of_args.or(at_once), set, key);
        let all = each.saturating_mul(self.config.data_parallel);
        (all.min(MAX_IN_FLIGHT), why)
    }

    fn options(&self) -> OptionSet {
        self.limits.role.options(OptionSet::OF_CLIENTS)
    }

    fn wake(&self, _source: &dyn SequenceSource) {
        self.wake.notify();
    }

    fn server_counts(&self) -> ServerCounts {
        let nans = self.nans.load(Relaxed);
        if self.fetched.counts().fetched_tokens > 0 {
            self.transport
                .call_once(|| roles::say_transport(&self.config.log));
        }
        ServerCounts {
            nans,
            ..self.fetched.counts()
        }
    }

    fn stop(&self, timeout: Duration) {
        self.thread.close();
        self.wake.notify();
        self.thread.stop(timeout);
    }
}
