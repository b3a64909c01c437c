//! What tests stand on in place of hardware, and the suite that every fabric is put through. Behind
//! the feature `testkit`, so that no program carries it.
//!
//! | module | contents |
//! | --- | --- |
//! | [`conformance`] | the contract as tests, for any fabric |
//! | [`counting`] | an allocator that counts what is asked of it |
//! | [`memory`] | a fabric inside the process, which can be cut |
//! | [`device_memory`] | a GPU's memory without a GPU |
//!
//! RDMA devices without a NIC are `verbs`' own: its feature `stub`.

pub mod conformance;
pub mod counting;
pub mod device_memory;
pub mod memory;
