//! The in-memory fabric: two ends in one process, with descriptors to sleep on. It is [`sim`] with
//! real threads, where everything that is due happens at once. [`MemoryFaults`] cuts the
//! connection.
//!
//! [`sim`]: super::sim

use super::{
    dice::Dice,
    sim::{PathCfgs, Sim},
};
use crate::{Endpoint, Link};

/// Handle that cuts a pair of memory links.
#[derive(Clone)]
pub struct MemoryFaults(Sim);

impl MemoryFaults {
    /// Breaks both ends. Bytes that were flushed before still arrive.
    pub fn cut(&self) {
        self.0.cut(0, 0, [false; 2]);
    }
}

/// Joins two endpoints.
///
/// # Errors
/// The kernel has no descriptor left.
pub fn pair(a: Endpoint, b: Endpoint) -> std::io::Result<(Link, Link, MemoryFaults)> {
    let path = PathCfgs {
        delay_ns: 0,
        jitter_ns: 0,
        capacity: usize::MAX,
        partial: 0,
        room_by_landing: false,
        linger_ns: 0,
    };
    let sim = Sim::at_once()?;
    let paths = [0, 1].map(|n| (path, Dice::of(n, &[])));
    let (a, b, _) = sim.pair(a, b, paths);
    Ok((a, b, MemoryFaults(sim)))
}
