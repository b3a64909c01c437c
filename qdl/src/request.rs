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

/// Why a receiver refuses a block of options.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
pub enum OptionsError {
    /// A field that this version does not know.
    #[error(
        "option {0} of the request is unknown to this accelerator: run the same version on both nodes"
    )]
    Unknown(u16),
    /// Bytes that contradict the layout.
    #[error("the request's options are garbled at byte {0}")]
    Garbled(usize),
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
            return Err(OptionsError::Garbled(2));
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
        #[test]
        fn options_survive_and_their_block_ends_where_it_says(
            limit: u32,
            payload in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let options = RequestOptions { token_limit: NonZeroU32::new(limit) };
            let request = [&options.encode()[..], &payload].concat();
            let len = RequestOptions::block_len(&request).map(usize::from);
            prop_assert_eq!(len, Some(OPTIONS_BYTES));
            prop_assert_eq!(RequestOptions::decode(&request[..OPTIONS_BYTES]), Ok(options));
        }

        #[test]
        fn any_bytes_are_a_block_within_the_request_or_none(
            mut request in prop::collection::vec(any::<u8>(), 0..64),
            len in prop::option::of(0u16..80),
        ) {
            if let (Some(len), [low, high, ..]) = (len, &mut request[..]) {
                [*low, *high] = len.to_le_bytes();
            }
            if let Some(len) = RequestOptions::block_len(&request).map(usize::from) {
                prop_assert!(len >= OPTIONS_BYTES && len % OPTIONS_BYTES == 0);
                let read = RequestOptions::decode(&request[..len]);
                prop_assert!(read.is_err() || len == OPTIONS_BYTES);
            }
        }
    }

    #[test]
    fn an_unknown_field_is_refused_by_its_kind() {
        let block = [16, 0, 0, 0, 2, 0, 0, 0, 7, 0, 4, 0, 1, 2, 3, 4];
        assert_eq!(RequestOptions::block_len(&block), Some(16));
        let refused = RequestOptions::decode(&block).expect_err("unknown");
        assert_eq!(refused, OptionsError::Unknown(7));
        let garbled = RequestOptions::decode(&[8, 0, 1, 0, 2, 0, 0, 0]);
        assert_eq!(garbled, Err(OptionsError::Garbled(2)));
    }
}
