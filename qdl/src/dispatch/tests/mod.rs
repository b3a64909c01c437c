//! Dispatcher and server together, over the in-memory fabric and over sockets: every sample is
//! answered exactly once with its own response, whatever happens to the connections.
//!
//! * `rig`: both ends, and a book that records each sample's fate.
//! * `everything`: every issued sample comes back, over every fabric and in any bursts.
//! * `sending`: failures that a posting thread finds and the NIC thread must learn.
//! * `posting`: the thread that posts a sample.
//! * `losses`: connections that are cut, silent or given up.
//! * `attaching`: connections that attach while others carry samples.
//! * `backlog`: reasons why samples wait or are left to other threads.
//! * `slots`: number of slots in use.
//! * `halves`: number of events that one poll takes.
//! * `crews`: NICs that share a thread, and a NIC on several threads.
//! * `by_health`: the same guarantees under policies by health.
//! * `parts`: answers in parts, write by write.
//! * `streamed`: answers in parts through a server, while there is no room.
//! * `warm_up`: samples before the first.
//! * `closing`: connections that say goodbye beside others.
//! * `refused`: samples that an accelerator refuses.
//! * `hostile`: a frontend that breaks the protocol.
//! * `tampered`: links that misbehave.

mod attaching;
mod backlog;
mod by_health;
mod closing;
mod crews;
mod everything;
mod halves;
mod hostile;
mod losses;
mod parts;
mod posting;
mod refused;
mod rig;
mod sending;
mod slots;
mod streamed;
mod tampered;
mod warm_up;

use super::*;
use crate::{
    connection::CrewPlan,
    rails::Policy,
    testkit::{eventually, eventually_or},
};
