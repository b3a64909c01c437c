//! LoadGen's SUT and its two backends: the accelerators of a network, or an engine in this process.

pub mod local;
pub mod network;
#[cfg(test)]
pub mod recording;
pub mod sut;

use std::time::Duration;

use qdl::{
    dispatch::Sample,
    run::{Described, node_facts},
};
use record::{
    EngineInfo, Ledger, LossRecord, NicUse, NodeFacts, SystemRecord,
    timeline::{ConnectionTick, Event},
};

/// Path of samples from LoadGen's SUT to an engine and back. A backend completes each issued sample
/// exactly once. After an abort the response is empty, or missing where LoadGen needs first tokens.
pub trait Backend: Send + Sync {
    /// Warms up with `samples`, one of each size, before the first sample is issued. Returns a line
    /// for the log if there was a warm-up.
    /// Error: a connection fails; the text names the connection and the cause.
    fn warm_up(&self, _samples: &[Sample]) -> Result<Option<String>, String> {
        Ok(None)
    }

    /// Warms up again before a later phase, while no sample is outstanding. `idle` is the time for
    /// which LoadGen loaded samples. A connection that fails is lost, as during a phase.
    fn warm_up_again(&self, _samples: &[Sample], _idle: Duration) {}

    /// Sends samples; does not wait for answers.
    fn issue(&self, samples: &[Sample]);

    /// Returns the fabrics' names for the summary (`local` without a network), and one line for
    /// each reason why the Network division does not permit a fabric.
    fn fabric(&self) -> (String, Vec<String>) {
        ("local".to_owned(), Vec::new())
    }

    /// Returns the notes of [`Backend::fabric`] that concern links, not machines.
    fn link_notes(&self) -> Vec<String> {
        Vec::new()
    }

    fn describe(&self) -> Vec<Described> {
        Vec::new()
    }

    /// Returns the facts of this node, and those of each accelerator with its name.
    fn facts(&self) -> (NodeFacts, Vec<(String, NodeFacts)>) {
        (node_facts(&[]), Vec::new())
    }

    /// Returns the system's name, and the round trip if the name was queried over the network.
    fn name(&self) -> (String, Option<Duration>);

    /// Returns each computing node with its engine.
    fn engines(&self) -> Vec<(String, EngineInfo)>;

    /// Returns the name of each connection; a response carries an index into this list.
    fn connections(&self) -> Vec<String> {
        Vec::new()
    }

    /// Returns the usage of this node's NIC threads so far.
    fn nic_use(&self) -> NicUse {
        NicUse::default()
    }

    /// Returns a reading of each connection, in the order of [`Backend::connections`].
    fn readings(&self) -> Vec<ConnectionTick> {
        Vec::new()
    }

    /// Returns the events and losses of the current run so far.
    fn happened(&self) -> (Vec<Event>, Vec<LossRecord>) {
        (Vec::new(), Vec::new())
    }

    /// Returns the counts of samples so far, and the number of connections that are up, and lost.
    fn figures(&self) -> (Ledger, [u64; 2]) {
        Default::default()
    }

    /// Returns true while an engine waits for its server, for as long as its node permits: the
    /// samples that wait with it make no progress.
    fn waits_for_server(&self) -> bool {
        false
    }

    /// Returns the number of samples that are issued and not yet completed.
    fn outstanding(&self) -> u64;

    fn completed(&self) -> u64;

    /// Returns a count that grows while the engines work on answers, finished or not. It includes
    /// tokens that are still at the accelerator, so a long answer counts as progress.
    fn steps(&self) -> u64 {
        0
    }

    /// Aborts the run: completes all outstanding and all later samples with empty responses.
    fn abort(&self, cause: &str);

    /// Stops all threads and returns the counts, within a deadline in every state of the run.
    fn finish(&self) -> SystemRecord;
}
