//! A request's parameters as the block of options in front of its prompt.

use std::num::NonZeroU32;

use qdl::request::RequestOptions;

use crate::openai::{ApiError, Completion};

/// Returns the block of a request whose answer has at most `limit` tokens.
///
/// # Errors
/// A parameter that the accelerators' engine does not have.
pub fn options(asked: &Completion, limit: u32) -> Result<Vec<u8>, ApiError> {
    let _ = asked;
    let options = RequestOptions {
        token_limit: NonZeroU32::new(limit),
    };
    Ok(options.encode().to_vec())
}

/// Returns the block of the warm-up's prompt.
pub fn warm_up() -> Vec<u8> {
    let options = RequestOptions {
        token_limit: NonZeroU32::new(2),
    };
    options.encode().to_vec()
}
