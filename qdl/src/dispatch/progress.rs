//! Decoding of an answer's writes: in one piece, in parts, or a refusal.
//!
//! ```text
//!   first part   [ header | tokens ]
//!   more parts            [ tokens ]
//!   last part             [ tokens | trailer ]
//! ```

use crate::response::{RESPONSE_TRAILER_BYTES, Refusal, ResponseHeader, ResponseTrailer};
use fabric::Imm;

/// Value of [`Parts::number`] after an invalid part: every later part is invalid too.
const SPOILT: u32 = u32::MAX;

/// Parts of the answers so far, by slot; meaningless after an answer's last part. Empty where
/// answers come in one piece.
#[derive(Debug, Default)]
pub(super) struct ResponseProgress {
    parts: Box<[Parts]>,
    first: Box<[FirstPart]>,
}

/// Every part of an answer reads and writes this, beside thousands of other answers: it is small.
#[derive(Clone, Copy, Debug, Default)]
struct Parts {
    payload: u32,
    number: u32,
    /// Sum over the parts of the nanoseconds from post to part.
    after_ns: u64,
}

const _: () = assert!(size_of::<Parts>() == 16);

/// The first part of an answer, or the whole answer in one part.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct FirstPart {
    queue_us: u32,
    /// Microseconds from the sample's arrival at the accelerator to its first token.
    pub residence_us: u32,
    /// Payload bytes.
    pub bytes: u32,
    /// Clock when the part was read.
    pub read_ns: u64,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum Decoded {
    /// A part before the last: payload bytes before this part, and of this part.
    Part { offset: u32, len: u32 },
    /// The end of a response, with fields as in
    /// [`ArrivedResponse`](super::responses::ArrivedResponse).
    End {
        header: ResponseHeader,
        parts: u32,
        mean_us: u32,
    },
    Refused {
        refusal: Refusal,
        offset: u32,
        len: u32,
    },
}

impl FirstPart {
    /// Returns the times of an answer of `bytes` payload bytes that arrived in one part, now.
    pub(crate) fn whole(now: u64, residence_us: u32, bytes: u32) -> Self {
        FirstPart {
            queue_us: 0,
            residence_us,
            bytes,
            read_ns: now,
        }
    }
}

impl ResponseProgress {
    pub(crate) fn new(slots: usize) -> Self {
        ResponseProgress {
            parts: vec![Parts::default(); slots].into(),
            first: vec![FirstPart::default(); slots].into(),
        }
    }

    /// Marks the slot's answer as invalid; all later parts are invalid too.
    pub(crate) fn spoil(&mut self, slot: u16) {
        if let Some(parts) = self.parts.get_mut(usize::from(slot)) {
            parts.number = SPOILT;
        }
    }

    /// Adds a part that was read at `now` and posted `after_ns` before.
    pub(crate) fn add(&mut self, slot: u16, is_first: bool, now: u64, after_ns: u64) {
        if let Some(parts) = self.parts.get_mut(usize::from(slot)) {
            parts.after_ns += after_ns;
        }
        if is_first && let Some(first) = self.first.get_mut(usize::from(slot)) {
            first.read_ns = now;
        }
    }

    /// The first part of an answer in several parts, and the sum of [`Self::add`] over its parts
    /// before the last.
    pub(crate) fn times(&self, slot: u16) -> Option<(FirstPart, u64)> {
        let slot = usize::from(slot);
        Some((*self.first.get(slot)?, self.parts.get(slot)?.after_ns))
    }

    /// Decodes a write that has arrived; `None` where it is invalid.
    pub(crate) fn read(&mut self, bytes: &[u8], imm: Imm, slot_offset: u32) -> Option<Decoded> {
        let arrived = u32::try_from(bytes.len()).ok()?;
        let slot = usize::from(imm.slot());
        let mut none = Parts::default();
        let parts = self.parts.get_mut(slot).unwrap_or(&mut none);
        if slot_offset == 0 {
            let header = ResponseHeader::decode(bytes, arrived, imm.use_count())?;
            let residence = header.queue_us.saturating_add(header.compute_us);
            if let Some(refusal) = header.refusal {
                let (offset, len) = (0, header.len);
                return (!imm.more()).then_some(Decoded::Refused {
                    refusal,
                    offset,
                    len,
                });
            }
            if !imm.more() {
                return Some(Decoded::End {
                    header,
                    parts: 1,
                    mean_us: residence,
                });
            }
            *parts = Parts {
                payload: header.len,
                number: 1,
                after_ns: 0,
            };
            if let Some(first) = self.first.get_mut(slot) {
                *first = FirstPart {
                    queue_us: header.queue_us,
                    ..FirstPart::whole(0, residence, header.len)
                };
            }
            let len = header.len;
            return Some(Decoded::Part { offset: 0, len });
        }
        let offset = parts.payload;
        parts.number = parts.number.checked_add(1)?;
        if imm.more() {
            parts.payload = parts.payload.checked_add(arrived)?;
            return Some(Decoded::Part {
                offset,
                len: arrived,
            });
        }
        let (payload, trailer) = bytes.split_last_chunk::<RESPONSE_TRAILER_BYTES>()?;
        let len = parts
            .payload
            .checked_add(u32::try_from(payload.len()).ok()?)?;
        let trailer = ResponseTrailer::decode(trailer, len, parts.number)?;
        if let Some(refusal) = trailer.refusal {
            let len = len - offset;
            return Some(Decoded::Refused {
                refusal,
                offset,
                len,
            });
        }
        Some(Decoded::End {
            header: ResponseHeader {
                len,
                use_count: imm.use_count(),
                refusal: None,
                queue_us: self.first.get(slot)?.queue_us,
                compute_us: trailer.compute_us,
            },
            parts: parts.number,
            mean_us: trailer.mean_us,
        })
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::response::RESPONSE_HEADER_BYTES;

    proptest! {
        /// An answer cut at any place decodes to its parts; a trailer with wrong counts is refused.
        #[test]
        fn parts_read_as_what_was_written(
            sizes in prop::collection::vec(1u32..50, 1..20),
            last in 0u32..50,
            use_count in 0u16..0x8000,
            (wrong_len, wrong_parts) in (0u32..3, 0u32..3),
        ) {
            let imm = Imm::new(3, use_count);
            let mut progress = ResponseProgress::new(4);
            let (mut at, mut sum) = (0, 0);
            for (i, len) in sizes.iter().copied().enumerate() {
                let mut bytes = vec![7; len as usize];
                if i == 0 {
                    let (queue_us, compute_us, refusal) = (5, 6, None);
                    let header = ResponseHeader { len, use_count, refusal, queue_us, compute_us };
                    bytes.splice(0..0, header.encode());
                }
                let write = progress.read(&bytes, imm.with_more(), at);
                prop_assert_eq!(write, Some(Decoded::Part { offset: sum, len }));
                sum += len;
                at = sum + RESPONSE_HEADER_BYTES as u32;
            }
            let (first, _) = progress.times(imm.slot()).expect("a slot");
            prop_assert_eq!((first.residence_us, first.bytes), (11, sizes[0]));
            let (len, parts) = (sum + last, sizes.len() as u32 + 1);
            let trailer = ResponseTrailer {
                len: len + wrong_len,
                parts: parts + wrong_parts,
                refusal: None,
                compute_us: 8,
                mean_us: 9,
            };
            let mut bytes = vec![7; last as usize];
            bytes.extend(trailer.encode());
            let header =
                ResponseHeader { len, use_count, refusal: None, queue_us: 5, compute_us: 8 };
            let end = Decoded::End { header, parts, mean_us: 9 };
            let right = (wrong_len, wrong_parts) == (0, 0);
            prop_assert_eq!(progress.read(&bytes, imm, at), right.then_some(end));
        }
    }
}
