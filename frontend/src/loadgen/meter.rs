//! Measures the program's resource usage while LoadGen's clock runs: reads threads and NICs from
//! the first query until about the last answer. Also computes rates of samples and tokens.

use std::{
    collections::VecDeque,
    time::{Duration, Instant},
};

use record::NodeUse;

/// Interval between readings. A reading takes a few reads of `/proc` per thread.
const EVERY: Duration = Duration::from_millis(500);
/// Early in a run the interval is the run's age divided by this number. So the time after the last
/// reading is a small share of even a short run.
const OF_ITS_AGE: u32 = 16;

#[derive(Debug, Default)]
pub struct Meter {
    first: Option<(Instant, NodeUse)>,
    last: Option<(Instant, NodeUse)>,
}

impl Meter {
    /// Takes a reading if one is due; `working` is true while samples are outstanding. After the
    /// last answer only LoadGen works, so no reading is taken.
    pub fn look(&mut self, working: bool, read: impl FnOnce() -> NodeUse) {
        let Some((began, _)) = &self.first else {
            let first = (Instant::now(), read());
            self.last = Some(first.clone());
            self.first = Some(first);
            return;
        };
        let every = EVERY.min(began.elapsed() / OF_ITS_AGE);
        let due = |(at, _): &(Instant, NodeUse)| at.elapsed() >= every;
        if working && self.last.as_ref().is_none_or(due) {
            self.last = Some((Instant::now(), read()));
        }
    }

    /// Returns the usage between the first reading and the last one with outstanding samples.
    pub fn used(&self) -> NodeUse {
        match (&self.first, &self.last) {
            (Some((_, first)), Some((_, last))) => last.since(first),
            _ => NodeUse::default(),
        }
    }
}

/// Length of the window of [`RateWindow`], in nanoseconds.
const RATE_NS: u64 = 1_000_000_000;

/// Rates of samples and tokens over about the last second.
#[derive(Debug, Default)]
pub struct RateWindow(VecDeque<(u64, [u64; 2])>);

impl RateWindow {
    /// Adds the numbers of samples and tokens completed so far. Call this at every look at the run.
    pub fn add(&mut self, now_ns: u64, counts: [u64; 2]) {
        self.0.push_back((now_ns, counts));
        let is_old = |(at, _): &(u64, _)| now_ns.saturating_sub(*at) >= RATE_NS;
        while self.0.get(1).is_some_and(is_old) {
            self.0.pop_front();
        }
    }

    /// Returns samples and tokens per second.
    pub fn rates(&self) -> [f64; 2] {
        let (Some((began, from)), Some((ended, to))) = (self.0.front(), self.0.back()) else {
            return [0.0; 2];
        };
        let seconds = (ended.saturating_sub(*began) as f64 / 1e9).max(1e-3);
        [0, 1].map(|i| to[i].saturating_sub(from[i]) as f64 / seconds)
    }
}

#[cfg(test)]
mod tests {
    use record::NicUse;

    use super::*;

    #[test]
    fn what_is_done_after_the_last_answer_is_not_counted() {
        let mut meter = Meter::default();
        assert_eq!(meter.used(), NodeUse::default());
        let worked = |worked_us| NodeUse {
            nics: NicUse {
                threads: 1,
                worked_us,
                sleeps: 0,
            },
            ..NodeUse::default()
        };
        let later = |meter: &mut Meter, by: Duration| {
            for at in [&mut meter.first, &mut meter.last].into_iter().flatten() {
                at.0 -= by;
            }
        };
        meter.look(true, || worked(10));
        // A short run is read too, and early.
        later(&mut meter, EVERY / 5);
        meter.look(true, || worked(20));
        later(&mut meter, 20 * EVERY);
        meter.look(true, || worked(30));
        later(&mut meter, EVERY / 2);
        meter.look(true, || panic!("too soon"));
        later(&mut meter, EVERY);
        meter.look(false, || panic!("nothing is outstanding"));
        assert_eq!(meter.used().nics.worked_us, 20);
    }

    #[test]
    fn rates_are_those_of_about_the_last_second() {
        let mut window = RateWindow::default();
        for tenth in 0..100u64 {
            let done = 10 * tenth.saturating_sub(80);
            window.add(tenth * 100_000_000, [done, 2 * done]);
        }
        let [samples, tokens] = window.rates();
        assert!((samples - 100.0).abs() < 1.0, "{samples}");
        assert!((tokens - 200.0).abs() < 2.0, "{tokens}");
        assert!(window.0.len() < 15);
    }
}
