//! Arbiters that choose the next sample's connection: [`Arbiter`] by samples outstanding,
//! [`RailArbiter`] by the rails' health.

mod by_health;
mod outstanding;

pub use by_health::{ConnectionRail, RailArbiter, RailArbiterCfgs};
pub use outstanding::{Arbiter, Load};
