//! Counters of a connection, and the operating system's statistics of its path.

use serde::{Deserialize, Serialize};

/// Work of one half of a connection, counted by that half.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct FabricCounts {
    /// Writes posted or arrived, without control messages.
    pub writes: u64,
    /// Of `writes`: parts of an answer that further parts follow.
    pub parts: u64,
    /// Payload bytes of `writes`.
    pub bytes: u64,
    /// Control messages.
    pub control: u64,
    /// System calls made, or doorbells rung.
    pub syscalls: u64,
    /// Of `syscalls`: calls that moved no byte (`EAGAIN`).
    pub empty_syscalls: u64,
    /// System calls that moved fewer bytes than requested.
    pub partial: u64,
    /// Payloads copied through an intermediate buffer of this process.
    pub copies: u64,
    /// Bytes of `copies`.
    pub copied_bytes: u64,
    /// Payloads carried in the work request itself.
    pub inline: u64,
    /// Work requests posted to the send queue (`ib`).
    pub work_requests: u64,
    /// Calls that posted work requests; one call posts a whole burst (`ib`).
    pub doorbells: u64,
    /// Work requests posted with a completion requested (`ib`).
    pub signaled: u64,
    /// Work requests whose local memory is free again (`ib`).
    pub retired: u64,
    /// Receives posted (`ib`).
    pub receives: u64,
    /// Entries taken from completion queues (`ib`).
    pub cqes: u64,
    /// Events taken from completion channels, one for each wake-up of a sleeping thread (`ib`).
    pub cq_events: u64,
    /// Calls that drove the provider's progress, from either half (`ofi`).
    pub progress: u64,
}

impl FabricCounts {
    /// Adds the counts of another link. Saturates: a peer may report any number.
    pub fn add(&mut self, o: &FabricCounts) {
        add(&mut self.writes, o.writes);
        add(&mut self.parts, o.parts);
        add(&mut self.bytes, o.bytes);
        add(&mut self.control, o.control);
        add(&mut self.syscalls, o.syscalls);
        add(&mut self.empty_syscalls, o.empty_syscalls);
        add(&mut self.partial, o.partial);
        add(&mut self.copies, o.copies);
        add(&mut self.copied_bytes, o.copied_bytes);
        add(&mut self.inline, o.inline);
        add(&mut self.work_requests, o.work_requests);
        add(&mut self.doorbells, o.doorbells);
        add(&mut self.signaled, o.signaled);
        add(&mut self.retired, o.retired);
        add(&mut self.receives, o.receives);
        add(&mut self.cqes, o.cqes);
        add(&mut self.cq_events, o.cq_events);
        add(&mut self.progress, o.progress);
    }
}

/// A fabric's statistics of a connection at one moment, counted since the connection was opened.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct PathReading {
    /// Microseconds with data to send or to be acknowledged.
    pub busy_us: u64,
    /// Of `busy_us`: microseconds with the peer's receive window full.
    pub rwnd_limited_us: u64,
    /// Smoothed round trip of a packet, in microseconds.
    pub rtt_us: u64,
    /// Shortest round trip of the last minutes, in microseconds.
    pub min_rtt_us: u64,
    /// Packets retransmitted.
    pub retransmits: u64,
}

/// TCP's statistics of a connection's sending side while samples were in flight: sums over readings
/// a few times a second.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct PathUse {
    /// Number of readings.
    pub looks: u64,
    /// Microseconds between the readings.
    pub looked_us: u64,
    /// Of `looked_us`, the time with data to send or unacknowledged.
    pub busy_us: u64,
    /// Of `busy_us`, the time with the peer's window full.
    pub rwnd_limited_us: u64,
    /// Round trip of packets in microseconds: the sum over the readings.
    pub rtt_us: u64,
    /// Minimum round trip of a packet, in microseconds; 0 before the first measurement.
    pub min_rtt_us: u64,
    /// Retransmitted packets.
    pub retransmits: u64,
}

impl PathUse {
    /// Adds the reading `now`, taken `span_us` microseconds after the reading `before`.
    pub fn add_reading(&mut self, now: &PathReading, before: &PathReading, span_us: u64) {
        // The counts of a new socket begin at 0.
        let since = |now: u64, before: u64| now.checked_sub(before).unwrap_or(now);
        self.looks += 1;
        self.looked_us += span_us;
        self.busy_us += since(now.busy_us, before.busy_us).min(span_us);
        self.rwnd_limited_us += since(now.rwnd_limited_us, before.rwnd_limited_us).min(span_us);
        self.retransmits += since(now.retransmits, before.retransmits);
        self.rtt_us += now.rtt_us;
        self.add_min_rtt(now.min_rtt_us);
    }

    /// Adds another connection's statistics.
    pub fn add(&mut self, o: &PathUse) {
        add(&mut self.looks, o.looks);
        add(&mut self.looked_us, o.looked_us);
        add(&mut self.busy_us, o.busy_us);
        add(&mut self.rwnd_limited_us, o.rwnd_limited_us);
        add(&mut self.retransmits, o.retransmits);
        add(&mut self.rtt_us, o.rtt_us);
        self.add_min_rtt(o.min_rtt_us);
    }

    fn add_min_rtt(&mut self, us: u64) {
        if us > 0 && (self.min_rtt_us == 0 || us < self.min_rtt_us) {
            self.min_rtt_us = us;
        }
    }

    /// Returns the mean round trip of a packet, in microseconds.
    pub fn mean_rtt_us(&self) -> f64 {
        self.rtt_us as f64 / self.looks.max(1) as f64
    }
}

fn add(sum: &mut u64, n: u64) {
    *sum = sum.saturating_add(n);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn readings_add_up_and_a_new_socket_counts_from_nothing() {
        let reading = |busy_us, rtt_us, min_rtt_us| PathReading {
            busy_us,
            rtt_us,
            min_rtt_us,
            ..PathReading::default()
        };
        let mut path = PathUse::default();
        for (now, before) in [
            (reading(300, 50, 20), reading(100, 0, 0)),
            (reading(120, 70, 0), reading(300, 50, 20)),
            (reading(9_000, 90, 10), reading(120, 70, 20)),
        ] {
            path.add_reading(&now, &before, 250);
        }
        assert_eq!((path.looks, path.looked_us), (3, 750));
        assert_eq!(
            path.busy_us,
            200 + 120 + 250,
            "no more than the time between two readings"
        );
        assert_eq!((path.rtt_us, path.min_rtt_us), (210, 10));
    }
}
