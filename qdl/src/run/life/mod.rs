//! State machine of a connection at one end, without I/O; the caller passes the clock.
//!
//! ```text
//!          ask             granted            up
//!   Free ------->  Asked ----------> Opening ------> Up
//!    ^ ^             | |                |            |
//!    | |   refused   | |                v            |
//!    | +-------------+ +------------>  Lost  <-------+    a loss, here or there
//!    |                                  |
//!    +----------------------------------+    both ends have let go
//! ```
//!
//! A lost connection may still be written: the peer may not know of the loss yet, its NIC may
//! retransmit, and a batch may still read the slots. So the slots of a lost connection are
//! quarantined until both ends have confirmed over the control session that their side is destroyed
//! and unread. The next connection has a new epoch, and with it a new key (on `ib` also a new queue
//! pair).
//!
//! * [`Life`] - one end of one connection, the same at both nodes
//! * [`frontend_end`] - the frontend's end: requests with a back-off
//! * [`accelerator_ends`] - the accelerator's ends of a session: owners of the slots, and keys
//!   handed out

pub mod accelerator_ends;
pub mod frontend_end;

#[cfg(test)]
mod tests;

/// Stage of one end of a connection; see the diagram above.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    Free,
    /// A task waits for the accelerator's answer, or makes the slots.
    Asked,
    /// The data connection is being made.
    Opening,
    /// A NIC thread polls the connection.
    Up,
    Lost,
}

/// The part of this node that holds the connection, and reports when it has released it.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nothing,
    Task,
    NicThread,
}

#[derive(Clone, Debug, PartialEq, Eq)]
pub(crate) struct Life {
    epoch: u32,
    stage: Stage,
    holder: Holder,
    /// Whether this end, and the peer's end, have let go of the epoch.
    here: bool,
    there: bool,
    /// The epoch's session is over, so the peer needs no confirmation and cannot write.
    over: bool,
}

/// Error of a request that the connection's state does not allow.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub(crate) enum LifeError {
    #[error("epoch {epoch} still uses the slots of this connection")]
    InUse { epoch: u32 },
    #[error(
        "the slots of epoch {epoch} are quarantined: {missing} has not confirmed that it let go"
    )]
    Quarantined { epoch: u32, missing: &'static str },
    #[error("epoch {asked} does not come after epoch {last}")]
    OldEpoch { asked: u32, last: u32 },
    #[error("the session is over")]
    Over,
}

impl Life {
    /// Makes the state of a connection that was never opened; epochs begin at 1.
    pub(crate) const fn new() -> Self {
        Life {
            epoch: 0,
            stage: Stage::Free,
            holder: Holder::Nothing,
            here: false,
            there: false,
            over: false,
        }
    }

    pub(crate) const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// Whether both ends have let go, so that the next epoch may be requested.
    pub(crate) fn is_free(&self) -> bool {
        self.stage == Stage::Free
    }

    /// Whether a part of this node holds the connection.
    pub(crate) fn is_held(&self) -> bool {
        self.holder != Holder::Nothing
    }

    /// Whether a NIC thread holds the connection and has not reported it destroyed.
    pub(crate) fn is_on_nic_thread(&self) -> bool {
        self.holder == Holder::NicThread
    }

    /// Whether the connection is lost and unheld, and this end has not let go.
    pub(crate) fn may_let_go(&self) -> bool {
        self.is_letting_go() && !self.is_held()
    }

    /// Whether the connection is lost, and this end has not let go.
    pub(crate) fn is_letting_go(&self) -> bool {
        self.stage == Stage::Lost && !self.here
    }

    /// Takes the memory for a new epoch, on which a task works.
    ///
    /// # Errors
    /// [`LifeError`] while the last epoch may still use the memory, or if `epoch` is not higher.
    pub(crate) fn ask(&mut self, epoch: u32) -> Result<(), LifeError> {
        let last = self.epoch;
        match self.stage {
            Stage::Free if epoch > last => {
                *self = Life {
                    epoch,
                    stage: Stage::Asked,
                    holder: Holder::Task,
                    ..Life::new()
                };
                Ok(())
            }
            Stage::Free => Err(LifeError::OldEpoch { asked: epoch, last }),
            Stage::Lost => Err(LifeError::Quarantined {
                epoch: last,
                missing: if self.here { "the peer" } else { "this node" },
            }),
            _ => Err(LifeError::InUse { epoch: last }),
        }
    }

    /// Records that the task has made the connection of `epoch`. False where the connection is
    /// unwanted: then the caller drops it and calls [`Life::release`].
    pub(crate) fn grant(&mut self, epoch: u32) -> bool {
        self.advance(epoch, Stage::Asked, Stage::Opening)
    }

    /// Records that the task has failed, and that neither end has made anything.
    pub(crate) fn refuse(&mut self, epoch: u32) {
        self.advance(epoch, Stage::Asked, Stage::Free);
        self.release(epoch);
    }

    /// Records that the data connection goes to a NIC thread. False if the connection is unwanted:
    /// then the caller drops it.
    pub(crate) fn connect(&mut self, epoch: u32) -> bool {
        let wanted = self.advance(epoch, Stage::Opening, Stage::Up);
        if wanted {
            self.holder = Holder::NicThread;
        }
        wanted
    }

    /// Records that this end has lost `epoch` and that its holder has released it. True where the
    /// caller must tell the peer.
    pub(crate) fn lost_here(&mut self, epoch: u32) -> bool {
        let news = self.lose(epoch).is_some();
        self.release(epoch);
        news && !self.over
    }

    /// Records that the peer has lost `epoch`. True where a NIC thread must take the connection
    /// down.
    pub(crate) fn lost_there(&mut self, epoch: u32) -> bool {
        self.lose(epoch) == Some(Stage::Up)
    }

    /// Records that the peer has let go of `epoch`, possibly before this end knows of the loss.
    pub(crate) fn reset_there(&mut self, epoch: u32) {
        if epoch == self.epoch && self.stage != Stage::Free {
            self.there = true;
            self.settle();
        }
    }

    pub(crate) fn release(&mut self, epoch: u32) {
        if epoch == self.epoch {
            self.holder = Holder::Nothing;
        }
    }

    /// Lets go of the lost epoch: nothing here uses the slots. True where the caller must tell the
    /// peer.
    pub(crate) fn let_go(&mut self) -> bool {
        let news = self.may_let_go();
        if news {
            self.here = true;
            self.settle();
        }
        news && !self.over
    }

    /// Records the end of the session and of the peer's end. True where a NIC thread must take the
    /// connection down.
    pub(crate) fn end_session(&mut self) -> bool {
        let was_up = self.lose(self.epoch) == Some(Stage::Up);
        self.over = true;
        self.reset_there(self.epoch);
        was_up
    }

    /// Records a loss and returns the stage before it; `None` for a known loss or a wrong epoch.
    fn lose(&mut self, epoch: u32) -> Option<Stage> {
        let live = matches!(self.stage, Stage::Asked | Stage::Opening | Stage::Up);
        (live && epoch == self.epoch).then(|| std::mem::replace(&mut self.stage, Stage::Lost))
    }

    fn advance(&mut self, epoch: u32, from: Stage, to: Stage) -> bool {
        let fits = epoch == self.epoch && self.stage == from;
        if fits {
            self.stage = to;
        }
        fits
    }

    fn settle(&mut self) {
        if self.stage == Stage::Lost && self.here && self.there {
            self.stage = Stage::Free;
        }
    }
}
