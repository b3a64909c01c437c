//! Flags and enumerators, under the names of the headers.

use std::ffi::c_int;

/// Defines the constants, and lists them for a comparison with the headers.
macro_rules! constants {
    ($($name:ident: $type:ty = $value:expr;)*) => {
        $(pub const $name: $type = $value;)*

        /// Every constant above, by name.
        pub const CONSTANTS: &[(&str, u64)] = &[$((stringify!($name), $name as u64),)*];
    };
}

constants! {
    FI_MSG: u64 = 1 << 1;
    FI_RMA: u64 = 1 << 2;
    FI_WRITE: u64 = 1 << 9;
    FI_RECV: u64 = 1 << 10;
    FI_TRANSMIT: u64 = 1 << 11;
    FI_REMOTE_WRITE: u64 = 1 << 13;
    FI_REMOTE_CQ_DATA: u64 = 1 << 17;
    FI_COMPLETION: u64 = 1 << 24;
    FI_SOURCE: u64 = 1 << 57;

    FI_CONTEXT: u64 = 1 << 59;
    FI_RX_CQ_DATA: u64 = 1 << 56;
    FI_CONTEXT2: u64 = 1 << 52;

    FI_ORDER_WAW: u64 = 1 << 4;

    FI_MR_LOCAL: c_int = 1 << 2;
    FI_MR_RAW: c_int = 1 << 3;
    FI_MR_VIRT_ADDR: c_int = 1 << 4;
    FI_MR_ALLOCATED: c_int = 1 << 5;
    FI_MR_PROV_KEY: c_int = 1 << 6;
    FI_MR_ENDPOINT: c_int = 1 << 9;

    FI_EP_RDM: c_int = 3;
    FI_AV_MAP: c_int = 1;
    FI_AV_TABLE: c_int = 2;
    FI_THREAD_SAFE: c_int = 1;
    FI_CQ_FORMAT_DATA: c_int = 3;
    FI_WAIT_NONE: c_int = 0;
    FI_WAIT_FD: c_int = 3;
    FI_HMEM_SYSTEM: c_int = 0;

    FI_GETWAIT: c_int = 5;
    FI_ENABLE: c_int = 6;

    FI_EAVAIL: c_int = 259;
    FI_EOVERRUN: c_int = 268;
}

/// No address: accepts a message from any peer.
pub(crate) const FI_ADDR_UNSPEC: u64 = u64::MAX;

/// Returns the value of `fi_version` for this major and minor number.
#[must_use]
pub(crate) const fn version(major: u32, minor: u32) -> u32 {
    major << 16 | minor
}
