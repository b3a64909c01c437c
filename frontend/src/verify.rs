//! `verify: digest`: proof that every response is its own
//! sample's, and that none is lost and none comes twice.
//!
//! The digest of a sample is computed when it is loaded. Every issued response id is kept until it
//! is answered, in one of several sets behind a lock each: this costs a lock per sample, which is
//! why it is for tests and not for figures.

use std::{
    collections::HashSet,
    sync::{
        Mutex, MutexGuard, PoisonError,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
};

use xxhash_rust::xxh3::xxh3_64;

const SHARDS: usize = 64;

/// What was found.
#[derive(Clone, Debug, Default, PartialEq, Eq)]
pub struct Findings {
    /// Responses compared.
    pub compared: u64,
    /// Of those, the ones that are not their sample's digest.
    pub mismatches: u64,
    /// Responses to samples that were answered already, or never issued.
    pub duplicates: u64,
    /// Samples issued and never answered.
    pub lost: u64,
    /// The first fault, in words.
    pub first: Option<String>,
}

impl Findings {
    /// Whether nothing is wrong.
    pub fn sound(&self) -> bool {
        self.mismatches == 0 && self.duplicates == 0 && self.lost == 0
    }

    /// What is wrong, in one line.
    pub fn complaint(&self) -> Option<String> {
        if self.sound() {
            return None;
        }
        let first = self.first.as_deref().unwrap_or("none came back wrong");
        Some(format!(
            "verification: of {} responses {} were not their own sample's digest and {} came twice; {} samples were \
             never answered (first fault: {first})",
            self.compared, self.mismatches, self.duplicates, self.lost
        ))
    }
}

/// See the module.
#[derive(Debug)]
pub struct Verifier {
    /// By sample index.
    digests: Box<[AtomicU64]>,
    outstanding: Box<[Mutex<HashSet<u64>>]>,
    compared: AtomicU64,
    mismatches: AtomicU64,
    duplicates: AtomicU64,
    first: Mutex<Option<String>>,
}

impl Verifier {
    /// For a data set of so many samples.
    pub fn new(samples: usize) -> Self {
        Verifier {
            digests: (0..samples).map(|_| AtomicU64::new(0)).collect(),
            outstanding: (0..SHARDS).map(|_| Mutex::default()).collect(),
            compared: AtomicU64::new(0),
            mismatches: AtomicU64::new(0),
            duplicates: AtomicU64::new(0),
            first: Mutex::default(),
        }
    }

    /// The sample was loaded.
    pub fn loaded(&self, index: usize, bytes: &[u8]) {
        if let Some(digest) = self.digests.get(index) {
            digest.store(xxh3_64(bytes), Relaxed);
        }
    }

    /// The sample is about to be issued.
    pub fn issued(&self, id: u64) {
        self.shard(id).insert(id);
    }

    /// A response came. False where LoadGen must not
    /// hear of it: the sample has been completed before.
    pub fn answered(&self, id: u64, index: u64, payload: &[u8]) -> bool {
        if !self.completed(id, index) {
            return false;
        }
        self.compared.fetch_add(1, Relaxed);
        let own = usize::try_from(index)
            .ok()
            .and_then(|i| self.digests.get(i));
        let own = own.map_or(0, |d| d.load(Relaxed)).to_le_bytes();
        if payload != own {
            self.mismatches.fetch_add(1, Relaxed);
            self.fault(|| {
                let shown = &payload[..payload.len().min(16)];
                format!(
                    "sample {index} has digest {}, the response is {} bytes: {}{}; does the accelerator run the \
                     engine `digest`?",
                    hex(&own),
                    payload.len(),
                    hex(shown),
                    if shown.len() < payload.len() { "..." } else { "" },
                )
            });
        }
        true
    }

    /// The sample is completed without a response. False as in [`Verifier::answered`].
    pub fn completed(&self, id: u64, index: u64) -> bool {
        let was_there = self.shard(id).remove(&id);
        if !was_there {
            self.duplicates.fetch_add(1, Relaxed);
            self.fault(|| format!("sample {index} was answered twice"));
        }
        was_there
    }

    /// What was found so far. `lost` means something once no more is to come.
    pub fn findings(&self) -> Findings {
        let lost: usize = (0..SHARDS as u64).map(|i| self.shard(i).len()).sum();
        Findings {
            compared: self.compared.load(Relaxed),
            mismatches: self.mismatches.load(Relaxed),
            duplicates: self.duplicates.load(Relaxed),
            lost: lost as u64,
            first: self
                .first
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .clone(),
        }
    }

    fn fault(&self, text: impl FnOnce() -> String) {
        self.first
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .get_or_insert_with(text);
    }

    /// Ids are addresses: their low bits say little, so they
    /// are mixed. A number below [`SHARDS`] is its own shard.
    fn shard(&self, id: u64) -> MutexGuard<'_, HashSet<u64>> {
        let mixed = (id ^ (id >> 6) ^ (id >> 12)) as usize % SHARDS;
        self.outstanding[mixed]
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
    }
}

fn hex(bytes: &[u8]) -> String {
    bytes.iter().map(|b| format!("{b:02x}")).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn digest(bytes: &[u8]) -> [u8; 8] {
        xxh3_64(bytes).to_le_bytes()
    }

    #[test]
    fn a_right_answer_is_no_fault() {
        let v = Verifier::new(2);
        v.loaded(1, b"one");
        for id in [0x7f00_0000, 0x7f00_0018, 0x7f00_0030] {
            v.issued(id);
            assert!(v.answered(id, 1, &digest(b"one")));
        }
        assert_eq!(
            v.findings(),
            Findings {
                compared: 3,
                ..Findings::default()
            }
        );
        assert_eq!(v.findings().complaint(), None);
    }

    #[test]
    fn another_samples_answer_is_found() {
        let v = Verifier::new(2);
        v.loaded(0, b"zero");
        v.loaded(1, b"one");
        v.issued(5);
        assert!(v.answered(5, 1, &digest(b"zero")));
        v.issued(6);
        assert!(v.answered(6, 1, b"short"));
        let found = v.findings();
        assert_eq!((found.mismatches, found.duplicates, found.lost), (2, 0, 0));
        assert!(
            found
                .complaint()
                .expect("a fault")
                .contains("sample 1 has digest")
        );
    }

    #[test]
    fn an_answer_twice_is_kept_from_loadgen() {
        let v = Verifier::new(1);
        v.loaded(0, b"zero");
        v.issued(9);
        assert!(v.answered(9, 0, &digest(b"zero")));
        assert!(!v.answered(9, 0, &digest(b"zero")));
        assert!(!v.completed(9, 0));
        assert_eq!(v.findings().duplicates, 2);
        assert!(!v.findings().sound());
    }

    #[test]
    fn what_never_comes_back_is_lost() {
        let v = Verifier::new(1);
        (0..1000u64).for_each(|id| v.issued(id * 24 + 0x5500_0000));
        assert_eq!(v.findings().lost, 1000);
        (0..999u64).for_each(|id| assert!(v.completed(id * 24 + 0x5500_0000, 0)));
        assert_eq!(v.findings().lost, 1);
    }
}
