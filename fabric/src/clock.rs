//! One monotonic clock for the shells; the core is handed its readings.

use std::{sync::OnceLock, time::Instant};

/// Nanoseconds since the first call in this process, from `CLOCK_MONOTONIC`.
///
/// Only differences mean anything, and only within one process: two nodes' clocks are never
/// compared.
pub fn now_ns() -> u64 {
    static ORIGIN: OnceLock<Instant> = OnceLock::new();
    let origin = *ORIGIN.get_or_init(Instant::now);
    // 2^64 ns are 584 years.
    Instant::now().duration_since(origin).as_nanos() as u64
}

/// Nanoseconds to microseconds, at most what a response can carry (71 minutes).
pub fn micros(ns: u64) -> u32 {
    u32::try_from(ns / 1_000).unwrap_or(u32::MAX)
}
