//! Preparation of a connection before its NIC thread polls it: the slots' pages are touched and the
//! engine registers them. This takes long enough to delay other connections of the NIC. So a thread
//! beside each NIC thread, on the same cores, does it and passes the connection on.
//!
//! A connection may be given up before it is passed on. So the command to give up goes two ways: at
//! once to the NIC thread, and through this queue, behind the connections in preparation.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
};

use crossbeam_queue::SegQueue;

use super::{Service, nic::Command};
use crate::connection::{NicThreadCfgs, NicThreadHandle};

/// The thread beside a NIC thread. When this is dropped, the thread passes its queue on and ends.
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
                // it.
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

    /// Passes a command on behind earlier ones. After `stop` the command is dropped.
    pub(crate) fn pass(&self, command: Command) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = &*jobs {
            // `send` cannot fail: the thread ends only when the queue is closed.
            let _ = jobs.send(command);
        }
    }

    /// Closes the queue. Returns the thread, which ends after its queue, for the caller to join.
    pub(crate) fn stop(&self) -> Option<JoinHandle<()>> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        *jobs = None;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.take()
    }
}
