//! Atomics and locks, from `std` or, under `--cfg qdl_loom`, from loom, which then explores every
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
