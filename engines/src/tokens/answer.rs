//! Computes an answer from the prompt alone, so that every receiver can check the answer.

use crate::config::TokensConfig;
use xxhash_rust::xxh3::xxh3_64;

use crate::{EngineError, streaming::TOKEN_BYTES};

/// Lengths and vocabulary of answers.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Answers {
    min: u64,
    /// Number of different lengths, from `min` on.
    lengths: u64,
    vocab: u32,
    eos: i32,
}

impl Answers {
    /// Takes lengths and vocabulary from `settings`. `room` is the model's output in tokens.
    ///
    /// # Errors
    /// The longest answer does not fit the output or is shorter than the shortest, or EOS is
    /// outside the vocabulary.
    pub fn new(settings: &TokensConfig, room: usize) -> Result<Self, EngineError> {
        let refuse = |reason: String| Err(EngineError::param("tokens", reason));
        let (min, max) = (settings.min_tokens, settings.max_tokens.unwrap_or(room));
        if max > room {
            return refuse(format!(
                "max_tokens is {max}, and the model's output holds {room}: lower the one, or \
                 raise the other's shape"
            ));
        }
        if min == 0 || min > max {
            return refuse(format!(
                "answers of {min} to {max} tokens: min_tokens is at least 1, and at most what the \
                 model's output holds"
            ));
        }
        let (eos, vocab) = (settings.eos, settings.vocab);
        if vocab < 2 || !(0..vocab).contains(&eos) {
            return refuse(format!("eos {eos} is no token of a vocabulary of {vocab}"));
        }
        Ok(Answers {
            min: min as u64,
            lengths: (max - min) as u64 + 1,
            vocab: vocab as u32,
            eos,
        })
    }

    /// The seed of an answer: the hash of a prompt, given as bytes of `i32`, little-endian.
    pub fn seed(prompt: &[u8]) -> u64 {
        xxh3_64(prompt)
    }

    /// The seed of an answer with a request's own seed.
    pub fn seed_with(prompt: &[u8], own: Option<u64>) -> u64 {
        Answers::seed(prompt) ^ own.map_or(0, |own| mix(own.wrapping_add(1)))
    }

    /// Number of tokens in the answer with this seed.
    pub fn len(&self, seed: u64) -> usize {
        (self.min + mix(seed) % self.lengths) as usize
    }

    /// The token at position `at` (from 0) of an answer of `len` tokens.
    pub fn token(&self, seed: u64, at: usize, len: usize) -> i32 {
        if at + 1 == len {
            return self.eos;
        }
        let step = (at as u64 + 1).wrapping_mul(0x9E37_79B9_7F4A_7C15);
        // Scale the upper 32 bits: a division would be slow for millions of tokens.
        let high = mix(seed.wrapping_add(step)) >> 32;
        let drawn = ((high * u64::from(self.vocab - 1)) >> 32) as i32;
        // Skip EOS: ids from EOS on move up by one.
        drawn + i32::from(drawn >= self.eos)
    }
}

/// The whole answer to a prompt.
pub fn answer(prompt: &[i32], answers: &Answers) -> Vec<i32> {
    let mut bytes = Vec::with_capacity(prompt.len() * TOKEN_BYTES);
    prompt.iter().for_each(|id| bytes.extend(id.to_le_bytes()));
    let seed = Answers::seed(&bytes);
    let len = answers.len(seed);
    (0..len).map(|at| answers.token(seed, at, len)).collect()
}

/// The last rounds of Splitmix64: every bit of the input affects every bit of the output.
fn mix(mut x: u64) -> u64 {
    x = (x ^ (x >> 30)).wrapping_mul(0xBF58_476D_1CE4_E5B9);
    x = (x ^ (x >> 27)).wrapping_mul(0x94D0_49BB_1331_11EB);
    x ^ (x >> 31)
}

#[cfg(test)]
mod tests {
    use std::collections::BTreeSet;

    use proptest::prelude::*;

    use super::*;

    fn settings(min: usize, max: usize, vocab: i32, eos: i32) -> TokensConfig {
        TokensConfig {
            min_tokens: min,
            max_tokens: Some(max),
            vocab,
            eos,
            ..TokensConfig::default()
        }
    }

    proptest! {
        #[test]
        fn eos_is_last_and_nowhere_else(
            prompt in prop::collection::vec(any::<i32>(), 0..40),
            (min, max) in (1usize..50).prop_flat_map(|min| (Just(min), min..60)),
            (vocab, eos) in (2..100i32).prop_flat_map(|vocab| (Just(vocab), 0..vocab)),
        ) {
            let answers = Answers::new(&settings(min, max, vocab, eos), 60).expect("sound");
            let tokens = answer(&prompt, &answers);
            prop_assert!((min..=max).contains(&tokens.len()));
            let (last, others) = tokens.split_last().expect("at least one");
            prop_assert_eq!(*last, eos);
            prop_assert!(others.iter().all(|t| (0..vocab).contains(t) && *t != eos));
        }
    }

    /// A change of any one id changes the answer; all lengths and tokens occur.
    #[test]
    fn an_answer_depends_on_the_whole_prompt() {
        let answers = Answers::new(&settings(2, 9, 10, 3), 9).expect("sound");
        let (mut lengths, mut tokens) = (BTreeSet::new(), BTreeSet::new());
        for i in 0..1_000 {
            let a = answer(&[i, 1, 2, 3], &answers);
            lengths.insert(a.len());
            tokens.extend(a);
        }
        assert_eq!(lengths, (2..=9).collect());
        assert_eq!(tokens, (0..10).collect());
        let answers = Answers::new(&settings(64, 64, 1 << 20, 0), 64).expect("sound");
        let base = answer(&[5; 100], &answers);
        for at in [0, 50, 99] {
            let mut prompt = [5; 100];
            prompt[at] = 6;
            let other = answer(&prompt, &answers);
            let same = base.iter().zip(&other).filter(|(a, b)| a == b).count();
            assert_eq!(same, 1, "EOS alone");
        }
    }

    /// Constants: other versions of this program must give the same answers.
    #[test]
    fn answers_are_constant_across_versions() {
        let answers = Answers::new(&settings(4, 8, 32_000, 2), 8).expect("sound");
        let tokens = [&[1, 2, 3][..], &[]].map(|prompt| answer(prompt, &answers));
        let of_three = vec![14057, 7478, 6515, 15455, 21383, 11349, 6985, 2];
        assert_eq!(tokens, [of_three, vec![11212, 18998, 26693, 16568, 2]]);
    }

    #[test]
    fn impossible_settings_are_refused() {
        for (settings, room, words) in [
            (settings(2, 9, 10, 3), 8, "max_tokens is 9"),
            (settings(9, 8, 10, 3), 64, "answers of 9 to 8 tokens"),
            (settings(0, 8, 10, 3), 64, "answers of 0 to 8 tokens"),
            (settings(2, 8, 10, 10), 64, "eos 10 is no token"),
        ] {
            let error = Answers::new(&settings, room).expect_err(words).to_string();
            assert!(
                error.contains("engine.tokens: ") && error.contains(words),
                "{error}"
            );
        }
        let of_the_model = TokensConfig::default();
        let error = Answers::new(&of_the_model, 1).expect_err("too short");
        assert!(error.to_string().contains("answers of 2 to 1 tokens"));
    }
}
