//! The `llm` engine: several sequences of a small language model, in this process on ONNX Runtime.
//!
//! ```text
//!  submit --> queue --> thread `llm`: Schedule::next --> Decoder::step --> Sequence::push, finish
//!                            ^-- joins, moves, leaves       (one prompt, or one token of each)
//! ```
//!
//! * `graph` - the inputs and outputs of the model file
//! * `schedule` - the slots of the sequences and the next step; plain data
//! * `decoder` - one step on ONNX Runtime, with keys and values in place
//! * `work` - the thread that connects them
//!
//! The engine always takes the most likely token. It computes each prompt alone. The result of a
//! row does not depend on other rows as long as the runtime's kernels treat all rows alike, which
//! the tests check. So the same prompt has the same answer in any company.

mod decoder;
mod graph;
mod schedule;
mod work;

use std::{
    sync::{
        Arc, Mutex, PoisonError,
        mpsc::{Receiver, RecvTimeoutError, channel},
    },
    time::Duration,
};

use ort::{
    ep::{self, ExecutionProvider},
    memory::{AllocationDevice, AllocatorType, MemoryInfo, MemoryType},
    session::Session,
};
use qdl::{
    config::{LlmConfig, Provider},
    model::ModelSpec,
};

use self::{
    graph::Graph,
    work::{Limits, Shared, Work},
};
use super::{
    Engine, EngineError, EngineParams, Lengths, Sequence, Streaming, lengths,
    onnx::{self, Settings, one_line},
    streaming::{OnFatal, TokenModel},
};

/// Longest answer in tokens, without a configured limit.
const DEFAULT_ANSWER: usize = 256;
/// Time limit for allocating the slots and the first steps.
const START: Duration = Duration::from_secs(300);

/// The `llm` engine.
pub struct Llm {
    model: ModelSpec,
    lengths: Lengths,
    settings: Settings,
    vocabulary: usize,
    slots: usize,
    context: usize,
    limits: Limits,
    gpu: Option<i32>,
    shared: Arc<Shared>,
    /// The session that read the model; the thread takes it.
    session: Mutex<Option<Session>>,
    /// Disconnects when the thread ends.
    running: Mutex<Option<Receiver<()>>>,
}

impl Llm {
    /// Finds ONNX Runtime, loads the model, and checks that the longest prompt and the longest
    /// answer fit a slot.
    ///
    /// # Errors
    /// A missing or unusable library or model, with its path; a key of `engine.llm` that does not
    /// fit the model.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let path = params.file.clone().ok_or_else(|| EngineError::Param {
            field: "model.file",
            reason: "engine llm needs a model file".to_owned(),
        })?;
        onnx::check_readable(&path)?;
        onnx::load(params.engine.library.as_deref())?;
        let config = params.engine.llm.unwrap_or_default();
        let gpu = gpu(params)?;
        let settings = Settings {
            path: path.clone(),
            intra_threads: params.engine.intra_threads,
        };
        let session = open(&settings, gpu)?;
        let graph = Graph::read(&session, &path)?;
        let most = config.max_tokens.unwrap_or(DEFAULT_ANSWER);
        let model = match &params.spec {
            Some(spec) => spec.clone(),
            None => default_model(&params.model, &graph, &config, most),
        };
        let TokenModel { prompt, answer, .. } = TokenModel::of_spec("llm", &model)?;
        let limits = Limits {
            min: config.min_tokens,
            max: config.max_tokens.unwrap_or(answer),
            eos: config.eos.map_or(graph.eos, |eos| eos as i32),
        };
        let context = config.context.unwrap_or(prompt + limits.max);
        check(prompt, answer, context, &limits, &graph)?;
        Ok(Llm {
            lengths: Lengths::of_inputs(&model).map_err(|e| EngineError::ModelUnsupported {
                path,
                tensor: e.tensor,
                reason: e.reason.to_owned(),
            })?,
            model,
            settings,
            vocabulary: graph.vocabulary,
            slots: config.sequences,
            context,
            limits,
            gpu,
            shared: Arc::default(),
            session: Mutex::new(Some(session)),
            running: Mutex::default(),
        })
    }

    /// The error of a prompt that cannot run, if any.
    fn refusal(&self, sequence: &Sequence) -> Option<EngineError> {
        let bytes = sequence.input().len();
        if self.lengths.rows(bytes).is_none() {
            return Some(lengths::refusal(&self.lengths, bytes));
        }
        let known = 0..self.vocabulary as i64;
        let wrong = |id: &i32| !known.contains(&i64::from(*id));
        let (position, id) = sequence.prompt().enumerate().find(|(_, id)| wrong(id))?;
        Some(EngineError::TokenId {
            model: self.model.name.clone(),
            id,
            position,
            vocabulary: self.vocabulary,
        })
    }
}

impl Engine for Llm {
    fn name(&self) -> &'static str {
        "llm"
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn counts_tokens(&self) -> bool {
        true
    }

    fn streaming(&self) -> Option<&dyn Streaming> {
        Some(self)
    }
}

impl Streaming for Llm {
    fn start(&self, fatal: OnFatal) -> Result<(), EngineError> {
        let loaded = lock(&self.session).take();
        let session = loaded.map_or_else(|| open(&self.settings, self.gpu), Ok)?;
        let graph = Graph::read(&session, &self.settings.path)?;
        let work = Work {
            session,
            graph,
            slots: self.slots,
            context: self.context,
            limits: self.limits,
            memory: self.gpu.map(gpu_memory).transpose()?,
            longest_prompt: self.context - self.limits.max,
            shared: self.shared.clone(),
        };
        let (ready, started) = channel();
        let (ended, running) = channel::<()>();
        self.shared.open();
        std::thread::Builder::new()
            .name("llm".to_owned())
            .spawn(move || {
                // Dropped at the end of the thread, also by panic.
                let _ended = ended;
                work.run(&ready, &fatal);
            })
            .map_err(|source| EngineError::Thread { worker: 0, source })?;
        *lock(&self.running) = Some(running);
        match started.recv_timeout(START) {
            Ok(done) => done,
            Err(RecvTimeoutError::Timeout) => Err(EngineError::StartTimeout {
                seconds: START.as_secs(),
            }),
            Err(RecvTimeoutError::Disconnected) => Err(EngineError::Run {
                engine: "llm",
                batch: self.slots,
                reason: "its thread ended before it was ready".to_owned(),
            }),
        }
    }

    fn in_flight(&self) -> usize {
        self.slots
    }

    fn submit(&self, sequence: Sequence) {
        match self.refusal(&sequence) {
            Some(why) => sequence.refuse(&why),
            None => self.shared.submit(sequence),
        }
    }

    fn stop(&self, timeout: Duration) {
        self.shared.close();
        let running = lock(&self.running).take();
        // The thread sends nothing: the channel closes at its end.
        let waited = running.map(|running| running.recv_timeout(timeout));
        if waited == Some(Err(RecvTimeoutError::Timeout)) {
            tracing::warn!("engine llm: its step was not done after {timeout:?}");
        }
    }
}

fn lock<T>(mutex: &Mutex<T>) -> std::sync::MutexGuard<'_, T> {
    mutex.lock().unwrap_or_else(PoisonError::into_inner)
}

/// The GPU's index, if one is configured; an error if the library does not support it.
fn gpu(params: &EngineParams) -> Result<Option<i32>, EngineError> {
    if params.engine.provider == Provider::Cpu {
        return Ok(None);
    }
    let reason = match ep::CUDA::is_available() {
        Ok(true) => return Ok(Some(i32::try_from(params.engine.gpu).unwrap_or(i32::MAX))),
        Ok(false) => "it was built without CUDA".to_owned(),
        Err(e) => one_line(&e.to_string()),
    };
    Err(EngineError::Provider { reason })
}

fn open(settings: &Settings, gpu: Option<i32>) -> Result<Session, EngineError> {
    match gpu {
        None => settings.open(),
        Some(index) => {
            let provider = ep::CUDA::default().with_device_id(index).build();
            settings.open_on(&[provider.error_on_failure()])
        }
    }
}

/// Memory of the slots on a GPU.
fn gpu_memory(index: i32) -> Result<MemoryInfo<'static>, EngineError> {
    let (device, kind) = (AllocatorType::Device, MemoryType::Default);
    MemoryInfo::new(AllocationDevice::CUDA, index, device, kind).map_err(|e| {
        EngineError::Provider {
            reason: one_line(&e.to_string()),
        }
    })
}

/// Inputs and outputs of the model, if the configuration does not give them.
fn default_model(name: &str, graph: &Graph, config: &LlmConfig, answer: usize) -> ModelSpec {
    let context = config.context.unwrap_or(graph.context);
    ModelSpec::of_tokens(name, context.saturating_sub(answer).max(1), answer)
}

/// Checks the configured limits against the model's.
fn check(
    prompt: usize,
    answer: usize,
    context: usize,
    limits: &Limits,
    graph: &Graph,
) -> Result<(), EngineError> {
    let wrong = |field, reason| Err(EngineError::Param { field, reason });
    let most = limits.max;
    if most > answer {
        let reason = format!("{most} tokens do not fit the model's output of {answer}");
        return wrong("llm.max_tokens", reason);
    }
    if limits.min > most {
        let reason = format!("{} tokens at least, and {most} at most", limits.min);
        return wrong("llm.min_tokens", reason);
    }
    if limits.eos as usize >= graph.vocabulary {
        let reason = format!(
            "{}, and the model has {} tokens",
            limits.eos, graph.vocabulary
        );
        return wrong("llm.eos", reason);
    }
    if context > graph.context {
        let reason = format!(
            "{context} positions for prompts of {prompt} tokens and answers of {most}; the model \
             has {}: make the model's input or output shorter",
            graph.context
        );
        return wrong("llm.context", reason);
    }
    if context < prompt + most {
        let reason = format!(
            "{context} positions are too few for prompts of {prompt} tokens and answers of {most}"
        );
        return wrong("llm.context", reason);
    }
    Ok(())
}
