//! Counts of the sequences since the start.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

/// Written by the thread of the cores, read by others.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub answers: AtomicU64,
    /// Tokens of answers.
    pub tokens: AtomicU64,
    /// Messages with tokens.
    pub steps: AtomicU64,
    pub refused: AtomicU64,
    /// Sequences aborted because the frontend is gone.
    pub aborted: AtomicU64,
    /// Tokens of aborted sequences.
    pub late: AtomicU64,
    /// Most concurrent sequences.
    pub most: AtomicU64,
    firsts: AtomicU64,
    first_us: AtomicU64,
    first_most_us: AtomicU64,
}

impl Counters {
    /// Counts a first token, this long after its request.
    pub fn first(&self, after: Duration) {
        let us = after.as_micros() as u64;
        self.firsts.fetch_add(1, Relaxed);
        self.first_us.fetch_add(us, Relaxed);
        self.first_most_us.fetch_max(us, Relaxed);
    }
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |n: &AtomicU64| n.load(Relaxed);
        write!(
            f,
            "{} answers of {} tokens in {} steps, at most {} sequences at once",
            of(&self.answers),
            of(&self.tokens),
            of(&self.steps),
            of(&self.most)
        )?;
        if let Some(mean) = of(&self.first_us).checked_div(of(&self.firsts)) {
            let most = of(&self.first_most_us);
            write!(f, "; first token after {mean} us, at most {most}")?;
        }
        for (n, what) in [
            (&self.refused, "refused"),
            (&self.aborted, "aborted"),
            (&self.late, "tokens after an abort"),
        ] {
            if of(n) > 0 {
                write!(f, "; {} {what}", of(n))?;
            }
        }
        Ok(())
    }
}
