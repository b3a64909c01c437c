//! Configuration of the engine `llm`: a small language model in this process.

use garde::Validate;
use serde::Deserialize;

use super::rules::{Findings, within, within_some};

const MAX_SEQUENCES: usize = 1024;
/// Maximum number of positions of a sequence.
const MAX_CONTEXT: usize = 1 << 20;
/// Maximum token id.
const MAX_ID: u32 = i32::MAX as u32;

/// Settings of the engine `llm`. `engine.intra_threads` sets its threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct LlmConfig {
    /// Concurrent sequences, each with a slot for its keys and values; default 8.
    #[garde(custom(within(1..=MAX_SEQUENCES)))]
    pub sequences: usize,
    /// Positions of each slot, for prompt and answer together; default: the maximum that the
    /// model's input and output allow.
    #[garde(custom(within_some(2..=MAX_CONTEXT)))]
    pub context: Option<usize>,
    /// Minimum answer length in tokens: the end is not chosen before it; default 1.
    #[garde(custom(within(1..=MAX_CONTEXT)))]
    pub min_tokens: usize,
    /// Maximum answer length in tokens, including the end; default: the model's output.
    #[garde(custom(within_some(1..=MAX_CONTEXT)))]
    pub max_tokens: Option<usize>,
    /// The last token of an answer, which ends it; default: from the model file.
    #[garde(custom(within_some(0..=MAX_ID)))]
    pub eos: Option<u32>,
}

impl Default for LlmConfig {
    fn default() -> Self {
        LlmConfig {
            sequences: 8,
            context: None,
            min_tokens: 1,
            max_tokens: None,
            eos: None,
        }
    }
}

impl LlmConfig {
    pub(super) fn check(&self, out: &mut Findings<'_>) {
        if let Some(most) = self.max_tokens.filter(|most| *most < self.min_tokens) {
            out.add(
                "engine.llm.min_tokens",
                format!("min_tokens is {}", self.min_tokens),
                format!("it must be at most {most}, which is max_tokens"),
            );
        }
        let answer = self.max_tokens.unwrap_or(self.min_tokens);
        if let Some(context) = self.context.filter(|context| *context <= answer) {
            out.add(
                "engine.llm.context",
                format!("{context} positions, and an answer may take {answer}"),
                "make it the longest prompt and the longest answer together",
            );
        }
    }
}
