//! Lossless compression of each sample. The QSL compresses samples as it loads them, the network
//! carries them compressed, and the accelerator decompresses them in front of the engine.
//!
//! ```text
//!   | bytes of the sample, u32 little-endian | one LZ4 block, or the sample as it is |
//! ```
//!
//! A *carried sample* is a length field and the bytes behind it. If these are as many as the length
//! says, they are the sample itself, else an LZ4 block. So the length field is the only overhead.
//! The receiver checks the length against its model before it allocates memory.

use lz4_flex::block;

/// Bytes of the length field in front of a carried sample.
pub const PREFIX_BYTES: usize = size_of::<u32>();

/// Alignment of decompressed samples in bytes: a cache line, which suits every element type.
pub const ALIGN: usize = 64;

/// Bytes of memory for a batch of `max_batch` decompressed samples of up to `largest` bytes each.
pub fn room(largest: usize, max_batch: usize) -> usize {
    let each = largest
        .checked_next_multiple_of(ALIGN)
        .unwrap_or(usize::MAX);
    each.saturating_mul(max_batch.max(1))
}

/// Error of decoding a carried sample.
#[derive(Clone, Debug, PartialEq, Eq, thiserror::Error)]
#[allow(missing_docs, reason = "the messages say what each error and field is")]
pub enum Corrupt {
    #[error("{0} bytes arrived, {PREFIX_BYTES} say how long a compressed sample is")]
    NoLength(usize),
    #[error("{carried} bytes arrived that are to be a sample of {sample}")]
    TooLong { carried: usize, sample: usize },
    #[error("its LZ4 block is none of {sample} bytes: {why}")]
    Block { sample: usize, why: String },
}

/// Appends the carried sample of `sample` to `to`. Overwrites `scratch`, which grows as needed.
///
/// # Panics
/// If the sample has more than `u32::MAX` bytes, which no data set has.
pub fn compress(sample: &[u8], scratch: &mut Vec<u8>, to: &mut Vec<u8>) {
    let len = u32::try_from(sample.len()).expect("a sample's length is a u32");
    to.extend_from_slice(&len.to_le_bytes());
    let room = block::get_maximum_output_size(sample.len());
    scratch.resize(room.max(scratch.len()), 0);
    match block::compress_into(sample, scratch) {
        Ok(n) if n < sample.len() => to.extend_from_slice(&scratch[..n]),
        // Compression does not make the sample smaller.
        _ => to.extend_from_slice(sample),
    }
}

/// Length of a carried sample after decompression, as its length field says. The caller must check
/// the length against its model before it allocates.
///
/// # Errors
/// [`Corrupt::NoLength`], or [`Corrupt::TooLong`].
pub fn decompressed_len(carried: &[u8]) -> Result<usize, Corrupt> {
    let Some((len, rest)) = carried.split_first_chunk::<PREFIX_BYTES>() else {
        return Err(Corrupt::NoLength(carried.len()));
    };
    let sample = u32::from_le_bytes(*len) as usize;
    match rest.len() {
        carried if carried > sample => Err(Corrupt::TooLong { carried, sample }),
        _ => Ok(sample),
    }
}

/// Decompresses a carried sample into `to`, whose length must equal [`decompressed_len`]. On
/// success every byte of `to` is written.
///
/// # Errors
/// [`Corrupt`]; the contents of `to` are then undefined.
pub fn decompress(carried: &[u8], to: &mut [u8]) -> Result<(), Corrupt> {
    let sample = decompressed_len(carried)?;
    let wrong = |why: String| Err(Corrupt::Block { sample, why });
    if sample != to.len() {
        return wrong(format!("there is room for {}", to.len()));
    }
    let rest = &carried[PREFIX_BYTES..];
    if rest.len() == sample {
        to.copy_from_slice(rest);
        return Ok(());
    }
    match block::decompress_into(rest, to) {
        Ok(n) if n == sample => Ok(()),
        Ok(n) => wrong(format!("it has {n}")),
        Err(e) => wrong(e.to_string()),
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;

    fn compressed(sample: &[u8]) -> Vec<u8> {
        let mut to = Vec::new();
        compress(sample, &mut Vec::new(), &mut to);
        to
    }

    fn whole(carried: &[u8]) -> Result<Vec<u8>, Corrupt> {
        let len = decompressed_len(carried)?;
        assert!(len <= 1 << 20, "whoever makes room looks first");
        let mut to = vec![0x55; len];
        decompress(carried, &mut to).map(|()| to)
    }

    #[test]
    fn what_repeats_gets_small_and_what_does_not_no_longer_than_its_length() {
        let zeros = vec![0; 100_000];
        let small = compressed(&zeros);
        assert!(small.len() < 1000, "{}", small.len());
        assert_eq!(whole(&small), Ok(zeros));
        // A multiplicative sequence has no repetitions.
        let noise: Vec<u8> = (0..10_000_u64)
            .flat_map(|i| i.wrapping_mul(0x9E37_79B9_7F4A_7C15).to_le_bytes())
            .collect();
        let all = compressed(&noise);
        assert!(all.len() <= PREFIX_BYTES + noise.len());
        assert_eq!(whole(&all), Ok(noise));
        assert_eq!(whole(&compressed(&[])), Ok(Vec::new()));
        assert_eq!(compressed(&[7]), [1, 0, 0, 0, 7]);
    }

    #[test]
    fn several_are_appended_with_one_scratch() {
        let (mut scratch, mut to) = (Vec::new(), Vec::new());
        let samples: Vec<Vec<u8>> = vec![vec![1; 5000], vec![2; 3], vec![3; 40_000]];
        let mut ends = vec![0];
        for sample in &samples {
            compress(sample, &mut scratch, &mut to);
            ends.push(to.len());
        }
        for (sample, at) in samples.iter().zip(ends.windows(2)) {
            assert_eq!(whole(&to[at[0]..at[1]]).as_ref(), Ok(sample));
        }
    }

    #[test]
    fn what_is_no_sample_is_refused_by_name() {
        let good = compressed(&[9; 5000]);
        let with = |len: u32| [&len.to_le_bytes()[..], &good[PREFIX_BYTES..]].concat();
        assert_eq!(whole(&good[..3]), Err(Corrupt::NoLength(3)));
        let words = |carried: &[u8]| whole(carried).expect_err("corrupt").to_string();
        assert!(words(&with(4999)).contains("none of 4999 bytes"));
        assert!(words(&with(5001)).contains("none of 5001 bytes"));
        assert!(words(&with(1)).contains("to be a sample of 1"));
        assert!(words(&good[..good.len() - 1]).contains("5000"));
        // A false length causes no allocation before the caller's check.
        assert_eq!(decompressed_len(&with(u32::MAX)), Ok(u32::MAX as usize));
    }

    proptest! {
        #[test]
        fn any_sample_comes_back(
            sample in prop::collection::vec(prop::sample::select(vec![0_u8, 0, 1, 200]), 0..5000),
            noise in prop::collection::vec(any::<u8>(), 0..200),
        ) {
            let sample = [sample, noise].concat();
            let carried = compressed(&sample);
            prop_assert!(carried.len() <= PREFIX_BYTES + sample.len());
            prop_assert_eq!(whole(&carried), Ok(sample));
        }

        #[test]
        fn any_bytes_are_decompressed_or_refused(
            mut carried in prop::collection::vec(any::<u8>(), 0..300),
            len in 0_u32..5000,
        ) {
            if let Some(prefix) = carried.first_chunk_mut::<PREFIX_BYTES>() {
                *prefix = len.to_le_bytes();
            }
            let _ = whole(&carried);
        }

        #[test]
        fn a_sample_with_a_changed_byte_is_decompressed_or_refused(
            at in any::<prop::sample::Index>(),
            bit in 0_u32..8,
        ) {
            let sample: Vec<u8> = (0..6000_u32).map(|i| (i / 90 % 7) as u8).collect();
            let mut carried = compressed(&sample);
            // The receiver bounds the length field, so this test changes later bytes only.
            let at = PREFIX_BYTES + at.index(carried.len() - PREFIX_BYTES);
            carried[at] ^= 1 << bit;
            if let Ok(whole) = whole(&carried) {
                prop_assert_eq!(whole.len(), sample.len());
            }
        }
    }
}
