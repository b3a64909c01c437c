//! A worker's first batches, before the first sample arrives: what a size meets first must not be a
//! sample, and what sizes take is known to the batcher from the start.

use std::{
    sync::{Mutex, PoisonError},
    time::{Duration, Instant},
};

use qdl::clock;

use super::WarmUp;
use crate::engine::{EngineError, Worker};

/// Warming up stops after this long: larger batches of a slow model meet their first time later.
const BUDGET: Duration = Duration::from_secs(2);

/// What a worker's warm-up came to.
#[derive(Debug, Default)]
pub(super) struct Warmed {
    pub figures: WarmUp,
    /// Sizes, and what a batch of each took that was not the first of it, in nanoseconds.
    pub took_ns: Vec<(usize, u64)>,
}

/// Batches of 1, 2, 4 ... `max_batch` samples, while the budget lasts, and one sample at the end.
/// Sizes that are listed are all run, however long it takes: what meets a size first, a runtime
/// that plans for it, must not be a sample. What is left of the budget goes into two more batches
/// of each size, whose times say what the size costs: while `measuring` is held, as batches of
/// other workers beside them would be in the way, and twice, as something else may be.
pub(super) fn warm_up(
    worker: &mut dyn Worker,
    max_batch: usize,
    listed: &[usize],
    measuring: &Mutex<()>,
) -> Result<Warmed, EngineError> {
    let mut timed = |batch| {
        let started = clock::now_ns();
        worker
            .warm_up(batch)
            .map(|()| clock::now_ns().saturating_sub(started))
    };
    let begun = Instant::now();
    let cold = timed(1)?;
    let mut first = Vec::new();
    let mut batch = 1;
    while batch < max_batch && begun.elapsed() < BUDGET {
        batch = (2 * batch).min(max_batch);
        first.push((batch, timed(batch)?));
    }
    for size in listed {
        first.push((*size, timed(*size)?));
    }
    let warm = timed(1)?;
    let mut took_ns = vec![(1, warm)];
    first.insert(0, (1, warm));
    let _alone = measuring.lock().unwrap_or_else(PoisonError::into_inner);
    for (size, before) in first.iter().chain(&first) {
        let would = begun.elapsed() + Duration::from_nanos(*before);
        if would < BUDGET {
            took_ns.push((*size, timed(*size)?));
        }
    }
    Ok(Warmed {
        figures: WarmUp {
            cold_us: clock::micros(cold),
            warm_us: clock::micros(warm),
        },
        took_ns,
    })
}

#[cfg(test)]
mod tests {
    use std::{
        sync::{
            Barrier,
            atomic::{AtomicUsize, Ordering::SeqCst},
        },
        thread,
    };

    use super::*;
    use crate::engine::Batch;

    /// Batches that run at the same time, and the most of them; those of the first round are not
    /// counted.
    #[derive(Default)]
    struct Beside {
        now: AtomicUsize,
        most: AtomicUsize,
    }

    struct Seen<'a> {
        first: usize,
        beside: &'a Beside,
        all: &'a Barrier,
    }

    impl Worker for Seen<'_> {
        fn run(&mut self, _: &mut Batch) -> Result<(), EngineError> {
            Ok(())
        }

        fn warm_up(&mut self, _: usize) -> Result<(), EngineError> {
            if self.first > 0 {
                self.first -= 1;
                if self.first == 0 {
                    // All are through with it: from here on nothing but the lock keeps them apart.
                    self.all.wait();
                }
                return Ok(());
            }
            let now = self.beside.now.fetch_add(1, SeqCst) + 1;
            self.beside.most.fetch_max(now, SeqCst);
            thread::sleep(Duration::from_millis(2));
            self.beside.now.fetch_sub(1, SeqCst);
            Ok(())
        }
    }

    #[test]
    fn what_is_measured_is_measured_alone() {
        let (measuring, beside, all) = (Mutex::new(()), Beside::default(), Barrier::new(3));
        let warmed: Vec<_> = thread::scope(|s| {
            let workers = [0; 3].map(|_| {
                s.spawn(|| {
                    // 1, 2, 4, the listed 3, and 1 once more.
                    let (beside, all) = (&beside, &all);
                    let mut worker = Seen {
                        first: 5,
                        beside,
                        all,
                    };
                    warm_up(&mut worker, 4, &[3], &measuring).expect("it fails nowhere")
                })
            });
            workers.map(|w| w.join().expect("no panic")).into()
        });
        assert_eq!(beside.most.load(SeqCst), 1);
        for w in warmed {
            let sizes: Vec<_> = w.took_ns.iter().map(|t| t.0).collect();
            assert_eq!(sizes, [1, 1, 2, 4, 3, 1, 2, 4, 3]);
        }
    }
}
