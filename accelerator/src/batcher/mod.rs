//! Which samples run together, and when.
//!
//! The rules, for a worker that is free:
//!
//! 1. Enough samples pending, `max_batch`: run that many, now.
//! 2. No other worker is busy (the engine is idle): run what is pending, now.
//! 3. Otherwise the oldest sample may wait for company until it is `max_delay` old; then run what
//!    is pending.
//!
//! Where samples have a time at which their answers are due, the wait of rule 3 ends before the
//! oldest would miss it, by what batches of that size have taken. Where the engine runs listed
//! sizes, a batch is the largest of them that can be filled; what is left over, the youngest,
//! begins the next. If that size is less than half of what is pending, the batch takes all of it,
//! and the engine pads it to the next size.
//!
//! With `begin_apart`, a batch begins at least that long after the one before it, unless the engine
//! is idle. Batches that begin together on a GPU run the same layers at the same time, and compete
//! first for memory and then for arithmetic. `docs/gpu.md` has measurements.
//!
//! Samples leave in the order of their arrival. A plain data structure: no thread, no clock, no
//! engine.

mod estimates;
mod rules;

pub use rules::{Batcher, Policy, Step};
