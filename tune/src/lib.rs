//! The highest rate at which runs are VALID, and the settings for it.
//!
//! Nothing here starts a run, reads a file or looks at a clock: a [`System`] runs each trial, and
//! its [`Record`] has the trial's cost. So a session continues from its journal, and tests run it
//! on systems of known truth. [`highest`] alone serves programs that compare rates by verdicts.
//!
//! | module | content |
//! | --- | --- |
//! | [`highest`] | the search: a bracket, then bisection |
//! | [`sprt`] | the sequential test of the trials at one rate |
//! | [`system`] | a trial's setting and its record |
//! | [`session`] | the search, each key's values in turn, the full run |
//! | [`page`] | the result as Markdown |

pub mod highest;
pub mod page;
pub mod session;
pub mod sprt;
pub mod system;

pub use session::{Kind, Knob, Plan, Session};
pub use system::{Halt, Limit, Record, Setting, System, Trial};
