//! Preparation of a connection before its NIC thread polls it. A thread beside each NIC thread, on
//! the same cores, touches the slots' pages and lets the engine register them. Then it passes the
//! connection to the NIC thread, whose other connections have not been delayed.
//!
//! A connection may be given up during its preparation. So a give-up command goes directly to the
//! NIC thread, and also through this queue, behind the connections in preparation.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
};

use crossbeam_queue::SegQueue;

use super::{Service, nic::Command};
use crate::connection::{NicThreadCfgs, NicThreadHandle};

/// Handle of the thread beside a NIC thread. After a drop, the thread empties its queue and ends.
pub(super) struct Preparer {
    jobs: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Preparer {
    /// Starts the thread beside the NIC thread of `inbox` and `handle`.
    pub(crate) fn new(
        thread: &NicThreadCfgs,
        service: Arc<dyn Service>,
        inbox: Arc<SegQueue<Command>>,
        handle: NicThreadHandle,
    ) -> io::Result<Self> {
        let (jobs, queue) = mpsc::channel();
        let near = thread.near.clone();
        let thread = std::thread::Builder::new()
            .name(format!("{}-slots", thread.name))
            .spawn(move || {
                // Where memory cannot be bound to a node, the pinned thread's first touch places
                // the memory.
                near.pin();
                for command in queue {
                    if let Command::Attach { connection, .. } = &command {
                        connection.prefault();
                        connection
                            .memory()
                            .for_each(|region| handle.note_memory(region));
                        service.memory(connection.requests());
                    }
                    inbox.push(command);
                    handle.wake();
                }
            })?;
        Ok(Preparer {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::new(Some(thread)),
        })
    }

    /// Passes a command to the NIC thread after earlier commands. Drops the command after `stop`.
    pub(crate) fn pass(&self, command: Command) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = &*jobs {
            // `send` cannot fail: the thread ends only when the queue is closed.
            let _ = jobs.send(command);
        }
    }

    /// Closes the queue. Returns the thread for a join: the thread ends once the queue is empty.
    pub(crate) fn stop(&self) -> Option<JoinHandle<()>> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        *jobs = None;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.take()
    }
}
