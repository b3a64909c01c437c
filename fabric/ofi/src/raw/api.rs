//! The table of exported functions. There are six; all others are in the objects' tables.
//!
//! `dlsym` without a version returns a symbol's default version, the newest ABI, whose structures
//! begin like those declared here.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

use super::types::*;
use crate::Error;

api! {
    "libfabric that can be used"
    required {
        version: unsafe extern "C" fn() -> u32 = "fi_version";
        getinfo: unsafe extern "C" fn(
            u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int
            = "fi_getinfo";
        freeinfo: unsafe extern "C" fn(*mut fi_info) = "fi_freeinfo";
        /// Copies an info; allocates an empty one from null.
        dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info = "fi_dupinfo";
        fabric: unsafe extern "C" fn(
            *mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int
            = "fi_fabric";
        /// Returns the static text of an error number; never freed.
        strerror: unsafe extern "C" fn(c_int) -> *const c_char = "fi_strerror";
    }
    optional {}
}
