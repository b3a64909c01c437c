//! Runs batches of zeros on a worker before its first sample: no sample pays for first use.

use std::time::{Duration, Instant};

use fabric::clock;

use super::WarmUp;
use crate::{EngineError, Worker};

/// Time limit for growing batches: with a slow model, the largest batches stay cold.
const BUDGET: Duration = Duration::from_secs(2);

/// Runs batches of 1, 2, 4 ... `max_batch` zeros within [`BUDGET`], then every size of `listed`
/// without a time limit, then one sample. A runtime plans for a batch size at its first batch.
pub(super) fn warm_up(
    worker: &mut dyn Worker,
    max_batch: usize,
    listed: &[usize],
) -> Result<WarmUp, EngineError> {
    let mut timed = |batch| {
        let started = clock::now_ns();
        let micros = || clock::micros(clock::now_ns().saturating_sub(started));
        worker.warm_up(batch).map(|()| micros())
    };
    let begun = Instant::now();
    let cold_us = timed(1)?;
    let mut batch = 1;
    while batch < max_batch && begun.elapsed() < BUDGET {
        batch = (2 * batch).min(max_batch);
        timed(batch)?;
    }
    for size in listed {
        timed(*size)?;
    }
    let warm_us = timed(1)?;
    Ok(WarmUp { cold_us, warm_us })
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Batch;

    struct Recorder(Vec<usize>);

    impl Worker for Recorder {
        fn run(&mut self, _: &mut Batch) -> Result<(), EngineError> {
            Ok(())
        }

        fn warm_up(&mut self, samples: usize) -> Result<(), EngineError> {
            self.0.push(samples);
            Ok(())
        }
    }

    #[test]
    fn every_listed_size_is_run_before_the_first_sample() {
        let mut worker = Recorder(Vec::new());
        warm_up(&mut worker, 12, &[5, 12]).expect("it fails nowhere");
        assert_eq!(worker.0, [1, 2, 4, 8, 12, 5, 12, 1]);
    }
}
