//! Encoding of the frame header. `docs/protocol.md` is normative.

use crate::{Broken, Imm};

/// Bytes of a frame header.
pub const HEADER_BYTES: usize = 16;

/// Bytes of a header with its padding of zeros, for slots of at least [`LARGE_STRIDE`]. The size is
/// one cache line, so a payload of whole cache lines stays aligned in the sender's memory, in the
/// kernel's memory and in the slot. The kernel copies an aligned payload faster: about 10 % more
/// samples a second where all slots together exceed the CPU cache.
pub(crate) const ALIGNED_HEADER_BYTES: usize = 64;

/// Slots of at least this many bytes are written with aligned headers.
pub const LARGE_STRIDE: usize = 16 << 10;

pub(super) const fn header_bytes(stride: usize) -> usize {
    if stride >= LARGE_STRIDE {
        ALIGNED_HEADER_BYTES
    } else {
        HEADER_BYTES
    }
}

pub(super) fn check_padding(padding: &[u8]) -> Result<(), Broken> {
    match padding.iter().find(|b| **b != 0) {
        None => Ok(()),
        Some(b) => Err(Broken::BadFrame {
            what: "padding",
            value: u64::from(*b),
        }),
    }
}

/// Bytes of the preamble that opens a data connection.
pub const PREAMBLE_BYTES: usize = 32;

/// The only kind of frame: a write with an immediate.
const WRITE_WITH_IMM: u8 = 1;

/// Encodes a header, little-endian: {kind u8, 0 u8, 0 u16, immediate u32, offset in the slot u32,
/// length u32}.
pub(super) fn encode(imm: Imm, at: u32, len: u32) -> [u8; HEADER_BYTES] {
    let low = u64::from(imm.bits()) << 32 | u64::from(WRITE_WITH_IMM);
    let high = u64::from(len) << 32 | u64::from(at);
    (u128::from(high) << 64 | u128::from(low)).to_le_bytes()
}

/// Writes a header and its padding, which fill `to` exactly.
pub(super) fn write(to: &mut [u8], imm: Imm, at: u32, len: u32) {
    if let Some((header, padding)) = to.split_first_chunk_mut::<HEADER_BYTES>() {
        *header = encode(imm, at, len);
        // Without padding, `fill` would cost a call for 0 bytes.
        if !padding.is_empty() {
            padding.fill(0);
        }
    }
}

#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) struct Header {
    pub imm: Imm,
    pub at: u32,
    pub len: u32,
}

/// Decodes a header; the caller still checks it against the window.
pub(super) fn decode(b: &[u8; HEADER_BYTES]) -> Result<Header, Broken> {
    let word = |i: usize| u32::from_le_bytes([b[i], b[i + 1], b[i + 2], b[i + 3]]);
    let bad = |what, value: u32| {
        Err(Broken::BadFrame {
            what,
            value: u64::from(value),
        })
    };
    if word(0) != u32::from(WRITE_WITH_IMM) {
        return match b[0] {
            WRITE_WITH_IMM => bad("reserved", word(0) >> 8),
            kind => bad("kind", u32::from(kind)),
        };
    }
    let header = Header {
        imm: Imm::from_bits(word(4)),
        at: word(8),
        len: word(12),
    };
    if header.imm.is_control() {
        if header.imm.message().is_none() {
            return bad("control message", header.imm.bits());
        }
        if header.at != 0 || header.len != 0 {
            return bad("control length", header.len.max(header.at));
        }
    }
    Ok(header)
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn headers_survive(slot: u16, use_count in 0u16..0x8000, at: u32, len: u32) {
            let imm = Imm::new(slot, use_count);
            prop_assert_eq!(decode(&encode(imm, at, len)), Ok(Header { imm, at, len }));
        }

        #[test]
        fn any_bytes_are_a_header_or_an_error(b: [u8; HEADER_BYTES]) {
            if let Ok(h) = decode(&b) {
                prop_assert_eq!(encode(h.imm, h.at, h.len), b);
            }
        }
    }
}
