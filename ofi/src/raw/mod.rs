//! The part of the stable libfabric ABI that this project uses, in its own words.
//!
//! Nothing here is linked: `Ofi::load` opens `libfabric.so.1` at run time and fills a table of
//! functions. Names are those of `rdma/fabric.h` and its companions, so that they can be looked up
//! there; `tests/layout.rs` compares sizes, offsets and constants with the real headers where
//! libfabric-dev is installed. Functions of a table that this project does not call are declared as
//! plain words, and tables end with the last one that it does.
//!
//! * `types` - structures and tables of functions
//! * `consts` - enumerators and flags
//! * `api` - the exported functions
#![allow(non_camel_case_types, missing_docs)]

/// Calls a function of an object's table, or returns `-ENOSYS` where it has none.
macro_rules! call {
    ($table:expr, $name:ident($($argument:expr),* $(,)?)) => {
        match $table.as_ref().and_then(|table| table.$name) {
            Some(function) => function($($argument),*),
            None => (-libc::ENOSYS) as _,
        }
    };
}

mod api;
mod consts;
mod types;

pub(crate) use call;

pub use api::*;
pub use consts::*;
pub use types::*;
