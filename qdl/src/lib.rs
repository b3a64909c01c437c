//! The Query Dispatch Library: what stands between LoadGen on a frontend node and the engines on
//! the accelerator nodes of an MLPerf Inference *Network division* system.
//!
//! The library has two sides.
//!
//! * [`dispatch`] is the frontend's side: give it samples, it calls back with responses.
//! * [`serve`] is the accelerator's side: take arrivals, give back responses.
//! * Between them a [`fabric`] carries one-sided writes with a 32-bit immediate, and the
//!   [`control`] plane sets everything up, watches it, and takes it down.
//!
//! * [`run`] holds it together over the life of a run.
//!
//! Everything that decides ([`connection::tracker`], [`rails`], a connection's life, the control
//! core) is a plain data structure with the clock passed in; only the shells around it touch
//! sockets and threads. `docs/architecture.md` says where everything is.
//!
//! The library knows no LoadGen and no GPU runtime.

pub mod clock;
pub mod compression;
pub mod config;
pub mod connection;
pub mod control;
pub mod counters;
pub mod dispatch;
pub mod fabric;
pub mod model;
pub mod os;
pub mod rails;
pub mod response;
pub mod run;
pub mod serve;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod topology;
pub mod wire;

mod sync;
