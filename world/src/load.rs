//! The issuer of samples, in LoadGen's place.

use std::sync::{Arc, OnceLock};

use fabric::{Region, clock, testkit::dice::Dice};
use qdl::dispatch::Sample;
use xxhash_rust::xxh3::xxh3_64;

use crate::book::{Fate, Shared, index_of};

/// Bytes in which samples begin. Each sample begins at an offset of its own.
const BEGINS: usize = 1 << 20;

/// Samples of a warm-up.
const WARM_SIZES: u64 = 3;

/// Longest sample in bytes.
const LONGEST: usize = 1 << 18;

/// The samples' memory, the same for all worlds.
pub fn source() -> Arc<Region> {
    static SOURCE: OnceLock<Arc<Region>> = OnceLock::new();
    let make = || {
        let region = Region::new(BEGINS + LONGEST).expect("memory for the samples");
        let mut dice = Dice::of(7, &[]);
        // SAFETY: no other reference to the region exists yet.
        let bytes = unsafe { region.bytes_mut(0, BEGINS + LONGEST) }.expect("the whole region");
        let words = bytes.chunks_exact_mut(8);
        words.for_each(|w| w.copy_from_slice(&dice.draw().to_le_bytes()));
        Arc::new(region)
    };
    SOURCE.get_or_init(make).clone()
}

/// Makes samples, for the issuing thread of the world and for those that issue meanwhile.
pub struct Load {
    pub seed: u64,
    pub book: Shared,
    pub longest: u64,
    pub issued: u64,
}

impl Load {
    /// Makes the `n` samples of the burst that is named `name`, and counts them as issued.
    pub fn issue(&mut self, name: u64, n: u64) -> Vec<Sample> {
        self.issued += n;
        self.samples(name, n, false)
    }

    /// Makes the samples of a warm-up.
    pub fn warm_up(&mut self) -> Vec<Sample> {
        self.samples(u64::MAX, WARM_SIZES, true)
    }

    fn samples(&mut self, name: u64, n: u64, warms_up: bool) -> Vec<Sample> {
        let (source, issued_ns) = (source(), clock::now_ns());
        let mut book = self.book.lock();
        let first = book.fates.len() as u64;
        book.say(|| format!("issue {first}..{}", first + n));
        let one = |i| {
            let id = first + i;
            let mut dice = Dice::of(self.seed, &[10, name, i]);
            let len = match dice.percent(60) {
                true => self.longest,
                false => dice.from_to(8, self.longest),
            };
            let begins = (BEGINS / 8) as u64;
            // An odd factor: no two of the first `begins` samples begin at the same offset.
            let offset = (id * 40_503 % begins) as usize * 8;
            // SAFETY: nothing writes to the source after it was made.
            let bytes = unsafe { source.bytes(offset, len as usize) }.expect("inside the source");
            let digest = xxh3_64(bytes);
            book.fates.push(Fate {
                digest,
                seed: dice.draw(),
                warms_up,
                ..Fate::default()
            });
            book.of_digest.insert(digest, id);
            Sample {
                id,
                index: index_of(id),
                offset,
                len: len as u32,
                issued_ns,
                ..Sample::default()
            }
        };
        (0..n).map(one).collect()
    }
}
