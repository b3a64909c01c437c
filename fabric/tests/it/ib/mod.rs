//! The `ib` fabric over the in-process provider: conformance suite, counters and faults.
//!
//! With two devices in `QDL_RDMA_DEVICES`, such as `rxa,rxb`, over the real libibverbs and a
//! kernel driver, with `--test-threads=1 --skip ib::stub::`. `cargo xtask soft-roce` runs that in
//! a guest.

mod cable;
mod cases;
mod rig;
mod soft_roce;
mod stub;

use rig::Ib;

fabric_conformance!(super::Ib(|_| {}));

mod split {
    fabric_conformance!(super::super::Ib(
        |keys| keys.adaptive_routing.split_above = Some(100)
    ));
}
