//! Dispatcher and server together, over the in-memory fabric and over sockets: every sample is
//! answered exactly once with its own response, whatever happens to the connections.

mod attaching;
mod backlog;
mod by_health;
mod closing;
mod crews;
mod everything;
mod halves;
mod hostile;
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
