//! The commands of the programs: `qdl submit`, and `describe` of both.

mod describe;
mod submit;

pub use describe::{AskAll, DescribeArgs, Told, describe};
pub use submit::{SubmitArgs, submit};

use crate::Error;

/// How a command ended.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Outcome {
    /// All is well.
    Good,
    /// It did its work, and something is wrong with what it looked at.
    Findings,
    /// Its usage was wrong, or it could not do its work.
    Setup,
}

/// Says what went wrong with a command.
fn say(result: Result<Outcome, Error>) -> Outcome {
    result.unwrap_or_else(|error| {
        eprintln!("error: {error}");
        Outcome::Setup
    })
}
