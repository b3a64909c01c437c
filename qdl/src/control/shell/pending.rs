//! An answer that has not come yet, for tasks and plain threads.

use std::{
    future::Future,
    pin::pin,
    sync::{Arc, OnceLock},
    task::{Context, Poll, Wake, Waker},
    thread::{self, Thread},
    time::{Duration, Instant},
};

use tokio::sync::oneshot;

use crate::control::{
    error::ControlError,
    message::{ErrorCode, Message},
};

pub(super) type ReplySender = oneshot::Sender<Result<Message, ControlError>>;

/// Cause of a session's end, shared with its handles.
#[derive(Debug)]
pub(super) struct Ended {
    peer: String,
    cause: OnceLock<ControlError>,
}

impl Ended {
    pub(crate) fn new(peer: String) -> Self {
        Ended {
            peer,
            cause: OnceLock::new(),
        }
    }

    /// Sets the cause; later calls have no effect.
    pub(crate) fn set(&self, cause: ControlError) {
        let _ = self.cause.set(cause);
    }

    pub(crate) fn if_over(&self) -> Option<ControlError> {
        self.cause.get().cloned()
    }

    /// The cause of an ended session. Without a stored cause, the session's runtime was stopped.
    pub(crate) fn cause(&self) -> ControlError {
        self.if_over().unwrap_or_else(|| ControlError::Ended {
            peer: self.peer.clone(),
            code: ErrorCode::ShuttingDown,
            text: "its runtime was stopped".to_owned(),
        })
    }
}

/// An answer that has not come yet. Dropping it does not cancel the request.
#[derive(Debug)]
#[must_use = "the request is under way, but nobody waits for its answer"]
pub struct Pending<T> {
    pub(super) answer: oneshot::Receiver<Result<Message, ControlError>>,
    pub(super) take: fn(Message) -> Option<T>,
    pub(super) waiting_for: &'static str,
    pub(super) ended: Arc<Ended>,
}

impl<T> Pending<T> {
    /// Waits on a task.
    ///
    /// # Errors
    /// The request was refused, the deadline passed, or the session ended.
    pub(crate) async fn within(mut self, deadline: Duration) -> Result<T, ControlError> {
        match tokio::time::timeout(deadline, &mut self.answer).await {
            Ok(answer) => self.finish(answer),
            Err(_) => Err(self.late(deadline)),
        }
    }

    /// Waits on a plain thread. On a thread that runs the session's tasks, the call blocks its own
    /// session until the deadline; use [`Pending::within`] there.
    ///
    /// # Errors
    /// The request was refused, the deadline passed, or the session ended.
    pub(crate) fn wait(mut self, deadline: Duration) -> Result<T, ControlError> {
        let waker = Waker::from(Arc::new(Unpark(thread::current())));
        let mut context = Context::from_waker(&waker);
        let began = Instant::now();
        loop {
            if let Poll::Ready(answer) = pin!(&mut self.answer).poll(&mut context) {
                return self.finish(answer);
            }
            match deadline.checked_sub(began.elapsed()) {
                Some(left) if !left.is_zero() => thread::park_timeout(left),
                _ => return Err(self.late(deadline)),
            }
        }
    }

    fn finish(
        self,
        answer: Result<Result<Message, ControlError>, oneshot::error::RecvError>,
    ) -> Result<T, ControlError> {
        match answer {
            // The core has checked that the answer has the expected type.
            Ok(answer) => (self.take)(answer?).ok_or_else(|| self.ended.cause()),
            Err(_) => Err(self.ended.cause()),
        }
    }

    fn late(&self, after: Duration) -> ControlError {
        ControlError::Timeout {
            peer: self.ended.peer.clone(),
            waiting_for: self.waiting_for,
            after,
        }
    }
}

/// Wakes a parked thread.
struct Unpark(Thread);

impl Wake for Unpark {
    fn wake(self: Arc<Self>) {
        self.0.unpark();
    }
}
