//! The wall clock, with which LoadGen measures, against the monotonic clock; and standstills of
//! this process: gaps between the run's looks. Callers pass the readings.

use std::time::{Duration, SystemTime, UNIX_EPOCH};

use fabric::clock::now_ns;
use report::text::time_us;

/// Largest difference of the two clocks that does not count, in nanoseconds.
const CLOSE_NS: i64 = 50_000_000;
/// A difference below this part of the phase does not count: NTP slews a clock by 1/2000.
const PART: u64 = 1000;
/// Shortest gap between two looks that is a standstill, in nanoseconds.
const STANDSTILL_NS: u64 = 250_000_000;
/// A phase's end is seen within this time, in nanoseconds.
const LATE_NS: u64 = 100_000_000;
/// Least change of a difference that is kept, in nanoseconds.
const CHANGE_NS: i64 = 1_000_000;
/// Maximum number of changes kept.
const MOST: usize = 4096;

/// The clocks at one moment.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct Reading {
    /// Time on [`fabric::clock`], which stands still while the machine is suspended.
    pub steady_ns: u64,
    /// The wall clock's time less `steady_ns`.
    pub wall_ns: i64,
    /// The same of the clock that goes on while the machine is suspended.
    pub awake_ns: i64,
}

impl Reading {
    /// Reads the clocks; `None` if the thread loses its core meanwhile.
    pub fn take() -> Option<Self> {
        let steady_ns = now_ns();
        let wall = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
        let mut boot = libc::timespec {
            tv_sec: 0,
            tv_nsec: 0,
        };
        // SAFETY: clock_gettime writes one timespec.
        unsafe { libc::clock_gettime(libc::CLOCK_BOOTTIME, &mut boot) };
        let boot = Duration::new(boot.tv_sec as u64, boot.tv_nsec as u32);
        let less = |clock: Duration| clock.as_nanos() as i64 - steady_ns as i64;
        let reading = Reading {
            steady_ns,
            wall_ns: less(wall),
            awake_ns: less(boot),
        };
        (now_ns() - steady_ns < CHANGE_NS as u64).then_some(reading)
    }
}

/// The readings of a run, as far as the clocks' differences change.
#[derive(Clone, Debug, Default)]
pub struct ClockLog {
    changes: Vec<Reading>,
    last: Option<Reading>,
    /// Total length of all standstills.
    pub stood_ns: u64,
}

impl ClockLog {
    /// Adds a look at the run; `runs` is true while LoadGen issues samples or waits for them.
    /// Returns the length of a standstill before this look.
    pub fn look(&mut self, now: Reading, runs: bool) -> Option<u64> {
        let far = |c: &Reading| {
            let changes = [now.wall_ns - c.wall_ns, now.awake_ns - c.awake_ns];
            changes.iter().any(|ns| ns.abs() >= CHANGE_NS)
        };
        if self.changes.last().is_none_or(far) {
            self.changes.truncate(MOST - 1);
            self.changes.push(now);
        }
        let last = self.last.replace(now)?;
        let gap = now.steady_ns.saturating_sub(last.steady_ns);
        let asleep = now.awake_ns.saturating_sub(last.awake_ns).max(0);
        let gap = Some(gap + asleep as u64).filter(|gap| runs && *gap >= STANDSTILL_NS);
        self.stood_ns += gap.unwrap_or(0);
        gap
    }

    /// Returns by how much the wall clock left the monotonic clock in a phase, in nanoseconds, and
    /// the fault if LoadGen's figures of the phase are wrong for that.
    pub fn phase(&self, first_ns: u64, last_ns: u64) -> (i64, Option<String>) {
        let before = |c: &&Reading| c.steady_ns <= first_ns;
        let Some(begin) = self
            .changes
            .iter()
            .rev()
            .find(before)
            .or(self.changes.first())
        else {
            return (0, None);
        };
        let within = |c: &&Reading| c.steady_ns > first_ns && c.steady_ns <= last_ns + LATE_NS;
        let within = self.changes.iter().filter(within);
        let left = within.map(|c| (c.wall_ns - begin.wall_ns, c.awake_ns - begin.awake_ns));
        let (left, asleep) = left.max_by_key(|left| left.0.abs()).unwrap_or_default();
        let part = (last_ns.saturating_sub(first_ns) / PART) as i64;
        let most = CLOSE_NS.max(part);
        let what = match left - asleep {
            set if set.abs() > most => {
                let sign = if set < 0 { '-' } else { '+' };
                format!("the wall clock was set by {sign}{}", amount(set.abs()))
            }
            _ => format!("this machine was suspended for {}", amount(asleep)),
        };
        let fault = format!(
            "{what} during the run: LoadGen measures with the wall clock, so its figures are \
             wrong; switch off what does that (chronyd's makestep, sleep), and run again"
        );
        (left, (left.abs() > most).then_some(fault))
    }
}

fn amount(ns: i64) -> String {
    match ns {
        1_000_000_000.. => format!("{:.1} s", ns as f64 / 1e9),
        _ => format!("{:.0} ms", ns as f64 / 1e6),
    }
}

/// The words for a standstill.
pub fn stood_still(ns: u64) -> String {
    let time = time_us(ns as f64 / 1e3);
    format!("this frontend stood still for {time} (stopped, suspended or without a core)")
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    /// Looks twenty times a second for ten seconds; `at` has the differences at a time.
    fn looks(at: impl Fn(i64) -> (i64, i64)) -> ClockLog {
        let mut log = ClockLog::default();
        for now in (0..10 * S).step_by(S as usize / 20) {
            let (wall_ns, awake_ns) = at(now);
            let steady_ns = now as u64;
            log.look(
                Reading {
                    steady_ns,
                    wall_ns,
                    awake_ns,
                },
                true,
            );
        }
        log
    }

    #[test]
    fn a_clock_that_was_set_spoils_the_phase_in_which_it_was_set_and_a_slew_none() {
        let step = |by: i64| move |now| (if now < 4 * S { 7 } else { 7 + by }, 3);
        let back_again = |now| {
            (
                if (4 * S..5 * S).contains(&now) {
                    -2 * S
                } else {
                    0
                },
                0,
            )
        };
        let suspended = |now| {
            if now < 4 * S {
                (0, 0)
            } else {
                (30 * S, 30 * S)
            }
        };
        let slew = |ppm: i64| move |now: i64| (now / 1_000_000 * ppm, 0);
        for (log, words) in [
            (looks(step(-2 * S)), Some("set by -2.0 s during")),
            (looks(step(2 * S)), Some("set by +2.0 s during")),
            (looks(step(60_000_000)), Some("set by +60 ms during")),
            (looks(step(-40_000_000)), None),
            (looks(back_again), Some("set by -2.0 s during")),
            (looks(suspended), Some("suspended for 30.0 s during")),
            (looks(slew(500)), None),
            (looks(slew(50_000)), Some("set by +")),
        ] {
            let fault = log.phase(S as u64, 9 * S as u64).1.unwrap_or_default();
            assert!(fault.contains(words.unwrap_or("")), "{words:?}: {fault}");
            assert_eq!(fault.is_empty(), words.is_none(), "{fault}");
            let other = log.phase(6 * S as u64, 7 * S as u64).0;
            assert!(other.abs() <= S / 20, "{words:?}: {other}");
        }
        // 0.3 s are less than a thousandth of ten minutes.
        let long = looks(step(3 * S / 10)).phase(S as u64, 601 * S as u64);
        assert_eq!(long, (3 * S / 10, None));
        assert_eq!(ClockLog::default().phase(0, 1), (0, None));
    }

    #[test]
    fn a_gap_between_looks_is_a_standstill_and_a_sleep_of_the_machine_is_one() {
        let mut log = ClockLog::default();
        for (ms, asleep_ms, runs, gap_ms) in [
            (0, 0, true, None),
            (50, 0, true, None),
            (1050, 0, true, Some(1000)),
            (1250, 0, true, None),
            (2250, 0, false, None),
            (2300, 5000, true, Some(5050)),
        ] {
            let now = Reading {
                steady_ns: ms * 1_000_000,
                wall_ns: 0,
                awake_ns: asleep_ms * 1_000_000,
            };
            let gap = log.look(now, runs).map(|ns| ns / 1_000_000);
            assert_eq!(gap, gap_ms, "{ms}");
        }
        assert_eq!(log.stood_ns, 6_050_000_000);
    }
}
