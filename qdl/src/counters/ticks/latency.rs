//! Latencies of one thread's samples by tick of completion, and the slowest samples with all
//! timestamps.

use std::{cmp::Reverse, collections::BTreeMap};

use record::{
    Stage,
    timeline::{LATENCY_BUCKETS as BUCKETS, SlowSample, latency_bucket},
};

use super::{COARSER, FIRST_TICK_NS, MOST_TICKS};
use crate::counters::{Live, SampleTimes};

/// Capacity in entries ([`Entry`]), over all ticks.
const ROOM: usize = 48 << 10;
/// Maximum number of slow samples kept.
const SLOWEST: usize = 256;
/// One sample in this many is kept as slow.
const ONE_IN: u64 = 1_000;

#[derive(Clone, Copy, Debug)]
struct Entry {
    tick: u16,
    bucket: u16,
    count: u32,
}

/// Latency counts by tick, and the slowest samples. Allocates memory only in `default`. Recording a
/// sample costs an addition and two comparisons.
#[derive(Debug)]
pub struct LatencyTicks {
    begin_ns: u64,
    /// End of the current tick; 0 before the first sample.
    end_ns: u64,
    tick_ns: u64,
    tick: u64,
    counts: Box<[u64; BUCKETS]>,
    /// Entries of completed ticks, ordered by tick and bucket.
    over: Vec<Entry>,
    /// The lower of `enters_ns` and `slowest_ns`: samples up to this latency are not kept.
    least_ns: u64,
    /// Samples above this latency are kept.
    enters_ns: u64,
    slowest_ns: u64,
    slow: Vec<SampleTimes>,
    /// The slowest sample of all, if its latency was at most `enters_ns`.
    beyond: Option<SampleTimes>,
}

fn total_ns(times: &SampleTimes) -> u64 {
    times.completed_ns.saturating_sub(times.issued_ns)
}

impl Default for LatencyTicks {
    fn default() -> Self {
        LatencyTicks {
            begin_ns: 0,
            end_ns: 0,
            tick_ns: FIRST_TICK_NS,
            tick: 0,
            counts: Box::new([0; BUCKETS]),
            over: Vec::with_capacity(ROOM),
            least_ns: 0,
            enters_ns: 0,
            slowest_ns: 0,
            slow: Vec::with_capacity(2 * SLOWEST + 1),
            beyond: None,
        }
    }
}

impl LatencyTicks {
    /// Records `n` samples with these times. The first call takes the run's begin from `live`. Each
    /// completed tick is published in `live` for the share of index `share`.
    #[inline]
    pub fn record(&mut self, times: &SampleTimes, n: u64, live: &Live, share: usize) {
        if times.completed_ns >= self.end_ns {
            if self.end_ns == 0 {
                self.begin_ns = live.begin(times.issued_ns);
            }
            self.turn(times.completed_ns, live, share);
        }
        let total_ns = total_ns(times);
        self.counts[usize::from(latency_bucket(total_ns)) % BUCKETS] += n;
        for _ in 0..n {
            if total_ns <= self.least_ns {
                break;
            }
            self.keep(times);
        }
    }

    /// Closes the current tick, if any, and begins the tick that contains `now_ns`.
    #[cold]
    fn turn(&mut self, now_ns: u64, live: &Live, share: usize) {
        if self.end_ns > 0 {
            live.show_latencies(share, &self.counts);
            self.flush();
        }
        let since = now_ns.saturating_sub(self.begin_ns);
        while since / self.tick_ns >= MOST_TICKS as u64 {
            self.coarsen();
        }
        self.tick = since / self.tick_ns;
        let end = (self.tick + 1).saturating_mul(self.tick_ns);
        self.end_ns = self.begin_ns.saturating_add(end);
    }

    fn flush(&mut self) {
        while self.over.len() + BUCKETS > ROOM {
            self.coarsen();
        }
        for (bucket, n) in self.counts.iter_mut().enumerate() {
            if *n > 0 {
                self.over.push(Entry {
                    tick: self.tick as u16,
                    bucket: bucket as u16,
                    count: u32::try_from(*n).unwrap_or(u32::MAX),
                });
                *n = 0;
            }
        }
    }

    /// Merges every ten ticks into one, in place.
    fn coarsen(&mut self) {
        self.tick_ns = self.tick_ns.saturating_mul(COARSER);
        self.tick /= COARSER;
        let mut sums = [0u64; BUCKETS];
        let (mut read, mut written) = (0, 0);
        while let Some(first) = self.over.get(read) {
            let tick = first.tick / COARSER as u16;
            while let Some(e) = self.over.get(read)
                && e.tick / COARSER as u16 == tick
            {
                sums[usize::from(e.bucket) % BUCKETS] += u64::from(e.count);
                read += 1;
            }
            // One merged tick uses at most as many buckets as the ten.
            for (bucket, n) in sums.iter_mut().enumerate() {
                if *n > 0 {
                    self.over[written] = Entry {
                        tick,
                        bucket: bucket as u16,
                        count: u32::try_from(*n).unwrap_or(u32::MAX),
                    };
                    written += 1;
                    *n = 0;
                }
            }
        }
        self.over.truncate(written);
    }

    /// Keeps a sample that may be one of the slowest. With growing latencies, as in Offline, every
    /// sample would qualify. So a sample must be 1/32 slower than the fastest kept sample. `beyond`
    /// holds the slowest sample if it misses this margin.
    #[cold]
    fn keep(&mut self, times: &SampleTimes) {
        let total_ns = total_ns(times);
        if total_ns > self.enters_ns {
            self.slow.extend(self.beyond.take());
            self.slow.push(*times);
        } else {
            self.beyond = Some(*times);
        }
        self.slowest_ns = self.slowest_ns.max(total_ns);
        if self.slow.len() >= 2 * SLOWEST {
            self.fewer();
        }
        self.least_ns = self.enters_ns.min(self.slowest_ns);
    }

    /// Drops the faster half of the kept samples.
    fn fewer(&mut self) {
        let key = |t: &SampleTimes| Reverse(total_ns(t));
        let (_, last, _) = self.slow.select_nth_unstable_by_key(SLOWEST - 1, key);
        let least_ns = total_ns(last);
        self.enters_ns = least_ns.saturating_add(least_ns / 32);
        self.slow.truncate(SLOWEST);
    }

    /// Samples of each tick and bucket over all threads, for a run of `n` ticks of `tick_ns`.
    pub fn merge<'a>(
        all: impl IntoIterator<Item = &'a LatencyTicks>,
        tick_ns: u64,
        n: usize,
    ) -> Vec<Vec<(u16, u64)>> {
        let mut ticks: Vec<BTreeMap<u16, u64>> = vec![BTreeMap::new(); n.max(1)];
        for one in all {
            let last = one.counts.iter().enumerate().filter(|(_, n)| **n > 0);
            let last = last.map(|(bucket, n)| (one.tick, bucket as u16, *n));
            let over = one.over.iter();
            let over = over.map(|e| (u64::from(e.tick), e.bucket, u64::from(e.count)));
            for (tick, bucket, count) in over.chain(last) {
                let at = tick.saturating_mul(one.tick_ns) / tick_ns.max(1);
                let at = usize::try_from(at).unwrap_or(n).min(ticks.len() - 1);
                if let Some(tick) = ticks.get_mut(at) {
                    *tick.entry(bucket).or_default() += count;
                }
            }
        }
        ticks.into_iter().map(|t| t.into_iter().collect()).collect()
    }

    /// Returns the current length of a tick, in nanoseconds.
    pub fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Returns the slowest samples of all threads, slowest first: one in a thousand of `samples`,
    /// at least 1 and at most 256. The run began at `begin_ns`.
    pub fn slowest<'a>(
        all: impl IntoIterator<Item = &'a LatencyTicks>,
        begin_ns: u64,
        samples: u64,
    ) -> Vec<SlowSample> {
        let mut slow: Vec<_> = all
            .into_iter()
            .flat_map(|l| l.slow.iter().chain(&l.beyond))
            .collect();
        slow.sort_by_key(|t| Reverse(total_ns(t)));
        let most = usize::try_from(samples.div_ceil(ONE_IN)).unwrap_or(SLOWEST);
        slow.truncate(most.min(SLOWEST));
        slow.into_iter().map(|t| whole(t, begin_ns)).collect()
    }
}

fn whole(t: &SampleTimes, begin_ns: u64) -> SlowSample {
    let (ns, _) = t.split();
    SlowSample {
        at_s: (t.completed_ns as f64 - begin_ns as f64) / 1e9,
        total_ns: ns[Stage::Total as usize],
        failed_attempts_ns: ns[Stage::Failed as usize],
        prefill_ns: ns[Stage::Prefill as usize],
        issue_to_post_ns: ns[Stage::IssueToPost as usize],
        network_ns: ns[Stage::Network as usize],
        queue_ns: ns[Stage::Queue as usize],
        compute_ns: ns[Stage::Compute as usize],
        completion_ns: ns[Stage::Completion as usize],
        connection: t.connection,
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    fn sample(completed_ns: u64, total_ns: u64) -> SampleTimes {
        SampleTimes {
            issued_ns: completed_ns - total_ns,
            posted_ns: completed_ns - total_ns,
            seen_ns: completed_ns,
            completed_ns,
            connection: 3,
            ..SampleTimes::default()
        }
    }

    fn of(samples: impl IntoIterator<Item = (u64, u64)>) -> LatencyTicks {
        let (mut ticks, live) = (LatencyTicks::default(), begun());
        for (at, total) in samples {
            ticks.record(&sample(at, total), 1, &live, 0);
        }
        ticks
    }

    fn begun() -> Live {
        let live = Live::new(1);
        live.begin(S);
        live
    }

    fn counts(tick: &[(u16, u64)]) -> u64 {
        tick.iter().map(|(_, n)| n).sum()
    }

    #[test]
    fn samples_are_counted_in_the_tick_that_they_were_completed_in() {
        let us = |us: u64| us * 1_000;
        let a = of([
            (S + us(10), us(5)),
            (S + us(20), us(5)),
            (S + 3 * S / 10, us(90)),
        ]);
        let b = of([(S + us(99_999), us(5)), (S + us(100_000), us(5))]);
        let ticks = LatencyTicks::merge([&a, &b], FIRST_TICK_NS, 4);
        assert_eq!(
            ticks.iter().map(|t| counts(t)).collect::<Vec<_>>(),
            [3, 1, 0, 1]
        );
        assert_eq!(ticks[0], [(latency_bucket(us(5)), 3)]);
        assert_eq!(ticks[3], [(latency_bucket(us(90)), 1)]);
        // With fewer ticks than recorded, the last tick includes the rest.
        let two = LatencyTicks::merge([&a, &b], FIRST_TICK_NS, 2);
        assert_eq!(two.iter().map(|t| counts(t)).collect::<Vec<_>>(), [3, 2]);
    }

    #[test]
    fn a_long_run_has_longer_ticks_and_all_its_samples() {
        // Ten minutes with one sample every 100 ms, of growing latency.
        let long = of((0..6_000u64).map(|i| (S + i * S / 10, 1_000 + i)));
        assert_eq!(long.tick_ns(), S);
        let room = long.over.capacity();
        let ticks = LatencyTicks::merge([&long], S, 600);
        assert!(ticks.iter().all(|t| counts(t) == 10), "{ticks:?}");
        assert_eq!(
            room,
            LatencyTicks::default().over.capacity(),
            "it did not grow"
        );
        // A short recorder uses the longer ticks, too.
        let short = of([(S + 5, 7), (S + 2 * S, 7)]);
        let ticks = LatencyTicks::merge([&long, &short], S, 600);
        assert_eq!(
            [&ticks[0], &ticks[1], &ticks[2]].map(|t| counts(t)),
            [11, 10, 11]
        );
    }

    #[test]
    fn samples_of_every_length_find_room() {
        let mut all = 0u64;
        let (mut ticks, live) = (LatencyTicks::default(), begun());
        for tick in 0..400u64 {
            for i in 0..(BUCKETS as u64) {
                let long = 8u64 << (i % 37);
                let at = S + tick * FIRST_TICK_NS + (1 << 45);
                ticks.record(&sample(at, long), 1, &live, 0);
                all += 1;
            }
        }
        assert!(ticks.over.len() <= ROOM);
        let merged = LatencyTicks::merge([&ticks], ticks.tick_ns(), MOST_TICKS);
        assert_eq!(merged.iter().map(|t| counts(t)).sum::<u64>(), all);
    }

    #[test]
    fn the_slowest_are_kept_whole_and_no_others() {
        // Every 997th sample is slow, in random order.
        let total = |i: u64| {
            if i.is_multiple_of(997) {
                1_000_000 + (i * 7_919) % 500_000
            } else {
                900
            }
        };
        let n = 300_000;
        let ticks = of((0..n).map(|i| (2 * S + i * 1_000, total(i))));
        let slow = LatencyTicks::slowest([&ticks], S, n);
        assert_eq!(slow.len(), 256);
        let mut expected: Vec<u64> = (0..n).map(total).collect();
        expected.sort_unstable_by_key(|ns| Reverse(*ns));
        let least = slow.last().expect("some").total_ns;
        // Samples that hardly exceed the fastest one kept may be missing.
        assert!(least >= expected[255] - expected[255] / 32, "{least}");
        assert_eq!(slow[0].total_ns, expected[0]);
        assert!(slow.windows(2).all(|w| w[0].total_ns >= w[1].total_ns));
        assert_eq!(slow[0].connection, 3);
        assert!(slow[0].at_s >= 1.0 && slow[0].network_ns == slow[0].total_ns);
        // One in a thousand of 2000 samples.
        assert_eq!(LatencyTicks::slowest([&ticks], S, 2_000).len(), 2);
    }

    #[test]
    fn samples_that_take_ever_longer_are_not_all_kept() {
        let mut kept = 0;
        let (mut ticks, live) = (LatencyTicks::default(), begun());
        for i in 1..1_000_000u64 {
            let before = ticks.slow.len();
            ticks.record(&sample(S + 10 * i, 10 * i), 1, &live, 0);
            kept += u64::from(ticks.slow.len() != before);
            if i % 97 == 0 {
                let slow = LatencyTicks::slowest([&ticks], S, 1 + i);
                assert_eq!(slow[0].total_ns, 10 * i);
            }
        }
        assert!(kept < 100_000, "{kept} of 1,000,000");
    }
}
