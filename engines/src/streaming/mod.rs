//! Engines that batch by themselves: samples go in one by one, tokens come back at any time.
//!
//! ```text
//!  NIC thread --> queue --> SequenceSource::next, below the limit --> the engine's batches
//!      \---------- Streaming::wake ---------^                               |
//!        frontend <-- part, part, last <-- Sequence::push, Sequence::finish <-+
//! ```
//!
//! A [`Sequence`] is one sample in progress: the prompt in the input slot, the answer in the output
//! slot. The engine pushes each token at once. The frontend's choice of [`fabric::wire::Stream`]
//! decides whether tokens go to the frontend as parts; engines need not know this choice.

mod sequence;
mod thread;

use std::{sync::Arc, time::Duration};

use qdl::{
    model::{DType, ModelSpec, TensorSpec},
    request::{OptionSet, RequestOption},
    wire::Standing,
};

use super::EngineError;

pub use sequence::{OnEnd, Sequence, SequenceOutcome, TooLong};
pub(super) use thread::EngineThread;

/// Callback for an error that ends the engine during a run. Only the first call has an effect.
pub type OnFatal = Arc<dyn Fn(EngineError) + Send + Sync>;

/// Bytes of a token id: `i32`, little-endian, as LoadGen's tools read it.
pub const TOKEN_BYTES: usize = 4;

/// The interface of an [`Engine`](super::Engine) that batches by itself. Such an engine uses its
/// own threads, without batcher and workers.
pub trait Streaming: Send + Sync {
    /// Starts the engine's threads, and loads the model or connects to a server. Returns when the
    /// engine can take sequences, from `source`. Only threads that [`Streaming::stop`] ends may
    /// keep the source, which keeps the engine. After a later failure, the engine calls `fatal` and
    /// drops its sequences.
    ///
    /// # Errors
    /// [`EngineError`] names the model or server, and what to do.
    fn start(&self, source: Arc<dyn SequenceSource>, fatal: OnFatal) -> Result<(), EngineError>;

    /// Limit of concurrent sequences; further samples wait in the pipeline. The value may change in
    /// [`Streaming::start`], when the engine learns the limit of a server.
    fn in_flight(&self) -> usize;

    /// Whether the engine takes sequences, or its server is busy or away.
    fn standing(&self) -> Standing {
        Standing::Takes
    }

    /// Counts of the engine's server since the start.
    fn server_counts(&self) -> ServerCounts {
        ServerCounts::default()
    }

    /// Options of a request that the engine acts on. The pipeline refuses a sample that needs
    /// another one.
    fn options(&self) -> OptionSet {
        OptionSet::of(&[RequestOption::TokenLimit])
    }

    /// Lets the engine take sequences from `source` until there is none, on this thread or on its
    /// own; never blocks and ends no sequence. The caller is a NIC thread, or a thread that has
    /// just ended a sequence. No prompt may cause a panic: later, the engine calls
    /// [`Sequence::refuse`] for a sequence that it cannot run.
    fn wake(&self, source: &dyn SequenceSource);

    /// Drops the engine's sequences and ends its threads, within `timeout`. The pipeline calls this
    /// once.
    fn stop(&self, timeout: Duration);
}

/// Counts of the server behind an engine.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ServerCounts {
    /// Requests that the server refused as too many (429) or unavailable (503), and that were sent
    /// again.
    pub busy: u64,
    /// NaNs in the logits of tokens.
    pub nans: u64,
    /// Prompts with a handle, and their tokens whose KV cache came from the prefill node. The rest
    /// was computed again.
    pub handles: u64,
    /// See `handles`.
    pub fetched_tokens: u64,
    /// Bytes of KV caches that the server's connector moved, and the sum of the transfers' times in
    /// microseconds; 0 if the server does not report them.
    pub transfer_bytes: u64,
    /// See `transfer_bytes`.
    pub transfer_us: u64,
}

/// The samples that wait for an engine that batches by itself.
pub trait SequenceSource: Send + Sync {
    /// The next sequence; `None` if no sample waits, or the engine holds as many sequences as
    /// [`Streaming::in_flight`] says.
    fn next(&self) -> Option<Sequence>;

    /// True if [`Self::next`] would return a sequence.
    fn has_next(&self) -> bool;
}

/// A configured model whose input and output are token ids.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenModel {
    /// The configured model.
    pub spec: ModelSpec,
    /// Limit of a prompt in tokens.
    pub prompt: usize,
    /// Limit of an answer in tokens.
    pub answer: usize,
}

impl TokenModel {
    /// Checks the configured model of an engine that answers with token ids: one input and one
    /// output, each ragged `i32` of one dimension.
    /// Error: names the key and shows a correct value.
    pub fn of(engine: &'static str, spec: Option<&ModelSpec>) -> Result<Self, EngineError> {
        let refuse = |field: &str, found: &str| {
            Err(EngineError::engine(format!(
                "model.{field}: {found}; engine `{engine}` takes and gives token ids, as in `{{name: tokens, \
                 dtype: i32, shape: [1024], ragged: true}}`"
            )))
        };
        let Some(spec) = spec else {
            return refuse("inputs", "there are none");
        };
        let [input] = &spec.inputs[..] else {
            return refuse("inputs", &format!("there are {}", spec.inputs.len()));
        };
        let (Some(prompt), Some(answer)) = (ids(input), ids(&spec.output)) else {
            let (field, tensor) = match ids(input) {
                None => ("inputs", input),
                Some(_) => ("output", &spec.output),
            };
            return refuse(field, &tensor.to_string());
        };
        Ok(TokenModel {
            spec: spec.clone(),
            prompt,
            answer,
        })
    }
}

/// Most ids in a tensor; `None` unless the tensor is ragged `i32` of one dimension.
fn ids(tensor: &TensorSpec) -> Option<usize> {
    match tensor.shape[..] {
        [most] if most > 0 && tensor.dtype == DType::I32 && tensor.ragged => Some(most),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::{model, ragged, tensor};

    #[test]
    fn a_model_that_is_none_of_token_ids_is_refused_by_its_key() {
        let ids = || ragged("t", DType::I32, &[64]);
        let sound = model(vec![ids()], ragged("t", DType::I32, &[9]));
        let sound = TokenModel::of("tokens", Some(&sound)).expect("token ids");
        assert_eq!((sound.prompt, sound.answer), (64, 9));
        let with = |inputs, output| Some(model(inputs, output));
        let input = |t: TensorSpec| with(vec![t], ids());
        let output = |shape: &[usize]| with(vec![ids()], ragged("t", DType::I32, shape));
        let wide = tensor("t", DType::I32, &[64]);
        let cases = [
            (with(vec![ids(), ids()], ids()), "inputs: there are 2;"),
            (input(ragged("t", DType::I64, &[64])), "inputs: t: i64[64]"),
            (input(wide), "inputs: t: i32[64];"),
            (output(&[8, 8]), "output: t: i32[8, 8] ragged;"),
            (output(&[0]), "output: t: i32[0] ragged;"),
            (None, "inputs: there are none;"),
        ];
        for (spec, words) in cases {
            let error = TokenModel::of("tokens", spec.as_ref())
                .expect_err(words)
                .to_string();
            let words = format!("model.{words}");
            assert!(error.starts_with(&words), "{error}");
            assert!(
                error.contains("engine `tokens`") && error.contains("dtype: i32"),
                "{error}"
            );
        }
    }
}
