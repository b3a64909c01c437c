//! Which connection takes the next sample: [`Arbiter`] by what is outstanding, [`RailArbiter`] by
//! the health of rails.

mod by_health;
mod outstanding;

pub use by_health::{ConnectionRail, RailArbiter, RailArbiterCfgs};
pub use outstanding::{Arbiter, Load};
