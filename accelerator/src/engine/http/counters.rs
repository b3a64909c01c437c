//! Counts the requests to the server since the start. The pipeline counts tokens and their events,
//! and the frontend their times.

use std::{
    fmt,
    sync::{
        Mutex, MutexGuard,
        atomic::{AtomicU64, Ordering::Relaxed},
    },
    time::Duration,
};

use crate::lock;
use fabric::clock;

/// The counts of an engine. The client threads lock the counts a few times per answer.
#[derive(Debug, Default)]
pub(super) struct Counters {
    report: Mutex<Report>,
    /// Arrival of the newest token of any stream, in nanoseconds on [`fabric::clock`].
    newest_ns: AtomicU64,
}

impl Counters {
    /// Locks the counts, to read or change them.
    pub fn lock(&self) -> MutexGuard<'_, Report> {
        lock(&self.report)
    }

    /// Counts one more concurrent stream, until the drop of the returned guard.
    pub fn stream(&self) -> impl Drop + '_ {
        struct Open<'a>(&'a Counters);
        impl Drop for Open<'_> {
            fn drop(&mut self) {
                self.0.lock().now -= 1;
            }
        }
        let mut report = self.lock();
        report.now += 1;
        report.most = report.most.max(report.now);
        Open(self)
    }

    /// Records that tokens arrived now, on any stream.
    pub fn token(&self) {
        self.newest_ns.fetch_max(clock::now_ns(), Relaxed);
    }

    /// Time since the last token of any stream; the maximum before the first token.
    pub fn silence(&self) -> Duration {
        Duration::from_nanos(match self.newest_ns.load(Relaxed) {
            0 => u64::MAX,
            newest => clock::now_ns().saturating_sub(newest),
        })
    }
}

/// Counts of the requests to a server.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Report {
    pub answers: u64,
    pub busy: u64,
    pub opened: u64,
    /// Requests on a kept connection.
    pub kept: u64,
    /// Requests cancelled because the frontend is gone.
    pub cancelled: u64,
    /// Prompt tokens from a prefix cache; if not 0, the run is not valid.
    pub cached: u64,
    /// Tokens that the server counts and does not send.
    pub unsent: u64,
    now: u64,
    /// Most concurrent streams.
    pub most: u64,
    /// First tokens of all streams.
    pub firsts: u64,
}

impl fmt::Display for Report {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(
            f,
            "{} answers, at most {} streams at once",
            self.answers, self.most
        )?;
        let (opened, kept) = (self.opened, self.kept);
        write!(f, "; {opened} connections, {kept} requests on kept ones")?;
        for (n, what) in [
            (self.busy, "times busy"),
            (self.cancelled, "cancelled"),
            (self.cached, "prompt tokens out of a prefix cache"),
            (self.unsent, "tokens not sent"),
        ] {
            if n > 0 {
                write!(f, "; {n} {what}")?;
            }
        }
        Ok(())
    }
}
