//! The part of the stable libfabric ABI that this project uses.
//!
//! Nothing is linked: `Ofi::load` opens `libfabric.so.1` at run time and fills a table of
//! functions. Names are those of `rdma/fabric.h` and its companions. `tests/it/layout.rs` compares
//! sizes, offsets and constants with the headers if libfabric-dev is installed. Unused functions of
//! a table are declared as plain words, and each table ends with its last used function.
//!
//! * `types` - structures and tables of functions
//! * `consts` - enumerators and flags
//! * `api` - the exported functions
#![allow(non_camel_case_types, missing_docs)]

/// Calls a function of an object's table; returns `-ENOSYS` if the table lacks it.
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
