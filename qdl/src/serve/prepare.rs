//! Preparation of a connection before its NIC thread polls it. A thread beside each NIC thread, on
//! the same cores, touches the slots' pages and lets the engine register them. Then it passes the
//! connection to the NIC thread, whose other connections have not been delayed.
//!
//! A connection may be given up during its preparation. So a give-up command goes directly to the
//! NIC thread, and also through this queue, behind the connections in preparation.

use std::{
    io,
    sync::{Arc, Mutex, mpsc},
    thread::JoinHandle,
};

use fabric::os::Near;
use fabric::os::lock;

use super::{ServeConnection, Service};
use crate::connection::{NicThreadCfgs, share};

type Command = share::NicCommand<Arc<ServeConnection>>;
type Inbox = share::Inbox<Arc<ServeConnection>>;

/// Handle of the thread beside a NIC thread. After a drop, the thread empties its queue and ends.
pub(super) struct Preparer {
    jobs: Mutex<Option<mpsc::Sender<Command>>>,
    thread: Mutex<Option<JoinHandle<()>>>,
}

/// The queue of one [`Preparer`], whose jobs a thread or a test does.
pub struct Preparing {
    name: String,
    near: Near,
    queue: mpsc::Receiver<Command>,
    service: Arc<dyn Service>,
    inbox: Inbox,
}

impl Preparing {
    /// Does the next job. Returns false if there is none.
    pub fn step(&self) -> bool {
        let job = self.queue.try_recv();
        job.map(|command| self.prepare(command)).is_ok()
    }

    /// Does all jobs until the queue is closed.
    fn run(&self) {
        // Where memory cannot be bound to a node, the pinned thread's first touch places the
        // memory.
        self.near.pin();
        self.queue.iter().for_each(|command| self.prepare(command));
    }

    fn prepare(&self, command: Command) {
        if let Command::Attach(connection, _) = &command {
            connection.prefault();
            let memory = connection.memory();
            memory.for_each(|region| self.inbox.thread.note_memory(region));
            self.service.memory(connection.requests());
        }
        self.inbox.send(command);
    }
}

impl Preparer {
    /// Makes the queue beside the NIC thread of `inbox`.
    pub(crate) fn new(
        thread: NicThreadCfgs,
        service: Arc<dyn Service>,
        inbox: Inbox,
    ) -> (Self, Preparing) {
        let (jobs, queue) = mpsc::channel();
        let preparing = Preparing {
            name: format!("{}-slots", thread.name),
            near: thread.near,
            queue,
            service,
            inbox,
        };
        let preparer = Preparer {
            jobs: Mutex::new(Some(jobs)),
            thread: Mutex::default(),
        };
        (preparer, preparing)
    }

    /// Starts the thread.
    ///
    /// # Errors
    /// No thread is left.
    pub(crate) fn start(&self, preparing: Preparing) -> io::Result<()> {
        let thread = std::thread::Builder::new()
            .name(preparing.name.clone())
            .spawn(move || preparing.run())?;
        *lock(&self.thread) = Some(thread);
        Ok(())
    }

    /// Passes a command to the NIC thread after earlier commands. Drops the command after `stop`.
    pub(crate) fn pass(&self, command: Command) {
        if let Some(jobs) = &*lock(&self.jobs) {
            // `send` fails only where the thread was never started.
            let _ = jobs.send(command);
        }
    }

    /// Closes the queue. Returns the thread for a join: the thread ends once the queue is empty.
    pub(crate) fn stop(&self) -> Option<JoinHandle<()>> {
        *lock(&self.jobs) = None;
        lock(&self.thread).take()
    }
}
