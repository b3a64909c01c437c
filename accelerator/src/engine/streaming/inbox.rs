//! The thread of an engine that batches by itself, and the queue of sequences for this thread.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use qdl::connection::join_all;

use super::{OnFatal, Sequence};
use crate::{
    engine::{EngineError, catch_panic},
    event_count::EventCount,
    lock,
    queue::Queue,
};

/// Sequences that wait for the engine's thread.
pub(in crate::engine) struct Inbox {
    pub queue: Queue<Sequence>,
    /// Notified when a sequence arrives or the inbox closes.
    pub arrived: EventCount,
    closed: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Inbox {
    /// An inbox that holds `capacity` sequences without an allocation.
    pub fn new(capacity: usize) -> Self {
        Inbox {
            queue: Queue::new(capacity),
            arrived: EventCount::default(),
            closed: AtomicBool::new(false),
            thread: Mutex::default(),
        }
    }

    /// Starts the engine's thread. The inbox closes when the thread ends, also after a panic.
    pub fn start(
        self: &Arc<Self>,
        engine: &'static str,
        fatal: OnFatal,
        body: impl FnOnce() -> Result<(), EngineError> + Send + 'static,
    ) -> Result<(), EngineError> {
        let inbox = self.clone();
        let thread = thread::Builder::new().name(engine.to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = catch_panic(engine, 0, body) {
                fatal(error);
            }
            inbox.close();
        });
        let thread = thread.map_err(|e| EngineError::thread(0, &e))?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Closes the inbox and waits up to `timeout` for the thread.
    pub fn stop(&self, timeout: Duration) {
        self.close();
        let thread = lock(&self.thread).take();
        join_all(thread.into_iter().collect(), timeout);
    }

    /// Queues a sequence for the engine's thread. A closed inbox drops the sequence.
    pub fn submit(&self, sequence: Sequence) {
        self.queue.push(sequence);
        self.arrived.notify();
        // `close` may have emptied the queue just before this push.
        if self.is_closed() {
            self.clear();
        }
    }

    /// Closes the inbox: wakes the engine's thread and drops the queued sequences.
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.arrived.notify_all();
        self.clear();
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    fn clear(&self) {
        while let Some(sequence) = self.queue.pop() {
            drop(sequence);
        }
    }
}
