//! The part of the stable libibverbs ABI that this project uses, in its own words.
//!
//! Nothing here is linked: `Api::load` opens `libibverbs.so.1` at run time and fills a table of
//! functions. Names are those of `infiniband/verbs.h`, so that they can be looked up there;
//! `tests/layout.rs` compares every size, offset and constant with the real header where
//! libibverbs-dev is installed.
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
