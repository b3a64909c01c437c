//! The backlog: a FIFO queue of samples, in rows of at most [`BURST`].
//!
//! A thread moves a row with one lock and without a copy; a sample that the issuing thread posts at
//! once takes no lock. A long query fills its rows before it takes the lock.

use std::{
    collections::VecDeque,
    mem,
    sync::{Mutex, MutexGuard, PoisonError},
};

use super::{Sample, connection::BURST};

/// Empty rows kept for threads that push few samples at a time.
const SPARE: usize = 4;

#[derive(Debug, Default)]
struct Rows {
    rows: VecDeque<VecDeque<Sample>>,
    spare: Vec<VecDeque<Sample>>,
}

/// A FIFO queue of samples.
#[derive(Debug, Default)]
pub(super) struct Backlog(Mutex<Rows>);

impl Backlog {
    fn lock(&self) -> MutexGuard<'_, Rows> {
        self.0.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Appends samples, one row at a time. Other threads may take the first rows before the last
    /// are pushed.
    pub(crate) fn push(&self, mut samples: impl ExactSizeIterator<Item = Sample>) {
        if samples.len() > BURST {
            let rows = samples.len().div_ceil(BURST);
            self.lock().rows.reserve(rows);
        }
        while samples.len() >= BURST {
            let row = samples.by_ref().take(BURST).collect();
            self.lock().rows.push_back(row);
        }
        if samples.len() == 0 {
            return;
        }
        let Rows { rows, spare } = &mut *self.lock();
        for sample in samples {
            match rows.back_mut().filter(|row| row.len() < BURST) {
                Some(row) => row.push_back(sample),
                None => {
                    let mut row = spare.pop().unwrap_or_default();
                    row.reserve(BURST);
                    row.push_back(sample);
                    rows.push_back(row);
                }
            }
        }
    }

    /// Removes the first sample.
    pub(crate) fn pop(&self) -> Option<Sample> {
        let mut taken = VecDeque::new();
        self.take(1, &mut taken);
        taken.pop_front()
    }

    /// Puts samples back in front of the first.
    pub(crate) fn put_back(&self, samples: &mut VecDeque<Sample>) {
        if !samples.is_empty() {
            self.lock().rows.push_front(mem::take(samples));
        }
    }

    /// Moves up to `most` samples, and at most one row, to `taken`, which must be empty.
    pub(crate) fn take(&self, most: usize, taken: &mut VecDeque<Sample>) {
        let Rows { rows, spare } = &mut *self.lock();
        match rows.front_mut() {
            Some(row) if row.len() > most => taken.extend(row.drain(..most)),
            Some(row) => {
                mem::swap(row, taken);
                if let Some(empty) = rows.pop_front()
                    && spare.len() < SPARE
                {
                    spare.push(empty);
                }
            }
            None => {}
        }
    }
}

#[cfg(all(test, not(qdl_loom)))]
mod tests {
    use proptest::prelude::*;

    use super::*;
    use fabric::SourceId;

    fn samples(ids: std::ops::Range<u64>) -> Vec<Sample> {
        ids.map(|id| Sample {
            id,
            index: id,
            source: SourceId(0),
            offset: 0,
            len: 1,
            issued_ns: 1,
            first: None,
            tries: Default::default(),
        })
        .collect()
    }

    proptest! {
        /// Each step: samples pushed, samples taken next, and samples of those put back.
        #[test]
        fn samples_come_out_once_and_in_their_order(
            steps in prop::collection::vec((0u64..200, 0usize..80, 0usize..3), 1..60),
        ) {
            let backlog = Backlog::default();
            let (mut pushed, mut came) = (0, 0);
            let mut taken = VecDeque::new();
            for (n, most, back) in steps {
                backlog.push(samples(pushed..pushed + n).into_iter());
                pushed += n;
                backlog.take(most, &mut taken);
                prop_assert!(taken.len() <= most.min(BURST));
                prop_assert!(most == 0 || came == pushed || !taken.is_empty());
                let used = taken.len().saturating_sub(back);
                for s in taken.drain(..used) {
                    prop_assert_eq!(s.id, came);
                    came += 1;
                }
                backlog.put_back(&mut taken);
                prop_assert!(taken.is_empty());
            }
            while came < pushed {
                backlog.take(BURST, &mut taken);
                prop_assert!(!taken.is_empty());
                for s in taken.drain(..) {
                    prop_assert_eq!(s.id, came);
                    came += 1;
                }
            }
            backlog.take(BURST, &mut taken);
            prop_assert!(taken.is_empty());
        }
    }
}
