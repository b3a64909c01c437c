//! What stands behind LoadGen: the accelerators of a network, or an engine in this process.

use std::time::Duration;

use qdl::{
    dispatch::Sample,
    stats::{AcceleratorRecord, ConnectionRecord, Ledger, Places, RailRecord, WarmUpRecord},
};

/// The way of samples from LoadGen's SUT. Every sample
/// issued is completed towards LoadGen exactly once.
pub trait Backend: Send + Sync {
    /// Warms up with these samples, one for each size, before the first is issued. Returns a line
    /// that says what was done, if anything was.
    ///
    /// # Errors
    /// In words: which connection failed, and how.
    fn warm_up(&self, samples: &[Sample]) -> Result<Option<String>, String> {
        let _ = samples;
        Ok(None)
    }

    /// The same for a later phase's samples, once nothing is outstanding and loading them has taken
    /// `idle`. A connection that fails here is lost as in the middle of a run.
    fn warm_up_again(&self, samples: &[Sample], idle: Duration) {
        let _ = (samples, idle);
    }

    /// Sends samples; returns at once.
    fn issue(&self, samples: &[Sample]);

    /// The system's name, and how long asking for it took where somebody was asked over a wire.
    fn name(&self) -> (String, Option<Duration>);

    /// Samples issued and not completed.
    fn outstanding(&self) -> u64;

    /// Samples completed.
    fn completed(&self) -> u64;

    /// Gives the run up: whatever is outstanding and whatever still comes is completed empty.
    fn abort(&self, cause: &str);

    /// Stops everything and counts. Within a deadline, whatever state the run is in.
    fn finish(&self) -> Counts;
}

/// What a backend counted, as the summary wants it.
#[derive(Clone, Debug, Default)]
pub struct Counts {
    /// `tcp`, `ib` or `local`.
    pub fabric: String,
    /// True where nothing left this machine, though a fabric was used.
    pub loopback: bool,
    /// Samples.
    pub ledger: Ledger,
    /// Each accelerator.
    pub accelerators: Vec<AcceleratorRecord>,
    /// Each connection.
    pub connections: Vec<ConnectionRecord>,
    /// Where NIC threads and slots are.
    pub places: Places,
    /// Each rail, where they are chosen by health.
    pub rails: Vec<RailRecord>,
    /// The warm-up, if there was one.
    pub warm_up: Option<WarmUpRecord>,
    /// Samples copied before they were sent.
    pub staged_copies: u64,
    /// Bytes of those.
    pub staged_bytes: u64,
    /// Most samples that waited for a slot at once.
    pub backlog_max: u64,
    /// Samples that waited for one.
    pub backlogged: u64,
    /// Times that NIC threads went to sleep, and that other threads woke them.
    pub waits: (u64, u64),
    /// What else the user ought to know, a line each.
    pub notes: Vec<String>,
}
