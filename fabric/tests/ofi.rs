//! Tests the `ofi` fabric on the system's libfabric: conformance suite, reordered arrivals, and
//! faults. It covers every provider that works on a machine without special NICs.
//!
//! Without libfabric or the provider, a test prints that it is skipped, and passes.
#![cfg(not(feature = "loom"))]

#[macro_use]
mod conformance;

#[path = "ofi/faults.rs"]
mod faults;
#[path = "ofi/late.rs"]
mod late;
#[path = "ofi/rig.rs"]
mod rig;

use rig::Provider;

mod tcp_rxm {
    fabric_conformance!(super::super::Provider::new("tcp;ofi_rxm"));
}

mod net {
    fabric_conformance!(super::super::Provider::new("net"));
}

mod sockets {
    fabric_conformance!(super::super::Provider::new("sockets"));
}

/// Arrivals in random order.
mod any_order {
    fabric_conformance!(super::super::Provider::shuffled("tcp;ofi_rxm", 0x5eed));
}
