//! When the memory of a lost connection may be used again.
//!
//! A half-dead connection can still write: the peer may not know yet that it is lost, its NIC may be
//! sending again what was never acknowledged, and a batch may still be reading the slots. So the slots of
//! a lost connection stay out of use until both ends have said, over the control session, that
//! their side of it is torn down and nothing reads its slots any more. The connection that follows has a new
//! epoch, and with it a new key (and on `ib` a new queue pair).
//!
//! One [`Quarantine`] stands for one connection at either end. It knows nothing of sockets or time.

/// Life of a connection, as far as its memory is concerned.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
enum State {
    /// Never opened, or both ends have let go: the memory is free for epoch `next`.
    Free,
    /// In use here; `theirs` where the peer has let go already, which it may say before this end knows of the loss.
    Live { theirs: bool },
    /// Lost; waits for what is false.
    Lost { ours: bool, theirs: bool },
}

/// See the module.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Quarantine {
    epoch: u32,
    state: State,
}

/// What the control plane asked for does not fit the connection's state.
#[derive(Clone, Copy, Debug, PartialEq, Eq, thiserror::Error)]
pub enum QuarantineError {
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
}

impl Default for Quarantine {
    fn default() -> Self {
        Quarantine::new()
    }
}

impl Quarantine {
    /// A connection that has never been opened; epochs begin at 1.
    pub const fn new() -> Self {
        Quarantine {
            epoch: 0,
            state: State::Free,
        }
    }

    /// The epoch that is live or was last.
    pub const fn epoch(&self) -> u32 {
        self.epoch
    }

    /// True while the connection carries samples.
    pub fn is_live(&self) -> bool {
        matches!(self.state, State::Live { .. })
    }

    /// Takes the memory for a new epoch.
    ///
    /// # Errors
    /// [`QuarantineError`] while the memory may still be touched by the last one.
    pub fn open(&mut self, epoch: u32) -> Result<(), QuarantineError> {
        match self.state {
            State::Live { .. } => Err(QuarantineError::InUse { epoch: self.epoch }),
            State::Lost { ours, .. } => Err(QuarantineError::Quarantined {
                epoch: self.epoch,
                missing: if ours { "the peer" } else { "this node" },
            }),
            State::Free if epoch <= self.epoch => Err(QuarantineError::OldEpoch {
                asked: epoch,
                last: self.epoch,
            }),
            State::Free => {
                self.epoch = epoch;
                self.state = State::Live { theirs: false };
                Ok(())
            }
        }
    }

    /// The connection of `epoch` is lost. Returns false when that is no news.
    pub fn lost(&mut self, epoch: u32) -> bool {
        match self.state {
            State::Live { theirs } if epoch == self.epoch => {
                self.state = State::Lost {
                    ours: false,
                    theirs,
                };
                true
            }
            _ => false,
        }
    }

    /// This end of `epoch` is torn down and nothing here reads or writes its slots.
    pub fn reset_here(&mut self, epoch: u32) {
        self.reset(epoch, true);
    }

    /// The peer says the same of its end.
    pub fn reset_there(&mut self, epoch: u32) {
        self.reset(epoch, false);
    }

    /// True once both ends have let go: the next epoch may be opened.
    pub fn is_free(&self) -> bool {
        self.state == State::Free
    }

    fn reset(&mut self, epoch: u32, here: bool) {
        if epoch != self.epoch {
            return;
        }
        match &mut self.state {
            State::Lost { ours, theirs } => {
                let side = if here { &mut *ours } else { &mut *theirs };
                *side = true;
                if *ours && *theirs {
                    self.state = State::Free;
                }
            }
            State::Live { theirs } => *theirs |= !here,
            State::Free => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    use super::*;

    #[test]
    fn slots_are_quarantined_until_both_ends_have_let_go() {
        let mut q = Quarantine::new();
        q.open(1).expect("never used");
        assert_eq!(q.open(2), Err(QuarantineError::InUse { epoch: 1 }));
        assert!(q.lost(1));
        assert!(!q.lost(1), "no news");
        let missing = |q: &mut Quarantine| match q.open(2) {
            Err(QuarantineError::Quarantined { missing, .. }) => missing,
            other => panic!("{other:?}"),
        };
        assert_eq!(missing(&mut q), "this node");
        q.reset_here(1);
        assert_eq!(missing(&mut q), "the peer");
        q.reset_there(0);
        assert_eq!(missing(&mut q), "the peer");
        q.reset_there(1);
        assert_eq!(
            q.open(1),
            Err(QuarantineError::OldEpoch { asked: 1, last: 1 })
        );
        q.open(2).expect("both let go");
        // The peer was the first to know.
        q.reset_there(2);
        assert!(q.is_live(), "this end may still be written to");
        q.reset_here(2);
        assert!(q.is_live(), "it was not lost yet");
        assert!(q.lost(2));
        assert_eq!(missing(&mut q), "this node");
        q.reset_here(2);
        assert!(q.is_free());
    }

    #[derive(Clone, Debug)]
    enum Step {
        Open(u32),
        Lost(u32),
        Here(u32),
        There(u32),
    }

    proptest! {
        /// Whatever the order of messages, a new epoch opens only after both ends confirmed the last.
        #[test]
        fn memory_has_one_user(steps in prop::collection::vec(
            (0u8..4, 0u32..6).prop_map(|(k, e)| match k {
                0 => Step::Open(e), 1 => Step::Lost(e), 2 => Step::Here(e), _ => Step::There(e),
            }), 0..60))
        {
            let mut q = Quarantine::new();
            let (mut lost, mut here, mut there) = (true, true, true);
            for s in steps {
                match s {
                    Step::Open(e) => {
                        let last = q.epoch();
                        if q.open(e).is_ok() {
                            prop_assert!(lost && here && there && e > last);
                            (lost, here, there) = (false, false, false);
                        }
                    }
                    Step::Lost(e) => lost |= q.lost(e),
                    Step::Here(e) => { here |= lost && e == q.epoch(); q.reset_here(e) }
                    Step::There(e) => { there |= e == q.epoch(); q.reset_there(e) }
                }
            }
        }
    }
}
