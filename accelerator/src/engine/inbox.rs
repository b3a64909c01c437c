//! The way of sequences from NIC threads to the thread of an engine that batches by itself.

use std::sync::atomic::{AtomicBool, Ordering::SeqCst};

use qdl::connection::Spin;

use super::Sequence;
use crate::{event_count::EventCount, queue::Queue};

/// Sequences that wait for the engine's thread.
pub(super) struct Inbox {
    queue: Queue<Sequence>,
    /// Notified when a sequence arrives or the inbox closes.
    arrived: EventCount,
    closed: AtomicBool,
}

impl Inbox {
    /// An inbox that holds `capacity` sequences without an allocation.
    pub fn new(capacity: usize) -> Self {
        Inbox {
            queue: Queue::new(capacity),
            arrived: EventCount::default(),
            closed: AtomicBool::new(false),
        }
    }

    /// Hands a sequence to the thread; drops it once the inbox is closed.
    pub fn submit(&self, sequence: Sequence) {
        self.queue.push(sequence);
        self.arrived.notify();
        // `close` may have emptied the queue before this push.
        if self.is_closed() {
            self.clear();
        }
    }

    pub fn pop(&self) -> Option<Sequence> {
        self.queue.pop()
    }

    /// Ends the thread's wait and drops the waiting sequences.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.arrived.notify_all();
        self.clear();
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// The epoch for [`Inbox::wait`]; the thread reads it before it empties the inbox.
    pub fn epoch(&self) -> u64 {
        self.arrived.epoch()
    }

    /// Waits until a sequence has arrived since `seen`, or until `until_ns`.
    pub fn wait(&self, seen: u64, until_ns: u64, spin: Spin) {
        self.arrived.wait(seen, until_ns, spin);
    }

    fn clear(&self) {
        while let Some(sequence) = self.queue.pop() {
            drop(sequence);
        }
    }
}
