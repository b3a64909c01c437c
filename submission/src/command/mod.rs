//! The commands of the programs: `qdl submit`, and `describe` of both.

mod describe;
mod submit;

pub use describe::{AskAll, DescribeArgs, NodeAnswer, describe};
pub use submit::{SubmitArgs, submit};

use crate::Error;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// The command succeeded and found no defect.
    Good,
    /// The command did its work and found defects.
    Findings,
    /// The usage was wrong, or the command could not do its work.
    Setup,
}

/// Prints a command's error.
fn say(result: Result<Outcome, Error>) -> Outcome {
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        Outcome::Setup
    })
}
