//! Engines that batch by themselves: samples go in one by one, tokens come back whenever.
//!
//! ```text
//!  NIC thread --> a place free? --yes--> Streaming::submit(Sequence) --> the engine's own batches
//!                      \--no--> queue <-- drawn from as sequences end --/        |
//!        frontend <-- part, part, last <-- Sequence::push, Sequence::finish <----+
//! ```
//!
//! A [`Sequence`] is one sample at work: its prompt where it landed, its answer where it is sent
//! from. The engine pushes tokens as they come; which of them leave at once as a part of their own
//! is for whoever sent the sample to say ([`fabric::wire::Stream`]), and the engine need not know.
//!
//! An engine's own threads run in [`guarded`], so that a panic ends the node with its name.

mod sequence;

use std::{
    panic::{AssertUnwindSafe, catch_unwind},
    sync::Arc,
    time::Duration,
};

use qdl::model::{DType, ModelSpec, TensorSpec};

use super::{EngineError, EngineParams, panic_message};

pub use sequence::{Outcome, Places, Sequence, TooLong};

/// Called with what ends the engine in mid-run; the first time counts.
pub type OnFatal = Arc<dyn Fn(EngineError) + Send + Sync>;

/// Bytes of a token id, `i32`, little-endian: what LoadGen's tools read.
pub const TOKEN_BYTES: usize = 4;

/// The second form of an [`Engine`](super::Engine): it has no batcher in front of it and no worker
/// threads but its own.
pub trait Streaming: Send + Sync {
    /// Starts its threads, loads the model, connects to its server; returns when it can take
    /// sequences, or with why it cannot. What fails later is given to `fatal`; whoever calls that
    /// drops the sequences it has.
    ///
    /// # Errors
    /// [`EngineError`]: which model or server, and what to do.
    fn start(&self, fatal: OnFatal) -> Result<(), EngineError>;

    /// Most sequences it has at once; more wait outside. It may be another number once it has
    /// started, and knows its server.
    fn in_flight(&self) -> usize;

    /// Takes a sequence. Called on a NIC thread or on the one that ended another sequence, by one
    /// of them at a time: never waits. Nothing that a prompt holds may make it panic; what cannot
    /// be run is refused ([`Sequence::refuse`]), here or later.
    fn submit(&self, sequence: Sequence);

    /// Drops what it has and ends its threads, within `timeout`. What is submitted afterwards is
    /// dropped. Called once.
    fn stop(&self, timeout: Duration);
}

/// Runs the body of an engine's own thread: what it fails with, or panics with, ends the node
/// under the engine's name. `worker` says which thread it was. What the body holds is dropped
/// before anybody is told.
pub fn guarded(
    engine: &'static str,
    worker: usize,
    fatal: &OnFatal,
    body: impl FnOnce() -> Result<(), EngineError>,
) {
    // What a panic leaves half done is the body's own, and dropped.
    let ended = catch_unwind(AssertUnwindSafe(body)).unwrap_or_else(|panic| {
        Err(EngineError::Panicked {
            engine,
            worker,
            message: panic_message(panic.as_ref()),
        })
    });
    if let Err(error) = ended {
        fatal(error);
    }
}

/// A model of token ids, as the configuration describes it.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct TokenModel {
    /// What the configuration says.
    pub spec: ModelSpec,
    /// Tokens of the longest prompt.
    pub prompt: usize,
    /// Tokens of the longest answer.
    pub answer: usize,
}

impl TokenModel {
    /// The model of an engine that answers with token ids: one input and the output, each ragged
    /// `i32` of one dimension.
    ///
    /// # Errors
    /// [`EngineError::TokenModel`] names the key and shows what would be right.
    pub fn of(engine: &'static str, params: &EngineParams) -> Result<Self, EngineError> {
        match &params.spec {
            Some(spec) => TokenModel::of_spec(engine, spec),
            None => Err(refusal(engine, "inputs", "there are none")),
        }
    }

    /// The same of what an engine has found out by itself.
    ///
    /// # Errors
    /// As [`TokenModel::of`].
    pub fn of_spec(engine: &'static str, spec: &ModelSpec) -> Result<Self, EngineError> {
        let refuse = |field, found: &str| Err(refusal(engine, field, found));
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

fn refusal(engine: &str, field: &'static str, found: &str) -> EngineError {
    EngineError::TokenModel {
        field,
        reason: format!(
            "{found}; engine `{engine}` takes and gives token ids, as in `{{name: tokens, dtype: \
             i32, shape: [1024], ragged: true}}`"
        ),
    }
}

/// Most ids in a tensor of them; `None` where it is another.
fn ids(tensor: &TensorSpec) -> Option<usize> {
    match tensor.shape[..] {
        [most] if most > 0 && tensor.dtype == DType::I32 && tensor.ragged => Some(most),
        _ => None,
    }
}

#[cfg(test)]
mod tests {
    use qdl::config::EngineKind;

    use super::*;

    fn tensor(dtype: DType, shape: &[usize], ragged: bool) -> TensorSpec {
        TensorSpec {
            name: "t".into(),
            dtype,
            shape: shape.to_vec(),
            ragged,
        }
    }

    #[test]
    fn a_model_that_is_none_of_token_ids_is_refused_by_its_key() {
        let good = || tensor(DType::I32, &[64], true);
        let model = |inputs: Vec<TensorSpec>, output: TensorSpec| EngineParams {
            spec: Some(ModelSpec {
                name: "m".into(),
                inputs,
                output,
                other_outputs: Vec::new(),
                compression: None,
            }),
            ..EngineParams::new(EngineKind::Tokens)
        };
        let sound = TokenModel::of(
            "tokens",
            &model(vec![good()], tensor(DType::I32, &[9], true)),
        );
        let sound = sound.expect("token ids");
        assert_eq!((sound.prompt, sound.answer), (64, 9));
        let cases = [
            (
                model(vec![good(), good()], good()),
                "model.inputs: there are 2;",
            ),
            (
                model(vec![tensor(DType::I64, &[64], true)], good()),
                "model.inputs: t: i64[64] ragged;",
            ),
            (
                model(vec![tensor(DType::I32, &[64], false)], good()),
                "model.inputs: t: i32[64];",
            ),
            (
                model(vec![good()], tensor(DType::I32, &[8, 8], true)),
                "model.output: t: i32[8, 8] ragged;",
            ),
            (
                model(vec![good()], tensor(DType::I32, &[0], true)),
                "model.output: t: i32[0] ragged;",
            ),
            (
                EngineParams::new(EngineKind::Tokens),
                "model.inputs: there are none;",
            ),
        ];
        for (params, words) in cases {
            let error = TokenModel::of("tokens", &params)
                .expect_err(words)
                .to_string();
            assert!(error.starts_with(words), "{error}");
            assert!(
                error.contains("engine `tokens`") && error.contains("dtype: i32"),
                "{error}"
            );
        }
    }

    #[test]
    fn a_panic_of_a_thread_is_named() {
        let told = Arc::new(std::sync::Mutex::new(Vec::new()));
        let to = told.clone();
        let fatal: OnFatal = Arc::new(move |e| to.lock().expect("no panic").push(e.to_string()));
        guarded("tokens", 3, &fatal, || panic!("out of {}", "luck"));
        guarded("tokens", 0, &fatal, || Ok(()));
        let told = told.lock().expect("no panic").clone();
        assert_eq!(told, ["worker 3 of engine tokens panicked: out of luck"]);
    }
}
