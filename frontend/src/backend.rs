//! What stands behind LoadGen: the accelerators of a network, or an engine in this process.

pub mod local;
pub mod network;

use std::time::Duration;

use qdl::{
    dispatch::Sample,
    run::{Described, node_facts},
};
use record::{
    EngineInfo, LossRecord, NicUse, NodeFacts, SystemRecord, timeline::ConnectionTick,
    timeline::Event,
};

/// The way of samples from LoadGen's SUT. Every sample
/// issued is completed exactly once, towards LoadGen too where it takes an empty answer.
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

    /// The fabric as the summary names it, `local` where there is none; and why the Network
    /// division would not permit it, a line each.
    fn fabric(&self) -> (&'static str, Vec<String>) {
        ("local", Vec::new())
    }

    /// The notes that are on links alone, and not on machines.
    fn link_notes(&self) -> Vec<String> {
        Vec::new()
    }

    /// Has each accelerator describe itself.
    fn describe(&self) -> Vec<Described> {
        Vec::new()
    }

    /// What this node says of itself, and each accelerator by its name.
    fn facts(&self) -> (NodeFacts, Vec<(String, NodeFacts)>) {
        (node_facts(&[]), Vec::new())
    }

    /// The system's name, and how long asking for it took where somebody was asked over a wire.
    fn name(&self) -> (String, Option<Duration>);

    /// Each node that computes, and what runs the model there.
    fn engines(&self) -> Vec<(String, EngineInfo)>;

    /// What answers come by, by the index that they bear: an accelerator's connection, in words.
    fn connections(&self) -> Vec<String> {
        Vec::new()
    }

    /// What the threads of this node's NICs were used for so far.
    fn nic_use(&self) -> NicUse {
        NicUse::default()
    }

    /// What each connection is like now, in the order of [`Backend::connections`].
    fn readings(&self) -> Vec<ConnectionTick> {
        Vec::new()
    }

    /// What has happened in a run that goes on, and who was lost.
    fn happened(&self) -> (Vec<Event>, Vec<LossRecord>) {
        (Vec::new(), Vec::new())
    }

    /// Samples issued and not completed.
    fn outstanding(&self) -> u64;

    /// Samples completed.
    fn completed(&self) -> u64;

    /// Gives the run up: whatever is outstanding and whatever still comes is completed empty.
    fn abort(&self, cause: &str);

    /// Stops everything and counts. Within a deadline, whatever state the run is in.
    fn finish(&self) -> SystemRecord;
}
