//! Counts of a connection and its NIC thread.

use fabric::{FabricCounts, PathReading};

/// Counts of one connection, seen from the frontend. The connection's index identifies it.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Responses received.
    pub samples: u64,
    /// Refusals received.
    pub refused: u64,
    /// Samples posted, retries included.
    pub posted: u64,
    /// Slots at each end.
    pub slots: u64,
    /// Slots in use at the end of the run, as `slots: auto` limits them.
    pub allowed: u64,
    /// Maximum number of samples in flight.
    pub in_flight_max: u64,
    /// Longest time in milliseconds that the peer left an echo request unanswered.
    pub silent_ms: u64,
    /// The fabric's measurements of the network path.
    pub path: PathCounts,
    /// Times that this connection woke the sleeping NIC thread.
    pub wakeups: u64,
    /// Doorbells that left data unsent because the socket or queue pair was full.
    pub blocked: u64,
    /// Warm-up samples.
    pub warmed: u64,
    /// Counts of the sending half, over all epochs.
    pub tx: FabricCounts,
    /// Counts of the receiving half, over all epochs.
    pub rx: FabricCounts,
}

/// Counts of one connection at one moment. Except for gauges, they only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct ConnectionReading {
    /// Responses received.
    pub samples: u64,
    /// Payload bytes of the answered requests.
    pub bytes_out: u64,
    /// Payload bytes of the responses.
    pub bytes_in: u64,
    /// Samples in flight: a gauge.
    pub in_flight: u64,
    /// Retransmitted segments.
    pub retransmits: u64,
    /// Microseconds in which the peer's window limited sending.
    pub window_limited_us: u64,
    /// Smoothed round trip in microseconds, if the fabric measures it: a gauge.
    pub rtt_us: Option<u64>,
}

/// Times of the NIC threads.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct NicTimes {
    /// Number of threads that had work.
    pub threads: u32,
    /// Microseconds in turns that found work, summed over the threads.
    pub worked_us: u64,
    /// Number of sleeps of the threads.
    pub sleeps: u64,
}

/// The fabric's statistics of a connection's sending side, summed over ten readings a second while
/// samples were in flight.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Number of readings.
    pub looks: u64,
    /// Microseconds between readings, summed.
    pub looked_us: u64,
    /// Of `looked_us`, the microseconds with data unsent or unacknowledged.
    pub busy_us: u64,
    /// Of `busy_us`, the microseconds with the peer's window full.
    pub rwnd_limited_us: u64,
    /// Smoothed round trip in microseconds, summed over the readings.
    pub rtt_us: u64,
    /// Minimum round trip of a packet, in microseconds; 0 before the first measurement.
    pub min_rtt_us: u64,
    /// Retransmitted packets.
    pub retransmits: u64,
}

impl PathCounts {
    /// Adds the reading `now`; `before` is the reading taken `span_us` microseconds earlier.
    pub(crate) fn look(&mut self, now: &PathReading, before: &PathReading, span_us: u64) {
        // The counts of a new socket begin at 0.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        self.looks += 1;
        self.looked_us += span_us;
        self.busy_us += since(now.busy_us, before.busy_us).min(span_us);
        self.rwnd_limited_us += since(now.rwnd_limited_us, before.rwnd_limited_us).min(span_us);
        self.retransmits += since(now.retransmits, before.retransmits);
        self.rtt_us += now.rtt_us;
        if now.min_rtt_us > 0 && (self.min_rtt_us == 0 || now.min_rtt_us < self.min_rtt_us) {
            self.min_rtt_us = now.min_rtt_us;
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn looks_add_up_and_a_new_socket_counts_from_nothing() {
        let reading = |busy_us, rtt_us, min_rtt_us| PathReading {
            busy_us,
            rtt_us,
            min_rtt_us,
            ..PathReading::default()
        };
        let mut path = PathCounts::default();
        path.look(&reading(300, 50, 20), &reading(100, 0, 0), 250);
        path.look(&reading(120, 70, 0), &reading(300, 50, 20), 250);
        path.look(&reading(9_000, 90, 10), &reading(120, 70, 20), 250);
        assert_eq!((path.looks, path.looked_us), (3, 750));
        assert_eq!(
            path.busy_us,
            200 + 120 + 250,
            "no more than the time between two looks"
        );
        assert_eq!((path.rtt_us, path.min_rtt_us), (210, 10));
    }
}
