//! Clusters and nodes over real sockets and queue pairs, in one process.
#![cfg(not(feature = "loom"))]

mod cluster;
mod fake;
mod handshake_flood;
mod harness;
mod ib_cluster;
mod ib_gpudirect;
mod wire;

#[path = "../../examples/cluster.rs"]
mod cluster_example;

#[test]
fn the_example_runs_to_its_end() -> Result<(), Box<dyn std::error::Error>> {
    cluster_example::main()
}
