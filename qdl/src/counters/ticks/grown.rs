//! Ticks of counters and gauges that are read at irregular times.

use super::{COARSER, FIRST_TICK_NS, MOST_TICKS, SECOND};

/// A row of numbers over time: counters, which only grow, then gauges.
#[derive(Clone, Debug)]
pub struct Grown {
    begin_ns: u64,
    tick_ns: u64,
    /// Maximum number of ticks.
    most: usize,
    counters: usize,
    first: Vec<u64>,
    last_ns: u64,
    last: Vec<u64>,
    ends: Vec<u64>,
}

impl Grown {
    /// Starts at `begin_ns` with the row `first`, whose first `counters` numbers are counters.
    pub fn new(begin_ns: u64, first: &[u64], counters: usize) -> Self {
        Grown {
            begin_ns,
            tick_ns: FIRST_TICK_NS,
            most: MOST_TICKS,
            counters,
            first: first.to_vec(),
            last_ns: begin_ns,
            last: first.to_vec(),
            ends: Vec::new(),
        }
    }

    /// Starts at `begin_ns` with one counter at 0. Its ticks are seconds, however long the run is.
    pub(crate) fn by_second(begin_ns: u64) -> Self {
        Grown {
            tick_ns: SECOND,
            most: usize::MAX,
            ..Grown::new(begin_ns, &[0], 1)
        }
    }

    /// Adds the row at `now_ns`. Between readings, counters count as growing evenly and gauges as
    /// constant. Ignores a row with another length or an earlier time.
    pub fn read(&mut self, now_ns: u64, row: &[u64]) {
        let width = self.first.len();
        if row.len() != width || width == 0 || now_ns < self.last_ns {
            return;
        }
        loop {
            let over = self.ends.len() / width;
            let end = (over as u64 + 1).saturating_mul(self.tick_ns);
            let end = self.begin_ns.saturating_add(end);
            if end > now_ns {
                break;
            }
            if over >= self.most {
                self.coarsen(width);
                continue;
            }
            let (span, part) = (now_ns - self.last_ns, end.saturating_sub(self.last_ns));
            for (i, (now, last)) in row.iter().zip(&self.last).enumerate() {
                let value = if i < self.counters {
                    let came = u128::from(now.saturating_sub(*last));
                    let came = came * u128::from(part) / u128::from(span.max(1));
                    last + came as u64
                } else {
                    *now
                };
                self.ends.push(value);
            }
        }
        for (i, (now, last)) in row.iter().zip(&mut self.last).enumerate() {
            let counts = i < self.counters;
            *last = if counts { (*last).max(*now) } else { *now };
        }
        self.last_ns = now_ns;
    }

    fn coarsen(&mut self, width: usize) {
        self.tick_ns = self.tick_ns.saturating_mul(COARSER);
        let rows = self.ends.chunks(width);
        let kept = rows.skip(COARSER as usize - 1).step_by(COARSER as usize);
        self.ends = kept.flatten().copied().collect();
    }

    /// Returns the current length of a tick, in nanoseconds.
    pub fn tick_ns(&self) -> u64 {
        self.tick_ns
    }

    /// Returns the time of the last reading.
    pub fn last_ns(&self) -> u64 {
        self.last_ns
    }

    /// Returns the number of ticks that are over.
    pub(crate) fn full_ticks(&self) -> usize {
        self.ends.len() / self.first.len().max(1)
    }

    /// Returns the counters' growth since `begin_ns`, and the gauges' last values.
    pub fn since_begin(&self) -> Vec<u64> {
        let all = self.last.iter().zip(&self.first).enumerate();
        all.map(|(i, (last, first))| match i < self.counters {
            true => last.saturating_sub(*first),
            false => *last,
        })
        .collect()
    }

    /// Returns `n` rows for ticks of `tick_ns`: the counters' growth in the tick, and the gauges at
    /// its end. The last row includes all later growth.
    pub fn ticks(&self, tick_ns: u64, n: usize) -> Vec<Vec<u64>> {
        let width = self.first.len();
        let step = usize::try_from(tick_ns / self.tick_ns.max(1)).map_or(1, |s| s.max(1));
        let mut before = &self.first[..];
        let mut rows = Vec::with_capacity(n);
        for k in 0..n {
            let at = ((k + 1) * step - 1) * width;
            let end = match self.ends.get(at..at + width) {
                Some(end) if k + 1 < n => end,
                _ => &self.last[..],
            };
            let value = |(i, (end, before)): (usize, (&u64, &u64))| match i < self.counters {
                true => end.saturating_sub(*before),
                false => *end,
            };
            rows.push(end.iter().zip(before).enumerate().map(value).collect());
            before = end;
        }
        rows
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;
    const T: u64 = FIRST_TICK_NS;

    #[test]
    fn what_came_between_two_readings_came_evenly() {
        let mut g = Grown::new(S, &[100, 5], 1);
        g.read(S + T / 2, &[110, 6]);
        g.read(S + T + T / 2, &[130, 7]);
        g.read(S + 3 * T + T / 2, &[170, 8]);
        g.read(S + 3 * T, &[999, 9]);
        let ticks = g.ticks(T, 4);
        assert_eq!(ticks, [vec![20, 7], vec![20, 8], vec![20, 8], vec![10, 8]]);
        assert_eq!(g.since_begin(), [70, 8]);
        // A counter that decreases counts as no growth; later growth belongs to the last tick.
        g.read(S + 4 * T, &[150, 8]);
        let sum: u64 = g.ticks(T, 2).iter().map(|r| r[0]).sum();
        assert_eq!(sum, 70);
    }

    #[test]
    fn ten_ticks_become_one_and_nothing_is_lost() {
        let mut g = Grown::new(0, &[0], 1);
        for tenth in 1..=6_000u64 {
            g.read(tenth * T, &[tenth * 3]);
        }
        assert_eq!(g.tick_ns(), S);
        let ticks = g.ticks(S, 600);
        assert!(ticks.iter().all(|r| r[0] == 30), "{ticks:?}");
        let coarse = g.ticks(10 * S, 60);
        assert!(coarse.iter().all(|r| r[0] == 300));
    }

    #[test]
    fn rows_of_another_width_and_ticks_that_were_never_read_do_no_harm() {
        let mut g = Grown::new(0, &[1, 2], 2);
        g.read(T, &[5]);
        assert_eq!(g.ticks(T, 2), [vec![0, 0], vec![0, 0]]);
        assert!(Grown::new(0, &[], 0).ticks(T, 1)[0].is_empty());
    }
}
