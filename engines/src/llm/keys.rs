//! Keys of the engine `llm`.

use fabric::{
    keys::{within, within_some},
    with_defaults,
};
use garde::Validate;
use qdl::config::Findings;
use serde::{Deserialize, Serialize};

const MAX_SEQUENCES: usize = 1024;
/// Maximum number of positions of a sequence.
const MAX_CONTEXT: usize = 1 << 20;
const MAX_ID: u32 = i32::MAX as u32;

with_defaults! {
/// Settings of the engine `llm`. The key `engine.intra_threads` sets the engine's threads.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct LlmConfig {
    /// Concurrent sequences, each with a slot for its keys and values; default 8.
    #[garde(custom(within(1..=MAX_SEQUENCES)))]
    pub sequences: usize = 8,
    /// Positions of each slot, for prompt and answer together; default: the maximum that the
    /// model's input and output allow.
    #[garde(custom(within_some(2..=MAX_CONTEXT)))]
    pub context: Option<usize>,
    /// Minimum answer length in tokens: the engine does not choose `eos` earlier; default 1.
    #[garde(custom(within(1..=MAX_CONTEXT)))]
    pub min_tokens: usize = 1,
    /// Maximum answer length in tokens, `eos` included; default: the model's output.
    #[garde(custom(within_some(1..=MAX_CONTEXT)))]
    pub max_tokens: Option<usize>,
    /// The last token of an answer, which ends it; default: from the model file.
    #[garde(custom(within_some(0..=MAX_ID)))]
    pub eos: Option<u32>,
}
}

impl LlmConfig {
    pub(crate) fn check(&self, out: &mut Findings<'_>) {
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
