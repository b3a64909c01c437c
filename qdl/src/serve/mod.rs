//! The accelerator's face of the library: take arrivals, give back responses.

mod arrival;

pub use arrival::{Arrival, Finished, Origin, Service, respond_all};
