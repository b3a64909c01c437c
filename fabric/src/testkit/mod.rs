//! Fabrics and memory for tests without hardware, and the conformance suite of every fabric. The
//! feature `testkit` enables them, so that no program contains them.
//!
//! | module | contents |
//! | --- | --- |
//! | [`conformance`] | the contract as tests, for any fabric |
//! | [`counting`] | an allocator that counts what is asked of it |
//! | [`memory`] | a fabric inside the process, which can be cut |
//! | [`device_memory`] | a GPU's memory without a GPU |
//!
//! The crate `verbs` has RDMA devices without a NIC: its feature `stub`.

pub mod conformance;
pub mod counting;
pub mod device_memory;
pub mod memory;
