//! The exported functions as a table. There are six; everything else is behind the objects.
//!
//! `dlsym` without a version returns a symbol's default version, which is the newest ABI: its
//! structures begin as those declared here.

use std::ffi::{c_char, c_int, c_void};

use libloading::Library;

use super::types::*;
use crate::Error;

/// Defines the table.
macro_rules! api {
    ($($(#[$doc:meta])* $name:ident : $type:ty = $symbol:literal;)*) => {
        /// libfabric's exported functions. A plain table: a provider inside the process can fill
        /// one as well.
        #[derive(Clone, Copy)]
        pub struct Api {
            $($(#[$doc])* pub $name: $type,)*
        }

        impl Api {
            /// Looks every function up in `library`.
            ///
            /// # Errors
            ///
            /// [`Error::MissingSymbol`] when the library lacks one: it is no libfabric.
            ///
            /// # Safety
            ///
            /// `library` must be libfabric (or speak its ABI), and must stay loaded for as long as
            /// the table is used.
            pub unsafe fn from_library(library: &Library, file: &str) -> Result<Self, Error> {
                Ok(Self {
                    $(
                        $name: {
                            // SAFETY: the caller promises libfabric's ABI, in which this symbol has
                            // this type.
                            let found = unsafe { library.get::<$type>($symbol.as_bytes()) };
                            *found.map_err(|_| Error::MissingSymbol {
                                symbol: $symbol,
                                library: file.to_owned(),
                            })?
                        },
                    )*
                })
            }
        }
    };
}

api! {
    version: unsafe extern "C" fn() -> u32 = "fi_version";
    getinfo: unsafe extern "C" fn(
        u32, *const c_char, *const c_char, u64, *const fi_info, *mut *mut fi_info) -> c_int
        = "fi_getinfo";
    freeinfo: unsafe extern "C" fn(*mut fi_info) = "fi_freeinfo";
    /// Of null: an empty one.
    dupinfo: unsafe extern "C" fn(*const fi_info) -> *mut fi_info = "fi_dupinfo";
    fabric: unsafe extern "C" fn(*mut fi_fabric_attr, *mut *mut fid_fabric, *mut c_void) -> c_int
        = "fi_fabric";
    /// A static text for an error number, never freed.
    strerror: unsafe extern "C" fn(c_int) -> *const c_char = "fi_strerror";
}
