//! Compares the wall clock, with which LoadGen measures, to the monotonic clock. Finds standstills
//! of this process, too: readings that lie too far apart. Callers pass the readings.

use std::time::{SystemTime, UNIX_EPOCH};

use fabric::clock::now_ns;

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

/// Returns the time on [`fabric::clock`], and the wall clock's time less that time, in nanoseconds;
/// `None` if the thread loses its core between the readings.
pub fn clocks() -> Option<(u64, i64)> {
    let now = now_ns();
    let wall = SystemTime::now().duration_since(UNIX_EPOCH).ok()?;
    let reading = (now, wall.as_nanos() as i64 - now as i64);
    (now_ns() - now < CHANGE_NS as u64).then_some(reading)
}

/// The readings of a run, as far as the clocks' difference changes.
#[derive(Clone, Debug, Default)]
pub struct ClockLog {
    changes: Vec<(u64, i64)>,
    last_ns: Option<u64>,
    /// Total length of all standstills.
    pub stood_ns: u64,
}

impl ClockLog {
    /// Adds a reading of both clocks, the result of [`clocks`]. `runs` is true while LoadGen issues
    /// samples or waits for them.
    pub fn look(&mut self, now @ (now_ns, wall_ns): (u64, i64), runs: bool) {
        let last = self.changes.last();
        if last.is_none_or(|(_, last)| (wall_ns - last).abs() >= CHANGE_NS) {
            self.changes.truncate(MOST - 1);
            self.changes.push(now);
        }
        let gap = now_ns - self.last_ns.replace(now_ns).unwrap_or(now_ns);
        if runs && gap >= STANDSTILL_NS {
            self.stood_ns += gap;
        }
    }

    /// Returns the fault of a phase whose figures are wrong, as the clock was set in it.
    pub fn fault(&self, first_ns: u64, last_ns: u64) -> Option<String> {
        let begin = self.changes.iter().rposition(|(at, _)| *at <= first_ns);
        let (begin, within) = self.changes.get(begin.unwrap_or(0)..)?.split_first()?;
        let within = within.iter().take_while(|(at, _)| *at <= last_ns + LATE_NS);
        let set = within
            .map(|(_, wall)| wall - begin.1)
            .max_by_key(|set| set.abs())?;
        let part = (last_ns.saturating_sub(first_ns) / PART) as i64;
        let amount = match set.abs() {
            1_000_000_000.. => format!("{:+.1} s", set as f64 / 1e9),
            _ => format!("{:+.0} ms", set as f64 / 1e6),
        };
        // The monotonic clock stands still while the machine is suspended.
        let or = if set > 0 {
            ", or this machine suspended"
        } else {
            ""
        };
        let fault = format!(
            "the wall clock was set by {amount} during the run{or}: LoadGen measures with it, so \
             its figures are wrong; prevent that (chronyd: makestep), and run again"
        );
        (set.abs() > CLOSE_NS.max(part)).then_some(fault)
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: i64 = 1_000_000_000;

    #[test]
    fn a_clock_that_was_set_spoils_the_phase_in_which_it_was_set_and_a_slew_none() {
        type Clock = fn(i64) -> i64;
        let cases: [(Clock, i64, &str); 7] = [
            (
                |t| if t < 4 * S { 7 } else { 7 - 2 * S },
                9,
                "set by -2.0 s",
            ),
            (
                |t| if t < 4 * S { 7 } else { 7 + S / 16 },
                9,
                "set by +62 ms",
            ),
            (|t| if t < 4 * S { 7 } else { 7 - S / 25 }, 9, ""),
            // 0.3 s are less than a thousandth of ten minutes.
            (|t| if t < 4 * S { 7 } else { 7 + S * 3 / 10 }, 601, ""),
            (|t| if t / S == 4 { -2 * S } else { 0 }, 9, "set by -2.0 s"),
            (|t| t / 2000, 9, ""),
            (|t| t / 25, 9, "set by +3"),
        ];
        for (clock, end_s, words) in cases {
            let mut log = ClockLog::default();
            for now in (0..10 * S).step_by(S as usize / 20) {
                log.look((now as u64, clock(now)), true);
            }
            let phase = |first_s, end_s| log.fault(first_s * S as u64, (end_s * S) as u64);
            let fault = phase(1, end_s).unwrap_or_default();
            assert!(
                fault.contains(words) && fault.is_empty() == words.is_empty(),
                "{fault}"
            );
            assert_eq!(phase(7, 8), None, "{words}");
            assert_eq!(log.stood_ns, 0);
        }
        assert_eq!(ClockLog::default().fault(0, 1), None);
    }

    #[test]
    fn a_gap_between_looks_is_a_standstill_while_samples_are_issued() {
        let mut log = ClockLog::default();
        for (ms, runs) in [(0, true), (1_000, true), (1_200, true), (2_200, false)] {
            log.look((ms * 1_000_000, 0), runs);
        }
        assert_eq!(log.stood_ns, 1_000_000_000);
    }
}
