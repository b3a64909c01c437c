//! Clusters and nodes over real sockets and queue pairs, in one process.
#![cfg(not(feature = "loom"))]

mod cluster;
mod fake;
mod handshake_flood;
mod harness;
mod ib_cluster;
mod ib_gpudirect;
mod wire;
