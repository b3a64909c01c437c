//! A connection's life at one end, without I/O, and with the clock handed in.
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
//! A half-dead connection can still write: the peer may not know yet that it is lost, its NIC may
//! be sending again what was never acknowledged, and a batch may still be reading the slots. So the
//! slots of a lost connection are quarantined until both ends have said, over the control session,
//! that their side is torn down and nothing reads its slots any more. The connection that follows
//! has a new epoch, and with it a new key (and on `ib` a new queue pair).
//!
//! * [`Life`] - one end of one connection, the same at both
//! * [`dialled`] - the frontend's end: asks, and asks again at its pace
//! * [`granted`] - the accelerator's ends of a session: who holds which slots, and which keys are
//!   out

pub mod dialled;
pub mod granted;

#[cfg(test)]
mod tests;

/// Where an end of a connection is; see the module.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Stage {
    /// No epoch has the memory.
    Free,
    /// A task here is at work on it: waits for the answer, or makes the slots.
    Asked,
    /// Its data connection is being made.
    Opening,
    /// It is on a NIC thread.
    Up,
    /// Given up, and quarantined.
    Lost,
}

/// Who has a connection at this end, and will say when it has it no more.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum Holder {
    Nothing,
    Task,
    NicThread,
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Life {
    /// The epoch that is live or was last.
    epoch: u32,
    stage: Stage,
    holder: Holder,
    /// Which ends have let go of this epoch.
    here: bool,
    there: bool,
    /// The session it was opened in is over: there is no peer to confirm to, nor one that could
    /// still write.
    over: bool,
}

/// What is asked for does not fit the connection's life.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum LifeError {
    /// Its memory is still in use.
    #[error("epoch {epoch} still uses the slots of this connection")]
    InUse {
        /// The epoch that holds the memory.
        epoch: u32,
    },
    /// Its slots are quarantined.
    #[error(
        "the slots of epoch {epoch} are quarantined: {missing} has not confirmed that it let go"
    )]
    Quarantined {
        /// The epoch that was lost.
        epoch: u32,
        /// Which end is missing.
        missing: &'static str,
    },
    /// An epoch that does not come after the last.
    #[error("epoch {asked} does not come after epoch {last}")]
    OldEpoch {
        /// Epoch asked for.
        asked: u32,
        /// Last epoch there was.
        last: u32,
    },
    /// The session is over.
    #[error("the session is over")]
    Over,
}

impl Life {
    /// A connection that has never been opened; epochs begin at 1.
    pub const fn new() -> Self {
        Life {
            epoch: 0,
            stage: Stage::Free,
            holder: Holder::Nothing,
            here: false,
            there: false,
            over: false,
        }
    }

    /// The epoch that is live or was last.
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// True once both ends have let go: the next epoch may be asked for.
    pub fn is_free(&self) -> bool {
        self.stage == Stage::Free
    }

    /// True while something of this end has the connection.
    pub fn is_held(&self) -> bool {
        self.holder != Holder::Nothing
    }

    /// True until a NIC thread says that it has taken the connection down.
    pub fn is_on_nic_thread(&self) -> bool {
        self.holder == Holder::NicThread
    }

    /// Lost, and this end has not let go yet, though nothing has the connection any more.
    pub fn may_let_go(&self) -> bool {
        self.is_letting_go() && !self.is_held()
    }

    /// Lost, and this end has not let go yet.
    pub fn is_letting_go(&self) -> bool {
        self.stage == Stage::Lost && !self.here
    }

    /// Takes the memory for a new epoch; a task is at work on it.
    ///
    /// # Errors
    /// [`LifeError`] while the memory may still be touched by the last epoch.
    pub fn ask(&mut self, epoch: u32) -> Result<(), LifeError> {
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

    /// The task that was at work on `epoch` has brought what was asked for. False where it is not
    /// wanted any more: then it is to be dropped, and [`Life::released`].
    pub fn granted(&mut self, epoch: u32) -> bool {
        self.step(epoch, Stage::Asked, Stage::Opening)
    }

    /// The task that was at work on `epoch` has nothing, and neither end has made anything.
    pub fn refused(&mut self, epoch: u32) {
        self.step(epoch, Stage::Asked, Stage::Free);
        self.released(epoch);
    }

    /// The data connection is there and goes to a NIC thread. False where it is not wanted any
    /// more: then it is to be dropped.
    pub fn up(&mut self, epoch: u32) -> bool {
        let wanted = self.step(epoch, Stage::Opening, Stage::Up);
        if wanted {
            self.holder = Holder::NicThread;
        }
        wanted
    }

    /// This end has lost `epoch`, and whatever had it is through with it. True where that is news,
    /// for the peer too.
    pub fn lost_here(&mut self, epoch: u32) -> bool {
        let news = self.lose(epoch).is_some();
        self.released(epoch);
        news && !self.over
    }

    /// The peer has lost `epoch`. True where a NIC thread is to give it up.
    pub fn lost_there(&mut self, epoch: u32) -> bool {
        self.lose(epoch) == Some(Stage::Up)
    }

    /// The peer has let go of `epoch`, which it may say before this end knows of the loss.
    pub fn reset_there(&mut self, epoch: u32) {
        if epoch == self.epoch && self.stage != Stage::Free {
            self.there = true;
            self.settle();
        }
    }

    /// What had `epoch` here is through with it.
    pub fn released(&mut self, epoch: u32) {
        if epoch == self.epoch {
            self.holder = Holder::Nothing;
        }
    }

    /// This end lets go: nothing here reads or writes the slots of the lost epoch. True where the
    /// peer is to be told.
    pub fn let_go(&mut self) -> bool {
        let news = self.may_let_go();
        if news {
            self.here = true;
            self.settle();
        }
        news && !self.over
    }

    /// The session is over, and with it the peer's end. True where a NIC thread is to give the
    /// connection up.
    pub fn session_over(&mut self) -> bool {
        let was_up = self.lose(self.epoch) == Some(Stage::Up);
        self.over = true;
        self.reset_there(self.epoch);
        was_up
    }

    fn is_live(&self) -> bool {
        matches!(self.stage, Stage::Asked | Stage::Opening | Stage::Up)
    }

    /// Where it was when it was lost; `None` where that is no news.
    fn lose(&mut self, epoch: u32) -> Option<Stage> {
        let live = epoch == self.epoch && self.is_live();
        live.then(|| std::mem::replace(&mut self.stage, Stage::Lost))
    }

    fn step(&mut self, epoch: u32, from: Stage, to: Stage) -> bool {
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
