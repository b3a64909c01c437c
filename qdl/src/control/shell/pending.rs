//! An answer that has not come yet.

use std::{
    sync::{Arc, OnceLock},
    time::Duration,
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
    /// Waits for the answer, for at most `deadline`.
    ///
    /// # Errors
    /// The request was refused, the deadline passed, or the session ended.
    pub(crate) async fn within(mut self, deadline: Duration) -> Result<T, ControlError> {
        match tokio::time::timeout(deadline, &mut self.answer).await {
            Ok(answer) => self.finish(answer),
            Err(_) => Err(self.late(deadline)),
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
