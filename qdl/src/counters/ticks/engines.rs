//! Counts of an accelerator's engines, tick by tick.

use super::{COARSER, FIRST_TICK_NS, MOST_TICKS};
use record::{
    BatchSizes,
    timeline::{self, EngineTick},
};

/// An accelerator's counts at one moment; no count decreases.
#[derive(Clone, Debug, Default)]
pub(crate) struct EngineReading {
    pub arrived: u64,
    pub answered: u64,
    pub batches: BatchSizes,
    /// Microseconds of computing, summed over engine threads.
    pub computed_us: u64,
    /// Microseconds of copies to and from GPUs, summed.
    pub copied_us: u64,
}

/// The engines' ticks so far. Call [`EngineTicks::read`] about ten times a second.
#[derive(Clone, Debug)]
pub(crate) struct EngineTicks {
    begin_ns: u64,
    tick_ns: u64,
    last_ns: u64,
    last: EngineReading,
    ticks: Vec<EngineTick>,
}

impl EngineTicks {
    /// Starts the first tick at `begin_ns`. `first` holds the counts at that time.
    pub(crate) fn new(begin_ns: u64, first: EngineReading) -> Self {
        EngineTicks {
            begin_ns,
            tick_ns: FIRST_TICK_NS,
            last_ns: begin_ns,
            last: first,
            ticks: Vec::new(),
        }
    }

    pub(crate) fn read(&mut self, now_ns: u64, now: EngineReading) {
        // A reading may be late, so counts since the last reading go to the tick in the middle of
        // the interval.
        let now_ns = now_ns.max(self.last_ns);
        let middle = self.last_ns + (now_ns - self.last_ns) / 2;
        let since = middle.saturating_sub(self.begin_ns);
        self.last_ns = now_ns;
        while since / self.tick_ns >= MOST_TICKS as u64 {
            self.tick_ns = self.tick_ns.saturating_mul(COARSER);
            self.ticks = EngineTick::longer(&self.ticks, COARSER as usize);
        }
        let at = (since / self.tick_ns) as usize;
        if self.ticks.len() <= at {
            self.ticks.resize(at + 1, EngineTick::default());
        }
        let came = EngineTick {
            arrived: now.arrived.saturating_sub(self.last.arrived),
            answered: now.answered.saturating_sub(self.last.answered),
            batches: sizes(&now.batches.clone().since(&self.last.batches)),
            computed_us: now.computed_us.saturating_sub(self.last.computed_us),
            copied_us: now.copied_us.saturating_sub(self.last.copied_us),
        };
        if let Some(tick) = self.ticks.get_mut(at) {
            *tick = EngineTick::sum(&[std::mem::take(tick), came]);
        }
        self.last = now;
    }

    /// Returns the current length of a tick, in nanoseconds.
    pub fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    pub(crate) fn ticks(&self) -> &[EngineTick] {
        &self.ticks
    }
}

fn sizes(batches: &BatchSizes) -> Vec<(u32, u64)> {
    let each = batches.iter();
    let mut all: Vec<(u32, u64)> = each.map(|(size, n)| (size as u32, n)).collect();
    timeline::fold(&mut all);
    all
}

#[cfg(test)]
mod tests {
    use super::*;

    const T: u64 = FIRST_TICK_NS;

    fn reading(n: u64, batches: &BatchSizes) -> EngineReading {
        EngineReading {
            arrived: n,
            answered: n / 2,
            batches: batches.clone(),
            computed_us: 3 * n,
            copied_us: 0,
        }
    }

    #[test]
    fn each_tick_has_what_came_in_it() {
        let mut batches = BatchSizes::new(8);
        let mut ticks = EngineTicks::new(7, reading(100, &batches));
        batches.record(4);
        batches.record(4);
        ticks.read(7 + T, reading(110, &batches));
        batches.record(1);
        ticks.read(7 + T + 5, reading(120, &batches));
        ticks.read(7 + 3 * T, reading(120, &batches));
        let t = ticks.ticks();
        assert_eq!(t.iter().map(|t| t.arrived).collect::<Vec<_>>(), [10, 10, 0]);
        assert_eq!((t[0].answered, t[0].computed_us), (5, 30));
        assert_eq!(
            (&t[0].batches[..], &t[1].batches[..]),
            (&[(4, 2)][..], &[(1, 1)][..])
        );
    }

    #[test]
    fn a_long_run_has_longer_ticks_and_all_that_came() {
        let none = BatchSizes::new(8);
        let mut ticks = EngineTicks::new(0, reading(0, &none));
        for i in 1..=6_000u64 {
            ticks.read(i * T, reading(2 * i, &none));
        }
        assert_eq!((ticks.tick_ns(), ticks.ticks().len()), (10 * T, 600));
        assert!(ticks.ticks().iter().all(|t| t.arrived == 20));
        let tens = EngineTick::longer(ticks.ticks(), 10);
        assert_eq!((tens.len(), tens[0].arrived), (60, 200));
    }

    #[test]
    fn many_sizes_are_told_as_a_few() {
        let mut all: Vec<(u32, u64)> = (1..=40).map(|size| (size, u64::from(size))).collect();
        timeline::fold(&mut all);
        assert_eq!(all.len(), timeline::MOST_SIZES);
        assert_eq!(all.iter().map(|(_, n)| n).sum::<u64>(), 820);
    }
}
