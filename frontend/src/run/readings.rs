//! Throughput up to the last sample, without LoadGen's own time afterwards.

use qdl::counters::Throughput;

pub(super) struct Readings {
    /// Throughput up to the last reading.
    pub(super) now: Throughput,
    pub(super) now_ns: u64,
    completed: u64,
    before: Throughput,
}

impl Readings {
    pub(super) fn new(first_ns: u64) -> Self {
        Readings {
            now: Throughput::new(first_ns),
            now_ns: first_ns,
            completed: 0,
            before: Throughput::new(first_ns),
        }
    }

    pub(super) fn read(&mut self, now_ns: u64, completed: u64, outstanding: u64) {
        if outstanding > 0 || completed != self.completed {
            self.before.clone_from(&self.now);
            self.now.sample(now_ns, completed);
            (self.now_ns, self.completed) = (now_ns, completed);
        }
    }

    /// Returns the throughput up to the last sample, at `last_ns`, perhaps before the last reading.
    pub(super) fn end(self, last_ns: u64, completed: u64) -> Throughput {
        let mut throughput = if last_ns < self.now_ns {
            self.before
        } else {
            self.now
        };
        throughput.sample(last_ns, completed);
        throughput
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const SECOND: u64 = 1_000_000_000;

    #[test]
    fn readings_end_with_the_last_sample() {
        let mut r = Readings::new(0);
        r.read(SECOND, 100, 3);
        r.read(2 * SECOND, 200, 0);
        // LoadGen processes its logs for a minute.
        r.read(62 * SECOND, 200, 0);
        let report = r.end(2 * SECOND - 50, 200).report();
        assert_eq!(report.completed, 200);
        assert!(report.duration_s < 2.0 && report.duration_s > 1.9);
    }

    #[test]
    fn a_stall_shows() {
        let mut r = Readings::new(0);
        r.read(SECOND, 100, 3);
        (2..5).for_each(|s| r.read(s * SECOND, 100, 3));
        let report = r.end(5 * SECOND, 103).report();
        assert_eq!(report.per_second, [100, 0, 0, 0, 3]);
    }
}
