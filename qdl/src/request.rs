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
//! of 8. A field is `{kind u16, length u16, value}` with zeros up to a multiple of 8; kinds rise.
//!
//! | kind | field | value |
//! | --- | --- | --- |
//! | 1 | `min_tokens` | u32 |
//! | 2 | `temperature` | f32, 0 to 100 |
//! | 3 | `top_p` | f32, above 0 to 1 |
//! | 4 | `top_k` | u32, at least 1 |
//! | 5 | `seed` | u64 |
//! | 6 | `ignore_eos` | nothing |
//! | 7 | `stop_ids` | 1 to [`MAX_STOP_IDS`] ids, i32 each, at least 0 |
//! | 8 | `handle` | 1 to [`MAX_HANDLE`] bytes of a prefill node, opaque |
//!
//! A receiver refuses a sample with another kind, or with a value outside its range.
//!
//! [`Imm::has_options`]: fabric::Imm::has_options

use std::num::NonZeroU32;

pub use record::{OptionSet, RequestOption};

/// Bytes of a block without fields, and the unit of its length.
pub const OPTIONS_BYTES: usize = 8;

/// Most bytes of a block.
pub const MAX_OPTIONS: usize = 8192;

/// Most ids of [`RequestOptions::stop_ids`].
pub const MAX_STOP_IDS: usize = 32;

/// Most bytes of [`RequestOptions::handle`].
pub const MAX_HANDLE: usize = 4096;

/// Bytes that a handle adds to a block.
pub const HANDLE_ROOM: usize = OPTIONS_BYTES + MAX_HANDLE;

/// Most bytes of a block with every option that a client may ask for.
pub const MAX_ENCODED_OPTIONS: usize = OPTIONS_BYTES + 5 * 8 + 16 + 8 + MAX_STOP_IDS * 4;

/// Highest temperature of a request.
const MAX_TEMPERATURE: f32 = 100.0;

/// Options of a request. Where an option is absent, the engine's configuration holds.
#[derive(Clone, Debug, Default, PartialEq)]
pub struct RequestOptions {
    /// Most tokens of the answer; `None` for the engine's own limit.
    pub token_limit: Option<NonZeroU32>,
    /// Fewest tokens of the answer; more than `token_limit` counts as `token_limit`.
    pub min_tokens: Option<u32>,
    /// Temperature of sampling, 0 to 100; 0 is greedy.
    pub temperature: Option<f32>,
    /// Sampling chooses from the most likely tokens of this probability, above 0 to 1.
    pub top_p: Option<f32>,
    /// Sampling chooses from this many most likely tokens, at least 1.
    pub top_k: Option<u32>,
    /// Seed of sampling.
    pub seed: Option<u64>,
    /// The answer goes on behind the end of sequence, up to its limit.
    pub ignore_eos: bool,
    /// Ids that end the answer as its last token, beside the engine's; at most [`MAX_STOP_IDS`].
    pub stop_ids: Vec<i32>,
    /// Handle of the prompt's KV cache on a prefill node, at most [`MAX_HANDLE`] bytes; empty
    /// without one. The dispatcher sets it, not the caller.
    pub handle: Vec<u8>,
}

/// Why options cannot be sent, or why a receiver refuses a sample with them.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each error is")]
pub enum OptionsError {
    #[error("option {0} of the request is unknown here: run the same version on both nodes")]
    Unknown(u16),
    #[error("the request's options are garbled")]
    Garbled,
    #[error("option `{}` of the request is outside its range", .0.name())]
    Value(RequestOption),
    #[error("engine `{0}` has no option `{1}`")]
    Lacks(&'static str, OptionSet),
}

impl RequestOptions {
    /// No option.
    pub const NONE: RequestOptions = RequestOptions {
        token_limit: None,
        min_tokens: None,
        temperature: None,
        top_p: None,
        top_k: None,
        seed: None,
        ignore_eos: false,
        stop_ids: Vec::new(),
        handle: Vec::new(),
    };

    /// The block of a token limit alone; 0 for none.
    pub fn limit_block(limit: u32) -> [u8; OPTIONS_BYTES] {
        (OPTIONS_BYTES as u64 | u64::from(limit) << 32).to_le_bytes()
    }

    /// Appends the block of these options: at most [`MAX_ENCODED_OPTIONS`] bytes, and
    /// [`HANDLE_ROOM`] more with a handle.
    ///
    /// # Errors
    /// [`OptionsError::Value`]: a value is outside its range, and `out` is as before.
    pub fn encode(&self, out: &mut Vec<u8>) -> Result<(), OptionsError> {
        self.check()?;
        let start = out.len();
        out.extend(Self::limit_block(
            self.token_limit.map_or(0, NonZeroU32::get),
        ));
        let mut field = |kind: RequestOption, value: &[u8]| {
            out.extend((kind as u16).to_le_bytes());
            out.extend((value.len() as u16).to_le_bytes());
            out.extend(value);
            out.resize(start + (out.len() - start).next_multiple_of(8), 0);
        };
        if let Some(n) = self.min_tokens {
            field(RequestOption::MinTokens, &n.to_le_bytes());
        }
        if let Some(t) = self.temperature {
            field(RequestOption::Temperature, &t.to_le_bytes());
        }
        if let Some(p) = self.top_p {
            field(RequestOption::TopP, &p.to_le_bytes());
        }
        if let Some(k) = self.top_k {
            field(RequestOption::TopK, &k.to_le_bytes());
        }
        if let Some(seed) = self.seed {
            field(RequestOption::Seed, &seed.to_le_bytes());
        }
        if self.ignore_eos {
            field(RequestOption::IgnoreEos, &[]);
        }
        if !self.stop_ids.is_empty() {
            let ids: Vec<u8> = self.stop_ids.iter().flat_map(|i| i.to_le_bytes()).collect();
            field(RequestOption::StopIds, &ids);
        }
        if !self.handle.is_empty() {
            field(RequestOption::Handle, &self.handle);
        }
        let len = (out.len() - start) as u16;
        out[start..start + 2].copy_from_slice(&len.to_le_bytes());
        Ok(())
    }

    /// Checks that each value is within its range.
    fn check(&self) -> Result<(), OptionsError> {
        let within = |t: &f32| (0.0..=MAX_TEMPERATURE).contains(t);
        for (is_sound, option) in [
            (
                self.temperature.as_ref().is_none_or(within),
                RequestOption::Temperature,
            ),
            (
                self.top_p.is_none_or(|p| p > 0.0 && p <= 1.0),
                RequestOption::TopP,
            ),
            (self.top_k != Some(0), RequestOption::TopK),
            (
                self.stop_ids.len() <= MAX_STOP_IDS && self.stop_ids.iter().all(|id| *id >= 0),
                RequestOption::StopIds,
            ),
            (self.handle.len() <= MAX_HANDLE, RequestOption::Handle),
        ] {
            if !is_sound {
                return Err(OptionsError::Value(option));
            }
        }
        Ok(())
    }

    /// Options that an engine must act on to run the request. Values that change nothing
    /// (temperature 0, which every engine takes, and `top_p` 1) are not among them.
    pub fn needs(&self) -> OptionSet {
        let all = [
            (self.token_limit.is_some(), RequestOption::TokenLimit),
            (self.min_tokens.is_some(), RequestOption::MinTokens),
            (
                self.temperature.is_some_and(|t| t != 0.0),
                RequestOption::Temperature,
            ),
            (self.top_p.is_some_and(|p| p < 1.0), RequestOption::TopP),
            (self.top_k.is_some(), RequestOption::TopK),
            (self.seed.is_some(), RequestOption::Seed),
            (self.ignore_eos, RequestOption::IgnoreEos),
            (!self.stop_ids.is_empty(), RequestOption::StopIds),
            (!self.handle.is_empty(), RequestOption::Handle),
        ];
        let needed = |(is_set, option): (bool, _)| is_set.then_some(option);
        all.into_iter().filter_map(needed).collect()
    }

    /// Writes to `out` the block `block`, empty for none, and behind its fields a handle. Returns
    /// the length; `None` without room, or if the block is malformed.
    pub(crate) fn put_handle(block: &[u8], handle: &[u8], out: &mut [u8]) -> Option<usize> {
        let block = match block {
            [] => &RequestOptions::limit_block(0)[..],
            block => block,
        };
        let field = (4 + handle.len()).next_multiple_of(OPTIONS_BYTES);
        let len = block.len() + field;
        let out = out.get_mut(..len)?;
        out.fill(0);
        let (head, tail) = out.split_at_mut(block.len());
        head.copy_from_slice(block);
        head.get_mut(..2)?
            .copy_from_slice(&u16::try_from(len).ok()?.to_le_bytes());
        tail[..2].copy_from_slice(&(RequestOption::Handle as u16).to_le_bytes());
        tail[2..4].copy_from_slice(&u16::try_from(handle.len()).ok()?.to_le_bytes());
        tail[4..4 + handle.len()].copy_from_slice(handle);
        (len <= MAX_OPTIONS).then_some(len)
    }

    /// Length of the block that `request` begins with; `None` where it is none.
    pub fn block_len(request: &[u8]) -> Option<u16> {
        let len = u16::from_le_bytes(*request.first_chunk()?);
        let bytes = usize::from(len);
        let is_one = bytes.is_multiple_of(OPTIONS_BYTES)
            && (OPTIONS_BYTES..=request.len().min(MAX_OPTIONS)).contains(&bytes);
        is_one.then_some(len)
    }

    /// Decodes a whole block; an empty one has no options. Allocates for stop ids and a handle
    /// alone.
    ///
    /// # Errors
    /// [`OptionsError`] is the reason to refuse the sample.
    pub fn decode(block: &[u8]) -> Result<Self, OptionsError> {
        let Some((head, mut fields)) = block.split_first_chunk::<OPTIONS_BYTES>() else {
            return Ok(RequestOptions::default());
        };
        let [_, _, 0, 0, limit @ ..] = head else {
            return Err(OptionsError::Garbled);
        };
        let mut options = RequestOptions {
            token_limit: NonZeroU32::new(u32::from_le_bytes(*limit)),
            ..RequestOptions::default()
        };
        let mut last = 0;
        while let Some((kind, rest)) = fields.split_first_chunk() {
            let kind = u16::from_le_bytes(*kind);
            let known = RequestOption::ALL.get(usize::from(kind));
            let option = known.filter(|option| **option != RequestOption::TokenLimit);
            let option = *option.ok_or(OptionsError::Unknown(kind))?;
            let value = rest.split_first_chunk().and_then(|(len, rest)| {
                let len = usize::from(u16::from_le_bytes(*len));
                let (value, rest) = rest.split_at_checked(len)?;
                let (zeros, rest) =
                    rest.split_at_checked((4 + len).next_multiple_of(8) - 4 - len)?;
                fields = rest;
                zeros.iter().all(|b| *b == 0).then_some(value)
            });
            let set = value
                .filter(|_| kind > last)
                .and_then(|value| options.set(option, value));
            set.ok_or(OptionsError::Garbled)?;
            last = kind;
        }
        options.check().map(|()| options)
    }

    /// Sets one field; `None` if the length of its value is wrong.
    fn set(&mut self, option: RequestOption, value: &[u8]) -> Option<()> {
        let word = || value.try_into().ok();
        match option {
            RequestOption::TokenLimit => return None,
            RequestOption::MinTokens => self.min_tokens = Some(u32::from_le_bytes(word()?)),
            RequestOption::Temperature => self.temperature = Some(f32::from_le_bytes(word()?)),
            RequestOption::TopP => self.top_p = Some(f32::from_le_bytes(word()?)),
            RequestOption::TopK => self.top_k = Some(u32::from_le_bytes(word()?)),
            RequestOption::Seed => self.seed = Some(u64::from_le_bytes(value.try_into().ok()?)),
            RequestOption::IgnoreEos => self.ignore_eos = value.is_empty().then_some(true)?,
            RequestOption::StopIds => {
                let (ids, rest) = value.as_chunks();
                let is_sound = rest.is_empty() && (1..=MAX_STOP_IDS).contains(&ids.len());
                self.stop_ids =
                    is_sound.then(|| ids.iter().map(|b| i32::from_le_bytes(*b)).collect())?;
            }
            RequestOption::Handle => {
                self.handle = (1..=MAX_HANDLE)
                    .contains(&value.len())
                    .then(|| value.to_vec())?;
            }
        }
        Some(())
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn options() -> impl Strategy<Value = RequestOptions> {
        use prop::option::of;
        (
            (
                any::<u32>(),
                of(any::<u32>()),
                of(0f32..=100.0),
                of(0.001f32..=1.0),
            ),
            (of(1u32..), of(any::<u64>()), any::<bool>()),
            prop::collection::vec(0.., 0..=MAX_STOP_IDS),
            prop::collection::vec(any::<u8>(), 0..=MAX_HANDLE),
        )
            .prop_map(
                |(
                    (limit, min_tokens, temperature, top_p),
                    (top_k, seed, eos),
                    stop_ids,
                    handle,
                )| {
                    RequestOptions {
                        token_limit: NonZeroU32::new(limit),
                        min_tokens,
                        temperature,
                        top_p,
                        top_k,
                        seed,
                        ignore_eos: eos,
                        stop_ids,
                        handle,
                    }
                },
            )
    }

    proptest! {
        #[test]
        fn options_survive_and_no_byte_of_them_may_be_missing(options in options(), cut: u16) {
            let mut request = b"in front".to_vec();
            options.encode(&mut request).expect("sound");
            let block = &request[8..];
            prop_assert!(block.len() <= MAX_ENCODED_OPTIONS + HANDLE_ROOM);
            let mut bare = Vec::new();
            let without = RequestOptions {
                handle: Vec::new(),
                ..options.clone()
            };
            without.encode(&mut bare).expect("sound");
            if !options.handle.is_empty() {
                let mut put = vec![9; MAX_OPTIONS];
                let len = RequestOptions::put_handle(&bare, &options.handle, &mut put);
                prop_assert_eq!(len.map(|len| &put[..len]), Some(block));
            }
            prop_assert_eq!(RequestOptions::block_len(block).map(usize::from), Some(block.len()));
            prop_assert_eq!(RequestOptions::decode(block), Ok(options));
            let end = usize::from(cut) % block.len();
            prop_assert_eq!(RequestOptions::block_len(&block[..end]), None);
            for len in [0u16, 7, 12, MAX_OPTIONS as u16 + 8] {
                let request = [&len.to_le_bytes(), &[0; MAX_OPTIONS + 64][..]].concat();
                prop_assert_eq!(RequestOptions::block_len(&request), None, "{}", len);
            }
        }

        /// Any bytes are sound options or an error, and sound options are encoded again.
        #[test]
        fn any_bytes_are_options_or_refused(
            fields in prop::collection::vec((0u16..10, 0u16..20, any::<[u8; 12]>()), 0..4),
            noise in prop::collection::vec(any::<u8>(), 0..20),
        ) {
            let mut block = RequestOptions::limit_block(3).to_vec();
            for (kind, len, value) in fields {
                block.extend(kind.to_le_bytes());
                block.extend(len.to_le_bytes());
                block.extend(value);
            }
            for bytes in [&block[..], &[&block[..8], &noise].concat()] {
                if let Ok(options) = RequestOptions::decode(bytes) {
                    let mut again = Vec::new();
                    prop_assert_eq!(options.encode(&mut again), Ok(()));
                    prop_assert_eq!(RequestOptions::decode(&again), Ok(options));
                }
            }
        }
    }

    #[test]
    fn what_a_receiver_does_not_know_or_may_not_take_is_refused_by_name() {
        let block = |fields: &[u8]| [&RequestOptions::limit_block(0)[..], fields].concat();
        let value = OptionsError::Value;
        for (fields, error) in [
            (&[9, 0, 0, 0, 0, 0, 0, 0][..], OptionsError::Unknown(9)),
            (&[8, 0, 0, 0, 0, 0, 0, 0], OptionsError::Garbled),
            (&[1, 0, 3, 0, 0, 0, 0, 0], OptionsError::Garbled),
            (&[6, 0, 0, 0, 0, 0, 0, 1], OptionsError::Garbled),
            (&[6, 0, 0, 0, 0, 0, 0, 0].repeat(2), OptionsError::Garbled),
            (&[7, 0, 0, 0, 0, 0, 0, 0], OptionsError::Garbled),
            (
                &[7, 0, 4, 0, 255, 255, 255, 255],
                value(RequestOption::StopIds),
            ),
            (
                &[2, 0, 4, 0, 0, 0, 192, 127],
                value(RequestOption::Temperature),
            ),
            (&[3, 0, 4, 0, 0, 0, 0, 0], value(RequestOption::TopP)),
            (&[4, 0, 4, 0, 0, 0, 0, 0], value(RequestOption::TopK)),
        ] {
            assert_eq!(
                RequestOptions::decode(&block(fields)),
                Err(error),
                "{fields:?}"
            );
        }
        let neutral = RequestOptions {
            temperature: Some(0.0),
            top_p: Some(1.0),
            ..RequestOptions::default()
        };
        assert!(neutral.needs().is_empty());
        let hot = RequestOptions {
            temperature: Some(0.5),
            seed: Some(1),
            ..neutral
        };
        assert_eq!(hot.needs().to_string(), "temperature, seed");
    }
}
