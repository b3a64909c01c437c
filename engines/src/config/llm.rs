//! Configuration of two engines: `llm`, a small language model in this process, and `tokens`, which
//! simulates length and timing of answers.

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

const MAX_SIMULATED_SEQUENCES: usize = 65_536;
/// Maximum simulated time, in microseconds: one minute.
const MAX_US: u64 = 60_000_000;
const MAX_TOKENS: usize = 1 << 24;
/// Maximum vocabulary: ids are `i32`.
const MAX_VOCAB: i32 = i32::MAX;

with_defaults! {
/// Behaviour and timing of the engine `tokens`. Each step produces one token per sequence and takes
/// `step_us`, plus `beside_us` for each sequence after the first, plus `prefill_us` for each prompt
/// token of new sequences. With all three at 0 the engine answers as fast as it can.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct TokensConfig {
    /// Maximum number of concurrent sequences, 1 to 65,536; default 64. Further sequences wait.
    #[garde(custom(within(1..=MAX_SIMULATED_SEQUENCES)))]
    pub sequences: usize = 64,
    /// Microseconds for each token of a prompt; default 0.
    #[garde(custom(within(0..=MAX_US)))]
    pub prefill_us: u64,
    /// Microseconds of a step; default 0.
    #[garde(custom(within(0..=MAX_US)))]
    pub step_us: u64,
    /// Microseconds that each further sequence adds to a step; default 0.
    #[garde(custom(within(0..=MAX_US)))]
    pub beside_us: u64,
    /// Minimum answer length in tokens, including EOS; default 2, the minimum that LoadGen accepts.
    #[garde(custom(within(1..=MAX_TOKENS)))]
    pub min_tokens: usize = 2,
    /// Maximum answer length in tokens; default the length of the model's output. The prompt
    /// determines each answer's length between minimum and maximum.
    #[garde(custom(within_some(1..=MAX_TOKENS)))]
    pub max_tokens: Option<usize>,
    /// Upper bound of token ids, exclusive; default 32,000.
    #[garde(custom(within(2..=MAX_VOCAB)))]
    pub vocab: i32 = 32_000,
    /// Id of every answer's last token, and of no other token; default 2.
    #[garde(custom(within(0..=MAX_VOCAB)))]
    pub eos: i32 = 2,
}
}

impl TokensConfig {
    pub(crate) fn check(&self, out: &mut Findings<'_>) {
        if self.max_tokens.is_some_and(|most| most < self.min_tokens) {
            out.add(
                "engine.tokens.max_tokens",
                format!("it is less than `min_tokens`, {}", self.min_tokens),
                "raise it, or lower `min_tokens`",
            );
        }
        if self.eos >= self.vocab {
            out.add(
                "engine.tokens.eos",
                format!("{} is no token of a vocabulary of {}", self.eos, self.vocab),
                "give one below `vocab`",
            );
        }
    }
}
