//! The declarations of libfabric against its headers, and what `Ofi::find` says.
#![allow(clippy::expect_used)]

#[path = "../../../verbs/tests/c_layout/mod.rs"]
mod c_layout;
mod find;
mod layout;
