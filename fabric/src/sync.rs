//! Atomics and locks of the state that several threads share, from one of two backends:
//!
//! | feature | backend | explores |
//! | --- | --- | --- |
//! | none | `std` | nothing: programs, and tests with real threads |
//! | `loom` | loom | every order of a few steps, and every value that a load may return |
//!
//! Under loom run the tests named `loom_`: one structure each, with two or three threads.

#[cfg(not(feature = "loom"))]
pub use std::sync as backend;

#[cfg(feature = "loom")]
pub use loom::sync as backend;

pub use backend::{
    Condvar, Mutex, MutexGuard,
    atomic::{AtomicBool, AtomicU8, AtomicU32, AtomicU64, AtomicUsize, Ordering, fence},
};

/// Orders `SeqCst` accesses under loom, which models them as weaker than they are. Nothing
/// elsewhere.
pub fn loom_fence() {
    #[cfg(feature = "loom")]
    fence(Ordering::SeqCst);
}
