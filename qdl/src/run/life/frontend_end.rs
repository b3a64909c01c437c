//! The frontend's end of a connection: requests the connection, and requests it again with a
//! back-off after a loss.

use std::time::Duration;

use super::Life;

/// Pauses before retries: the first one, doubled by each retry up to the last one.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct RetryPauses {
    /// First pause.
    pub first: Duration,
    /// Longest pause.
    pub last: Duration,
}

impl Default for RetryPauses {
    fn default() -> Self {
        RetryPauses {
            first: Duration::from_millis(50),
            last: Duration::from_secs(1),
        }
    }
}

/// Exponential back-off. Times are relative to one fixed moment.
#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct RetryBackoff {
    at: Duration,
    pause: Duration,
    pauses: RetryPauses,
}

impl RetryBackoff {
    pub(crate) const fn new(pauses: RetryPauses) -> Self {
        RetryBackoff {
            at: Duration::ZERO,
            pause: pauses.first,
            pauses,
        }
    }

    /// Earliest time of the next attempt.
    pub(crate) const fn at(&self) -> Duration {
        self.at
    }

    /// Records the start of an attempt, which doubles the next pause.
    pub(crate) fn start_attempt(&mut self, now: Duration) {
        self.pause = (self.pause * 2).min(self.pauses.last);
        self.fail(now);
    }

    /// Records a failure: the pause begins now.
    pub(crate) fn fail(&mut self, now: Duration) {
        self.at = now + self.pause;
    }

    pub(crate) fn reset(&mut self) {
        self.pause = self.pauses.first;
    }
}

/// Result of a request to the accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum OpenAnswer {
    /// The connection is granted.
    Granted,
    /// The connection is refused, or the request was not sent: the accelerator has made nothing.
    Refused,
    /// No answer came in time: the accelerator may still grant the connection.
    Missing,
}

/// Actions for the caller, in this order.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct EndActions {
    /// The caller continues with its half or link; without this, the caller drops it first.
    pub go_on: bool,
    /// The NIC thread must take the connection down.
    pub give_up: bool,
    pub tell_lost: bool,
    /// Tell the accelerator that this end has let go.
    pub tell_reset: bool,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct FrontendEnd {
    life: Life,
    backoff: RetryBackoff,
}

impl FrontendEnd {
    /// Makes the state of a connection that was never requested.
    pub(crate) const fn new(pauses: RetryPauses) -> Self {
        FrontendEnd {
            life: Life::new(),
            backoff: RetryBackoff::new(pauses),
        }
    }

    pub(crate) const fn epoch(&self) -> u32 {
        self.life.epoch()
    }

    /// Earliest time of a request; `None` while the memory is in use or quarantined.
    pub(crate) fn due(&self) -> Option<Duration> {
        self.life.is_free().then(|| self.backoff.at())
    }

    /// The epoch to request, if a request is due; the caller must send it.
    pub(crate) fn ask(&mut self, now: Duration) -> Option<u32> {
        self.due().filter(|due| *due <= now)?;
        let epoch = self.epoch().checked_add(1)?;
        self.life.ask(epoch).ok()?;
        self.backoff.start_attempt(now);
        Some(epoch)
    }

    /// Handles the result of a request. Without a grant, the caller has dropped its half.
    pub(crate) fn on_answer(
        &mut self,
        epoch: u32,
        answer: OpenAnswer,
        now: Duration,
    ) -> EndActions {
        match answer {
            OpenAnswer::Granted => {
                let wanted = self.life.grant(epoch);
                self.go_on(epoch, wanted)
            }
            OpenAnswer::Refused => {
                self.life.refuse(epoch);
                self.backoff.fail(now);
                // The accelerator may have reported the loss earlier.
                self.let_go(EndActions::default())
            }
            OpenAnswer::Missing => self.lost_here(epoch, now),
        }
    }

    /// Handles a successful data connection.
    pub(crate) fn on_connected(&mut self, epoch: u32) -> EndActions {
        let wanted = self.life.connect(epoch);
        if wanted {
            self.backoff.reset();
        }
        self.go_on(epoch, wanted)
    }

    /// Handles this end's loss: the NIC thread destroyed it, or the data connection failed.
    pub(crate) fn lost_here(&mut self, epoch: u32, now: Duration) -> EndActions {
        if epoch != self.epoch() {
            return EndActions::default();
        }
        let tell_lost = self.life.lost_here(epoch);
        self.backoff.fail(now);
        self.let_go(EndActions {
            tell_lost,
            ..EndActions::default()
        })
    }

    /// Handles the accelerator's message that it has lost the connection.
    pub(crate) fn lost_there(&mut self, epoch: u32) -> EndActions {
        EndActions {
            give_up: self.life.lost_there(epoch),
            ..EndActions::default()
        }
    }

    /// Handles the accelerator's message that it has let go.
    pub(crate) fn reset_there(&mut self, epoch: u32) {
        self.life.reset_there(epoch);
    }

    /// Handles the end of the session; the session's tasks have ended before.
    pub(crate) fn session_over(&mut self) -> EndActions {
        let give_up = self.life.end_session();
        if !self.is_on_nic_thread() {
            self.life.release(self.epoch());
        }
        self.let_go(EndActions {
            give_up,
            ..EndActions::default()
        })
    }

    /// Whether a NIC thread must take the connection down before it is free.
    pub(crate) fn is_on_nic_thread(&self) -> bool {
        self.life.is_on_nic_thread()
    }

    fn go_on(&mut self, epoch: u32, wanted: bool) -> EndActions {
        if !wanted {
            self.life.release(epoch);
        }
        self.let_go(EndActions {
            go_on: wanted,
            ..EndActions::default()
        })
    }

    fn let_go(&mut self, actions: EndActions) -> EndActions {
        EndActions {
            tell_reset: self.life.let_go(),
            ..actions
        }
    }
}
