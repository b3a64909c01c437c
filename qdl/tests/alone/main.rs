//! Tests that count what the whole process holds, one at a time: an allocator that counts, threads,
//! descriptors and queue pairs.
#![cfg(not(feature = "loom"))]

mod allocations;
#[path = "../it/harness.rs"]
#[allow(dead_code, reason = "the other binary uses the rest")]
mod harness;
mod leftovers;

use std::sync::{Mutex, MutexGuard};

use fabric::{os::lock, testkit::counting::Counting};

#[global_allocator]
static ALLOCATOR: Counting = Counting;

/// Held by each test, since they share a process without `cargo nextest`.
fn alone() -> MutexGuard<'static, ()> {
    static ALONE: Mutex<()> = Mutex::new(());
    lock(&ALONE)
}
