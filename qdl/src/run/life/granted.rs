//! The accelerator's ends of a session's connections: what was granted, who has its slots, and
//! which keys are out.
//!
//! `S` stands for the slots: a handle that can be cloned, and whose owner knows whether somebody
//! else still reads them.

use std::collections::HashMap;

use super::{Life, LifeError};

/// What a data connection has to show.
pub type Key = [u8; 16];

#[derive(Debug)]
struct Connection<S> {
    life: Life,
    /// There while its memory is in use.
    slots: Option<S>,
    nic: usize,
    /// Epochs up to this one were given up before they were opened, and are not opened any more.
    void: u32,
}

/// What the caller is to do about a connection that the frontend has lost.
#[must_use]
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq)]
pub struct LostThere {
    /// Have the NIC thread give it up.
    pub give_up: bool,
    /// Tell the frontend at once that nothing of it is here.
    pub tell_reset: bool,
}

/// See the module.
#[derive(Debug)]
pub struct Granted<S> {
    connections: HashMap<u16, Connection<S>>,
    /// Granted ones whose data connection has not come yet.
    keys: HashMap<Key, (u16, u32)>,
    over: bool,
}

impl<S> Default for Granted<S> {
    fn default() -> Self {
        Granted {
            connections: HashMap::new(),
            keys: HashMap::new(),
            over: false,
        }
    }
}

impl<S: Clone> Granted<S> {
    /// A task begins to make these connections, given by number and epoch: all of them, or none.
    ///
    /// # Errors
    /// The first that cannot be, and why.
    pub fn ask(&mut self, wanted: &[(u16, u32)]) -> Result<(), (u16, LifeError)> {
        for (i, (number, epoch)) in wanted.iter().enumerate() {
            if let Err(e) = self.ask_one(*number, *epoch) {
                self.refused(&wanted[..i]);
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

    /// The task makes none of these, and has dropped what it had made.
    pub fn refused(&mut self, wanted: &[(u16, u32)]) {
        for (number, epoch) in wanted {
            self.connection(*number).life.refused(*epoch);
        }
    }

    /// The task has made one. True where it is still wanted; `key` is what its data connection will
    /// show. Otherwise its link is to be dropped before this is unlocked, and its slots are
    /// collected later.
    pub fn granted(
        &mut self,
        (number, epoch): (u16, u32),
        slots: S,
        nic: usize,
        key: Option<Key>,
    ) -> bool {
        let c = self.connection(number);
        let wanted = c.life.granted(epoch);
        c.life.released(epoch);
        (c.slots, c.nic) = (Some(slots), nic);
        if let (true, Some(key)) = (wanted, key) {
            self.keys.insert(key, (number, epoch));
        }
        wanted
    }

    /// The slots of the connection that this key was handed out for, once, and its NIC.
    pub fn take(&mut self, key: &Key, number: u16, epoch: u32) -> Option<(S, usize)> {
        let of = self.keys.remove(key)?;
        let c = self.connections.get(&number)?;
        let slots = c.slots.as_ref().filter(|_| of == (number, epoch))?;
        Some((slots.clone(), c.nic))
    }

    /// The data connection is there: true where it goes to a NIC thread, before this is unlocked.
    pub fn up(&mut self, number: u16, epoch: u32) -> bool {
        let c = self.connections.get_mut(&number);
        c.is_some_and(|c| c.life.up(epoch))
    }

    /// This end has lost a connection, and whatever had it is through with it. True where the
    /// frontend is to be told.
    pub fn lost_here(&mut self, number: u16, epoch: u32) -> bool {
        let c = self.connections.get_mut(&number);
        c.is_some_and(|c| c.life.lost_here(epoch))
    }

    /// The frontend has lost a connection.
    pub fn lost_there(&mut self, number: u16, epoch: u32) -> LostThere {
        self.keys.retain(|_, of| *of != (number, epoch));
        let over = self.over;
        let c = self.connection(number);
        // It was refused, or its turn has not come yet.
        let absent =
            epoch > c.life.epoch() || (epoch == c.life.epoch() && c.life.is_free() && epoch > 0);
        if absent {
            c.void = c.void.max(epoch);
        }
        LostThere {
            give_up: c.life.lost_there(epoch),
            tell_reset: absent && !over,
        }
    }

    /// The frontend has let go.
    pub fn reset_there(&mut self, number: u16, epoch: u32) {
        if let Some(c) = self.connections.get_mut(&number) {
            c.life.reset_there(epoch);
        }
    }

    /// Lets go of lost connections whose slots are `unread`, handing the slots out. Returns those
    /// that the frontend is to be told of.
    pub fn collect(
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

    /// The session is over: nothing is granted any more, and NIC threads are to give up what they
    /// have.
    pub fn end(&mut self) {
        self.over = true;
        self.keys.clear();
        for c in self.connections.values_mut() {
            c.life.session_over();
        }
    }

    /// How many connections are still made or have their slots in use.
    pub fn busy(&self) -> usize {
        let busy = |c: &&Connection<S>| c.slots.is_some() || c.life.is_held();
        self.connections.values().filter(busy).count()
    }

    /// Lost ones that this end has not let go of.
    pub fn quarantined(&self) -> bool {
        self.connections.values().any(|c| c.life.is_letting_go())
    }

    /// Keys that are out.
    pub fn awaited(&self) -> usize {
        self.keys.len()
    }

    /// All slots in use.
    pub fn slots(&self) -> impl Iterator<Item = &S> {
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
