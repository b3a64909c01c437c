//! A gateway beside MLPerf Endpoints' client: its result, and the way to it.

pub mod baseline;
mod client;
pub mod compare;
