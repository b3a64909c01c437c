//! What `ofi` and `verbs` share, each of which compiles this file: declarations of a C library's
//! structures and functions, and the library's loading.

use std::mem::ManuallyDrop;

use libloading::Library;

use crate::Error;

/// Declares structures of the ABI, each `repr(C)` with public fields. Lists their sizes and field
/// offsets as C expressions, for the comparison with the headers. Neighbouring unused fields of one
/// type are one array under the first field's name.
macro_rules! structures {
    (@$operator:ident $kind:ident $name:ident $(, $field:ident)?) => {
        concat!(
            stringify!($operator), "(", stringify!($kind), " ", stringify!($name),
            $(", ", stringify!($field),)? ")"
        )
    };
    ($($(#[$meta:meta])* $kind:ident $name:ident {
        $($(#[$field_meta:meta])* $field:ident: $type:ty,)*
    })*) => {
        $(
            $(#[$meta])*
            #[repr(C)]
            pub $kind $name {
                $($(#[$field_meta])* pub $field: $type,)*
            }
        )*

        /// C expressions of every structure above, with their values.
        pub const LAYOUTS: &[(&str, usize)] = &[$(
            (structures!(@sizeof $kind $name), size_of::<$name>()),
            (structures!(@_Alignof $kind $name), align_of::<$name>()),
            $((structures!(@offsetof $kind $name, $field), offset_of!($name, $field)),)*
        )*];
    };
}

/// Defines the table of a library's exported functions: required ones, then ones that older
/// libraries lack. `$usable` names the library in the error of a missing function.
macro_rules! api {
    (
        $usable:literal
        required { $($(#[$rdoc:meta])* $rname:ident : $rty:ty = $rsym:literal;)* }
        optional { $($(#[$odoc:meta])* $oname:ident : $oty:ty = $osym:literal;)* }
    ) => {
        /// The library's exported functions. An in-process provider can fill this table too.
        #[derive(Clone, Copy)]
        pub struct Api {
            $($(#[$rdoc])* pub $rname: $rty,)*
            $($(#[$odoc])* pub $oname: Option<$oty>,)*
        }

        impl Api {
            /// Looks up every function in `library`.
            ///
            /// # Errors
            /// [`Error::Refused`] if `library` lacks a required function.
            ///
            /// # Safety
            /// `library` must have the ABI of this table, and must stay loaded while the table is
            /// in use.
            pub(crate) unsafe fn from_library(
                library: &Library,
                file: &str,
            ) -> Result<Self, Error> {
                Ok(Self {
                    $(
                        $rname: {
                            // SAFETY: the caller guarantees the ABI, in which this symbol has this
                            // type.
                            let found = unsafe { library.get::<$rty>($rsym.as_bytes()) };
                            *found.map_err(|_| {
                                let what = concat!($rsym, ": this is not a ", $usable);
                                Error::Refused(format!("{file} has no function {what}"))
                            })?
                        },
                    )*
                    $(
                        $oname: {
                            // SAFETY: as for the required functions.
                            let found = unsafe { library.get::<$oty>($osym.as_bytes()) };
                            found.ok().map(|symbol| *symbol)
                        },
                    )*
                })
            }
        }
    };
}

/// Loads `file` for the rest of the process: neither library supports unloading.
///
/// # Errors
/// [`Error::NoLibrary`] if the library is not installed.
pub(crate) fn load(file: &str) -> Result<ManuallyDrop<Library>, Error> {
    // SAFETY: loading runs the library's initialisers; those of both libraries set up tables.
    let library = unsafe { Library::new(file) }.map_err(|error| Error::NoLibrary {
        detail: error.to_string(),
    })?;
    Ok(ManuallyDrop::new(library))
}
