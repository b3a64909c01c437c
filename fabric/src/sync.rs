//! Atomics and locks from `std`. With `--cfg qdl_loom` they come from loom, which explores every
//! interleaving of the structures built on them.

#[cfg(not(qdl_loom))]
pub use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(qdl_loom)]
pub use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};
