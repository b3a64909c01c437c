//! The Query Dispatch Library: it connects LoadGen on a frontend node with the engines on the
//! accelerator nodes of an MLPerf Inference *Network division* system.
//!
//! The library has two sides.
//!
//! * [`dispatch`] is the frontend's side: it takes samples, and calls back with responses.
//! * [`serve`] is the accelerator's side: it takes arrivals, and sends responses back.
//! * Between them a [`fabric`] carries one-sided writes with a 32-bit immediate. The [`control`]
//!   plane sets connections up, monitors them, and takes them down.
//! * [`run`] connects these parts over the life of a run.
//!
//! [`connection::tracker`], [`rails`], a connection's life and the control core are plain data
//! structures that receive the clock's reading as an argument. Only the code around these uses
//! sockets and threads. `docs/architecture.md` describes the structure.
//!
//! The library depends on neither LoadGen nor a GPU runtime. `qdl/examples/cluster.rs` uses both
//! sides without a file of YAML.

#[macro_use(with_defaults)]
extern crate fabric;

#[macro_use]
pub mod config;
pub mod connection;
pub mod control;
pub mod counters;
pub mod dispatch;
pub mod model;
pub mod rails;
pub mod request;
pub mod response;
pub mod run;
pub mod serve;
#[cfg(feature = "testkit")]
pub mod testkit;
pub mod topology;
pub mod wire;
