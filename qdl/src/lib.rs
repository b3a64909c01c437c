//! The Query Dispatch Library: what stands between LoadGen on a frontend node and the engines on the
//! accelerator nodes of an MLPerf Inference *Network division* system.
//!
//! The library has two faces and one body.
//!
//! * [`dispatch`] is the frontend's face: give it samples, it calls back with responses.
//! * [`serve`] is the accelerator's face: take arrivals, give back responses.
//! * Between them a [`fabric`] carries one-sided writes with a 32-bit immediate, and the
//!   [`control`] plane sets everything up, watches it, and takes it down.
//!
//! Everything that decides ([`connection::tracker`], [`rails`], [`quarantine`], heartbeats) is a
//! plain data
//! structure with the clock passed in; only the shells around it touch sockets and threads.
//!
//! The library knows no LoadGen and no GPU runtime.

pub mod clock;
pub mod config;
pub mod connection;
pub mod control;
pub mod dispatch;
pub mod fabric;
pub mod model;
pub mod os;
pub mod rail;
pub mod rails;
pub mod response;
pub mod serve;
pub mod session;
pub mod stats;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod topology;
pub mod wire;

mod sync;
