//! One thread's ring of records: it alone writes, others may read while it does.

use std::sync::atomic::{
    AtomicU64, AtomicUsize,
    Ordering::{Acquire, Relaxed, Release},
    fence,
};

/// Bytes of a record, in a ring and in a file.
pub const RECORD_BYTES: usize = 32;
const WORDS: usize = RECORD_BYTES / 8;

/// One decision. What each field means is said by [`Kind`](super::Kind).
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Record {
    /// When, on [`crate::clock`]; 0 is filled in with now.
    pub at_ns: u64,
    /// What: a [`Kind`](super::Kind) as a number.
    pub kind: u8,
    /// Connection, by its index.
    pub connection: u16,
    /// Slot.
    pub slot: u16,
    /// How many.
    pub count: u16,
    /// Bytes.
    pub size: u32,
    /// More of it.
    pub aux: u64,
}

impl Record {
    /// As four words; in a file each is little-endian.
    pub fn words(&self) -> [u64; WORDS] {
        let what = u64::from(self.kind)
            | u64::from(self.connection) << 16
            | u64::from(self.slot) << 32
            | u64::from(self.count) << 48;
        [self.at_ns, what, u64::from(self.size), self.aux]
    }

    /// From its words.
    pub fn from_words([at_ns, what, size, aux]: [u64; WORDS]) -> Record {
        Record {
            at_ns,
            kind: what as u8,
            connection: (what >> 16) as u16,
            slot: (what >> 32) as u16,
            count: (what >> 48) as u16,
            size: size as u32,
            aux,
        }
    }
}

/// See the module.
#[derive(Debug)]
pub(super) struct Ring {
    words: Box<[AtomicU64]>,
    /// Records ever begun, and ever written.
    begun: AtomicU64,
    written: AtomicU64,
    /// Where the next one goes, in words: the writer's alone, which saves it a division.
    next: AtomicUsize,
}

impl Ring {
    /// For so many records.
    pub fn new(records: usize) -> Self {
        Ring {
            words: (0..records.max(1) * WORDS)
                .map(|_| AtomicU64::new(0))
                .collect(),
            begun: AtomicU64::new(0),
            written: AtomicU64::new(0),
            next: AtomicUsize::new(0),
        }
    }

    fn records(&self) -> u64 {
        (self.words.len() / WORDS) as u64
    }

    /// Called by the thread that it belongs to alone.
    pub fn push(&self, record: &Record) {
        let n = self.written.load(Relaxed);
        self.begun.store(n + 1, Relaxed);
        // A reader that sees one of the words below sees that the record was begun.
        fence(Release);
        let at = self.next.load(Relaxed);
        if let Some((words, rest)) = self.words.get(at..).and_then(|w| w.split_first_chunk()) {
            let words: &[AtomicU64; WORDS] = words;
            for (to, word) in words.iter().zip(record.words()) {
                to.store(word, Relaxed);
            }
            let next = if rest.is_empty() { 0 } else { at + WORDS };
            self.next.store(next, Relaxed);
        }
        self.written.store(n + 1, Release);
    }

    /// The records that are there, the oldest first, and how many were overwritten.
    pub fn read(&self) -> (Vec<Record>, u64) {
        let written = self.written.load(Acquire);
        let oldest = written.saturating_sub(self.records());
        let mut all = Vec::with_capacity((written - oldest) as usize);
        for n in oldest..written {
            let at = (n % self.records()) as usize * WORDS;
            let mut words = [0; WORDS];
            for (word, from) in words.iter_mut().zip(&self.words[at..]) {
                *word = from.load(Relaxed);
            }
            all.push(Record::from_words(words));
        }
        fence(Acquire);
        // What the thread has begun to overwrite meanwhile.
        let begun = self.begun.load(Relaxed);
        let spoilt = begun.saturating_sub(self.records()).max(oldest) - oldest;
        all.drain(..(spoilt as usize).min(all.len()));
        (all, oldest + spoilt)
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;

    fn record(n: u64) -> Record {
        Record {
            at_ns: n,
            kind: 2,
            connection: n as u16,
            slot: (n >> 3) as u16,
            count: 7,
            size: n as u32,
            aux: !n,
        }
    }

    #[test]
    fn a_record_survives_its_words() {
        for n in [0, 1, 0xffff_ffff, u64::MAX, 0x1234_5678_9abc_def0] {
            assert_eq!(Record::from_words(record(n).words()), record(n));
        }
    }

    #[test]
    fn the_newest_are_kept_in_order() {
        let ring = Ring::new(100);
        (0..30).for_each(|n| ring.push(&record(n)));
        assert_eq!(ring.read(), ((0..30).map(record).collect(), 0));
        (30..250).for_each(|n| ring.push(&record(n)));
        assert_eq!(ring.read(), ((150..250).map(record).collect(), 150));
    }

    #[test]
    fn who_reads_while_it_is_written_gets_whole_records_alone() {
        let ring = Arc::new(Ring::new(64));
        let writer = {
            let ring = ring.clone();
            std::thread::spawn(move || (0..200_000).for_each(|n| ring.push(&record(n))))
        };
        while !writer.is_finished() {
            let (records, overwritten) = ring.read();
            for (n, r) in (overwritten..).zip(&records) {
                assert_eq!(*r, record(n));
            }
        }
        writer.join().expect("joined");
        assert_eq!(ring.read().1, 200_000 - 64);
    }
}
