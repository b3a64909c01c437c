//! The conformance suite over each fabric, and the counters and faults of each.
#![cfg(not(feature = "loom"))]

#[macro_use]
mod conformance;

mod ib;
mod loopback;
mod ofi;

#[path = "../../examples/two_ends.rs"]
mod two_ends;

#[test]
fn the_example_runs_to_its_end() -> Result<(), Box<dyn std::error::Error>> {
    two_ends::main()
}
