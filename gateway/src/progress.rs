//! An answer's tokens as they arrive, each once, also if the answer begins again.
//!
//! After the loss of a connection the dispatcher sends the sample again, and its parts begin at
//! token 0. The tokens that the client has are compared by their hash; the answer then goes on
//! behind them.

/// The repeated answer has other tokens than the client has received.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Diverged;

/// Number and hash of a beginning of an answer.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
struct Prefix {
    tokens: u32,
    hash: u64,
}

impl Prefix {
    const NONE: Prefix = Prefix {
        tokens: 0,
        hash: 0xcbf2_9ce4_8422_2325,
    };

    /// Adds tokens: FNV-1a over ids in place of bytes.
    fn add(&mut self, ids: &[i32]) {
        self.tokens += ids.len() as u32;
        for id in ids {
            self.hash = (self.hash ^ u64::from(id.cast_unsigned())).wrapping_mul(0x0100_0000_01b3);
        }
    }
}

/// Progress of one answer.
#[derive(Clone, Copy, Debug)]
pub struct AnswerProgress {
    /// What [`Self::take`] has returned.
    given: Prefix,
    /// What the present attempt has brought.
    seen: Prefix,
}

impl Default for AnswerProgress {
    fn default() -> Self {
        AnswerProgress {
            given: Prefix::NONE,
            seen: Prefix::NONE,
        }
    }
}

impl AnswerProgress {
    /// Number of tokens given so far.
    pub fn tokens(&self) -> u32 {
        self.given.tokens
    }

    /// Takes the tokens from `offset` on, and returns the new ones among them.
    ///
    /// # Errors
    /// [`Diverged`]. A part that neither continues its attempt nor begins one diverges too.
    pub fn take<'a>(&mut self, offset: u32, ids: &'a [i32]) -> Result<&'a [i32], Diverged> {
        if offset == 0 {
            self.seen = Prefix::NONE;
        } else if offset != self.seen.tokens {
            return Err(Diverged);
        }
        let missing = (self.given.tokens - self.seen.tokens) as usize;
        let (known, new) = ids.split_at(missing.min(ids.len()));
        if !known.is_empty() {
            self.seen.add(known);
            if self.seen.tokens == self.given.tokens && self.seen != self.given {
                return Err(Diverged);
            }
        }
        if !new.is_empty() {
            self.given.add(new);
            self.seen = self.given;
        }
        Ok(new)
    }

    /// Takes the whole answer, and returns the tokens behind those given so far.
    ///
    /// # Errors
    /// [`Diverged`]: also if the answer is shorter than what was given.
    pub fn finish<'a>(&mut self, answer: &'a [i32]) -> Result<&'a [i32], Diverged> {
        let given = self.given.tokens as usize;
        // An attempt whose answer comes in one piece had no part: compare from its first token.
        let new = self.take(0, answer)?;
        match answer.len() < given {
            true => Err(Diverged),
            false => Ok(new),
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn each_token_is_given_once_whatever_is_lost_and_repeated(
            answer in prop::collection::vec(any::<i32>(), 1..60),
            attempts in prop::collection::vec((0usize..60, 1usize..7), 0..4),
            differs in prop::option::of(0usize..60),
        ) {
            let mut progress = AnswerProgress::default();
            let mut given: Vec<i32> = Vec::new();
            for (end, step) in attempts {
                let end = end.min(answer.len());
                for (n, part) in answer[..end].chunks(step).enumerate() {
                    let new = progress.take((n * step) as u32, part).expect("equal");
                    given.extend(new);
                }
            }
            prop_assert_eq!(&given, &answer[..given.len()]);
            let mut last = answer.clone();
            let differs = differs.filter(|n| *n < answer.len());
            if let Some(n) = differs {
                last[n] ^= 1;
            }
            // The last attempt comes in one piece.
            match progress.finish(&last) {
                Ok(new) => {
                    given.extend(new);
                    prop_assert_eq!(given, last);
                }
                Err(Diverged) => prop_assert!(differs.is_some_and(|n| n < given.len())),
            }
        }
    }

    #[test]
    fn an_answer_shorter_than_what_was_given_diverges() {
        let mut progress = AnswerProgress::default();
        progress.take(0, &[1, 2, 3]).expect("new");
        assert_eq!(progress.finish(&[1, 2]), Err(Diverged));
        progress.take(0, &[1]).expect("again");
        assert_eq!(progress.finish(&[1, 2]), Err(Diverged));
        assert_eq!(progress.take(7, &[1]), Err(Diverged));
    }
}
