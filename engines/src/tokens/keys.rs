//! Keys of the engine `tokens`.

use fabric::{
    keys::{within, within_some},
    with_defaults,
};
use garde::Validate;
use qdl::config::Findings;
use serde::{Deserialize, Serialize};

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
