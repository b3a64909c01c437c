//! State of a connection, for the checks of a simulation.

use std::sync::atomic::Ordering;

use super::{Dispatcher, backlog::Backlog};

/// State of one connection at the frontend.
#[derive(Clone, Copy, Debug)]
pub struct Look {
    /// A link is attached.
    pub up: bool,
    /// Slots in use.
    pub in_flight: usize,
    /// Slots whose answer the peer owes.
    pub granted: usize,
    /// Slots that samples may use.
    pub allowance: usize,
    /// Samples given to the connection and not posted.
    pub ring: usize,
    /// The connection can post a sample now.
    pub takes: bool,
    /// The last flush left writes behind.
    pub blocked: bool,
    /// Samples in the backlog that the connection takes from now.
    pub backlog: u64,
    /// It waits until decode nodes have room.
    pub is_held_back: bool,
    /// Bytes of the prompts in flight, to a prefill node.
    pub prompts: u64,
    /// Slots that keep a handle for a decode node.
    pub handles: usize,
}

impl Dispatcher {
    /// State of a connection.
    pub fn look(&self, connection: usize) -> Look {
        let c = &self.shared.connections[connection];
        let slots = 0..c.cfgs.slots as u16;
        Look {
            up: c.up.load(Ordering::SeqCst),
            in_flight: c.tracker.in_flight(),
            granted: slots.filter(|s| c.window.grants().is_open(*s)).count(),
            allowance: c.tracker.allowance(),
            ring: c.ring.len(),
            takes: c.takes(),
            blocked: c.send.is_blocked(),
            backlog: match self.shared.is_held_back(c) {
                true => 0,
                false => self.shared.backlog(c).len(),
            },
            is_held_back: self.shared.is_held_back(c),
            prompts: c.prompts.load(Ordering::Relaxed),
            handles: self.shared.handles.on(connection),
        }
    }

    /// Samples that were cancelled before the loss of their connection.
    pub fn lost_cancelled(&self) -> u64 {
        self.shared.ends.lost_cancelled.load(Ordering::Relaxed)
    }

    /// How often the sample with this id has lost its connection, if it is in flight. Call it while
    /// no other thread posts.
    pub fn losses_in_flight(&self, id: u64) -> Option<u16> {
        self.shared.connections.iter().find_map(|c| {
            let (imm, _) = c.tracker.granted().find(|(_, of)| *of == id)?;
            Some(c.tracker.arrived(imm.slot())?.history.tries.losses)
        })
    }

    /// Bytes on their way to a peer by the books of a policy by health.
    pub fn assigned_bytes(&self, peer: usize) -> u64 {
        let rails = self.rail_report(peer);
        rails.iter().map(|rail| rail.assigned_bytes).sum()
    }

    /// Samples that wait for a free slot of any connection.
    pub fn backlog(&self) -> u64 {
        self.shared.backlogs.iter().map(Backlog::len).sum()
    }
}
