//! Decides which samples run together, and when.
//!
//! The rules for a free worker:
//!
//! 1. `max_batch` samples are pending: run that many, now.
//! 2. No other worker is busy (the engine is idle): run the pending samples, now.
//! 3. Otherwise wait until the oldest sample is `max_delay` old; then run the pending samples.
//!
//! Where answers have a due time, rule 3 waits less: the batch begins early enough for the oldest
//! sample, by the estimated time of a batch of that size. Where the engine runs listed sizes, a
//! batch has the largest listed size that pending samples fill; the youngest samples wait. If that
//! size is less than half of the pending samples, the batch takes all, and the engine pads it to
//! the next size.
//!
//! With `begin_apart`, a batch begins at least that long after the previous one, unless the engine
//! is idle. Batches that begin together on a GPU run the same layers at the same time, and compete
//! first for memory and then for arithmetic. `docs/gpu.md` has measurements.
//!
//! Samples leave in the order of their arrival. The batcher is a plain data structure: no thread,
//! no clock, no engine.

mod estimates;
mod rules;

pub use rules::{BatchDecision, Batcher, Policy};
