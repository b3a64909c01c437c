//! Cost of a connection's traffic.

use serde::{Deserialize, Serialize};

/// Counts of one half of a connection.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficRecord {
    /// Writes posted (sending half) or arrived (receiving half), without control messages.
    pub writes: u64,
    /// Of `writes`, the parts before an answer's last part.
    pub parts: u64,
    /// Payload bytes of `writes`.
    pub bytes: u64,
    /// Control messages.
    pub control: u64,
    /// Kernel calls or doorbells.
    pub syscalls: u64,
    /// Of `syscalls`, those that moved nothing (`EAGAIN`).
    pub empty_syscalls: u64,
    /// System calls that moved less than requested.
    pub partial: u64,
    /// Payloads copied through an intermediate buffer of this process.
    pub copies: u64,
    /// Bytes of `copies`.
    pub copied_bytes: u64,
    /// Payloads sent inline in the work request.
    pub inline: u64,
    /// Work requests posted to the send queue (`ib`).
    pub work_requests: u64,
    /// Calls that posted work requests; one call posts a whole burst (`ib`).
    pub doorbells: u64,
    /// Signaled work requests, which complete at the sender (`ib`).
    pub signaled: u64,
    /// Retired work requests, whose local memory is free again (`ib`).
    pub retired: u64,
    /// Receives posted (`ib`).
    pub receives: u64,
    /// Completions read from completion queues (`ib`).
    pub cqes: u64,
    /// Events read from completion channels, each of which wakes a sleeping thread (`ib`).
    pub cq_events: u64,
    /// Calls that let the provider make progress, by either half (`ofi`).
    pub progress: u64,
}

impl TrafficRecord {
    /// Adds the counts of another half.
    pub fn add(&mut self, o: &TrafficRecord) {
        self.writes += o.writes;
        self.parts += o.parts;
        self.bytes += o.bytes;
        self.control += o.control;
        self.syscalls += o.syscalls;
        self.empty_syscalls += o.empty_syscalls;
        self.partial += o.partial;
        self.copies += o.copies;
        self.copied_bytes += o.copied_bytes;
        self.inline += o.inline;
        self.work_requests += o.work_requests;
        self.doorbells += o.doorbells;
        self.signaled += o.signaled;
        self.retired += o.retired;
        self.receives += o.receives;
        self.cqes += o.cqes;
        self.cq_events += o.cq_events;
        self.progress += o.progress;
    }
}
