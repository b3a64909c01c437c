//! The header of a response: 16 bytes, sent in the same work request as the payload behind them.
//!
//! ```text
//!  0        4           8          12            16
//! +--------+-----------+----------+-------------+----------------
//! | length | use count | queue_us | compute_us  | payload ...
//! +--------+-----------+----------+-------------+----------------
//! ```
//!
//! Each field is a little-endian u32. `length` counts the payload alone; for a response in parts,
//! the payload of the first part. Two bits above the use count mark a refusal ([`Refusal`]): the
//! payload is then a reason in UTF-8 instead of an answer. The accelerator measures the two
//! durations: the sample's wait for its batch, and the batch's time in the engine. The last of
//! several parts ends with a trailer:
//!
//! ```text
//!   first part  [ header | payload ]
//!   more parts           [ payload ]
//!   last part            [ payload | trailer ]
//! ```
//!
//! If an answer is refused after its first part, the last part holds the reason. The two bits are
//! then above the number of parts in the trailer.

pub(crate) const MAX_REASON: usize = 256;

/// Marks a response whose payload is the reason of a refusal.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Refusal {
    /// The payload is the whole reason.
    Whole,
    /// The payload is a part of the reason; the control plane carries the full reason.
    Cut,
    /// The accelerator takes no sample now. The payload is the reason, or its beginning. The sample
    /// is not at fault.
    Away,
}

impl Refusal {
    const REFUSED: u32 = 1 << 31;
    const CUT: u32 = 1 << 30;

    /// Puts a refusal into the two upper bits of `word`.
    pub(crate) fn mark(word: u32, refusal: Option<Refusal>) -> u32 {
        word | match refusal {
            None => 0,
            Some(Refusal::Whole) => Refusal::REFUSED,
            Some(Refusal::Cut) => Refusal::REFUSED | Refusal::CUT,
            Some(Refusal::Away) => Refusal::CUT,
        }
    }

    /// Splits the two upper bits from `word` and decodes them.
    pub(crate) fn unmark(word: u32) -> (u32, Option<Refusal>) {
        let rest = word & !(Refusal::REFUSED | Refusal::CUT);
        let refusal = match word - rest {
            0 => None,
            Refusal::REFUSED => Some(Refusal::Whole),
            Refusal::CUT => Some(Refusal::Away),
            _ => Some(Refusal::Cut),
        };
        (rest, refusal)
    }
}

/// Bytes of a [`ResponseTrailer`].
pub const RESPONSE_TRAILER_BYTES: usize = 16;

/// End of the last of several parts, behind the payload: total length and times are known only
/// then. A response in one piece has no trailer.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ResponseTrailer {
    /// Payload bytes of all parts together.
    pub len: u32,
    pub parts: u32,
    /// The last part holds a refusal's reason instead of the end of the answer.
    pub refusal: Option<Refusal>,
    /// Microseconds from when the engine took the sample until the last part was final.
    pub compute_us: u32,
    /// Mean over all parts of the microseconds from the sample's arrival to the part's posting. The
    /// frontend subtracts this mean to get the network time.
    pub mean_us: u32,
}

impl ResponseTrailer {
    pub(crate) fn encode(&self) -> [u8; RESPONSE_TRAILER_BYTES] {
        let mut b = [0; RESPONSE_TRAILER_BYTES];
        let parts = Refusal::mark(self.parts, self.refusal);
        let words = [self.len, parts, self.compute_us, self.mean_us];
        for (to, word) in b.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        b
    }

    /// Decodes the last bytes of a response. `None` if the trailer contradicts the received `parts`
    /// parts with `len` payload bytes in all.
    pub(crate) fn decode(b: &[u8; RESPONSE_TRAILER_BYTES], len: u32, parts: u32) -> Option<Self> {
        let word = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
        let (told, refusal) = Refusal::unmark(word(4));
        let trailer = ResponseTrailer {
            len: word(0),
            parts: told,
            refusal,
            compute_us: word(8),
            mean_us: word(12),
        };
        (trailer.len == len && trailer.parts == parts).then_some(trailer)
    }
}

/// Length of the header in bytes.
pub const RESPONSE_HEADER_BYTES: usize = 16;

/// The header of a response.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct ResponseHeader {
    /// Payload bytes behind the header.
    pub len: u32,
    /// Use count of the slot, as in the immediate.
    pub use_count: u16,
    /// The payload is a refusal's reason instead of an answer.
    pub refusal: Option<Refusal>,
    /// Microseconds from the sample's arrival to the start of its batch.
    pub queue_us: u32,
    /// Microseconds that the sample's batch spent in the engine.
    pub compute_us: u32,
}

impl ResponseHeader {
    pub(crate) fn encode(&self) -> [u8; RESPONSE_HEADER_BYTES] {
        let mut b = [0; RESPONSE_HEADER_BYTES];
        let words = [
            self.len,
            Refusal::mark(u32::from(self.use_count), self.refusal),
            self.queue_us,
            self.compute_us,
        ];
        for (to, word) in b.chunks_exact_mut(4).zip(words) {
            to.copy_from_slice(&word.to_le_bytes());
        }
        b
    }

    /// Decodes the first bytes of a response. `None` if the header contradicts the fabric's report
    /// of `arrived` bytes for use count `use_count`.
    #[inline]
    pub(crate) fn decode(b: &[u8], arrived: u32, use_count: u16) -> Option<Self> {
        let word = |i: usize| {
            let b = b.get(i * 4..i * 4 + 4)?;
            Some(u32::from_le_bytes(b.try_into().ok()?))
        };
        let (told, refusal) = Refusal::unmark(word(1)?);
        let header = ResponseHeader {
            len: word(0)?,
            use_count: u16::try_from(told).ok()?,
            refusal,
            queue_us: word(2)?,
            compute_us: word(3)?,
        };
        let whole = header.len.checked_add(RESPONSE_HEADER_BYTES as u32)?;
        (whole == arrived && header.use_count == use_count).then_some(header)
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn refusals() -> impl Strategy<Value = Option<Refusal>> {
        prop::sample::select(vec![
            None,
            Some(Refusal::Whole),
            Some(Refusal::Cut),
            Some(Refusal::Away),
        ])
    }

    proptest! {
        #[test]
        fn trailers_survive_and_must_agree(
            len in any::<u32>(),
            parts in 0u32..1 << 30,
            us in any::<(u32, u32)>(),
            refusal in refusals(),
        ) {
            let (compute_us, mean_us) = us;
            let t = ResponseTrailer { len, parts, refusal, compute_us, mean_us };
            prop_assert_eq!(ResponseTrailer::decode(&t.encode(), len, parts), Some(t));
            prop_assert_eq!(ResponseTrailer::decode(&t.encode(), len ^ 1, parts), None);
            prop_assert_eq!(ResponseTrailer::decode(&t.encode(), len, parts ^ 1), None);
        }

        #[test]
        fn survives_and_must_agree(
            len in 0u32..1 << 30,
            use_count in 0u16..0x8000,
            (q, c) in any::<(u32, u32)>(),
            refusal in refusals(),
        ) {
            let h = ResponseHeader { len, use_count, refusal, queue_us: q, compute_us: c };
            let b = h.encode();
            prop_assert_eq!(ResponseHeader::decode(&b, len + 16, use_count), Some(h));
            prop_assert_eq!(ResponseHeader::decode(&b, len + 17, use_count), None);
            prop_assert_eq!(ResponseHeader::decode(&b, len + 16, use_count ^ 1), None);
            prop_assert_eq!(ResponseHeader::decode(&b[..15], len + 16, use_count), None);
        }
    }
}
