//! Files that are whole or absent, folders with one writer, and temporary files that go with the
//! process.
//!
//! * [`write`] replaces a file at once, when its content is on the disk
//! * [`FolderLock`] keeps a second process out of a folder
//! * [`Temporary`] is a path that a drop removes, or [`sweep`] at an end without drops

mod file;
mod lock;
mod temporary;

pub use file::{words, write};
pub use lock::FolderLock;
pub use temporary::{Temporary, sweep};
