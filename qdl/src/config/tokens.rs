//! A pretended language model: how long its answers are, and how long they take.

use garde::Validate;
use serde::Deserialize;

use super::rules::{Findings, within, within_some};

/// Most sequences at once.
const MAX_SEQUENCES: usize = 65_536;
/// Longest pretended time, in microseconds: one minute.
const MAX_US: u64 = 60_000_000;
/// Longest answer, in tokens.
const MAX_TOKENS: usize = 1 << 24;
/// Largest vocabulary: ids are `i32`.
const MAX_VOCAB: i32 = i32::MAX;

/// What the engine `tokens` does, and how long it takes. A step of it brings each of its sequences
/// a token, and takes `step_us`, `beside_us` for each sequence but one, and `prefill_us` for each
/// token of the prompts that joined. Where all three are 0, it answers as fast as it can.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct TokensConfig {
    /// Most sequences at once, 1 to 65,536; default 64. More wait for a place.
    #[garde(custom(within(1..=MAX_SEQUENCES)))]
    pub sequences: usize,
    /// Microseconds for each token of a prompt; default 0.
    #[garde(custom(within(0..=MAX_US)))]
    pub prefill_us: u64,
    /// Microseconds of a step; default 0.
    #[garde(custom(within(0..=MAX_US)))]
    pub step_us: u64,
    /// Microseconds that each further sequence adds to a step; default 0.
    #[garde(custom(within(0..=MAX_US)))]
    pub beside_us: u64,
    /// Tokens of the shortest answer, its EOS included; default 2, the least that LoadGen takes.
    #[garde(custom(within(1..=MAX_TOKENS)))]
    pub min_tokens: usize,
    /// Tokens of the longest; default what the model's output holds. Which of the lengths between
    /// them an answer has is a function of its prompt.
    #[garde(custom(within_some(1..=MAX_TOKENS)))]
    pub max_tokens: Option<usize>,
    /// Tokens are 0 to below this; default 32,000.
    #[garde(custom(within(2..=MAX_VOCAB)))]
    pub vocab: i32,
    /// The last token of every answer, and no other; default 2.
    #[garde(custom(within(0..=MAX_VOCAB)))]
    pub eos: i32,
}

impl Default for TokensConfig {
    fn default() -> Self {
        TokensConfig {
            sequences: 64,
            prefill_us: 0,
            step_us: 0,
            beside_us: 0,
            min_tokens: 2,
            max_tokens: None,
            vocab: 32_000,
            eos: 2,
        }
    }
}

impl TokensConfig {
    /// How its keys go together.
    pub(super) fn check(&self, out: &mut Findings<'_>) {
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
