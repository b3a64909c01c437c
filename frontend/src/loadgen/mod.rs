//! The side towards LoadGen: its sample library, its completions and phases, and the exit codes.

pub mod completer;
pub mod exit;
pub mod meter;
pub mod phases;
pub mod qsl;
pub mod tokens;
pub mod verify;
