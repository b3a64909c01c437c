//! Searches for the highest rate at which runs are VALID, and for the settings that reach it.
//!
//! The crate starts no run, reads no file and reads no clock: a [`TrialRunner`] runs each trial,
//! and the trial's [`TrialRecord`] contains its cost. So a journal of trials can resume a session,
//! and tests run sessions on simulated systems.
//!
//! | module | content |
//! | --- | --- |
//! | [`highest`] | the search: a bracket, then bisection |
//! | `sprt` | the sequential test of the trials at one rate |
//! | `system` | a trial's setting and its record |
//! | `session` | a session: the search, the values of each key in turn, the full run |

pub mod highest;
mod session;
mod sprt;
mod system;

pub use session::{Knob, RateKind, Session, SessionPlan};
pub use system::{FinishedTrial, Halt, TrialLimit, TrialRecord, TrialRunner, TrialSetting};
