//! Which samples run together, and when.
//!
//! The rules, for a worker that is free:
//!
//! 1. Enough samples pending, `max_batch` unless sizes differ: run that many, now.
//! 2. No other worker is busy (the engine is idle): run what is pending, now.
//! 3. Otherwise the oldest sample may wait for company until it is `max_delay` old; then run what
//!    is pending.
//!
//! Where samples have a time at which their answers are due, the wait of rule 3 ends before the
//! oldest would miss it, by what batches of that size have taken. Where the engine runs listed
//! sizes, a batch is the largest of them that can be filled; what is left over, the youngest,
//! begins the next.
//!
//! Sizes are measured ([`Profile`]). Where some size gets through clearly more samples in a time
//! than what is pending, a batch is cut to it, and so many samples are enough for a batch: nothing
//! is gained by waiting for more. That is how a queue that a hiccup left is got down soonest.
//!
//! And where the engine is quicker so, as warming up found, no batch begins before the one before
//! it has had its part of the engine ([`Apart`]); an idle engine is waited for by nobody.
//!
//! Samples leave in the order of their arrival. A plain data structure: no thread, no clock, no
//! engine.

mod apart;
mod estimates;
mod profile;
mod rules;

pub use apart::{Apart, Begun};
pub use estimates::Estimates;
pub use profile::Profile;
pub use rules::{Batcher, Policy, Step};
