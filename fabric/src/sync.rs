//! Atomics and locks from `std`. With the feature `loom` they come from loom, which explores every
//! interleaving of the structures built on them.

#[cfg(not(feature = "loom"))]
pub use std::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};

#[cfg(feature = "loom")]
pub use loom::sync::{
    Mutex,
    atomic::{AtomicBool, AtomicU32, AtomicU64, Ordering, fence},
};
