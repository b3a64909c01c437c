//! `verify: digest` and `verify: tokens`: checks that every response belongs to its sample, and
//! that no response is lost or duplicated.
//!
//! Loading a sample computes its digest, or the tokens of its answer. Digest mode compares every
//! byte of the response. Token mode compares the first token when it arrives, and later the whole
//! answer. The verifier keeps each issued response id until the answer, in one of several locked
//! sets. Verification costs a lock per sample, so use it for tests and not for measurements.

use std::{
    collections::HashMap,
    sync::{
        Mutex, MutexGuard, OnceLock,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use engines::{DigestAnswers, streaming::TOKEN_BYTES};
use fabric::os::lock;
use qdl::model::ModelSpec;
use record::Verified;
use xxhash_rust::xxh3::xxh3_64;

use crate::loadgen::tokens::count;

const SHARDS: usize = 64;

#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    pub counts: Verified,
    /// Text of the first fault.
    pub first: Option<String>,
}

impl Findings {
    /// Returns the faults in one line, if any.
    pub fn complaint(&self) -> Option<String> {
        let of = &self.counts;
        if of.sound() {
            return None;
        }
        let first = self.first.as_deref().unwrap_or("none came back wrong");
        Some(format!(
            "verification: of {} responses {} were not their own sample's and {} came twice; {} samples were \
             never answered (first fault: {first})",
            of.compared, of.mismatches, of.duplicates, of.lost
        ))
    }
}

type AnswerTo = dyn Fn(&[i32]) -> Vec<i32> + Send + Sync;

enum Expected {
    Digests {
        /// Digest and length of each loaded sample.
        samples: Box<[(AtomicU64, AtomicU64)]>,
        answers: DigestAnswers,
    },
    Tokens {
        answer: Box<AnswerTo>,
        /// Bytes of the answers to loaded samples.
        answers: Box<[OnceLock<Box<[u8]>>]>,
        /// True if a sample's first token must come before the whole answer.
        first: bool,
    },
}

pub struct Verifier {
    expected: Expected,
    /// Ids of unanswered samples; the value is true once the sample's first token has come.
    outstanding: Box<[Mutex<HashMap<u64, bool>>]>,
    compared: AtomicU64,
    mismatches: AtomicU64,
    duplicates: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Verifier {
    pub fn new(samples: usize, model: &ModelSpec) -> Self {
        Verifier::of(Expected::Digests {
            samples: (0..samples)
                .map(|_| <(AtomicU64, AtomicU64)>::default())
                .collect(),
            answers: DigestAnswers::of(model),
        })
    }

    /// Creates a verifier of tokens for `samples` prompts, whose answers are a function of the
    /// prompt; `first` is true if LoadGen gets first tokens.
    pub fn tokens(
        samples: usize,
        first: bool,
        answer: impl Fn(&[i32]) -> Vec<i32> + Send + Sync + 'static,
    ) -> Self {
        Verifier::of(Expected::Tokens {
            answer: Box::new(answer),
            answers: (0..samples).map(|_| OnceLock::new()).collect(),
            first,
        })
    }

    fn of(expected: Expected) -> Self {
        Verifier {
            expected,
            outstanding: (0..SHARDS).map(|_| Mutex::default()).collect(),
            compared: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            first: Mutex::default(),
        }
    }

    pub fn loaded(&self, index: usize, bytes: &[u8]) {
        match &self.expected {
            Expected::Digests { samples, .. } => {
                if let Some((digest, len)) = samples.get(index) {
                    digest.store(xxh3_64(bytes), Relaxed);
                    len.store(bytes.len() as u64, Relaxed);
                }
            }
            Expected::Tokens {
                answer, answers, ..
            } => {
                let (ids, _) = bytes.as_chunks::<TOKEN_BYTES>();
                let prompt = || {
                    ids.iter()
                        .map(|b| i32::from_le_bytes(*b))
                        .collect::<Vec<_>>()
                };
                let tokens = || answer(&prompt()).into_iter().flat_map(i32::to_le_bytes);
                if let Some(place) = answers.get(index) {
                    place.get_or_init(|| tokens().collect());
                }
            }
        }
    }

    pub fn issued(&self, id: u64) {
        self.shard(id).insert(id, false);
    }

    /// Checks a sample's first token. Returns false if LoadGen must not get the token, because the
    /// sample's first token or answer has come before.
    pub fn first(&self, id: u64, index: u64, token: &[u8]) -> bool {
        let fresh = match self.shard(id).get_mut(&id) {
            Some(reported) => !std::mem::replace(reported, true),
            None => false,
        };
        if !fresh {
            self.duplicates.fetch_add(1, Relaxed);
            self.fault(|| {
                format!("the first token of sample {index} came twice, or after its answer")
            });
            return false;
        }
        if let Some(answer) = self.answer_of(index)
            && answer.get(..TOKEN_BYTES) != Some(token)
        {
            self.mismatches.fetch_add(1, Relaxed);
            self.fault(|| {
                format!(
                    "the first token of sample {index} is {}, {} was due",
                    shown(token, 0),
                    shown(answer, 0)
                )
            });
        }
        true
    }

    fn answer_of(&self, index: u64) -> Option<&[u8]> {
        let Expected::Tokens { answers, .. } = &self.expected else {
            return None;
        };
        let answer = answers.get(usize::try_from(index).ok()?)?.get();
        Some(answer.map_or(&[], |a| a))
    }

    /// Checks a response. Returns false if LoadGen must not get the response, because the sample is
    /// already completed.
    pub fn answered(&self, id: u64, index: u64, payload: &[u8]) -> bool {
        let Some(began) = self.take(id, index) else {
            return false;
        };
        self.compared.fetch_add(1, Relaxed);
        match &self.expected {
            Expected::Digests { samples, answers } => {
                let sample = usize::try_from(index).ok().and_then(|i| samples.get(i));
                let (digest, len) =
                    sample.map_or((0, 0), |(d, l)| (d.load(Relaxed), l.load(Relaxed)));
                self.digest(index, digest, answers.len(len as usize), payload);
            }
            Expected::Tokens { first, .. } => self.answer(index, payload, began || !first),
        }
        true
    }

    /// Compares an answer with the expected tokens. `began`: a first token came or is not required.
    fn answer(&self, index: u64, payload: &[u8], began: bool) {
        let own = self.answer_of(index).unwrap_or_default();
        if payload == own && began {
            return;
        }
        self.mismatches.fetch_add(1, Relaxed);
        self.fault(|| {
            if payload == own {
                return format!("sample {index} was answered, and its first token never came");
            }
            let at = (0..).step_by(TOKEN_BYTES).find(|at| {
                let token = |of: &[u8]| of.get(*at..*at + TOKEN_BYTES).map(<[u8]>::to_vec);
                token(payload) != token(own) || *at >= own.len()
            });
            let at = at.unwrap_or(0) / TOKEN_BYTES;
            format!(
                "sample {index} was answered with {} tokens ({} bytes), {} were due; token {at} is {}, {} was due; \
                 does the accelerator run the engine `tokens` with the settings of `engine` here?",
                count(payload),
                payload.len(),
                count(own),
                shown(payload, at),
                shown(own, at)
            )
        });
    }

    /// Compares an answer, which must have `due` bytes, with its sample's digest.
    fn digest(&self, index: u64, digest: u64, due: usize, payload: &[u8]) {
        let wrong = DigestAnswers::first_wrong(digest, payload);
        if payload.len() == due && wrong.is_none() {
            return;
        }
        self.mismatches.fetch_add(1, Relaxed);
        self.fault(|| {
            let shown = &payload[..payload.len().min(16)];
            let dots = if shown.len() < payload.len() { "..." } else { "" };
            let at = wrong.map_or(String::new(), |at| format!(", wrong from byte {at} on"));
            format!(
                "sample {index} has digest {}, the response is {} bytes, of {due} that were due: {}{dots}{at}; does \
                 the accelerator run the engine `digest`?",
                hex(&digest.to_le_bytes()),
                payload.len(),
                hex(shown),
            )
        });
    }

    /// Records a completion without a response. Returns false if the sample is already completed.
    pub fn completed(&self, id: u64, index: u64) -> bool {
        self.take(id, index).is_some()
    }

    /// Removes a sample; returns whether its first token came, `None` if it was removed before.
    fn take(&self, id: u64, index: u64) -> Option<bool> {
        let began = self.shard(id).remove(&id);
        if began.is_none() {
            self.duplicates.fetch_add(1, Relaxed);
            self.fault(|| format!("sample {index} was answered twice"));
        }
        began
    }

    /// Returns the findings so far; `lost` is meaningful only after the last response.
    pub fn findings(&self) -> Findings {
        let lost: usize = (0..SHARDS as u64).map(|i| self.shard(i).len()).sum();
        Findings {
            counts: Verified {
                compared: self.compared.load(Relaxed),
                mismatches: self.mismatches.load(Relaxed),
                duplicates: self.duplicates.load(Relaxed),
                lost: lost as u64,
            },
            first: lock(&self.first).clone(),
        }
    }

    fn fault(&self, text: impl FnOnce() -> String) {
        lock(&self.first).get_or_insert_with(text);
    }

    /// Locks the shard of `id`. Ids are addresses whose low bits vary little, so the function mixes
    /// higher bits in. An id below [`SHARDS`] is its own shard number.
    fn shard(&self, id: u64) -> MutexGuard<'_, HashMap<u64, bool>> {
        let mixed = (id ^ (id >> 6) ^ (id >> 12)) as usize % SHARDS;
        lock(&self.outstanding[mixed])
    }
}

/// The token at position `at` of an answer, as text.
fn shown(answer: &[u8], at: usize) -> String {
    let (tokens, _) = answer.as_chunks::<TOKEN_BYTES>();
    match tokens.get(at) {
        Some(token) => i32::from_le_bytes(*token).to_string(),
        None => "none".to_owned(),
    }
}

pub fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use qdl::testkit::assert_has;

    use super::*;

    fn digest(bytes: &[u8]) -> [u8; 8] {
        xxh3_64(bytes).to_le_bytes()
    }

    fn model() -> ModelSpec {
        ModelSpec::opaque("m", 64, 8)
    }

    #[test]
    fn each_byte_of_a_large_answer_is_compared() {
        let mut model = ModelSpec::opaque("m", 1000, 20_000);
        model.output.ragged = true;
        let v = Verifier::new(1, &model);
        v.loaded(0, &[1; 500]);
        let mut answer = vec![0; 10_000];
        DigestAnswers::fill(xxh3_64(&[1; 500]), &mut answer);
        v.issued(1);
        assert!(v.answered(1, 0, &answer));
        assert!(v.findings().counts.sound());
        v.issued(2);
        assert!(v.answered(2, 0, &answer[..9_999]));
        let complaint = v.findings().complaint().expect("it is too short");
        assert!(complaint.contains("9999 bytes, of 10000"), "{complaint}");
        let v = Verifier::new(1, &model);
        v.loaded(0, &[1; 500]);
        answer[7_777] ^= 4;
        v.issued(3);
        assert!(v.answered(3, 0, &answer));
        let complaint = v.findings().complaint().expect("one bit is wrong");
        assert!(complaint.contains("wrong from byte 7777 on"), "{complaint}");
    }

    #[test]
    fn another_samples_answer_is_found() {
        let v = Verifier::new(2, &model());
        v.loaded(0, b"zero");
        v.loaded(1, b"one");
        v.issued(5);
        assert!(v.answered(5, 1, &digest(b"zero")));
        v.issued(6);
        assert!(v.answered(6, 1, b"short"));
        let found = v.findings();
        let expected = Verified {
            compared: 2,
            mismatches: 2,
            ..Verified::default()
        };
        assert_eq!(found.counts, expected);
        let complaint = found.complaint().expect("a fault");
        assert_has(&complaint, &["sample 1 has digest"]);
    }

    #[test]
    fn an_answer_twice_is_kept_from_loadgen() {
        let v = Verifier::new(1, &model());
        v.loaded(0, b"zero");
        v.issued(9);
        assert!(v.answered(9, 0, &digest(b"zero")));
        assert!(!v.answered(9, 0, &digest(b"zero")));
        assert!(!v.completed(9, 0));
        assert_eq!(v.findings().counts.duplicates, 2);
        assert!(!v.findings().counts.sound());
    }

    #[test]
    fn what_never_comes_back_is_lost() {
        let v = Verifier::new(1, &model());
        (0..1000u64).for_each(|id| v.issued(id * 24 + 0x5500_0000));
        assert_eq!(v.findings().counts.lost, 1000);
        (0..999u64).for_each(|id| assert!(v.completed(id * 24 + 0x5500_0000, 0)));
        assert_eq!(v.findings().counts.lost, 1);
    }

    fn bytes(tokens: &[i32]) -> Vec<u8> {
        tokens.iter().flat_map(|t| t.to_le_bytes()).collect()
    }

    /// A verifier of an engine that counts up three times from the prompt's last token.
    fn counting() -> Verifier {
        let up = |prompt: &[i32]| (1..=3).map(|i| prompt[prompt.len() - 1] + i).collect();
        let v = Verifier::tokens(2, true, up);
        v.loaded(0, &bytes(&[5, 10]));
        v.loaded(1, &bytes(&[20]));
        v
    }

    #[test]
    fn wrong_tokens_are_found_each_in_its_words() {
        let fault = |first: &[i32], all: &[i32]| {
            let v = counting();
            v.issued(8);
            assert!(v.first(8, 0, &bytes(first)));
            assert!(v.answered(8, 0, &bytes(all)));
            let found = v.findings();
            assert!(found.counts.mismatches > 0, "{first:?} {all:?}");
            found.first.expect("a fault")
        };
        let text = fault(&[21], &[11, 12, 13]);
        assert_has(&text, &["first token of sample 0 is 21, 11 was due"]);
        let text = fault(&[11], &[11, 12, 14]);
        assert!(text.contains("token 2 is 14, 13 was due"), "{text}");
        let text = fault(&[11], &[11, 12]);
        assert_has(
            &text,
            &["2 tokens (8 bytes), 3 were due; token 2 is none, 13 was due"],
        );
        let text = fault(&[11], &[11, 12, 13, 14]);
        assert!(text.contains("token 3 is 14, none was due"), "{text}");
    }

    #[test]
    fn a_first_token_comes_once_and_before_its_answer() {
        let v = counting();
        v.issued(8);
        assert!(v.first(8, 0, &bytes(&[11])));
        assert!(!v.first(8, 0, &bytes(&[11])), "a second time");
        assert!(v.answered(8, 0, &bytes(&[11, 12, 13])));
        assert!(!v.first(8, 0, &bytes(&[11])), "after the answer");
        assert_eq!(v.findings().counts.duplicates, 2);
        v.issued(16);
        assert!(v.answered(16, 1, &bytes(&[21, 22, 23])));
        assert_eq!(
            v.findings().counts.mismatches,
            1,
            "its first token never came"
        );
    }
}
