//! The `tokens` engine: a simulated language model. An answer is a hash of the prompt, so every
//! receiver can check each token ([`answer()`]). Step times come from the configuration, so tests
//! have a language model's batch without a model.
//!
//! The batch is continuous: sequences join and leave the batch between two steps. A step gives
//! each sequence one token; a sequence that joins before a step gets its first token in this step.
//! A prefill node's sequences have one step; a decode node's have no prompt to compute.

mod answer;
pub(crate) mod keys;
mod steps;

use std::{sync::Arc, time::Duration};

use qdl::{
    model::ModelSpec,
    request::{OptionSet, RequestOption},
};

use record::NodeRole;

use super::{
    Engine, EngineError, EngineParams, Streaming,
    streaming::{OnFatal, SequenceSource, TokenModel},
};
use crate::{
    config::{AnswerSource, EngineKind},
    entry::EngineEntry,
};

pub use answer::{Answers, answer};

use steps::{Pace, Steps};

const NAME: &str = ENTRY.name;

pub(crate) const ENTRY: EngineEntry = EngineEntry {
    keys: &["tokens", "role"],
    check: |engine, out| engine.tokens.iter().for_each(|tokens| tokens.check(out)),
    ..EngineEntry::of_tokens(
        EngineKind::Tokens,
        "tokens",
        AnswerSource::Settings,
        |params| Ok(Arc::new(Tokens::new(params)?)),
    )
};

/// The `tokens` engine.
pub struct Tokens {
    model: ModelSpec,
    role: NodeRole,
    steps: Arc<Steps>,
}

impl Tokens {
    /// Makes the engine from `spec` and the engine's settings `spin_us` and `tokens`.
    ///
    /// # Errors
    /// The model's input and output are not token ids, or `engine.tokens` does not fit the output.
    pub fn new(params: &EngineParams) -> Result<Self, EngineError> {
        let model = TokenModel::of(NAME, params.spec.as_ref())?;
        let settings = params.engine.tokens.clone().unwrap_or_default();
        let answers = Answers::new(&settings, model.answer)?;
        let most = settings.sequences;
        let pace = Pace::new(&settings, params.engine.spin_us);
        Ok(Tokens {
            model: model.spec,
            role: params.engine.role,
            steps: Arc::new(Steps::new(answers, pace, most, params.engine.role)),
        })
    }
}

impl Engine for Tokens {
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

impl Streaming for Tokens {
    fn start(&self, source: Arc<dyn SequenceSource>, fatal: OnFatal) -> Result<(), EngineError> {
        let steps = Arc::clone(&self.steps);
        self.steps.thread.start(NAME, fatal, move || {
            steps.run(&*source);
            Ok(())
        })
    }

    fn options(&self) -> OptionSet {
        self.role.options(OptionSet::of(&[
            RequestOption::TokenLimit,
            RequestOption::MinTokens,
            RequestOption::Seed,
            RequestOption::IgnoreEos,
            RequestOption::StopIds,
        ]))
    }

    fn in_flight(&self) -> usize {
        self.steps.most
    }

    fn wake(&self, _source: &dyn SequenceSource) {
        self.steps.thread.events.notify();
    }

    fn stop(&self, timeout: Duration) {
        self.steps.close();
        self.steps.thread.stop(timeout);
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        // This ends the thread if `stop` was not called.
        self.steps.close();
    }
}
