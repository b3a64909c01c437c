//! The loaded libibverbs, and its open devices with their limits, ports and GIDs.

use std::ffi::CStr;
use std::mem::{ManuallyDrop, MaybeUninit, size_of};
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::slice;
use std::sync::Arc;

use libloading::Library;

use crate::abi::load;
use crate::error::{Error, errno_of, last_errno};
use crate::port::{GidEntry, PortAttr, choose_gid};
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
    /// Loads libibverbs from `file`, or else the system's library.
    ///
    /// # Errors
    /// [`Error::NoLibrary`] if the library is not installed; [`Error::Refused`] if the file is not
    /// libibverbs.
    pub fn load(file: Option<&str>) -> Result<Arc<Self>, Error> {
        let file = file.unwrap_or(LIBRARY);
        let library = load(file)?;
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
    /// The functions must fulfil libibverbs' contract, also under calls from several threads.
    #[cfg(any(test, feature = "stub"))]
    pub(crate) unsafe fn from_api(api: raw::Api) -> Arc<Self> {
        Arc::new(Self {
            api,
            _library: None,
        })
    }

    /// Opens the device `name`. Pin the thread to the device's NUMA node first: libibverbs
    /// allocates on the node of the calling thread.
    ///
    /// # Errors
    /// [`Error::NoDevice`], [`Error::Refused`] if no device has this name, or [`Error::Verb`].
    pub fn open(self: &Arc<Self>, name: &str) -> Result<Arc<Context>, Error> {
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
        let opened = self.open_of(devices, name);
        // SAFETY: `get_device_list` returned the list; it is freed once, after its last use.
        unsafe { (self.api.free_device_list)(list) };
        opened
    }

    /// Opens the device `name` of a list that is not yet freed.
    fn open_of(
        self: &Arc<Self>,
        devices: &[NonNull<raw::ibv_device>],
        name: &str,
    ) -> Result<Arc<Context>, Error> {
        let name_of = |device: &NonNull<raw::ibv_device>| {
            // SAFETY: the list is not yet freed, and the name is an array inside the device.
            let name = unsafe { (*device.as_ptr()).name }.map(|char| char as u8);
            let name = CStr::from_bytes_until_nul(&name).unwrap_or_default();
            name.to_string_lossy().into_owned()
        };
        if devices.is_empty() {
            return Err(Error::NoDevice { errno: 0 });
        }
        let Some(device) = devices.iter().find(|device| name_of(device) == name) else {
            let present: Vec<_> = devices.iter().map(name_of).collect();
            return Err(Error::Refused(format!(
                "no RDMA device is called {name:?}; this machine has {}",
                present.join(", ")
            )));
        };
        // SAFETY: the list is not yet freed, so its device is valid.
        let raw = unsafe { (self.api.open_device)(device.as_ptr()) };
        let doing = || format!("opening {name}");
        let raw = NonNull::new(raw).ok_or_else(|| Error::verb_errno("ibv_open_device", doing))?;
        // SAFETY: `open_device` has just returned `raw`, which has no other owner.
        unsafe { Context::adopt(Arc::clone(self), raw, name.to_owned()) }
    }
}

/// An open device of libibverbs.
pub struct Context {
    verbs: Arc<Verbs>,
    raw: NonNull<raw::ibv_context>,
    pub(crate) name: String,
    limits: DeviceLimits,
}

// SAFETY: libibverbs locks in every call on a context; only `drop` closes it.
unsafe impl Send for Context {}
// SAFETY: as for `Send`.
unsafe impl Sync for Context {}

/// The limits that a device reports.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceLimits {
    /// Queue pairs on the device.
    pub max_qp: u32,
    /// Work requests in one send or receive queue.
    pub max_qp_wr: u32,
    /// Completion queues on the device.
    pub max_cq: u32,
    /// Entries in one completion queue.
    pub max_cqe: u32,
    /// Size of one memory region in bytes.
    pub max_mr_size: u64,
}

impl Context {
    /// Takes ownership of an open context; closes it if a step fails.
    ///
    /// # Safety
    /// `raw` must be open, come from `verbs`, and have no other owner.
    unsafe fn adopt(
        verbs: Arc<Verbs>,
        raw: NonNull<raw::ibv_context>,
        name: String,
    ) -> Result<Arc<Self>, Error> {
        let mut context = Self {
            verbs,
            raw,
            name,
            limits: DeviceLimits::default(),
        };
        context.limits = context.query_device()?;
        // SAFETY: `adopt`'s contract: the context is open.
        let fd = unsafe { (*raw.as_ptr()).async_fd };
        set_nonblocking(fd, || {
            format!("preparing the asynchronous events of {}", context.name)
        })?;
        Ok(Arc::new(context))
    }

    /// The device's name, such as `mlx5_0`.
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's limits.
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Number of interrupt vectors for completion queues.
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the context is open, and the field is constant.
        u32::try_from(unsafe { (*self.raw.as_ptr()).num_comp_vectors }).unwrap_or(0)
    }

    /// The raw context, valid as long as `self`.
    pub(crate) fn as_raw(&self) -> *mut raw::ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn api(&self) -> &raw::Api {
        &self.verbs.api
    }

    /// Refuses an object of another device: libibverbs would not detect the mistake.
    pub(crate) fn check_same(
        self: &Arc<Self>,
        verb: &'static str,
        of: &Arc<Self>,
    ) -> Result<(), Error> {
        if Arc::ptr_eq(self, of) {
            return Ok(());
        }
        Err(Error::verb(verb, libc::EINVAL, || {
            format!("joining objects of {} and {}", self.name, of.name)
        }))
    }

    fn query_device(&self) -> Result<DeviceLimits, Error> {
        let mut attr = MaybeUninit::<raw::ibv_device_attr>::zeroed();
        // SAFETY: the context is open, and `attr` is writable.
        let result = unsafe { (self.api().query_device)(self.as_raw(), attr.as_mut_ptr()) };
        if result != 0 {
            return Err(Error::verb("ibv_query_device", result, || {
                format!("asking {} for its limits", self.name)
            }));
        }
        // SAFETY: zeroes are valid for every field, and the successful call filled them.
        let attr = unsafe { attr.assume_init() };
        let count = |value: i32| u32::try_from(value).unwrap_or(0);
        Ok(DeviceLimits {
            max_qp: count(attr.max_qp),
            max_qp_wr: count(attr.max_qp_wr),
            max_cq: count(attr.max_cq),
            max_cqe: count(attr.max_cqe),
            max_mr_size: attr.max_mr_size,
        })
    }

    /// The state, rate and address of a port. Ports count from 1.
    ///
    /// # Errors
    /// [`Error::Verb`], for instance if the port does not exist.
    pub fn query_port(&self, port: u8) -> Result<PortAttr, Error> {
        let mut attr = MaybeUninit::<raw::ibv_port_attr>::zeroed();
        // SAFETY: the context is open, and `attr` is writable. The exported function fills the
        // first 48 bytes, which hold every field that `PortAttr` reads.
        let result = unsafe { (self.api().query_port)(self.as_raw(), port, attr.as_mut_ptr()) };
        if result != 0 {
            return Err(Error::verb("ibv_query_port", result, || {
                format!("asking {} about port {port}", self.name)
            }));
        }
        // SAFETY: zeroes are valid for every field, and the successful call filled them.
        Ok(PortAttr::from_raw(&unsafe { attr.assume_init() }))
    }

    /// Entry `index` of the port's GID table; `None` if the entry is empty.
    ///
    /// # Errors
    /// [`Error::Verb`]; an empty entry is no error.
    pub fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, Error> {
        let mut entry = MaybeUninit::<raw::ibv_gid_entry>::zeroed();
        // SAFETY: the context is open, and `entry` is writable for the given size.
        let result = unsafe {
            (self.api().query_gid_ex)(
                self.as_raw(),
                u32::from(port),
                index,
                entry.as_mut_ptr(),
                0,
                size_of::<raw::ibv_gid_entry>(),
            )
        };
        match errno_of(result) {
            0 => {}
            libc::ENODATA => return Ok(None),
            _ => {
                return Err(Error::verb("ibv_query_gid_ex", result, || {
                    format!("reading GID {index} of {} port {port}", self.name)
                }));
            }
        }
        // SAFETY: zeroes are valid for every field, and the successful call filled them.
        let entry = unsafe { entry.assume_init() };
        // SAFETY: every bit pattern is valid for the byte array.
        let gid = Ipv6Addr::from(unsafe { entry.gid.raw });
        Ok((!gid.is_unspecified()).then_some(GidEntry {
            gid,
            index,
            is_roce_v2: entry.gid_type == raw::IBV_GID_TYPE_ROCE_V2,
        }))
    }

    /// The port's GID for `auto`: on InfiniBand the first GID; on Ethernet a RoCE v2 GID, IPv4
    /// before routable IPv6 before link-local.
    ///
    /// # Errors
    /// [`Error::Refused`] with the reason, or [`Error::Verb`].
    pub fn auto_gid(&self, port: u8) -> Result<GidEntry, Error> {
        let attr = self.query_port(port)?;
        let gids = (0..attr.gid_tbl_len).map(|index| self.gid(port, index));
        let gids: Vec<_> = gids
            .filter_map(Result::transpose)
            .collect::<Result<_, _>>()?;
        choose_gid(attr.is_ethernet, &gids).map_err(|why| {
            let device = &self.name;
            Error::Refused(format!("{device} port {port} has no usable GID: {why}"))
        })
    }
}

impl Drop for Context {
    fn drop(&mut self) {
        // SAFETY: this library opened the context, and only this `drop` closes it. Every object
        // made from it held an `Arc` of `self` and is gone.
        unsafe { (self.api().close_device)(self.as_raw()) };
    }
}

/// Makes a descriptor of libibverbs nonblocking.
pub(crate) fn set_nonblocking(fd: i32, doing: impl FnOnce() -> String) -> Result<(), Error> {
    // SAFETY: `fcntl` reads and writes descriptor flags only, no memory.
    let result = unsafe {
        match libc::fcntl(fd, libc::F_GETFL) {
            -1 => -1,
            flags => libc::fcntl(fd, libc::F_SETFL, flags | libc::O_NONBLOCK),
        }
    };
    if result == -1 {
        return Err(Error::verb_errno("fcntl", doing));
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_missing_library_and_another_library_are_named() {
        let error = Verbs::load(Some("libibverbs-is-not-here.so.1")).err();
        assert!(matches!(error, Some(Error::NoLibrary { .. })), "{error:?}");
        let error = Verbs::load(Some("libc.so.6")).err();
        let text = error.map(|e| e.to_string()).unwrap_or_default();
        assert!(text.starts_with("libc.so.6 has no function ibv_"), "{text}");
    }
}
