//! Counts of the sequences since the start.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
};

/// Written by the thread of the cores, read by others.
#[derive(Debug, Default)]
pub(super) struct Counters {
    pub answers: AtomicU64,
    pub refused: AtomicU64,
    /// Sequences aborted because the frontend is gone.
    pub aborted: AtomicU64,
    /// Tokens of aborted sequences.
    pub late: AtomicU64,
    /// Most concurrent sequences.
    pub most: AtomicU64,
}

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let of = |n: &AtomicU64| n.load(Relaxed);
        write!(
            f,
            "{} answers, at most {} sequences at once",
            of(&self.answers),
            of(&self.most)
        )?;
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
