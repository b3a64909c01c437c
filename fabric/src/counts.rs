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
        let add = |sum: &mut u64, n: u64| *sum = sum.saturating_add(n);
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
