//! Counts since the start. The pipeline counts answers, tokens and their events.

use std::{
    fmt,
    sync::atomic::{AtomicU64, Ordering::Relaxed},
    time::Duration,
};

use fabric::clock;

use crate::llm_server::roles::Fetched;

#[derive(Debug, Default)]
pub(super) struct Counters {
    /// Requests that the server refused for a while.
    pub busy: AtomicU64,
    /// Prompt tokens from a prefix cache; if not 0, the run is not valid.
    pub cached: AtomicU64,
    /// Tokens that the server counts and does not send.
    pub unsent: AtomicU64,
    /// Prompts with a handle.
    pub fetched: Fetched,
    /// First tokens of all streams.
    pub firsts: AtomicU64,
    /// Arrival of the newest token of any stream, in nanoseconds on [`fabric::clock`].
    newest_ns: AtomicU64,
}

impl Counters {
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

impl fmt::Display for Counters {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let [busy, cached, unsent] =
            [&self.busy, &self.cached, &self.unsent].map(|n| n.load(Relaxed));
        write!(
            f,
            "{busy} times busy, {cached} prompt tokens out of a prefix cache, {unsent} tokens not \
             sent"
        )
    }
}
