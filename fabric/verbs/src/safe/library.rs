//! Finding libibverbs and its devices.

use std::ffi::CStr;
use std::mem::ManuallyDrop;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use libloading::Library;

use super::context::Context;
use crate::error::{Error, last_errno};
use crate::raw;

/// The name under which every distribution installs the library.
const LIBRARY: &str = "libibverbs.so.1";

/// libibverbs, opened.
pub struct Verbs {
    api: raw::Api,
    /// Never unloaded: it has loaded providers of its own, which are not made to be unloaded.
    _library: Option<ManuallyDrop<Library>>,
}

impl Verbs {
    /// Opens libibverbs.
    ///
    /// # Errors
    ///
    /// [`Error::NoLibrary`] when this machine has none, [`Error::MissingSymbol`] when what is there
    /// is something else.
    pub fn load() -> Result<Arc<Self>, Error> {
        Self::load_from(LIBRARY)
    }

    /// Opens libibverbs under another file name.
    ///
    /// # Errors
    ///
    /// As [`Verbs::load`].
    pub fn load_from(file: &str) -> Result<Arc<Self>, Error> {
        // SAFETY: loading runs the library's initialisers; libibverbs' only set up its own tables.
        let library = unsafe { Library::new(file) }.map_err(|error| Error::NoLibrary {
            detail: error.to_string(),
        })?;
        let library = ManuallyDrop::new(library);
        // SAFETY: the file goes by libibverbs' versioned name, and is never unloaded.
        let api = unsafe { raw::Api::from_library(&library, file) }?;
        Ok(Arc::new(Self {
            api,
            _library: Some(library),
        }))
    }

    /// Uses a table of functions other than the installed library's.
    ///
    /// # Safety
    ///
    /// The functions must keep libibverbs' contract, also when they are called from several
    /// threads.
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

    /// The names of the machine's RDMA devices, such as `mlx5_0`.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] when there are none.
    pub fn devices(&self) -> Result<Vec<String>, Error> {
        self.with_devices(|devices| devices.iter().map(|(_, name)| name.clone()).collect())
    }

    /// Opens the device called `name`. Pin the thread to the device's NUMA node first: the library
    /// allocates on the node that calls.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`], [`Error::UnknownDevice`], or what opening and asking for its limits
    /// gave.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<Arc<Context>, Error> {
        self.with_devices(|devices| {
            let Some((device, _)) = devices.iter().find(|(_, other)| other == name) else {
                return Err(Error::UnknownDevice {
                    name: name.to_owned(),
                    present: devices.iter().map(|(_, other)| other.clone()).collect(),
                });
            };
            // SAFETY: `device` is in a list that has not been freed yet.
            let raw = unsafe { (self.api.open_device)(device.as_ptr()) };
            let raw = NonNull::new(raw).ok_or_else(|| {
                Error::verb_errno("ibv_open_device", || format!("opening {name}"))
            })?;
            // SAFETY: just opened, by this library, and given to nobody else.
            unsafe { Context::adopt(Arc::clone(self), raw, name.to_owned()) }
        })?
    }

    /// Runs `work` on the machine's devices, of which there is at least one, and their names. They
    /// are valid until it returns.
    fn with_devices<R>(
        &self,
        work: impl FnOnce(&[(NonNull<raw::ibv_device>, String)]) -> R,
    ) -> Result<R, Error> {
        let mut count = 0;
        // SAFETY: the count is writable.
        let list = unsafe { (self.api.get_device_list)(&raw mut count) };
        if list.is_null() {
            let errno = last_errno();
            return Err(Error::NoDevice { errno });
        }
        let count = usize::try_from(count).unwrap_or(0);
        // SAFETY: the list holds `count` pointers, none of them null.
        let devices = unsafe { slice::from_raw_parts(list.cast::<NonNull<_>>(), count) };
        let named = devices.iter().map(|&device: &NonNull<raw::ibv_device>| {
            // SAFETY: the list has not been freed; the name is an array within the device.
            let name = unsafe { (*device.as_ptr()).name }.map(|char| char as u8);
            let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
            (device, name.to_string_lossy().into_owned())
        });
        let result = match count {
            0 => Err(Error::NoDevice { errno: 0 }),
            _ => Ok(work(&named.collect::<Vec<_>>())),
        };
        // SAFETY: from `ibv_get_device_list`, freed once; no device of it is used any more.
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
