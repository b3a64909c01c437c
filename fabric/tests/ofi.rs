//! The fabric `ofi` on the system's libfabric: the conformance suite over every provider that a
//! machine without such NICs has, the order of arrivals taken away, and faults.
//!
//! Without libfabric, or without a provider, each test says so and passes.
#![cfg(not(qdl_loom))]

#[path = "ofi/faults.rs"]
mod faults;
#[path = "ofi/late.rs"]
mod late;
#[path = "ofi/rig.rs"]
mod rig;

use rig::Provider;

mod tcp_rxm {
    fabric::fabric_conformance!(super::super::Provider::new("tcp;ofi_rxm"));
}

mod net {
    fabric::fabric_conformance!(super::super::Provider::new("net"));
}

mod sockets {
    fabric::fabric_conformance!(super::super::Provider::new("sockets"));
}

/// Whatever order a network may choose.
mod any_order {
    fabric::fabric_conformance!(super::super::Provider::shuffled("tcp;ofi_rxm", 0x5eed));
}
