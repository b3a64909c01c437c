//! What a connection's traffic took.

use serde::{Deserialize, Serialize};

/// What one half of a connection did. Cost is counted before it is timed.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct TrafficRecord {
    /// Writes posted (sent) or arrived (received), control messages left out.
    pub writes: u64,
    /// Of those, parts of an answer that others followed.
    pub parts: u64,
    /// Payload bytes of those writes.
    pub bytes: u64,
    /// Control messages.
    pub control: u64,
    /// Calls into the kernel or doorbells rung.
    pub syscalls: u64,
    /// Of those, the ones that moved nothing (`EAGAIN`).
    pub empty_syscalls: u64,
    /// System calls that moved less than was asked for.
    pub partial: u64,
    /// Payloads that crossed by way of an intermediate buffer of this process.
    pub copies: u64,
    /// Bytes of those.
    pub copied_bytes: u64,
    /// Payloads that rode in the work request.
    pub inline: u64,
    /// Work requests posted to the send queue (`ib`).
    pub work_requests: u64,
    /// Calls that posted them; one call takes a whole burst (`ib`).
    pub doorbells: u64,
    /// Work requests that were to complete at the sender (`ib`).
    pub signaled: u64,
    /// Work requests whose local memory is free again (`ib`).
    pub retired: u64,
    /// Receives posted (`ib`).
    pub receives: u64,
    /// Entries taken from completion queues (`ib`).
    pub cqes: u64,
    /// Events taken from completion channels: how often a sleeper was woken (`ib`).
    pub cq_events: u64,
    /// Times that the provider was let work, whichever half did it (`ofi`).
    pub progress: u64,
}

impl TrafficRecord {
    /// Adds another half's counts.
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
