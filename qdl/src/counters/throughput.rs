//! Samples completed in each second of a run.

use record::ThroughputReport;

use super::ticks::{Grown, SECOND};

/// Computes completed samples per second from timed readings of a counter.
#[derive(Clone, Debug)]
pub struct Throughput {
    start_ns: u64,
    completed: Grown,
}

impl Throughput {
    /// Starts the first second at `start_ns`, with no completed sample.
    pub fn new(start_ns: u64) -> Self {
        Throughput {
            start_ns,
            completed: Grown::by_second(start_ns),
        }
    }

    /// Adds a reading of the counter. Samples between two readings count as evenly distributed, so
    /// call this several times a second. Ignores a reading lower or earlier than the last.
    pub fn sample(&mut self, now_ns: u64, completed: u64) {
        self.completed.read(now_ns, &[completed]);
    }

    /// Returns the report from the start to the last reading.
    pub fn report(&self) -> ThroughputReport {
        let duration_s = (self.completed.last_ns() - self.start_ns) as f64 / SECOND as f64;
        let full = self.completed.full_ticks();
        let mut per_second = self.completed.ticks(SECOND, full + 1).concat();
        let rest = per_second.pop().unwrap_or(0);
        let completed = per_second.iter().sum::<u64>() + rest;
        let mut later: Vec<u64> = per_second.iter().skip(1).copied().collect();
        later.sort_unstable();
        let steady = match later.len() {
            0 => None,
            n if n % 2 == 1 => Some(later[n / 2] as f64),
            n => Some((later[n / 2 - 1] as f64 + later[n / 2] as f64) / 2.0),
        };
        let first = per_second.first().copied();
        ThroughputReport {
            completed,
            duration_s,
            mean_per_s: if duration_s > 0.0 {
                round3(completed as f64 / duration_s)
            } else {
                0.0
            },
            min_per_s: per_second.iter().min().copied(),
            steady_per_s: steady,
            first_per_s: first,
            first_over_steady: first
                .zip(steady.filter(|&s| s > 0.0))
                .map(|(f, s)| round3(f as f64 / s)),
            per_second,
            rest,
        }
    }
}

fn round3(x: f64) -> f64 {
    (x * 1000.0).round() / 1000.0
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    proptest! {
        #[test]
        fn no_sample_is_lost_between_the_seconds(
            start in 0u64..1 << 60,
            steps in prop::collection::vec((0u64..3 * SECOND, 0u64..1 << 40), 1..60),
        ) {
            let mut t = Throughput::new(start);
            let (mut now, mut completed) = (start, 0);
            for (ns, n) in steps {
                now += ns;
                completed += n;
                t.sample(now, completed);
            }
            let r = t.report();
            prop_assert_eq!(r.per_second.iter().sum::<u64>() + r.rest, completed);
            prop_assert_eq!(r.per_second.len() as u64, (now - start) / SECOND);
            prop_assert_eq!(r.completed, completed);
        }
    }

    fn five_seconds() -> ThroughputReport {
        let mut t = Throughput::new(0);
        let mut sum = 0;
        for (i, n) in [450u64, 1000, 980, 990, 500].iter().enumerate() {
            sum += n;
            t.sample((i as u64 + 1) * SECOND, sum);
        }
        t.sample(5 * SECOND + SECOND / 2, sum + 100);
        t.report()
    }

    #[test]
    fn first_least_and_steady() {
        let r = five_seconds();
        assert_eq!(r.per_second, [450, 1000, 980, 990, 500]);
        assert_eq!((r.rest, r.duration_s), (100, 5.5));
        assert_eq!((r.min_per_s, r.first_per_s), (Some(450), Some(450)));
        assert_eq!(r.steady_per_s, Some(985.0));
        assert_eq!(r.first_over_steady, Some(0.457));
    }

    #[test]
    fn a_run_shorter_than_a_second_has_a_mean_alone() {
        let mut t = Throughput::new(0);
        t.sample(SECOND / 4, 50);
        assert_eq!((t.report().min_per_s, t.report().mean_per_s), (None, 200.0));
        assert_eq!(Throughput::new(3).report().mean_per_s, 0.0);
    }
}
