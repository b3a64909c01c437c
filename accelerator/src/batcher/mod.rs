//! Which samples run together, and when.
//!
//! The rules, for a worker that is free:
//!
//! 1. `max_batch` samples pending: run that many, now.
//! 2. No other worker is busy (the engine is idle): run what is pending, now.
//! 3. Otherwise the oldest sample may wait for company until it is `max_delay` old; then run what is pending.
//!
//! Samples leave in the order of their arrival. A plain data structure: no thread, no clock, no engine.

mod rules;

pub use rules::{Batcher, Policy, Step};
