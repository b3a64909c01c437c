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
        Ok(DeviceList::get(self)?.names())
    }

    /// Opens the device called `name`. Pin the thread to the device's NUMA node first: the library
    /// allocates on the node that calls.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`], [`Error::UnknownDevice`], or what opening and asking for its limits
    /// gave.
    pub fn open(self: &Arc<Self>, name: &str) -> Result<Arc<Context>, Error> {
        let list = DeviceList::get(self)?;
        let named = |&&device: &&NonNull<_>| name_of(device) == name;
        let Some(&device) = list.devices().iter().find(named) else {
            return Err(Error::UnknownDevice {
                name: name.to_owned(),
                present: list.names(),
            });
        };
        // SAFETY: `device` is in a list that has not been freed yet.
        let raw = unsafe { (self.api.open_device)(device.as_ptr()) };
        let raw = NonNull::new(raw)
            .ok_or_else(|| Error::verb_errno("ibv_open_device", || format!("opening {name}")))?;
        // SAFETY: just opened, by this library, and given to nobody else.
        unsafe { Context::adopt(Arc::clone(self), raw, name.to_owned()) }
    }
}

/// The name of a device that is in a list that has not been freed.
fn name_of(device: NonNull<raw::ibv_device>) -> String {
    // SAFETY: the device is live, and its name an array within it.
    let name = unsafe { &(*device.as_ptr()).name };
    let bytes = name.map(|char| char as u8);
    CStr::from_bytes_until_nul(&bytes).map_or_else(
        |_| String::new(),
        |text| text.to_string_lossy().into_owned(),
    )
}

/// The list that `ibv_get_device_list` gives; its devices are valid until it is freed.
struct DeviceList<'a> {
    verbs: &'a Verbs,
    list: NonNull<*mut raw::ibv_device>,
    count: usize,
}

impl<'a> DeviceList<'a> {
    fn get(verbs: &'a Verbs) -> Result<Self, Error> {
        let mut count = 0;
        // SAFETY: the count is writable.
        let list = unsafe { (verbs.api.get_device_list)(&raw mut count) };
        let Some(list) = NonNull::new(list) else {
            return Err(Error::NoDevice {
                errno: last_errno(),
            });
        };
        let list = Self {
            verbs,
            list,
            count: usize::try_from(count).unwrap_or(0),
        };
        if list.count == 0 {
            Err(Error::NoDevice { errno: 0 })
        } else {
            Ok(list)
        }
    }

    fn names(&self) -> Vec<String> {
        self.devices()
            .iter()
            .map(|&device| name_of(device))
            .collect()
    }

    fn devices(&self) -> &[NonNull<raw::ibv_device>] {
        // SAFETY: the list holds `count` pointers, none of them null, and lives as long as `self`.
        unsafe {
            slice::from_raw_parts(
                self.list.as_ptr().cast::<NonNull<raw::ibv_device>>(),
                self.count,
            )
        }
    }
}

impl Drop for DeviceList<'_> {
    fn drop(&mut self) {
        // SAFETY: from `ibv_get_device_list`, freed once; no device of it is used any more.
        unsafe { (self.verbs.api.free_device_list)(self.list.as_ptr()) }
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
