//! A request's parameters as the block of options in front of its prompt.

use std::num::NonZeroU32;

use qdl::request::{OptionSet, RequestOptions};

use crate::openai::{ApiError, Completion};

/// Most tokens of the warm-up's answer.
const WARM_UP_TOKENS: u32 = 2;

/// Returns the block of a request whose answer has at most `limit` tokens. All accelerators have
/// the options `known`.
///
/// # Errors
/// A parameter that an accelerator's engine does not have, or a value outside its range.
pub fn options(asked: &Completion, limit: u32, known: OptionSet) -> Result<Vec<u8>, ApiError> {
    let sampling = &asked.sampling;
    let options = RequestOptions {
        token_limit: NonZeroU32::new(limit),
        min_tokens: sampling.min_tokens.filter(|fewest| *fewest > 0),
        temperature: sampling.temperature,
        top_p: sampling.top_p.filter(|p| *p < 1.0),
        // -1 and 0 are all tokens.
        top_k: sampling
            .top_k
            .and_then(|k| u32::try_from(k).ok())
            .filter(|k| *k > 0),
        seed: sampling.seed,
        ignore_eos: sampling.ignore_eos,
        stop_ids: asked.stop_token_ids.clone(),
        handle: Vec::new(),
    };
    if let Some(missing) = options.needs().without(known).iter().next() {
        let name = match missing.name() {
            "stop_ids" => "stop_token_ids",
            name => name,
        };
        let why = format!("{name}: an accelerator's engine does not have it; leave it out");
        return Err(ApiError {
            code: Some("unsupported_parameter"),
            ..ApiError::invalid(name, why)
        });
    }
    let mut block = Vec::new();
    let encoded = options.encode(&mut block);
    encoded.map_err(|error| ApiError::invalid("body", error.to_string()))?;
    Ok(block)
}

/// Returns the block of the warm-up's prompt.
pub fn warm_up() -> Vec<u8> {
    RequestOptions::limit_block(WARM_UP_TOKENS).to_vec()
}
