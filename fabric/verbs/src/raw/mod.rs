//! The part of the stable libibverbs ABI that this project uses.
//!
//! Nothing is linked: `Api::from_library` fills a table with the functions of a library loaded at
//! run time. Names are those of `infiniband/verbs.h`. `tests/layout.rs` compares every size, offset
//! and constant with the header, where libibverbs-dev is installed.
//!
//! * `types` - structures and function types
//! * `consts` - enumerators and flags
//! * `api` - the table of exported functions
#![allow(non_camel_case_types, missing_docs)]

mod api;
mod consts;
mod types;

pub use api::*;
pub use consts::*;
pub use types::*;
