//! What a connection takes before its NIC thread has it: the pages of its slots
//! are touched and the engine registers them, which takes long enough to hold
//! up the samples of every other connection of that NIC. So a thread beside
//! each NIC thread, on the same cores, does it, and hands the connection on.
//!
//! A connection may be given up before it is handed on. So what gives connections up goes both
//! ways: to the NIC thread at once, for the connections it has, and through here, behind the
//! connections that are still being made ready.

use std::{
    io,
    sync::{Arc, Mutex, PoisonError, mpsc},
    thread::JoinHandle,
};

use crossbeam_queue::SegQueue;

use super::{Service, nic::Command};
use crate::connection::{NicThreadCfgs, NicThreadHandle};

/// The thread beside a NIC thread. It ends when this is dropped, once it has handed on what it has.
pub(super) struct Preparer {
    jobs: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl Preparer {
    /// Beside the NIC thread of `inbox` and `handle`.
    pub fn new(
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
                // Where memory cannot be bound to a node, it comes to lie near the cores that touch
                // it first.
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

    /// Hands a command on, behind those before it. Once this is stopped, nobody has it.
    pub fn pass(&self, command: Command) {
        let jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        if let Some(jobs) = &*jobs {
            // The thread ends only when the queue is closed.
            let _ = jobs.send(command);
        }
    }

    /// Takes nothing more. The thread ends with what it has, and is the caller's to wait for.
    pub fn stop(&self) -> Option<JoinHandle<()>> {
        let mut jobs = self.jobs.lock().unwrap_or_else(PoisonError::into_inner);
        *jobs = None;
        let mut thread = self.thread.lock().unwrap_or_else(PoisonError::into_inner);
        thread.take()
    }
}
