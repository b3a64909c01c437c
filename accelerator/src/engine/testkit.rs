//! Samples and processes for the tests of engines; the tests of the programs use the same files.

#[allow(dead_code, reason = "the tests of the node use more of it")]
#[path = "../../tests/common/processes.rs"]
pub mod processes;
#[allow(dead_code, reason = "the tests of the pipeline use more of it")]
#[path = "../../tests/common/samples.rs"]
pub mod samples;

use super::{
    Engine, EngineError, Sequence, Streaming,
    streaming::{SequenceOutcome, SequenceSource},
};
