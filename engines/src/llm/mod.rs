//! The `llm` engine: several sequences of a small language model, in this process on ONNX Runtime.
//!
//! ```text
//!  queue --> thread `llm`: Schedule::next --> Decoder::step --> Sequence::push, finish
//!                  ^-- joins, moves, leaves       (one prompt, or one token of each)
//! ```
//!
//! * `graph` - the inputs and outputs of the model file
//! * `schedule` - the slots of the sequences and the next step; plain data
//! * `decoder` - one step on ONNX Runtime, with keys and values in place
//! * `work` - the thread that connects them
//!
//! The engine always takes the most likely token, and computes each prompt alone. A sequence's
//! result does not depend on the other sequences of a step if the runtime's kernels treat all rows
//! alike, which the tests check. So the same prompt always has the same answer.

mod decoder;
mod graph;
pub(crate) mod keys;
mod schedule;
mod work;

use std::{
    sync::{Arc, Mutex},
    time::Duration,
};

use crate::{
    config::{AnswerSource, EngineKind, Provider},
    entry::EngineEntry,
};
use ort::{ep, session::Session};
use qdl::{
    model::ModelSpec,
    request::{OptionSet, RequestOption},
};

use self::{
    decoder::Decoder,
    graph::DecoderGraph,
    work::{AnswerLimits, DecodeLoop, failed},
};
use super::{
    Engine, EngineError, EngineParams, Sequence, Streaming,
    onnx::{self, SessionCfgs},
    streaming::{EngineThread, OnFatal, SequenceSource, TokenModel},
};
use fabric::os::lock;

pub(crate) const ENTRY: EngineEntry = EngineEntry {
    keys: &["library", "intra_threads", "provider", "gpu", "llm"],
    check: |engine, out| engine.llm.iter().for_each(|llm| llm.check(out)),
    ..EngineEntry::of_tokens(EngineKind::Llm, "llm", AnswerSource::File, |params| {
        Ok(Arc::new(Llm::open(params)?))
    })
};

const NAME: &str = ENTRY.name;
/// Longest answer in tokens, without a configured limit.
const DEFAULT_ANSWER: usize = 256;

pub struct Llm {
    model: ModelSpec,
    vocabulary: usize,
    slots: usize,
    context: usize,
    limits: AnswerLimits,
    gpu: Option<i32>,
    thread: Arc<EngineThread>,
    loaded: Mutex<Option<(Session, DecoderGraph)>>,
}

impl Llm {
    /// Finds ONNX Runtime, loads the model, and checks that the longest prompt and the longest
    /// answer fit a slot.
    /// Error: a missing or unusable library or model, with its path; a key of `engine.llm` that
    /// does not fit the model.
    pub fn open(params: &EngineParams) -> Result<Self, EngineError> {
        let settings = SessionCfgs::find(params)?;
        let config = params.engine.llm.unwrap_or_default();
        let on_gpu = params.engine.provider == Provider::Cuda;
        let index = i32::try_from(params.engine.gpu).unwrap_or(i32::MAX);
        let gpu = on_gpu.then_some(index);
        let provider = gpu.map(|index| {
            let provider = ep::CUDA::default().with_device_id(index).build();
            provider.error_on_failure()
        });
        let session = settings.open(provider.as_slice())?;
        let graph = DecoderGraph::read(&session, &settings.path)?;
        let most = config.max_tokens.unwrap_or(DEFAULT_ANSWER);
        let model = match &params.spec {
            Some(spec) => spec.clone(),
            None => {
                let context = config.context.unwrap_or(graph.context);
                let prompt = context.saturating_sub(most).max(1);
                ModelSpec::of_tokens(&params.model, prompt, most)
            }
        };
        let TokenModel { prompt, answer, .. } = TokenModel::of(NAME, Some(&model))?;
        let limits = AnswerLimits {
            min: config.min_tokens,
            max: config.max_tokens.unwrap_or(answer),
            eos: config.eos.map_or(graph.eos, |eos| eos as i32),
        };
        let context = config.context.unwrap_or(prompt + limits.max);
        check(prompt, answer, context, &limits, &graph)?;
        Ok(Llm {
            model,
            vocabulary: graph.vocabulary,
            slots: config.sequences,
            context,
            limits,
            gpu,
            thread: Arc::default(),
            loaded: Mutex::new(Some((session, graph))),
        })
    }
}

/// Why the model cannot run a sequence, if it cannot.
fn refusal(sequence: &Sequence, model: &str, vocabulary: usize) -> Option<String> {
    let known = 0..vocabulary as i64;
    let wrong = |id: &i32| !known.contains(&i64::from(*id));
    let (position, id) = sequence.prompt().enumerate().find(|(_, id)| wrong(id))?;
    Some(format!(
        "a prompt holds id {id} at position {position}; model `{model}` has tokens 0 to {}: is the \
         data set another model's?",
        vocabulary.saturating_sub(1)
    ))
}

impl Engine for Llm {
    fn name(&self) -> &'static str {
        NAME
    }

    fn model(&self) -> &ModelSpec {
        &self.model
    }

    fn streaming(&self) -> Option<&dyn Streaming> {
        Some(self)
    }
}

impl Streaming for Llm {
    fn start(&self, source: Arc<dyn SequenceSource>, fatal: OnFatal) -> Result<(), EngineError> {
        let loaded = lock(&self.loaded).take();
        let (session, graph) =
            loaded.ok_or_else(|| failed(self.slots, "it was started before".to_owned()))?;
        let memory = self.gpu.map(onnx::gpu_memory).transpose()?;
        let (slots, context, limits) = (self.slots, self.context, self.limits);
        let decoder = Decoder::new(session, graph, slots, context, memory);
        let decoder = decoder.map_err(|e| failed(slots, e))?;
        let longest = context - limits.max;
        let decode = DecodeLoop::new(decoder, slots, longest, limits)?;
        let thread = self.thread.clone();
        let (model, vocabulary) = (self.model.name.clone(), self.vocabulary);
        self.thread.start(NAME, fatal, move || {
            let refusal = |sequence: &Sequence| refusal(sequence, &model, vocabulary);
            decode.serve(&thread, &*source, refusal)
        })
    }

    fn options(&self) -> OptionSet {
        OptionSet::of(&[
            RequestOption::TokenLimit,
            RequestOption::MinTokens,
            RequestOption::IgnoreEos,
            RequestOption::StopIds,
        ])
    }

    fn in_flight(&self) -> usize {
        self.slots
    }

    fn wake(&self, _source: &dyn SequenceSource) {
        self.thread.events.notify();
    }

    fn stop(&self, timeout: Duration) {
        self.thread.stop(timeout);
    }
}

fn check(
    prompt: usize,
    answer: usize,
    context: usize,
    limits: &AnswerLimits,
    graph: &DecoderGraph,
) -> Result<(), EngineError> {
    let (most, has) = (limits.max, graph.vocabulary);
    for (is_wrong, field, reason) in [
        (
            most > answer,
            "llm.max_tokens",
            format!("{most} tokens do not fit the model's output of {answer}"),
        ),
        (
            limits.min > most,
            "llm.min_tokens",
            format!("{} tokens at least, and {most} at most", limits.min),
        ),
        (
            limits.eos as usize >= has,
            "llm.eos",
            format!("{}, and the model has {has} tokens", limits.eos),
        ),
        (
            context > graph.context,
            "llm.context",
            format!(
                "{context} positions for prompts of {prompt} tokens and answers of {most}; the \
                 model has {}: make the model's input or output shorter",
                graph.context
            ),
        ),
        (
            context < prompt + most,
            "llm.context",
            format!(
                "{context} positions are too few for prompts of {prompt} tokens and answers of \
                 {most}"
            ),
        ),
    ] {
        if is_wrong {
            return Err(EngineError::param(field, reason));
        }
    }
    Ok(())
}
