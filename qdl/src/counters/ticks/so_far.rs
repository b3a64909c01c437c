//! Latencies by tick of a run that goes on.

use std::collections::BTreeMap;

use super::{COARSER, FIRST_TICK_NS, MOST_TICKS};
use crate::counters::Live;
use record::timeline::LATENCY_BUCKETS;

/// How many latencies fell into each bucket of a tick.
type Tick = Vec<(u16, u64)>;

/// See the module. What NIC threads show of their ticks ([`Live::latencies`]) has no time beside
/// it: what came since the last reading is of the tick before, which has just ended. So it is to be
/// read at least once a tick, which is what a look at the run does anyway.
#[derive(Clone, Debug)]
pub struct LatenciesSoFar {
    begin_ns: u64,
    tick_ns: u64,
    last: Vec<u64>,
    ticks: Vec<Tick>,
}

impl LatenciesSoFar {
    /// Of a run that began at `begin_ns`.
    pub fn new(begin_ns: u64) -> Self {
        LatenciesSoFar {
            begin_ns,
            tick_ns: FIRST_TICK_NS,
            last: vec![0; LATENCY_BUCKETS],
            ticks: Vec::new(),
        }
    }

    /// A look at what is shown.
    pub fn read(&mut self, now_ns: u64, live: &Live) {
        let (now, longest_ns) = live.latencies();
        let since = now_ns.saturating_sub(self.begin_ns);
        while since / self.tick_ns >= MOST_TICKS as u64 || self.tick_ns < longest_ns {
            self.tick_ns = self.tick_ns.saturating_mul(COARSER);
            let tens = self.ticks.chunks(COARSER as usize);
            self.ticks = tens.map(sum).collect();
        }
        let both = now.iter().zip(&self.last).enumerate();
        let came: Tick = both
            .map(|(bucket, (now, last))| (bucket as u16, now.saturating_sub(*last)))
            .filter(|(_, n)| *n > 0)
            .collect();
        self.last = now;
        if came.is_empty() {
            return;
        }
        let at = (since / self.tick_ns).saturating_sub(1) as usize;
        if self.ticks.len() <= at {
            self.ticks.resize(at + 1, Tick::new());
        }
        if let Some(tick) = self.ticks.get_mut(at) {
            *tick = sum(&[std::mem::take(tick), came]);
        }
    }

    /// Length of its ticks by now.
    pub fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// `n` ticks of `tick_ns`, which are as long as its own or longer. What came later is the last
    /// one's.
    pub fn ticks(&self, tick_ns: u64, n: usize) -> Vec<Tick> {
        let each = usize::try_from(tick_ns / self.tick_ns.max(1)).map_or(1, |n| n.max(1));
        let mut ticks: Vec<Tick> = self.ticks.chunks(each).map(sum).collect();
        if ticks.len() > n.max(1) {
            let rest = sum(&ticks.split_off(n.max(1) - 1));
            ticks.push(rest);
        }
        ticks.resize(n.max(1), Tick::new());
        ticks
    }
}

fn sum(ticks: &[Tick]) -> Tick {
    match ticks {
        [one] => one.clone(),
        [empty, one] if empty.is_empty() => one.clone(),
        several => {
            let mut all = BTreeMap::<u16, u64>::new();
            for (bucket, n) in several.iter().flatten() {
                *all.entry(*bucket).or_default() += n;
            }
            all.into_iter().collect()
        }
    }
}

#[cfg(test)]
mod tests {
    use std::sync::Arc;

    use super::*;
    use crate::counters::{Recorder, SampleTimes};
    use record::timeline::latency_bucket;

    const S: u64 = 1_000_000_000;
    const T: u64 = FIRST_TICK_NS;

    fn sample(completed_ns: u64, latency_ns: u64) -> SampleTimes {
        SampleTimes {
            issued_ns: completed_ns - latency_ns,
            completed_ns,
            ..SampleTimes::default()
        }
    }

    fn counts(ticks: &[Tick]) -> Vec<u64> {
        let of = |t: &Tick| t.iter().map(|(_, n)| n).sum();
        ticks.iter().map(of).collect()
    }

    #[test]
    fn ticks_that_are_over_are_seen_while_the_run_goes_on_and_the_others_are_not() {
        let live = Arc::new(Live::new(2));
        live.begin(S);
        let mut threads = [0, 1].map(|i| Recorder::new(live.clone(), i));
        let mut seen = LatenciesSoFar::new(S);
        for at in 0..30 {
            let now = S + at * T / 10 + 1_000;
            for r in &mut threads {
                r.record(&sample(now, 700));
            }
            seen.read(now + 1, &live);
        }
        // Ten of each thread in a tick; the third is not over.
        let ticks = seen.ticks(T, 3);
        assert_eq!(counts(&ticks), [20, 20, 0]);
        assert_eq!(ticks[0], [(latency_bucket(700), 20)]);
        assert_eq!(seen.tick_ns(), T);
        assert_eq!(counts(&seen.ticks(10 * T, 1)), [40]);
        assert_eq!(counts(&seen.ticks(T, 1)), [40]);
    }

    #[test]
    fn ticks_become_longer_with_the_threads_and_none_is_lost() {
        let live = Arc::new(Live::new(1));
        live.begin(S);
        let mut r = Recorder::new(live.clone(), 0);
        let mut seen = LatenciesSoFar::new(S);
        for tenth in 0..2_500u64 {
            r.record(&sample(S + tenth * T + 1_000, 700));
            seen.read(S + tenth * T + 2_000, &live);
        }
        assert_eq!(seen.tick_ns(), 10 * T);
        let ticks = counts(&seen.ticks(10 * T, 250));
        assert_eq!(ticks.iter().sum::<u64>(), 2_490, "all but the last tick");
        assert!(ticks.iter().filter(|n| **n != 10).count() <= 2, "{ticks:?}");
    }
}
