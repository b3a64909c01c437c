//! One monotonic clock for all threads. State machines without I/O receive its readings as
//! arguments.

#[cfg(feature = "testkit")]
pub mod by_hand;

use std::{sync::OnceLock, time::Instant};

#[cfg(feature = "testkit")]
pub use by_hand::now_ns;
#[cfg(not(feature = "testkit"))]
pub use system_ns as now_ns;

/// Nanoseconds since the first call in this process, from `CLOCK_MONOTONIC`.
///
/// Only differences within one process are meaningful; nodes never compare their clocks.
pub fn system_ns() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let origin = *ORIGIN.get_or_init(Instant::now);
    // 2^64 ns are 584 years.
    Instant::now().duration_since(origin).as_nanos() as u64
}

/// Converts nanoseconds to microseconds, saturating at `u32::MAX` (71 minutes), a response's limit.
pub fn micros(ns: u64) -> u32 {
    u32::try_from(ns / 1_000).unwrap_or(u32::MAX)
}
