//! What the keys of the engines `http` and `vllm` have in common.

use qdl::config::Findings;

/// Maximum number of sequences in flight.
pub const MAX_IN_FLIGHT: usize = 65_536;
/// Maximum vocabulary, context and answer, in tokens: ids are `i32`.
pub(crate) const MAX_TOKENS: usize = i32::MAX as usize;
/// Maximum deadline in seconds: one day.
pub(crate) const MAX_S: u64 = 86_400;
pub(crate) const MAX_TEMPERATURE: f64 = 2.0;

/// Checks the lengths of answers of a language model, and the ids `ends` that end an answer.
pub(crate) fn check_answers<'a>(
    engine: &str,
    (min_tokens, max_tokens): (usize, Option<usize>),
    vocab: Option<usize>,
    mut ends: impl Iterator<Item = &'a u32>,
    out: &mut Findings<'_>,
) {
    if let Some(max) = max_tokens.filter(|max| min_tokens > *max) {
        out.add(
            format!("engine.{engine}.min_tokens"),
            format!("min_tokens is {min_tokens}, more than max_tokens, {max}"),
            "set it to max_tokens or less",
        );
    }
    if let Some(vocab) = vocab
        && let Some(id) = ends.find(|id| **id as usize >= vocab)
    {
        out.add(
            format!("engine.{engine}.vocab"),
            format!("id {id} of `stop` or `eos` is not below vocab, {vocab}"),
            "give the number of ids in the model's vocabulary",
        );
    }
}
