//! Dispatcher against server, over the in-memory fabric and over sockets: every sample is answered
//! with its own response exactly once, whatever happens to the connections.
//!
//! * `rig`: both ends, and a book of what became of each sample.
//! * `everything`: what is issued comes back, by whatever way and in whatever bursts.
//! * `sending`: what whoever posts finds out, and the NIC thread must learn.
//! * `posting`: which thread posts a sample.
//! * `losses`: connections that are cut, fall silent or are given up.
//! * `attaching`: connections that come while others carry samples.
//! * `backlog`: why samples wait, or are left to others.
//! * `slots`: how many slots are in use.
//! * `halves`: how much of it one poll takes.
//! * `crews`: NICs that share a thread, and one on several.
//! * `by_health`: the same where rails are chosen by health.
//! * `parts`: answers in parts, write by write.
//! * `streamed`: the same through a server, in every mixture.
//! * `warm_up`: samples before the first.
//! * `closing`: connections that take their leave beside others.
//! * `refused`: samples that an accelerator does not answer.
//! * `hostile`: a frontend that does not keep to the protocol.
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
    connection::{CrewPlan, NicThreadCfgs},
    counters::ConnectionCounts,
    rails::Policy,
};
