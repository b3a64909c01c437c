//! The accelerator's ends of a session's connections: granted epochs, the owners of the slots, and
//! the secrets that data connections must prove.
//!
//! `S` is a cloneable handle of the slots; the caller can tell whether other clones still exist.

use std::collections::BTreeMap;

use fabric::tcp::ConnectionSecret;

use super::{Life, LifeError};

#[derive(Debug)]
struct Connection<S> {
    life: Life,
    /// Set while the memory is in use.
    slots: Option<S>,
    nic: usize,
    /// Epochs up to this one were given up before they were opened, and must not be opened.
    void: u32,
}

/// Actions for the caller after the frontend has lost a connection.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub(crate) struct LossActions {
    /// The NIC thread must take the connection down.
    pub give_up: bool,
    /// Tell the frontend at once that this end does not exist.
    pub tell_reset: bool,
}

#[derive(Debug)]
pub(crate) struct AcceleratorEnds<S> {
    connections: BTreeMap<u16, Connection<S>>,
    /// Secrets of granted connections whose data connection has not come yet, by number and epoch.
    secrets: BTreeMap<(u16, u32), ConnectionSecret>,
    over: bool,
}

impl<S> Default for AcceleratorEnds<S> {
    fn default() -> Self {
        AcceleratorEnds {
            connections: BTreeMap::new(),
            secrets: BTreeMap::new(),
            over: false,
        }
    }
}

impl<S: Clone> AcceleratorEnds<S> {
    /// Starts to make these connections (number and epoch): all of them or none.
    ///
    /// # Errors
    /// The first connection that is not allowed, and the reason.
    pub(crate) fn ask(&mut self, wanted: &[(u16, u32)]) -> Result<(), (u16, LifeError)> {
        for (i, (number, epoch)) in wanted.iter().enumerate() {
            if let Err(e) = self.ask_one(*number, *epoch) {
                self.refuse(&wanted[..i]);
                return Err((*number, e));
            }
        }
        Ok(())
    }

    fn ask_one(&mut self, number: u16, epoch: u32) -> Result<(), LifeError> {
        if self.over {
            return Err(LifeError::Over);
        }
        let c = self.connection(number);
        if epoch <= c.void {
            return Err(LifeError::OldEpoch {
                asked: epoch,
                last: c.void,
            });
        }
        c.life.ask(epoch)
    }

    /// Records that none of these connections was made; the caller has dropped its parts.
    pub(crate) fn refuse(&mut self, wanted: &[(u16, u32)]) {
        for (number, epoch) in wanted {
            self.connection(*number).life.refuse(*epoch);
        }
    }

    /// Records that a connection was made. Returns whether it is still wanted; `secret` is the
    /// secret that its data connection must prove. For an unwanted connection, the caller drops its
    /// link before it unlocks this value; the slots are collected later.
    pub(crate) fn grant(
        &mut self,
        (number, epoch): (u16, u32),
        slots: S,
        nic: usize,
        secret: Option<ConnectionSecret>,
    ) -> bool {
        let c = self.connection(number);
        let wanted = c.life.grant(epoch);
        c.life.release(epoch);
        (c.slots, c.nic) = (Some(slots), nic);
        if let (true, Some(secret)) = (wanted, secret) {
            self.secrets.insert((number, epoch), secret);
        }
        wanted
    }

    /// The secret of a granted connection that has not come yet.
    pub(crate) fn secret(&self, number: u16, epoch: u32) -> Option<ConnectionSecret> {
        self.secrets.get(&(number, epoch)).copied()
    }

    /// Uses up a proved secret and returns its connection's slots and NIC.
    pub(crate) fn take_proved(&mut self, number: u16, epoch: u32) -> Option<(S, usize)> {
        self.secrets.remove(&(number, epoch))?;
        let c = self.connections.get(&number)?;
        Some((c.slots.clone()?, c.nic))
    }

    /// Handles the arrival of a data connection. True where the caller must pass it to a NIC thread
    /// before it unlocks this value.
    pub(crate) fn up(&mut self, number: u16, epoch: u32) -> bool {
        let c = self.connections.get_mut(&number);
        c.is_some_and(|c| c.life.connect(epoch))
    }

    /// Handles the loss of this end, whose holder has released it. True where the caller must tell
    /// the frontend.
    pub(crate) fn lost_here(&mut self, number: u16, epoch: u32) -> bool {
        let c = self.connections.get_mut(&number);
        c.is_some_and(|c| c.life.lost_here(epoch))
    }

    /// Handles the frontend's message that it has lost a connection.
    pub(crate) fn lost_there(&mut self, number: u16, epoch: u32) -> LossActions {
        self.secrets.remove(&(number, epoch));
        let over = self.over;
        let c = self.connection(number);
        // This end never opened that epoch: the request was refused, or still waits.
        let absent =
            epoch > c.life.epoch() || (epoch == c.life.epoch() && c.life.is_free() && epoch > 0);
        if absent {
            c.void = c.void.max(epoch);
        }
        LossActions {
            give_up: c.life.lost_there(epoch),
            tell_reset: absent && !over,
        }
    }

    /// Handles the frontend's message that it has let go.
    pub(crate) fn reset_there(&mut self, number: u16, epoch: u32) {
        if let Some(c) = self.connections.get_mut(&number) {
            c.life.reset_there(epoch);
        }
    }

    /// Lets go of lost connections whose slots are `unread`, and passes the slots to `slots`.
    /// Returns the connections to report to the frontend.
    pub(crate) fn collect(
        &mut self,
        unread: impl Fn(&S) -> bool,
        mut slots: impl FnMut(S),
    ) -> Vec<(u16, u32)> {
        let mut tell = Vec::new();
        for (number, c) in &mut self.connections {
            if c.life.may_let_go() && c.slots.as_ref().is_none_or(&unread) {
                c.slots.take().map(&mut slots);
                if c.life.let_go() {
                    tell.push((*number, c.life.epoch()));
                }
            }
        }
        tell
    }

    /// Ends the session: grants nothing more. The caller has the NIC threads take their connections
    /// down.
    pub(crate) fn end(&mut self) {
        self.over = true;
        self.secrets.clear();
        for c in self.connections.values_mut() {
            c.life.end_session();
        }
    }

    /// Number of connections that are being made or whose slots are in use.
    pub(crate) fn busy(&self) -> usize {
        let busy = |c: &&Connection<S>| c.slots.is_some() || c.life.is_held();
        self.connections.values().filter(busy).count()
    }

    /// Whether a lost connection exists that this end has not let go of.
    pub(crate) fn quarantined(&self) -> bool {
        self.connections.values().any(|c| c.life.is_letting_go())
    }

    /// Number of granted connections whose data connection has not come yet.
    pub(crate) fn awaited(&self) -> usize {
        self.secrets.len()
    }

    /// Number of connections that are up, and of lost connections that this end has not let go of.
    pub(crate) fn up_and_lost(&self) -> [u64; 2] {
        let mut counts = [0; 2];
        for life in self.connections.values().map(|c| &c.life) {
            counts[1] += u64::from(life.is_letting_go());
            counts[0] += u64::from(life.is_on_nic_thread() && !life.is_letting_go());
        }
        counts
    }

    /// The slots of a granted connection, if this is its epoch.
    pub(crate) fn of_epoch(&self, number: u16, epoch: u32) -> Option<&S> {
        let c = self.connections.get(&number)?;
        c.slots.as_ref().filter(|_| c.life.epoch() == epoch)
    }

    pub(crate) fn slots(&self) -> impl Iterator<Item = &S> {
        self.connections.values().filter_map(|c| c.slots.as_ref())
    }

    fn connection(&mut self, number: u16) -> &mut Connection<S> {
        let fresh = || Connection {
            life: Life::new(),
            slots: None,
            nic: 0,
            void: 0,
        };
        self.connections.entry(number).or_insert_with(fresh)
    }
}
