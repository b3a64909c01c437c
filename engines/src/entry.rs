//! The row of an engine: the facts that the rest of the programs has to know.

use std::{path::Path, sync::Arc, time::Duration};

use qdl::config::Findings;

use crate::{
    Engine, EngineError, EngineParams,
    config::{AnswerSource, EngineConfig, EngineKind},
};

pub(crate) type Opened = Result<Arc<dyn Engine>, EngineError>;

/// An engine's row. It stands in the engine's folder.
pub(crate) struct EngineEntry {
    pub kind: EngineKind,
    /// The engine's name in YAML.
    pub name: &'static str,
    pub source: AnswerSource,
    /// Runs a language model, batches by itself, and answers in tokens.
    pub streams: bool,
    /// Runs on a GPU, whatever the configuration.
    pub on_gpu: bool,
    /// Answers may be shorter than the model's output.
    pub has_ragged_output: bool,
    /// Takes `model.other_outputs`.
    pub has_other_outputs: bool,
    /// Least bytes of an answer.
    pub answer_bytes_min: usize,
    /// `engine.library` may be a folder of several files.
    pub has_library_folder: bool,
    /// Keys of `engine`, beside those that every engine has and
    /// [`BATCHING`](crate::config::BATCHING).
    pub keys: &'static [&'static str],
    /// Checks the values of `keys`.
    pub check: fn(&EngineConfig, &mut Findings<'_>),
    /// Resolves the paths of `keys` relative to a folder.
    pub resolve: fn(&mut EngineConfig, &Path),
    /// Makes the engine. Loads the model, so that a bad model fails now.
    pub open: fn(&EngineParams) -> Opened,
    /// Time that the engine's own deadlines permit its start. Their messages are better than the
    /// pipeline's, whose deadline is later.
    pub start: fn(&EngineConfig) -> Duration,
}

impl EngineEntry {
    /// The row of an engine that runs the batches of the batcher in this process, answers with
    /// outputs of one size, and has no keys.
    pub const fn of(
        kind: EngineKind,
        name: &'static str,
        source: AnswerSource,
        open: fn(&EngineParams) -> Opened,
    ) -> Self {
        EngineEntry {
            kind,
            name,
            source,
            streams: false,
            on_gpu: false,
            has_ragged_output: false,
            has_other_outputs: false,
            answer_bytes_min: 0,
            has_library_folder: false,
            keys: &[],
            check: |_, _| (),
            resolve: |_, _| (),
            open,
            start: |_| Duration::ZERO,
        }
    }

    /// The row of a language model's engine without keys.
    pub const fn of_tokens(
        kind: EngineKind,
        name: &'static str,
        source: AnswerSource,
        open: fn(&EngineParams) -> Opened,
    ) -> Self {
        EngineEntry {
            streams: true,
            has_ragged_output: true,
            ..Self::of(kind, name, source, open)
        }
    }
}
