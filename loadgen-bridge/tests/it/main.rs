//! Runs of LoadGen: complete ones, stopped ones, and their plans.
#![allow(clippy::unwrap_used, reason = "a test that fails may panic")]

#[macro_use]
mod common;

mod plan;
mod runs;
mod stopped;
