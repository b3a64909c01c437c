//! `tokens`: a pretended language model, with a clock. Its answers are a hash of the prompt, so
//! that each token can be checked wherever it went ([`answer()`]); its time is what the
//! configuration says of a step, so that a language model's batch can be had without one.
//!
//! The batch is continuous: sequences join and leave it between two steps. A step brings each of
//! them one token, the first one with the step that a sequence joins in.

mod answer;
mod steps;

use std::{
    sync::{Arc, Mutex, PoisonError},
    thread::{self, JoinHandle},
    time::Duration,
};

use qdl::{connection::join_all, model::ModelSpec};

use super::{
    Engine, EngineError, EngineParams, Sequence, Streaming,
    streaming::{OnFatal, TokenModel, guarded},
};

pub use answer::{Answers, answer};

use steps::{Pace, Steps};

/// What the engine is called.
const NAME: &str = "tokens";

/// The engine that pretends.
pub struct Tokens {
    model: ModelSpec,
    most: usize,
    steps: Arc<Steps>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Tokens {
    /// Takes `spec`, and of the engine's settings `spin_us` and `tokens`.
    ///
    /// # Errors
    /// [`EngineError::TokenModel`] where the model is none of token ids, [`EngineError::Param`]
    /// where its output does not hold the longest answer.
    pub fn new(params: &EngineParams) -> Result<Self, EngineError> {
        let model = TokenModel::of(NAME, params)?;
        let settings = params.engine.tokens.clone().unwrap_or_default();
        let answers = Answers::new(&settings, model.answer)?;
        let most = settings.sequences;
        let pace = Pace::new(&settings, params.engine.spin_us);
        Ok(Tokens {
            model: model.spec,
            most,
            steps: Arc::new(Steps::new(answers, pace, most)),
            thread: Mutex::default(),
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

    fn counts_tokens(&self) -> bool {
        true
    }

    fn streaming(&self) -> Option<&dyn Streaming> {
        Some(self)
    }
}

impl Streaming for Tokens {
    fn start(&self, fatal: OnFatal) -> Result<(), EngineError> {
        let steps = Arc::clone(&self.steps);
        let thread = thread::Builder::new()
            .name("tokens".to_owned())
            .spawn(move || {
                guarded(NAME, 0, &fatal, || {
                    steps.run();
                    Ok(())
                });
                // After a panic nobody takes what is submitted.
                steps.close();
            })
            .map_err(|source| EngineError::Thread { worker: 0, source })?;
        *self.thread.lock().unwrap_or_else(PoisonError::into_inner) = Some(thread);
        Ok(())
    }

    fn in_flight(&self) -> usize {
        self.most
    }

    fn submit(&self, sequence: Sequence) {
        self.steps.submit(sequence);
    }

    fn stop(&self, timeout: Duration) {
        self.steps.close();
        let thread = self
            .thread
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take();
        join_all(thread.into_iter().collect(), timeout);
    }
}

impl Drop for Tokens {
    fn drop(&mut self) {
        // Its thread ends by itself, where nobody has stopped it.
        self.steps.close();
    }
}
