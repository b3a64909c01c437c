//! The frontend's end of a connection: it asks for it, and asks again when it was lost, at its
//! pace.

use std::time::Duration;

use super::Life;

/// First pause before something is tried again; doubles up to the last.
pub const FIRST_RETRY: Duration = Duration::from_millis(50);
/// The longest.
pub const LAST_RETRY: Duration = Duration::from_secs(1);

/// When something is tried again. Times are since any moment, always the same.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Pace {
    at: Duration,
    pause: Duration,
}

impl Pace {
    /// Ready at once.
    pub const fn new() -> Self {
        Pace {
            at: Duration::ZERO,
            pause: FIRST_RETRY,
        }
    }

    /// When it may be tried.
    pub const fn at(&self) -> Duration {
        self.at
    }

    /// It is being tried: each attempt without success doubles the pause.
    pub fn tried(&mut self, now: Duration) {
        self.pause = (self.pause * 2).min(LAST_RETRY);
        self.failed(now);
    }

    /// It has failed: the pause begins now.
    pub fn failed(&mut self, now: Duration) {
        self.at = now + self.pause;
    }

    /// It has succeeded: what comes next begins with a short pause.
    pub fn succeeded(&mut self) {
        self.pause = FIRST_RETRY;
    }
}

/// What came of asking the accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Answer {
    /// It is granted.
    Granted,
    /// It is not, or it could not even be asked: nothing was made.
    Refused,
    /// None came in time: it may be granted all the same.
    Missing,
}

/// What the caller is to do, in this order.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct Todo {
    /// Go on with what was brought. Otherwise it has been dropped, or is dropped now.
    pub go_on: bool,
    /// Have the NIC thread give it up.
    pub give_up: bool,
    /// Tell the accelerator that it is lost.
    pub tell_lost: bool,
    /// Tell the accelerator that this end has let go.
    pub tell_reset: bool,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Dialled {
    life: Life,
    pace: Pace,
}

impl Dialled {
    /// Never asked for.
    pub const fn new() -> Self {
        Dialled {
            life: Life::new(),
            pace: Pace::new(),
        }
    }

    /// The epoch that is live or was last.
    pub const fn epoch(&self) -> u32 {
        self.life.epoch()
    }

    /// When it is to be asked for; `None` while its memory is not free.
    pub fn due(&self) -> Option<Duration> {
        self.life.is_free().then(|| self.pace.at())
    }

    /// The epoch to ask for, if it is time.
    pub fn ask(&mut self, now: Duration) -> Option<u32> {
        self.due().filter(|due| *due <= now)?;
        let epoch = self.epoch().checked_add(1)?;
        self.life.ask(epoch).ok()?;
        self.pace.tried(now);
        Some(epoch)
    }

    /// What came of asking. What was prepared for it is dropped before unless it was granted.
    pub fn answered(&mut self, epoch: u32, answer: Answer, now: Duration) -> Todo {
        match answer {
            Answer::Granted => {
                let wanted = self.life.granted(epoch);
                self.wanted(epoch, wanted)
            }
            Answer::Refused => {
                self.life.refused(epoch);
                self.pace.failed(now);
                // The accelerator may have lost it before.
                self.let_go(Todo::default())
            }
            Answer::Missing => self.lost(epoch, now),
        }
    }

    /// The data connection is made.
    pub fn connected(&mut self, epoch: u32) -> Todo {
        let wanted = self.life.up(epoch);
        if wanted {
            self.pace.succeeded();
        }
        self.wanted(epoch, wanted)
    }

    /// This end is destroyed: the NIC thread has taken it down, or the data connection could not be
    /// made.
    pub fn lost(&mut self, epoch: u32, now: Duration) -> Todo {
        if epoch != self.epoch() {
            return Todo::default();
        }
        let tell_lost = self.life.lost_here(epoch);
        self.pace.failed(now);
        self.let_go(Todo {
            tell_lost,
            ..Todo::default()
        })
    }

    /// The accelerator has lost it.
    pub fn lost_there(&mut self, epoch: u32) -> Todo {
        Todo {
            give_up: self.life.lost_there(epoch),
            ..Todo::default()
        }
    }

    /// The accelerator has let go.
    pub fn reset_there(&mut self, epoch: u32) {
        self.life.reset_there(epoch);
    }

    /// The session is over, and tasks that had the connection are, too.
    pub fn session_over(&mut self) -> Todo {
        let give_up = self.life.session_over();
        if !self.is_on_nic_thread() {
            self.life.released(self.epoch());
        }
        self.let_go(Todo {
            give_up,
            ..Todo::default()
        })
    }

    /// It is not free before a NIC thread has taken it down.
    pub fn is_on_nic_thread(&self) -> bool {
        self.life.is_on_nic_thread()
    }

    fn wanted(&mut self, epoch: u32, wanted: bool) -> Todo {
        if !wanted {
            self.life.released(epoch);
        }
        self.let_go(Todo {
            go_on: wanted,
            ..Todo::default()
        })
    }

    fn let_go(&mut self, todo: Todo) -> Todo {
        Todo {
            tell_reset: self.life.let_go(),
            ..todo
        }
    }
}
