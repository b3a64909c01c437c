//! The thread of an engine that batches by itself.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering::SeqCst},
    },
    thread::{self, JoinHandle},
    time::Duration,
};

use qdl::connection::join_all;

use super::OnFatal;
use fabric::os::lock;

use crate::{EngineError, catch_panic, event_count::EventCount};

/// An engine's thread, and what wakes and ends it.
#[derive(Default)]
pub(crate) struct EngineThread {
    /// Notified when a sample waits or the thread is to end.
    pub events: EventCount,
    closed: AtomicBool,
    thread: Mutex<Option<JoinHandle<()>>>,
}

impl EngineThread {
    /// Starts the thread. When the thread ends, also by a panic, [`Self::is_closed`] is true.
    pub fn start(
        self: &Arc<Self>,
        engine: &'static str,
        fatal: OnFatal,
        body: impl FnOnce() -> Result<(), EngineError> + Send + 'static,
    ) -> Result<(), EngineError> {
        let this = self.clone();
        let thread = thread::Builder::new().name(engine.to_owned());
        let thread = thread.spawn(move || {
            if let Err(error) = catch_panic(engine, 0, body) {
                fatal(error);
            }
            this.close();
        });
        *lock(&self.thread) = Some(thread.map_err(|e| EngineError::thread(0, &e))?);
        Ok(())
    }

    /// Asks the thread to end, and wakes it so that it checks [`Self::is_closed`].
    pub fn close(&self) {
        self.closed.store(true, SeqCst);
        self.events.notify_all();
    }

    pub fn is_closed(&self) -> bool {
        self.closed.load(SeqCst)
    }

    /// Closes, and waits up to `timeout` for the thread.
    pub fn stop(&self, timeout: Duration) {
        self.close();
        let thread = lock(&self.thread).take();
        join_all(thread.into_iter().collect(), timeout);
    }
}
