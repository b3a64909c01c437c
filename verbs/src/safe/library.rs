//! Finding libibverbs and its devices.

use std::ffi::{CStr, c_char, c_int};
use std::mem::ManuallyDrop;
use std::path::PathBuf;
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

/// An RDMA device as the library lists it, before it is opened.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct DeviceInfo {
    /// The kernel's name for it, such as `mlx5_0`.
    pub name: String,
    /// The node GUID, 0 where the device has none.
    pub guid: u64,
    /// Whether it speaks InfiniBand's transport (also over Ethernet, as RoCE), rather than iWARP or
    /// another.
    pub ib_transport: bool,
    /// Its folder in sysfs, under which `device/numa_node` and `ports/` are.
    pub sysfs: PathBuf,
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

    /// Lists the machine's RDMA devices.
    ///
    /// # Errors
    ///
    /// [`Error::NoDevice`] when there are none.
    pub fn devices(&self) -> Result<Vec<DeviceInfo>, Error> {
        let list = DeviceList::get(self)?;
        Ok(list
            .devices()
            .iter()
            .map(|&device| self.describe(device))
            .collect())
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
        let mut present = Vec::new();
        for &device in list.devices() {
            let info = self.describe(device);
            if info.name != name {
                present.push(info.name);
                continue;
            }
            // SAFETY: `device` is in a list that has not been freed yet.
            let raw = unsafe { (self.api.open_device)(device.as_ptr()) };
            let raw = NonNull::new(raw).ok_or_else(|| {
                Error::verb_errno("ibv_open_device", || format!("opening {name}"))
            })?;
            // SAFETY: just opened, by this library, and given to nobody else.
            return unsafe { Context::adopt(Arc::clone(self), raw, info) };
        }
        Err(Error::UnknownDevice {
            name: name.to_owned(),
            present,
        })
    }

    fn describe(&self, device: NonNull<raw::ibv_device>) -> DeviceInfo {
        // SAFETY: the device is in a list that has not been freed; its names are NUL-terminated
        // arrays within it.
        unsafe {
            let raw = device.as_ptr();
            DeviceInfo {
                name: text(&raw const (*raw).name),
                guid: u64::from_be((self.api.get_device_guid)(raw)),
                ib_transport: (*raw).transport_type == raw::IBV_TRANSPORT_IB as c_int,
                sysfs: PathBuf::from(text(&raw const (*raw).ibdev_path)),
            }
        }
    }
}

/// The text in a fixed array, up to its NUL (or its end).
///
/// # Safety
///
/// `chars` must be readable.
unsafe fn text<const N: usize>(chars: *const [c_char; N]) -> String {
    // SAFETY: readable for N bytes, as the caller promises.
    let bytes = unsafe { slice::from_raw_parts(chars.cast::<u8>(), N) };
    CStr::from_bytes_until_nul(bytes).map_or_else(
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
