//! The options of a request: a block in front of the payload, in the same write.
//!
//! ```text
//!  0        2     4               8           8 + 8n
//! +--------+-----+---------------+-----------+-------------
//! | length |  0  |  token limit  | fields    | payload ...
//! +--------+-----+---------------+-----------+-------------
//! ```
//!
//! A bit of the immediate says that the block is there ([`Imm::has_options`]), so a request without
//! options has no byte of it. All numbers are little-endian. `length` counts the block, a multiple
//! of 8. A field is `{kind u16, length u16, value}` with zeros up to a multiple of 8. Version 10 of
//! the protocol has no kind of field: a receiver refuses a sample with an unknown one.
//!
//! [`Imm::has_options`]: fabric::Imm::has_options

use std::num::NonZeroU32;

/// Bytes of a block without fields, and the unit of its length.
pub const OPTIONS_BYTES: usize = 8;

/// Most bytes of a block.
pub const MAX_OPTIONS: usize = 8192;

/// Options of a request.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct RequestOptions {
    /// Most tokens of the answer; `None` for the engine's own limit.
    pub token_limit: Option<NonZeroU32>,
}

/// Why a receiver refuses a sample with options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each error is")]
pub enum OptionsError {
    #[error("option {0} of the request is unknown here: run the same version on both nodes")]
    Unknown(u16),
    #[error("bytes 2 and 3 of the request's options are not 0")]
    Garbled,
}

impl RequestOptions {
    /// The block of these options.
    pub fn encode(&self) -> [u8; OPTIONS_BYTES] {
        let limit = self.token_limit.map_or(0, NonZeroU32::get);
        (OPTIONS_BYTES as u64 | u64::from(limit) << 32).to_le_bytes()
    }

    /// Length of the block that `request` begins with; `None` where it is none.
    pub fn block_len(request: &[u8]) -> Option<u16> {
        let len = u16::from_le_bytes(*request.first_chunk()?);
        let bytes = usize::from(len);
        let is_one = bytes.is_multiple_of(OPTIONS_BYTES)
            && (OPTIONS_BYTES..=request.len().min(MAX_OPTIONS)).contains(&bytes);
        is_one.then_some(len)
    }

    /// Decodes a whole block; an empty one has no options.
    ///
    /// # Errors
    /// [`OptionsError`] is the reason to refuse the sample.
    pub fn decode(block: &[u8]) -> Result<Self, OptionsError> {
        let Some((head, fields)) = block.split_first_chunk::<OPTIONS_BYTES>() else {
            return Ok(RequestOptions::default());
        };
        let [_, _, 0, 0, limit @ ..] = head else {
            return Err(OptionsError::Garbled);
        };
        match fields.first_chunk() {
            Some(kind) => Err(OptionsError::Unknown(u16::from_le_bytes(*kind))),
            None => Ok(RequestOptions {
                token_limit: NonZeroU32::new(u32::from_le_bytes(*limit)),
            }),
        }
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        /// Any bytes are a block within the request, or none; a limit survives.
        #[test]
        fn a_block_is_read_within_its_request(limit: u32, len in 0u16..80, end in 0usize..64) {
            let options = RequestOptions { token_limit: NonZeroU32::new(limit) };
            let mut request = [7; 64];
            request[..OPTIONS_BYTES].copy_from_slice(&options.encode());
            prop_assert_eq!(RequestOptions::block_len(&request), Some(8));
            prop_assert_eq!(RequestOptions::decode(&request[..8]), Ok(options));
            request[..2].copy_from_slice(&len.to_le_bytes());
            let block = RequestOptions::block_len(&request[..end]).map(usize::from);
            let whole = len >= 8 && len % 8 == 0 && usize::from(len) <= end;
            prop_assert_eq!(block, whole.then_some(usize::from(len)));
            let read = block.map(|bytes| RequestOptions::decode(&request[..bytes]));
            let unknown = Err(OptionsError::Unknown(0x0707));
            let expected = if len == 8 { Ok(options) } else { unknown };
            prop_assert!(read.is_none_or(|read| read == expected));
        }
    }
}
