//! Synthetic texts from a seed.

use anyhow::Result;

use super::{Dataset, Lengths, Source, empty, length, random::stream};

/// Content of one input of a text.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub(super) enum InputRole {
    Words,
    /// Ones: all tokens are valid.
    Mask,
    /// Zeros for the first half of the text, ones for the second half.
    Segments,
}

impl InputRole {
    pub(super) fn of(name: &str) -> Self {
        if name.contains("mask") {
            InputRole::Mask
        } else if name.contains("segment") || name.contains("type") {
            InputRole::Segments
        } else {
            InputRole::Words
        }
    }
}

/// Synthetic texts: the model's inputs back to back, each a row of `i64` or `i32`.
#[derive(Debug)]
pub(super) struct SyntheticTexts {
    /// Bytes of a token: 8 or 4.
    pub width: usize,
    pub inputs: Box<[InputRole]>,
    pub vocab: u64,
    pub seed: u64,
}

impl SyntheticTexts {
    pub(super) fn read(&self, index: usize, to: &mut [u8]) {
        let mut rng = stream(self.seed, index as u64);
        let width = self.width;
        let rows = to.len() / (width * self.inputs.len());
        for (input, row) in self.inputs.iter().zip(to.chunks_exact_mut(rows * width)) {
            for (i, token) in row.chunks_exact_mut(width).enumerate() {
                let value = match input {
                    InputRole::Words => rng.u64(..self.vocab),
                    InputRole::Mask => 1,
                    InputRole::Segments => u64::from(i >= rows.div_ceil(2)),
                };
                // Words are below 2^32, so the lower half is the whole `i32`.
                token.copy_from_slice(&value.to_le_bytes()[..width]);
            }
        }
    }
}

impl Dataset {
    pub(super) fn texts(
        count: usize,
        min: usize,
        max: usize,
        texts: SyntheticTexts,
    ) -> Result<Self> {
        let name = format!("tokens, seed {}", texts.seed);
        let row = texts.inputs.len() * texts.width;
        length(max.saturating_mul(row))?;
        if count == 0 || row == 0 || max == 0 {
            return Err(empty(name));
        }
        let mut rng = stream(texts.seed, u64::MAX);
        let (min, span) = (min.clamp(1, max), (max - min.clamp(1, max)) as u64 + 1);
        // `max` rows fit in 32 bits, and no text is longer.
        let mut draw = || ((min + rng.u64(..span) as usize) * row) as u32;
        let lengths = Lengths::Each((0..count).map(|_| draw()).collect());
        Ok(Dataset::generated(name, lengths, Source::Texts(texts)))
    }
}

#[cfg(test)]
mod tests {
    use std::collections::HashSet;

    use super::{super::bytes, *};

    #[test]
    fn texts_are_rows_of_words_mask_and_segments() {
        let inputs = ["input_ids", "input_mask", "segment_ids"].map(InputRole::of);
        let tokens = || SyntheticTexts {
            width: 8,
            inputs: inputs.into(),
            vocab: 50,
            seed: 4,
        };
        let d = Dataset::texts(400, 2, 48, tokens()).expect("sound");
        let again = Dataset::texts(400, 2, 48, tokens()).expect("sound");
        let mut lengths = HashSet::new();
        for i in 0..d.count() {
            let sample = bytes(&d, i);
            assert_eq!(sample, bytes(&again, i));
            let values: Vec<u64> = sample
                .chunks_exact(8)
                .map(|b| u64::from_le_bytes(b.try_into().expect("eight")))
                .collect();
            let rows = values.len() / 3;
            assert!((2..=48).contains(&rows) && values.len().is_multiple_of(3));
            lengths.insert(rows);
            assert!(values[..rows].iter().all(|v| *v < 50));
            assert!(values[rows..2 * rows].iter().all(|v| *v == 1));
            assert_eq!((values[2 * rows], values[3 * rows - 1]), (0, 1));
        }
        assert_eq!(lengths.len(), 47, "every length from 2 to 48");
    }

    #[test]
    fn prompts_are_rows_of_32_bits() {
        let tokens = SyntheticTexts {
            width: 4,
            inputs: [InputRole::of("prompt")].into(),
            vocab: 500,
            seed: 4,
        };
        let d = Dataset::texts(400, 1, 20, tokens).expect("sound");
        let mut seen = HashSet::new();
        for i in 0..d.count() {
            let sample = bytes(&d, i);
            assert!((1..=20).contains(&(sample.len() / 4)) && sample.len().is_multiple_of(4));
            let ids = sample
                .chunks_exact(4)
                .map(|b| i32::from_le_bytes(b.try_into().expect("4")));
            seen.extend(ids);
        }
        assert!(seen.iter().all(|id| (0..500).contains(id)) && seen.len() > 450);
    }
}
