//! A rate-limited log, so that strangers cannot fill the log.

use std::time::Duration;

/// Minimum time between two lines.
const PERIOD: Duration = Duration::from_secs(10);

/// A rate-limited log for one kind of event. Times are nanoseconds of one monotonic clock.
#[derive(Debug, Default)]
pub struct Quiet {
    /// End of the period after the last line.
    until: u64,
    /// Events since the last line.
    more: u64,
}

impl Quiet {
    /// Logs an event, or counts it for the next line.
    pub(crate) fn warn(&mut self, now: u64, line: impl FnOnce() -> String) {
        if let Some(line) = self.note(now, line) {
            tracing::warn!("{line}");
        }
    }

    fn note(&mut self, now: u64, line: impl FnOnce() -> String) -> Option<String> {
        if now < self.until {
            self.more += 1;
            return None;
        }
        self.until = now.saturating_add(PERIOD.as_nanos() as u64);
        Some(match std::mem::take(&mut self.more) {
            0 => line(),
            more => format!("{} (and {more} more events since the last line)", line()),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_thousand_strangers_are_a_handful_of_lines() {
        let mut quiet = Quiet::default();
        let note = |i: u64| quiet.note(i * S / 100, || format!("{i} has no key"));
        let lines: Vec<_> = (0..1500).filter_map(note).collect();
        let second = "1000 has no key (and 999 more events since the last line)";
        assert_eq!(lines, ["0 has no key", second]);
        let third = quiet.note(100 * S, || "x".to_owned());
        let words = "x (and 499 more events since the last line)";
        assert_eq!(third.as_deref(), Some(words));
        let fourth = quiet.note(110 * S, || "y".to_owned());
        assert_eq!(fourth.as_deref(), Some("y"), "nothing came since");
    }
}
