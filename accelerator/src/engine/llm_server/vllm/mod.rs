//! The `vllm` engine: the engine core of vLLM, without its HTTP server.
//!
//! ```text
//! NIC threads ── submit() ──> thread vllm ── ADD ──> core: scheduler, GPUs
//!      origins <── push, finish ──┘  <── one message per step: token ids ──┘
//! ```
//!
//! | file | purpose |
//! | --- | --- |
//! | [`start`], [`handshake`] | the core's process and sockets; the handshake |
//! | [`drive`] | the thread: requests, steps, aborts, deadlines |
//! | [`judge`] | checks of each output |
//! | [`messages`], [`zmtp`] | the messages of the protocol and their framing |
//! | [`model`] | facts from the model's folder |
//!
//! `docs/llm-servers.md` says when to take this engine, and what becomes of a sample.

mod drive;
mod handshake;
mod judge;
mod messages;
mod model;
mod start;
#[cfg(test)]
mod tests;
mod zmtp;

use std::{
    path::{Path, PathBuf},
    sync::{Arc, Mutex, OnceLock},
    thread,
    time::{Duration, Instant},
};

use qdl::{
    config::{MAX_IN_FLIGHT, VllmConfig},
    model::ModelSpec,
};
use record::{CacheState, PrefixCache};

pub use self::model::ModelFolder;
use self::{
    drive::{Core, Driver, Wake},
    handshake::{Connected, Listeners},
    messages::Sampling,
};
use super::account::Limits;
use crate::{
    engine::{
        Engine, EngineError, EngineParams, Sequence, Streaming,
        error::shorten,
        program::{ExitStatus, Program, last_error, last_line},
        streaming::{self, Inbox, OnFatal, TokenModel},
    },
    lock,
};

const NAME: &str = "vllm";
/// Sequences that the inbox holds without an allocation.
const INBOX: usize = 512;
/// Time to wait for the exit of the core after it stops answering.
const EXIT_SEEN: Duration = Duration::from_secs(3);

pub struct Vllm {
    model: ModelSpec,
    config: VllmConfig,
    limits: Limits,
    sampling: Sampling,
    inbox: Arc<Inbox>,
    wake: Arc<Wake>,
    program: Mutex<Option<Program>>,
    /// Limit of concurrent sequences of all cores, set at the start.
    in_flight: OnceLock<usize>,
}

impl Vllm {
    /// Makes the engine from `engine.vllm` and the files of the model's folder. Starts no core yet:
    /// [`Streaming::start`] does.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let wrong = |field, reason: String| EngineError::param(field, reason);
        let Some(config) = params.engine.vllm.clone() else {
            return Err(wrong("vllm", "no core is described".to_owned()));
        };
        let model = TokenModel::of(NAME, params.spec.as_ref())?;
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
        let max_tokens = streaming::answer_limit(keys, lengths, model.answer)?;
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
        let sampling = Sampling::new(config.temperature, &eos, &config.stop);
        Ok(Vllm {
            model: model.spec,
            limits: Limits {
                engine: NAME,
                vocab,
                // The registration gives the number.
                context: 0,
                min_tokens: config.min_tokens,
                max_tokens,
                ends,
                are_all_ends: true,
            },
            sampling,
            inbox: Arc::new(Inbox::new(INBOX)),
            wake: Arc::new(Wake::new().map_err(|e| wrong("vllm", format!("no socket: {e}")))?),
            program: Mutex::default(),
            in_flight: OnceLock::new(),
            config,
        })
    }

    fn try_start(&self, fatal: &OnFatal) -> Result<(), EngineError> {
        let core = |reason| EngineError::Core { reason };
        let listeners = Listeners::bind(self.config.listen).map_err(core)?;
        let began = Instant::now();
        let port = listeners.port().map_err(core)?;
        match self.config.listen {
            None => {
                let program = start::launch(&self.config, port).map_err(core)?;
                *lock(&self.program) = Some(program);
            }
            Some(address) => tracing::info!(
                "waiting for a core at {address}: `vllm serve {} --headless \
                 --data-parallel-address {} --data-parallel-rpc-port {port} ...`",
                self.config.model.display(),
                address.ip()
            ),
        }
        let exit = lock(&self.program).as_ref().map(|p| p.exit.clone());
        let connected = start::connect(&self.config, &listeners, exit.as_ref());
        let mut driver = self.driver(connected.map_err(core)?);
        let left = self.config.ready().saturating_sub(began.elapsed());
        let within = left.max(self.config.step());
        let is_own = self.config.listen.is_none();
        let log = is_own.then(|| self.config.log.clone());
        let words = LastWords { exit, log };
        driver
            .try_cores(within)
            .map_err(|reason| core(words.add(&reason)))?;
        let ms = began.elapsed().as_millis();
        tracing::info!("vLLM's engine core is ready after {ms} ms");
        self.inbox.start(NAME, fatal.clone(), move || {
            let run = driver.run(|| words.exit.as_ref().and_then(ExitStatus::now));
            run.map_err(|reason| EngineError::Core {
                reason: words.add(&reason),
            })
        })
    }

    fn driver(&self, connected: Connected) -> Driver {
        let registration = &connected.registration;
        let (context, longest) = (registration.max_model_len, self.model.inputs[0].shape[0]);
        if longest + self.limits.max_tokens > context {
            tracing::warn!(
                "vLLM's engine core: prompts of {longest} and answers of {} tokens exceed its \
                 context of {context}: longer answers end there",
                self.limits.max_tokens
            );
        }
        let (sequences, why) = sequences(&self.config, registration.max_num_seqs);
        let cores = connected.inputs.len();
        let in_flight = (sequences * cores).min(MAX_IN_FLIGHT);
        let _ = self.in_flight.set(in_flight);
        tracing::info!(
            "vLLM {}: {cores} cores, at most {in_flight} sequences at once: {why}",
            registration.vllm_version
        );
        let limits = Limits {
            context,
            ..self.limits.clone()
        };
        Driver::new(
            (limits, self.sampling.clone(), self.config.step()),
            (
                connected.inputs.into_iter().map(Core::new).collect(),
                connected.outputs,
            ),
            (self.inbox.clone(), self.wake.clone()),
        )
    }

    fn stop_program(&self) {
        if let Some(program) = lock(&self.program).take()
            && let Err(e) = program.stop(self.config.stop_within())
        {
            tracing::warn!("vLLM's engine core: {e}");
        }
    }
}

/// Limit of concurrent sequences of a core, which may report how many it runs, and the reason.
fn sequences(config: &VllmConfig, reported: Option<usize>) -> (usize, String) {
    let args = &config.args;
    let of_args = args.iter().enumerate().find_map(|(i, arg)| {
        let value = match arg.split_once('=') {
            Some(("--max-num-seqs", value)) => Some(value),
            None if arg == "--max-num-seqs" => args.get(i + 1).map(String::as_str),
            _ => None,
        };
        value?.parse::<usize>().ok()
    });
    let at_once = of_args.or(reported);
    streaming::in_flight(at_once, config.in_flight, "engine.vllm.in_flight")
}

/// The last words of a core: its exit status, and the end of its log.
struct LastWords {
    exit: Option<ExitStatus>,
    log: Option<PathBuf>,
}

impl LastWords {
    /// Adds the last words to an error. Waits up to [`EXIT_SEEN`] for the exit.
    fn add(&self, reason: &str) -> String {
        let until = Instant::now() + EXIT_SEEN;
        let exit = loop {
            let exit = self.exit.as_ref().and_then(ExitStatus::now);
            if exit.is_some() || self.exit.is_none() || Instant::now() > until {
                break exit;
            }
            thread::sleep(Duration::from_millis(20));
        };
        let Some(log) = &self.log else {
            return reason.to_owned();
        };
        let words = match exit {
            Some(exit) if exit == reason => exit,
            Some(exit) => format!("{reason}; {exit}"),
            None => {
                let line = shorten(&last_line(log).unwrap_or_default());
                format!(
                    "{reason}; the last line of its log {}: {line}",
                    log.display()
                )
            }
        };
        with_last_error(words, log)
    }
}

/// Adds the last error of a log, unless the words have it.
fn with_last_error(words: String, log: &Path) -> String {
    let error = last_error(log).map(|line| shorten(&line));
    match error.filter(|error| !words.contains(error)) {
        Some(error) => format!("{words}; the last error in it: {error}"),
        None => words,
    }
}

impl Engine for Vllm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn prefix_cache(&self) -> Option<PrefixCache> {
        Some(PrefixCache {
            state: CacheState::Off,
            how: "started with --no-enable-prefix-caching; each request skips the cache, and each \
                  answer counts no cached token"
                .to_owned(),
        })
    }

    fn streaming(&self) -> Option<&dyn Streaming> {
        Some(self)
    }
}

impl Streaming for Vllm {
    fn start(&self, fatal: OnFatal) -> Result<(), EngineError> {
        self.try_start(&fatal).inspect_err(|_| self.stop_program())
    }

    fn in_flight(&self) -> usize {
        let known = self.in_flight.get().copied();
        known.unwrap_or_else(|| sequences(&self.config, None).0 * self.config.data_parallel)
    }

    fn submit(&self, sequence: Sequence) {
        self.inbox.submit(sequence);
        self.wake.notify();
    }

    /// Ends the thread within `timeout`, then the core within `engine.vllm.stop_s`.
    fn stop(&self, timeout: Duration) {
        self.inbox.close();
        self.wake.notify();
        self.inbox.stop(timeout);
        self.stop_program();
    }
}

impl Drop for Vllm {
    fn drop(&mut self) {
        self.stop_program();
    }
}
