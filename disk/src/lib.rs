//! Files that are whole or absent ([`write()`]), folders with one writer ([`FolderLock`]), and
//! temporary files that go with the process ([`Temporary`]). [`folders`] and [`files`] list a
//! folder.

mod file;
mod list;
mod lock;
mod temporary;

pub use file::{cannot_write, words, write, write_below};
pub use list::{files, folders};
pub use lock::FolderLock;
pub use temporary::{Temporary, sweep};
