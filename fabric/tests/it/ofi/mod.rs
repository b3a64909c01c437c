//! The `ofi` fabric on the system's libfabric: conformance suite, reordered arrivals, and faults.
//! It covers every provider that works on a machine without special NICs; `cargo xtask soft-roce`
//! adds `verbs;ofi_rxm` (`docs/ofi.md`, *Over queue pairs*).
//!
//! Without libfabric or the provider, a test is skipped.

mod faults;
mod late;
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

/// Over two RDMA devices with the addresses 10.9.1.1 and 10.9.1.2.
mod verbs {
    use super::{Provider, late};

    const VERBS: Provider = Provider::between("verbs;ofi_rxm", ["10.9.1.1", "10.9.1.2"]);

    fabric_conformance!(
        #[ignore = "needs RDMA devices: cargo xtask soft-roce"]
        super::VERBS
    );

    #[test]
    #[ignore = "needs RDMA devices: cargo xtask soft-roce"]
    fn nothing_of_a_peer_that_was_given_up_lands_over_verbs() {
        late::a_late_writer(VERBS, 8 << 20, 11);
    }
}
