//! Bindings to libibverbs, loaded at run time: libibverbs' objects as Rust values.
//!
//! A program with this crate links no RDMA library. The program starts on a machine without
//! libibverbs, and fails only when it opens a device.
//!
//! ```text
//! Verbs -- Context -- Pd -- Mr -- (the memory's owner)
//!             |       '---- Qp<Init> -> Qp<Rts>
//!             |---- CompChannel -- Cq
//!             '---- async events
//! ```
//!
//! Each object holds an `Arc` of the objects that it depends on, so none is destroyed while in use.
//! If a destroy call fails, the object and its dependencies leak; no pointer dangles. The control
//! path returns an [`Error`] with text. The hot path returns an [`OpError`]: numbers,
//! formatted only on display. Below is `raw`, the ABI: structures, constants and a table
//! of functions, named as in libibverbs.
//!
//! `stub` (behind the feature of that name) is an in-process provider: four devices whose queue
//! pairs copy with memcpy. Tests and software measurements use the stub in place of a NIC.
//!
//! # Safety
//!
//! A NIC writes into registered memory at any time, outside of any borrow. So [`Mr`] never returns
//! a Rust reference: it returns addresses, and slices of (address, length, key) for work requests.
//! The caller of [`Mr::register`] guarantees that the memory stays mapped while it is registered.

#[macro_use]
#[path = "../../abi.rs"]
mod abi;
mod chain;
mod cq;
mod device;
mod error;
mod event;
mod mr;
mod port;
mod qp;
pub mod raw;
#[cfg(any(test, feature = "stub"))]
pub mod stub;
mod wc;

pub use chain::{Payload, RecvChain, SendChain};
pub use cq::{CompChannel, Cq, Notify};
pub use device::{Context, DeviceLimits, Verbs};
pub use error::{Error, OpError};
pub use event::AsyncEvent;
pub use mr::{Access, LocalSlice, Mr, Pd, RemoteSlice};
pub use port::{GidEntry, Mtu, PortAttr, PortState};
pub use qp::{Connect, Init, Qp, QpCaps, Rts};
pub use wc::Wc;

/// Implements `Debug` as the type's name and the name of its device.
macro_rules! debug {
    ($($object:ty: $($device:ident).+;)*) => {$(
        impl std::fmt::Debug for $object {
            fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
                write!(f, concat!(stringify!($object), "({})"), self.$($device).+)
            }
        }
    )*};
}

debug! {
    Context: name;
    Pd: context.name;
    Cq: context.name;
    Mr: pd.context.name;
}
