//! LoadGen's log of what each thread completes, and how it is kept from losing it.
//!
//! A thread writes an entry for each sample, and one for each call, into a buffer of its own,
//! which LoadGen's logging thread exchanges for another every 10 ms. It is told that there is
//! something to exchange only by the first entry of each buffer. When the logging thread finds for
//! the first time that a buffer has outgrown the room that was made for it, it writes an entry
//! *into the other thread's log* (`logging.cc` of 6.0.17, `TlsLogger::FinishReadingEntries`).
//! Where both write the first entry of the next buffer at the same moment, it is told twice and
//! exchanges twice; and where the thread is silent between the two, it goes on with the buffer
//! that it wrote last, in which no entry is the first any more. What it writes from then on is
//! never read, and `StartTest` waits for those latencies for ever, with every sample answered.
//! (With a thread that stands still for 100 us between the two steps: 32 logs of 656. Undisturbed:
//! none of 5,000.)
//!
//! It comes only with more entries than [`ROOM`] in [`EXCHANGED_EACH_S`], and only once for a
//! thread. So a thread that may get there does, before the first sample, when it completes nothing.

use crate::{
    control::{CONTROL, Stop},
    raw,
};

/// Entries that a buffer has room for from the start (`kTlsLogReservedEntryCount`).
const ROOM: usize = 1024;
/// Entries of a sample that is completed by itself: its own, and that of the call.
const ENTRIES: f64 = 2.0;
/// How often buffers are exchanged (`kLogPollPeriod`), in seconds.
const EXCHANGED_EACH_S: f64 = 0.01;

/// Whether a thread may outgrow its buffer in a test at so many samples a second, if it has all of
/// them and the logging thread is late by as long again. Others had better not: LoadGen counts a
/// warning for each thread that did.
pub fn log_may_be_outgrown(per_s: f64) -> bool {
    per_s * ENTRIES * 2.0 * EXCHANGED_EACH_S >= ROOM as f64
}

/// Outgrows the buffer of the thread that calls. Before the test begins, on each thread that will
/// complete samples; once is enough.
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
