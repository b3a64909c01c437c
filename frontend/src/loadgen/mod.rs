//! LoadGen's side: what it calls, what it is told, and how answers are counted for it.

pub mod completer;
pub mod exit;
pub mod meter;
pub mod phases;
pub mod qsl;
pub mod tokens;
pub mod verify;
