//! A rate-limited log, so that strangers cannot fill the log.
//!
//! The first event is logged at once. Events within the next 10 s are counted and logged as one
//! line at the end of the period, with the last event in full. Periods follow each other until a
//! period is empty.

use std::{future::pending, time::Duration};

use tokio::time::sleep;

use fabric::clock::now_ns;

/// Length of a counting period.
const PERIOD: Duration = Duration::from_secs(10);

/// A rate-limited log for one kind of event. Times are nanoseconds of one monotonic clock.
#[derive(Debug)]
pub struct Quiet {
    what: &'static str,
    /// End of the current period, if any.
    until: Option<u64>,
    more: u64,
    last: String,
}

impl Quiet {
    /// Makes a log for events with the plural name `what`, such as "data connections refused".
    pub(crate) fn new(what: &'static str) -> Self {
        Quiet {
            what,
            until: None,
            more: 0,
            last: String::new(),
        }
    }

    /// Records an event: logs it at once, or counts it within a period.
    pub(crate) fn warn(&mut self, now: u64, line: impl FnOnce() -> String) {
        if let Some(line) = self.note(now, line()) {
            tracing::warn!("{line}");
        }
    }

    /// Logs the counted events, if the period is over.
    pub(crate) fn sum_up(&mut self, now: u64) {
        if let Some(line) = self.sum(now) {
            tracing::warn!("{line}");
        }
    }

    /// Waits until [`Quiet::sum_up`] is due: for ever outside a period.
    pub(crate) fn wait(&self) -> impl Future<Output = ()> + Send + use<> {
        let until = self.until;
        async move {
            match until {
                Some(at) => sleep(Duration::from_nanos(at.saturating_sub(now_ns()))).await,
                None => pending().await,
            }
        }
    }

    fn note(&mut self, now: u64, line: String) -> Option<String> {
        if self.until.is_some() {
            self.more += 1;
            self.last = line;
            return self.sum(now);
        }
        self.until = Some(now.saturating_add(PERIOD.as_nanos() as u64));
        Some(line)
    }

    fn sum(&mut self, now: u64) -> Option<String> {
        if now < self.until? {
            return None;
        }
        self.until = None;
        let more = std::mem::take(&mut self.more);
        if more == 0 {
            return None;
        }
        self.until = Some(now.saturating_add(PERIOD.as_nanos() as u64));
        let last = std::mem::take(&mut self.last);
        Some(format!(
            "{more} more {} in the last {} s, the last: {last}",
            self.what,
            PERIOD.as_secs()
        ))
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    const S: u64 = 1_000_000_000;

    #[test]
    fn a_thousand_strangers_are_a_handful_of_lines() {
        let mut quiet = Quiet::new("connections refused");
        let mut lines = Vec::new();
        for i in 0..1500u64 {
            lines.extend(quiet.note(i * S / 100, format!("{i} has no key")));
        }
        let end = quiet.until.expect("some are counted");
        lines.extend(quiet.sum(end - 1));
        lines.extend(quiet.sum(end));
        assert_eq!(
            lines,
            [
                "0 has no key",
                "1000 more connections refused in the last 10 s, the last: 1000 has no key",
                "499 more connections refused in the last 10 s, the last: 1499 has no key",
            ]
        );
        // An empty period ends the counting, and the next event is logged at once.
        let end = quiet.until.expect("one more period");
        assert_eq!(quiet.sum(end), None);
        assert_eq!(quiet.until, None);
        assert_eq!(quiet.note(end + 1, "x".to_owned()).as_deref(), Some("x"));
    }
}
