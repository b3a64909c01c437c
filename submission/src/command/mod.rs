//! The commands of the programs: `frontend submit`, and `describe` of both.

mod describe;
mod submit;

pub use describe::{AskAll, Told, describe};
pub use submit::submit;

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

/// Says what ended a command, or prints what clap has to say; `--help` is no error.
fn say(result: Result<Outcome, Said>) -> Outcome {
    match result {
        Ok(outcome) => outcome,
        Err(Said::Clap(error)) => {
            let help = !error.use_stderr();
            // Nobody may be reading any more.
            let _ = error.print();
            if help { Outcome::Good } else { Outcome::Setup }
        }
        Err(Said::Error(error)) => {
            eprintln!("error: {error}");
            Outcome::Setup
        }
    }
}

enum Said {
    Clap(clap::Error),
    Error(Error),
}

impl From<clap::Error> for Said {
    fn from(error: clap::Error) -> Self {
        Said::Clap(error)
    }
}

impl From<Error> for Said {
    fn from(error: Error) -> Self {
        Said::Error(error)
    }
}
