//! What a connection and its NIC thread came to.

use fabric::{FabricCounts, PathReading};

/// One connection, seen from the frontend. It is known by its index alone.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionCounts {
    /// Responses taken from it.
    pub samples: u64,
    /// Refusals taken from it.
    pub refused: u64,
    /// Samples posted on it, those sent again included.
    pub posted: u64,
    /// Slots at either end.
    pub slots: u64,
    /// How many of them were in use or to be had at the end.
    pub allowed: u64,
    /// Most samples it had in flight at once.
    pub in_flight_max: u64,
    /// Longest time in milliseconds that it was asked for a sign of life and gave none.
    pub silent_ms: u64,
    /// What the fabric says of the way.
    pub path: PathCounts,
    /// Times that the NIC thread slept and was woken for it.
    pub wakeups: u64,
    /// Doorbells after which something was left.
    pub blocked: u64,
    /// Samples that warmed it up.
    pub warmed: u64,
    /// Its sending half, over all epochs.
    pub tx: FabricCounts,
    /// Its receiving half, over all epochs.
    pub rx: FabricCounts,
}

/// One connection at one moment: counts only grow.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct ConnectionReading {
    /// Responses taken.
    pub samples: u64,
    /// Payload bytes of their requests.
    pub bytes_out: u64,
    /// Payload bytes of those responses.
    pub bytes_in: u64,
    /// In flight.
    pub in_flight: u64,
    /// Segments sent again.
    pub retransmits: u64,
    /// Microseconds in which the peer's window held sending up.
    pub window_limited_us: u64,
    /// Smoothed round trip in microseconds, where the fabric says it.
    pub rtt_us: Option<u64>,
}

/// The threads of NICs.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct NicTimes {
    /// How many had something to do.
    pub threads: u32,
    /// Microseconds in turns that found something to do, of all of them.
    pub worked_us: u64,
    /// Times that they went to sleep.
    pub sleeps: u64,
}

/// What the fabric said of a connection's sending side while samples were in flight on it: sums
/// over looks, some a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathCounts {
    /// Looks.
    pub looks: u64,
    /// Microseconds between those looks.
    pub looked_us: u64,
    /// Of those, the ones in which there was something to send or to be acknowledged.
    pub busy_us: u64,
    /// Of the busy ones, those in which the peer's window was full.
    pub rwnd_limited_us: u64,
    /// Round trips of packets, in microseconds: the sum over the looks.
    pub rtt_us: u64,
    /// The shortest round trip of a packet, in microseconds; 0 before any was seen.
    pub min_rtt_us: u64,
    /// Packets sent again.
    pub retransmits: u64,
}

impl PathCounts {
    /// Counts a look in: `before` is what the last one read, `span_us` ago.
    pub fn look(&mut self, now: &PathReading, before: &PathReading, span_us: u64) {
        // A look at a new socket: its counts began anew.
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
