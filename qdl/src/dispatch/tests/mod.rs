//! What the simulated world (crate `world`) cannot say of the dispatcher: which thread posts, exact
//! counts and times, refusals of faulty accelerators, and warm-up.

mod by_health;
mod front;
mod kept;
mod parts;
mod posting;
mod refused;
mod rig;
mod slots;
mod warm_up;

use super::*;
use crate::{connection::CrewPlan, rails::Policy};
use fabric::{Region, clock::now_ns};
use std::sync::MutexGuard;
