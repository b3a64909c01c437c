//! State of one connection between two nodes, as the world sees it: its current epoch.

use fabric::testkit::{dice::Dice, sim::PathCfgs};

use crate::plan::Shape;

/// One connection.
pub struct Seen {
    /// The current epoch; 0 before the first one.
    pub epoch: u32,
    /// The frontend's outgoing pipe of the fabric.
    pub pipe: usize,
    /// Whether the frontend, and the accelerator, have reported the epoch lost.
    pub is_lost: [bool; 2],
    /// Time of the first of these losses.
    pub lost_at: u64,
    /// Frames vanish, and not both ends learn of it.
    pub is_faulty: bool,
    /// One end was asked to give the epoch up.
    pub is_doomed: bool,
    pub dice: Dice,
}

impl Seen {
    /// A connection without an epoch.
    pub fn new(seed: u64, connection: usize) -> Self {
        Seen {
            epoch: 0,
            pipe: 0,
            is_lost: [false; 2],
            lost_at: 0,
            is_faulty: false,
            is_doomed: false,
            dice: Dice::of(seed, &[30, connection as u64]),
        }
    }

    /// Whether the accelerator has the epoch.
    pub fn is_at_accelerator(&self) -> bool {
        self.epoch > 0 && !self.is_lost[1]
    }
}

/// Path of a connection in direction 0, from the frontend, or 1. Each epoch has its own speed.
pub fn path(seed: u64, shape: &Shape, names: [u64; 3], direction: u64) -> (PathCfgs, Dice) {
    let [server, connection, epoch] = names;
    let mut dice = Dice::of(seed, &[31, server, connection, epoch, direction]);
    let path = PathCfgs {
        delay_ns: dice.from_to(shape.delay_ns / 4, shape.delay_ns * 3),
        jitter_ns: shape.jitter_ns,
        capacity: shape.capacity as usize,
        partial: shape.partial,
        room_by_landing: shape.landing > 0,
        linger_ns: shape.linger_us * 1_000,
    };
    (path, dice)
}
