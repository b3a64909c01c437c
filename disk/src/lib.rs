//! Files that are whole or absent ([`write()`]), folders with one writer ([`FolderLock`]), and
//! temporary files that go with the process ([`Temporary`]).

mod file;
mod lock;
mod temporary;

pub use file::{words, write};
pub use lock::FolderLock;
pub use temporary::{Temporary, sweep};
