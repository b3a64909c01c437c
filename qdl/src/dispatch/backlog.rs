//! The backlog: a FIFO queue of samples, in rows of at most [`BURST`], and its counts.
//!
//! A thread takes a whole row with one lock and no copy. A call with more than one row of samples
//! fills its rows before it takes the lock.

use std::{
    collections::VecDeque,
    mem,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering},
    },
};

use crossbeam_utils::CachePadded;

use super::{Attempt, connection::BURST};
use fabric::os::lock;

/// Empty rows kept for threads that push few samples at a time.
const SPARE: usize = 4;

#[derive(Debug, Default)]
struct Rows {
    rows: VecDeque<Vec<Attempt>>,
    /// Number of samples already taken from the first row.
    taken: usize,
    spare: Vec<Vec<Attempt>>,
}

impl Rows {
    /// Counts `n` more samples of the first row as taken. Keeps an emptied row's memory as spare,
    /// or returns it: the caller frees it without the lock.
    fn advance(&mut self, n: usize) -> Option<Vec<Attempt>> {
        self.taken += n;
        if self.rows.front()?.len() > self.taken {
            return None;
        }
        self.taken = 0;
        let mut row = self.rows.pop_front()?;
        if row.capacity() < BURST || self.spare.len() >= SPARE {
            return Some(row);
        }
        row.clear();
        self.spare.push(row);
        None
    }
}

/// Samples that wait for a slot of any connection. Any thread may call it.
#[derive(Debug, Default)]
pub(super) struct Backlog {
    rows: Mutex<Rows>,
    /// Samples in the rows, and taken ones until [`Self::count_off`].
    len: CachePadded<AtomicU64>,
    /// Most samples that waited at once for a free slot.
    pub max: AtomicU64,
    /// Samples that found no free slot at issue.
    pub waited: AtomicU64,
}

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        lock(&self.rows)
    }

    /// Number of samples, those being posted included.
    pub fn len(&self) -> u64 {
        self.len.load(Ordering::SeqCst)
    }

    pub fn is_empty(&self) -> bool {
        self.len() == 0
    }

    /// Reduces the length by `n` taken samples. Call it after their post, so that the length is not
    /// 0 while a taken sample may be put back.
    pub fn count_off(&self, n: u64) {
        if n > 0 {
            self.len.fetch_sub(n, Ordering::SeqCst);
        }
    }

    /// Appends samples, one row at a time. Other threads may take the first rows before the last
    /// are pushed.
    pub fn push(&self, mut samples: impl ExactSizeIterator<Item = Attempt>) {
        // Count first, so that the length is never less than the number of samples.
        if samples.len() > 0 {
            self.len.fetch_add(samples.len() as u64, Ordering::SeqCst);
        }
        if samples.len() > BURST {
            let rows = samples.len().div_ceil(BURST);
            self.lock().rows.reserve(rows);
        }
        while samples.len() >= BURST {
            let mut row = Vec::with_capacity(BURST);
            row.extend(samples.by_ref().take(BURST));
            self.lock().rows.push_back(row);
        }
        if samples.len() == 0 {
            return;
        }
        let Rows { rows, spare, .. } = &mut *self.lock();
        for sample in samples {
            match rows.back_mut().filter(|row| row.len() < BURST) {
                Some(row) => row.push(sample),
                None => {
                    let mut row = spare.pop().unwrap_or_else(|| Vec::with_capacity(BURST));
                    row.push(sample);
                    rows.push_back(row);
                }
            }
        }
    }

    /// Removes the first sample.
    pub fn pop(&self) -> Option<Attempt> {
        let mut rows = self.lock();
        let sample = rows.rows.front()?.get(rows.taken).copied();
        let row = rows.advance(1);
        drop(rows);
        drop(row);
        sample
    }

    /// Removes the sample with this id, wherever it is.
    pub fn remove(&self, id: u64) -> Option<Attempt> {
        let mut rows = self.lock();
        let taken = rows.taken;
        let (row, at) = rows.rows.iter().enumerate().find_map(|(row, attempts)| {
            let from = if row == 0 { taken } else { 0 };
            let at = attempts[from..].iter().position(|a| a.sample.id == id)?;
            Some((row, from + at))
        })?;
        let attempt = rows.rows.get_mut(row)?.remove(at);
        if row == 0 {
            // Drops the row if this was its last sample.
            let _ = rows.advance(0);
        } else if rows.rows[row].is_empty() {
            rows.rows.remove(row);
        }
        drop(rows);
        self.count_off(1);
        Some(attempt)
    }

    /// Puts samples back at the front.
    pub fn put_back(&self, samples: &[Attempt]) {
        if !samples.is_empty() {
            let mut rows = self.lock();
            let taken = mem::take(&mut rows.taken);
            if let Some(first) = rows.rows.front_mut() {
                first.drain(..taken);
            }
            rows.rows.push_front(samples.to_vec());
        }
    }

    /// Replaces the contents of `taken` with up to `samples_max` samples of the first row.
    pub fn take(&self, samples_max: usize, taken: &mut Vec<Attempt>) {
        taken.clear();
        let mut rows = self.lock();
        let from = rows.taken;
        let Some(row) = rows.rows.front_mut() else {
            return;
        };
        let n = samples_max.min(row.len() - from);
        if n == row.len() {
            // The emptied row has the memory of `taken`.
            mem::swap(row, taken);
        } else {
            taken.extend_from_slice(&row[from..from + n]);
        }
        let row = rows.advance(n);
        drop(rows);
        drop(row);
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use crate::dispatch::Sample;

    fn attempts(ids: std::ops::Range<u64>) -> Vec<Attempt> {
        ids.map(|id| {
            Attempt::from(Sample {
                id,
                ..Sample::default()
            })
        })
        .collect()
    }

    proptest! {
        /// Each step: samples pushed, samples taken next (and the one removed before), and samples
        /// of those put back.
        #[test]
        fn samples_come_out_once_and_in_their_order(
            steps in prop::collection::vec((0u64..200, 0usize..80, 0usize..3), 1..60),
        ) {
            let backlog = Backlog::default();
            let (mut pushed, mut expected) = (0, VecDeque::new());
            let mut taken = Vec::new();
            for (n, most, back) in steps {
                backlog.push(attempts(pushed..pushed + n).into_iter());
                expected.extend(pushed..pushed + n);
                pushed += n;
                if let Some(id) = expected.remove(most) {
                    let removed = backlog.remove(id).map(|a| a.sample.id);
                    prop_assert_eq!((removed, backlog.remove(id).is_some()), (Some(id), false));
                }
                backlog.take(most, &mut taken);
                prop_assert!(taken.len() <= most.min(BURST));
                prop_assert!(most == 0 || expected.is_empty() || !taken.is_empty());
                let used = taken.len().saturating_sub(back);
                for s in &taken[..used] {
                    prop_assert_eq!(Some(s.sample.id), expected.pop_front());
                }
                backlog.put_back(&taken[used..]);
                backlog.count_off(used as u64);
            }
            while !expected.is_empty() {
                backlog.take(BURST, &mut taken);
                prop_assert!(!taken.is_empty());
                for s in &taken {
                    prop_assert_eq!(Some(s.sample.id), expected.pop_front());
                }
                backlog.count_off(taken.len() as u64);
            }
            backlog.take(BURST, &mut taken);
            prop_assert!(taken.is_empty() && backlog.is_empty());
        }
    }
}
