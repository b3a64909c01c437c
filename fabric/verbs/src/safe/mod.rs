//! The safe layer: libibverbs' objects as Rust values.
//!
//! ```text
//! Verbs -- Context -- Pd -- Mr -- (the memory's owner)
//!             |       '---- Qp<Reset> -> Qp<Init> -> Qp<Rtr> -> Qp<Rts>
//!             |---- CompChannel -- Cq
//!             '---- async events
//! ```
//!
//! Each object holds an `Arc` of the objects that it depends on, so none is destroyed while in use.
//! If a destroy call fails, the object and its dependencies leak; no pointer dangles. The control
//! path returns an [`Error`](crate::Error) with text. The hot path returns a
//! [`PostError`](crate::PostError) or [`CqError`](crate::CqError): numbers, formatted only on
//! display.

mod chain;
mod context;
mod cq;
mod event;
mod gid;
mod library;
mod mr;
mod port;
mod qp;
mod qp_attr;
mod wc;

pub use chain::{Payload, PushError, RecvChain, SendChain, Write};
pub use context::{Context, DeviceLimits};
pub use cq::{CompChannel, Cq, Notify};
pub use event::AsyncEvent;
pub use gid::{GidEntry, GidType};
pub use library::Verbs;
pub use mr::{Access, LocalSlice, Memory, Mr, Pd, RemoteRegion, RemoteSlice};
pub use port::{LinkLayer, Mtu, PortAttr, PortState};
pub use qp::{Init, Qp, Receiving, Reset, Rtr, Rts, State};
pub use qp_attr::{Path, QpCaps, RtrAttr, RtsAttr};
pub use wc::{Wc, WcStatus};

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
