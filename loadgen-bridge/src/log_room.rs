//! A workaround for entries that LoadGen's log loses.
//!
//! A thread logs an entry for each sample, and one for each call, into its own buffer. LoadGen's
//! logging thread swaps that buffer for another every 10 ms. Only the first entry of each buffer
//! notifies the logging thread. When a buffer first outgrows its reserved room, the logging thread
//! writes an entry *into the other thread's log* (`logging.cc` of 6.0.17,
//! `TlsLogger::FinishReadingEntries`). If both threads write the first entry of the next buffer at
//! once, the logging thread gets two notices and swaps twice. A thread that logs nothing between
//! the two swaps goes on with its old buffer, where no later entry is the first. The logging thread
//! never reads those entries. `StartTest` then waits forever for their latencies, although every
//! sample is answered. (With the thread paused for 100 us between the two steps: 32 of 656 logs.
//! Undisturbed: 0 of 5,000.)
//!
//! The loss needs more than [`ROOM`] entries in [`EXCHANGED_EACH_S`], and happens once to a thread.
//! So a thread that may log as much outgrows its buffer in advance, before it completes a sample.

use crate::{
    control::{CONTROL, Stop},
    raw,
};

/// Initial room of a log buffer, in entries (`kTlsLogReservedEntryCount`).
const ROOM: usize = 1024;
/// Log entries for a sample that is completed in its own call: the sample's, and the call's.
const ENTRIES: f64 = 2.0;
/// Period at which LoadGen swaps buffers (`kLogPollPeriod`), in seconds.
const EXCHANGED_EACH_S: f64 = 0.01;

/// Whether a thread may outgrow its buffer at `per_s` samples a second. Assumes that the thread
/// completes all samples, and that the logging thread is late by one period. Other threads should
/// not call [`outgrow_log`]: LoadGen warns of each such thread.
pub fn log_may_be_outgrown(per_s: f64) -> bool {
    per_s * ENTRIES * 2.0 * EXCHANGED_EACH_S >= ROOM as f64
}

/// Outgrows the calling thread's log buffer. Call this once on each thread that will complete
/// samples, before the test begins. If LoadGen throws, the test is stopped.
pub fn outgrow_log() {
    if raw::lg_outgrow_log(ROOM) != 0 {
        CONTROL.stop(Stop::Aborted(
            "LoadGen's log threw an exception; is the memory exhausted?".to_owned(),
        ));
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_who_is_quick_outgrows_it() {
        assert!(!log_may_be_outgrown(25_500.0));
        assert!(log_may_be_outgrown(25_600.0));
    }
}
