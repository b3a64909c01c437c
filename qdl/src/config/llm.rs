//! The engine `llm`: a small language model in this process.

use garde::Validate;
use serde::Deserialize;

use super::rules::{Findings, within, within_some};

/// Most sequences at once.
const MAX_SEQUENCES: usize = 1024;
/// Most positions of a sequence.
const MAX_CONTEXT: usize = 1 << 20;
/// Highest id of a token.
const MAX_ID: u32 = i32::MAX as u32;

/// How the engine `llm` runs its sequences. Its threads are `engine.intra_threads`.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct LlmConfig {
    /// Sequences at once, each with a slot for its keys and values; default 8.
    #[garde(custom(within(1..=MAX_SEQUENCES)))]
    pub sequences: usize,
    /// Positions of such a slot, prompt and answer together; default: the longest of both that the
    /// model's input and output allow.
    #[garde(custom(within_some(2..=MAX_CONTEXT)))]
    pub context: Option<usize>,
    /// Tokens of the shortest answer: before, the end is not chosen; default 1.
    #[garde(custom(within(1..=MAX_CONTEXT)))]
    pub min_tokens: usize,
    /// Tokens of the longest answer, the end included; default: the model's output.
    #[garde(custom(within_some(1..=MAX_CONTEXT)))]
    pub max_tokens: Option<usize>,
    /// The token that ends an answer, and is its last; default: what the model file says.
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
    /// How its keys go together.
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
