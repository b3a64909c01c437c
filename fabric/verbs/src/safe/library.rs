//! Loads libibverbs and opens its devices.

use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use libloading::Library;

use super::context::Context;
use crate::error::{Error, last_errno};
use crate::raw;

/// File name of libibverbs in every distribution.
const LIBRARY: &str = "libibverbs.so.1";

/// The loaded libibverbs.
pub struct Verbs {
    api: raw::Api,
    /// Never unloaded: libibverbs has loaded providers, which do not support unloading.
    _library: Option<ManuallyDrop<Library>>,
}

impl Verbs {
    /// Loads the system's libibverbs.
    ///
    /// # Errors
    ///
    /// [`Error::NoLibrary`] if it is not installed; [`Error::MissingSymbol`] if the file is not
    /// libibverbs.
    pub fn load() -> Result<Arc<Self>, Error> {
        Self::load_from(LIBRARY)
    }

    /// Loads libibverbs from `file`.
    ///
    /// # Errors
    ///
    /// The errors of [`Verbs::load`].
    pub fn load_from(file: &str) -> Result<Arc<Self>, Error> {
        // SAFETY: loading runs initialisers; those of libibverbs set up its own tables.
        let library = unsafe { Library::new(file) }.map_err(|error| Error::NoLibrary {
            detail: error.to_string(),
        })?;
        let library = ManuallyDrop::new(library);
        // SAFETY: a library with all these symbols has libibverbs' ABI; it is never unloaded.
        let api = unsafe { raw::Api::from_library(&library, file) }?;
        Ok(Arc::new(Self {
            api,
            _library: Some(library),
        }))
    }

    /// Uses `api` as the table of functions instead of a loaded library.
    ///
    /// # Safety
    ///
    /// The functions must fulfil libibverbs' contract, also under calls from several threads.
    #[must_use]
    pub unsafe fn from_api(api: raw::Api) -> Arc<Self> {
        Arc::new(Self {
            api,
            _library: None,
        })
    }

    /// The table of functions.
    #[must_use]
    pub fn api(&self) -> &raw::Api {
        &self.api
    }

    /// Names of the machine's RDMA devices, such as `mlx5_0`.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] if there are none.
    pub fn devices(&self) -> Result<Vec<String>, Error> {
        self.with_devices(|devices| devices.iter().map(|(_, name)| name.clone()).collect())
    }

    /// Opens the device `name`. Pin the thread to the device's NUMA node first: libibverbs
    /// allocates on the node of the calling thread.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`], [`Error::UnknownDevice`], or [`Error::Verb`] of opening the device or
    /// querying its limits.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<Arc<Context>, Error> {
        self.with_devices(|devices| {
            let Some((device, _)) = devices.iter().find(|(_, other)| other == name) else {
                return Err(Error::UnknownDevice {
                    name: name.to_owned(),
                    present: devices.iter().map(|(_, other)| other.clone()).collect(),
                });
            };
            // SAFETY: `device` belongs to a list that is freed only after `work`.
            let raw = unsafe { (self.api.open_device)(device.as_ptr()) };
            let raw = NonNull::new(raw).ok_or_else(|| {
                Error::verb_errno("ibv_open_device", || format!("opening {name}"))
            })?;
            // SAFETY: `open_device` has just returned `raw`, which has no other owner.
            unsafe { Context::adopt(Arc::clone(self), raw, name.to_owned()) }
        })?
    }

    /// Calls `work` with the machine's devices, at least one, and their names. The pointers are
    /// valid until `work` returns.
    fn with_devices<R>(
        &self,
        work: impl FnOnce(&[(NonNull<raw::ibv_device>, String)]) -> R,
    ) -> Result<R, Error> {
        let mut count = 0;
        // SAFETY: `count` is writable.
        let list = unsafe { (self.api.get_device_list)(&raw mut count) };
        if list.is_null() {
            let errno = last_errno();
            return Err(Error::NoDevice { errno });
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: a non-null list holds `count` pointers, none of them null.
        let devices = unsafe { slice::from_raw_parts(list.cast::<NonNull<_>>(), count) };
        let named = devices.iter().map(|&device: &NonNull<raw::ibv_device>| {
            // SAFETY: the list is not yet freed, and the name is an array inside the device.
            let name = unsafe { (*device.as_ptr()).name }.map(|char| char as u8);
            let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
            (device, name.to_string_lossy().into_owned())
        });
        let result = match count {
            0 => Err(Error::NoDevice { errno: 0 }),
            _ => Ok(work(&named.collect::<Vec<_>>())),
        };
        // SAFETY: `get_device_list` returned the list; it is freed once, after its last use.
        unsafe { (self.api.free_device_list)(list) };
        result
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_is_said_so() {
        let error = Verbs::load_from("libibverbs-is-not-here.so.1").err();
        assert!(matches!(error, Some(Error::NoLibrary { .. })), "{error:?}");
    }

    #[test]
    fn another_library_is_not_taken_for_libibverbs() {
        let error = Verbs::load_from("libc.so.6").err();
        assert!(
            matches!(error, Some(Error::MissingSymbol { .. })),
            "{error:?}"
        );
    }
}
