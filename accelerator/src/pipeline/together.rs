//! Whether batches of several workers had better begin apart: found out while warming up.
//!
//! Workers meet when each is warm, and run batches of zeros, all of them at the same time: first as
//! each becomes free, then apart by a little less than one took so, and both once more.

use std::{
    sync::{Condvar, Mutex, MutexGuard, PoisonError},
    thread,
    time::{Duration, Instant},
};

use crate::engine::{EngineError, Worker};

/// Batches in each round, of all workers.
const BATCHES: usize = 24;
/// Rounds: as they become free, apart, and again.
const ROUNDS: usize = 4;
/// How far apart they begin, beside what one took when they did not.
const CLOSER: f64 = 0.9;
/// They have to be quicker by so much, which is more than two rounds of one kind differ by.
const QUICKER: f64 = 0.97;
/// Batches that are not in each other's way have nothing to gain: several at a time take so little
/// of what each would alone.
const IN_THE_WAY: f64 = 0.6;
/// Finding out may take so long; with a smaller batch, where it would take longer.
const BUDGET: Duration = Duration::from_millis(1_500);
/// Batches that take less begin and end sooner than a worker wakes up.
const LEAST: Duration = Duration::from_micros(200);
/// How long a worker waits for the others, which are being warmed up.
const PATIENCE: Duration = Duration::from_secs(60);
/// A sleep may be late by this; what is left is waited for awake.
const LATE: Duration = Duration::from_micros(200);

/// Where workers meet.
pub(super) struct Together {
    workers: usize,
    meeting: Mutex<Meeting>,
    changed: Condvar,
}

#[derive(Default)]
struct Meeting {
    /// Those that have come to this meeting, and how many there have been.
    here: usize,
    held: usize,
    off: bool,
    /// What is tried, once all have come.
    plan: Option<(usize, u64)>,
    began: Option<Instant>,
    /// When the next batch may begin, where they begin apart.
    next: Option<Instant>,
    /// Of each kind, as they become free and apart: what a batch took, the least of its rounds.
    took: [Duration; 2],
}

/// What workers found out.
#[derive(Clone, Copy, Debug, PartialEq)]
pub(super) struct Found {
    /// Samples of each.
    pub samples: usize,
    /// What one took alone, and what it took of the time with all workers at it: begun as each
    /// became free, and apart; ns.
    pub alone_ns: u64,
    pub free_ns: f64,
    pub apart_ns: f64,
}

impl Found {
    /// Whether batches had better begin apart.
    pub fn is_worth_it(&self) -> bool {
        self.apart_ns < QUICKER * self.free_ns && self.free_ns > IN_THE_WAY * self.alone_ns as f64
    }

    /// Once, in the node's log.
    pub fn say(&self) {
        let rate = |ns: f64| self.samples as f64 * 1e9 / ns;
        let so = match self.is_worth_it() {
            true => "they begin apart",
            false => "they begin as workers become free",
        };
        tracing::info!(
            "zeros in batches of {}, all workers at it: {:.0} samples/s begun as workers became \
             free, {:.0} begun apart; {so}",
            self.samples,
            rate(self.free_ns),
            rate(self.apart_ns),
        );
    }
}

impl Together {
    pub fn new(workers: usize) -> Self {
        Together {
            workers,
            meeting: Mutex::default(),
            changed: Condvar::new(),
        }
    }

    /// Of sizes and what each takes alone, the largest first: the one to find out with. Half of the
    /// largest, which is what loads that can be carried make of it; the largest where there is
    /// nothing else.
    pub fn size(alone: &[(usize, u64)], workers: usize) -> Option<(usize, u64)> {
        let runs = (ROUNDS * each(workers) * workers) as u32;
        let fits = |(_, ns): &&(usize, u64)| {
            let one = Duration::from_nanos(*ns);
            workers > 1 && one >= LEAST && one.saturating_mul(runs) <= BUDGET
        };
        let half = |(n, _): &&(usize, u64)| 2 * n <= alone[0].0;
        let all = || alone.iter().filter(fits);
        all().find(half).or_else(|| all().next()).copied()
    }

    /// A worker cannot come any more: nobody waits for it, and nothing is found out.
    pub fn call_off(&self) {
        self.lock().off = true;
        self.changed.notify_all();
    }

    /// To be called by every worker, when it is warm; `plan` says what to try, once all are. One of
    /// them is told what was found.
    ///
    /// # Errors
    /// As [`Worker::warm_up`].
    pub fn find_out(
        &self,
        worker: &mut dyn Worker,
        plan: impl Fn() -> Option<(usize, u64)>,
    ) -> Result<Option<Found>, EngineError> {
        if self.workers < 2 || !self.meet(|m| m.plan = plan()) {
            return Ok(None);
        }
        let Some((samples, alone_ns)) = self.lock().plan else {
            return Ok(None);
        };
        let runs = each(self.workers);
        let mut last = false;
        for round in 0..ROUNDS {
            let apart = round % 2 == 1;
            if !self.meet(|m| (m.began, m.next) = (Some(Instant::now()), None)) {
                return Ok(None);
            }
            for _ in 0..runs {
                if apart {
                    wait_until(self.next());
                }
                worker.warm_up(samples)?;
            }
            let all = (runs * self.workers) as u32;
            last = false;
            let ended = self.meet(|m| {
                let took = m.began.map_or(Duration::MAX, |b| b.elapsed() / all);
                let least = &mut m.took[usize::from(apart)];
                *least = if least.is_zero() {
                    took
                } else {
                    took.min(*least)
                };
                last = true;
            });
            if !ended {
                return Ok(None);
            }
        }
        let [free, apart] = self.lock().took.map(|t| t.as_nanos() as f64);
        let found = Found {
            samples,
            alone_ns,
            free_ns: free,
            apart_ns: apart,
        };
        Ok(last.then_some(found))
    }

    /// When this worker's next batch begins.
    fn next(&self) -> Instant {
        let mut m = self.lock();
        let now = Instant::now();
        let at = m.next.map_or(now, |next| next.max(now));
        m.next = Some(at + m.took[0].mul_f64(CLOSER));
        at
    }

    /// Waits for all workers; the one that comes last does `end` before anybody goes on. False
    /// where it was called off, or somebody is too long in coming.
    fn meet(&self, end: impl FnOnce(&mut Meeting)) -> bool {
        let deadline = Instant::now() + PATIENCE;
        let mut m = self.lock();
        m.here += 1;
        if m.here == self.workers {
            m.here = 0;
            m.held += 1;
            end(&mut m);
            self.changed.notify_all();
            return !m.off;
        }
        let held = m.held;
        while m.held == held && !m.off {
            let left = deadline.saturating_duration_since(Instant::now());
            if left.is_zero() {
                m.off = true;
                self.changed.notify_all();
            }
            let waited = self.changed.wait_timeout(m, left);
            m = waited.unwrap_or_else(PoisonError::into_inner).0;
        }
        !m.off
    }

    fn lock(&self) -> MutexGuard<'_, Meeting> {
        self.meeting.lock().unwrap_or_else(PoisonError::into_inner)
    }
}

/// Batches of one worker in a round.
fn each(workers: usize) -> usize {
    BATCHES.div_ceil(workers.max(1))
}

fn wait_until(at: Instant) {
    let left = at.saturating_duration_since(Instant::now());
    thread::sleep(left.saturating_sub(LATE));
    while Instant::now() < at {
        thread::yield_now();
    }
}

#[cfg(test)]
mod tests {
    use std::sync::{
        Arc,
        atomic::{AtomicUsize, Ordering::SeqCst},
    };

    use super::*;
    use crate::engine::Batch;

    /// Counts its batches, and how many run at the same time.
    #[derive(Default)]
    struct Seen {
        batches: AtomicUsize,
        now: AtomicUsize,
        most: AtomicUsize,
    }

    impl Worker for &Seen {
        fn run(&mut self, _: &mut Batch) -> Result<(), EngineError> {
            Ok(())
        }

        fn warm_up(&mut self, samples: usize) -> Result<(), EngineError> {
            assert_eq!(samples, 8);
            let now = self.now.fetch_add(1, SeqCst) + 1;
            self.most.fetch_max(now, SeqCst);
            thread::sleep(Duration::from_millis(1));
            self.now.fetch_sub(1, SeqCst);
            self.batches.fetch_add(1, SeqCst);
            Ok(())
        }
    }

    #[test]
    fn all_run_the_same_number_at_the_same_time_and_one_is_told() {
        for workers in 1..=4 {
            let (together, seen) = (Together::new(workers), Seen::default());
            let told: Vec<Found> = thread::scope(|s| {
                let one = || together.find_out(&mut &seen, || Some((8, 1_000_000)));
                let all: Vec<_> = (0..workers).map(|_| s.spawn(one)).collect();
                let all = all.into_iter().map(|w| w.join().expect("no panic"));
                all.filter_map(|f| f.expect("it fails nowhere")).collect()
            });
            if workers == 1 {
                assert_eq!((told.len(), seen.batches.load(SeqCst)), (0, 0));
                continue;
            }
            let [found] = told[..] else {
                panic!("{told:?}");
            };
            assert_eq!((found.samples, found.alone_ns), (8, 1_000_000));
            // No two rounds of one worker overlap, and a batch takes a millisecond.
            let least = 1e6 / workers as f64;
            assert!(
                found.free_ns >= least && found.apart_ns >= least,
                "{found:?}"
            );
            assert_eq!(seen.batches.load(SeqCst), ROUNDS * each(workers) * workers);
            assert!(seen.most.load(SeqCst) <= workers);
        }
    }

    #[test]
    fn it_is_worth_it_where_they_are_in_each_others_way_and_less_so_apart() {
        let found = |alone_ns: u64, free_ns: f64, apart_ns: f64| Found {
            samples: 8,
            alone_ns,
            free_ns,
            apart_ns,
        };
        // Three of 128 on an H200.
        assert!(found(2_500_000, 1_980_000.0, 1_830_000.0).is_worth_it());
        assert!(
            !found(2_500_000, 1_980_000.0, 1_950_000.0).is_worth_it(),
            "by chance"
        );
        let cores = found(3_000_000, 1_000_000.0, 900_000.0);
        assert!(!cores.is_worth_it(), "each has a core to itself");
    }

    #[test]
    fn nobody_waits_for_one_that_cannot_come() {
        let together = Arc::new(Together::new(2));
        let gone = Arc::clone(&together);
        let late = thread::spawn(move || {
            thread::sleep(Duration::from_millis(20));
            gone.call_off();
        });
        let seen = Seen::default();
        let found = together.find_out(&mut &seen, || unreachable!("not all have come"));
        assert_eq!(found.expect("it fails nowhere"), None);
        late.join().expect("no panic");
    }

    #[test]
    fn half_of_the_largest_size_as_far_as_there_is_time() {
        let sizes = [(512, 80_000_000), (256, 9_000_000), (128, 5_000_000)];
        let size = |workers, from: usize| Together::size(&sizes[from..], workers);
        assert_eq!(size(3, 0), Some((256, 9_000_000)));
        assert_eq!(size(3, 1), Some((128, 5_000_000)), "half of the largest");
        assert_eq!(size(3, 2), Some((128, 5_000_000)), "there is no half");
        assert_eq!(size(1, 0), None);
        assert_eq!(Together::size(&[(8, 50_000)], 2), None, "too quick");
        assert_eq!(Together::size(&[(8, u64::MAX)], 2), None, "too slow");
    }
}
