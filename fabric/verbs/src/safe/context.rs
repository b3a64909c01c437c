//! An open device: its limits, ports and GIDs.

use std::mem::{MaybeUninit, size_of};
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::sync::Arc;

use super::gid::{GidEntry, GidType, choose_gid};
use super::library::Verbs;
use super::port::PortAttr;
use crate::error::{Error, errno_of};
use crate::raw;

/// An open device of libibverbs.
pub struct Context {
    verbs: Arc<Verbs>,
    raw: NonNull<raw::ibv_context>,
    pub(super) name: String,
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
    ///
    /// `raw` must be open, come from `verbs`, and have no other owner.
    pub(crate) unsafe fn adopt(
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
    #[must_use]
    pub fn name(&self) -> &str {
        &self.name
    }

    /// The device's limits.
    #[must_use]
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// Number of interrupt vectors for completion queues.
    #[must_use]
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the context is open, and the field is constant.
        u32::try_from(unsafe { (*self.raw.as_ptr()).num_comp_vectors }).unwrap_or(0)
    }

    /// The raw context, valid as long as `self`.
    pub(crate) fn as_raw(&self) -> *mut raw::ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn api(&self) -> &raw::Api {
        self.verbs.api()
    }

    /// Refuses a size above one of the device's limits.
    pub(crate) fn check_limit(
        &self,
        what: &'static str,
        asked: u64,
        limit: u64,
        name: &'static str,
    ) -> Result<(), Error> {
        if asked <= limit {
            return Ok(());
        }
        Err(Error::Limit {
            what,
            asked,
            limit,
            name,
            device: self.name.clone(),
        })
    }

    /// Refuses an object of another device: libibverbs would not detect the mistake.
    pub(crate) fn check_same(
        self: &Arc<Self>,
        what: &'static str,
        of: &Arc<Self>,
    ) -> Result<(), Error> {
        if Arc::ptr_eq(self, of) {
            return Ok(());
        }
        Err(Error::Mismatch {
            what,
            one: of.name.clone(),
            other: self.name.clone(),
        })
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
    ///
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

    /// The port's GIDs, without the empty entries of its table.
    ///
    /// # Errors
    ///
    /// [`Error::Verb`].
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        let table = self.query_port(port)?.gid_tbl_len;
        let mut gids = Vec::new();
        for index in 0..table {
            gids.extend(self.gid(port, index)?);
        }
        Ok(gids)
    }

    /// One entry of the port's GID table; `None` if it is empty.
    ///
    /// # Errors
    ///
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
        Ok((!gid.is_unspecified()).then(|| GidEntry {
            gid,
            index,
            kind: GidType::from_raw(entry.gid_type),
        }))
    }

    /// The port's GID for `auto`: on InfiniBand the first; on Ethernet a RoCE v2 one, IPv4 before
    /// routable IPv6 before link-local.
    ///
    /// # Errors
    ///
    /// [`Error::NoGid`] with the reason, or [`Error::Verb`].
    pub fn auto_gid(&self, port: u8) -> Result<GidEntry, Error> {
        let layer = self.query_port(port)?.link_layer;
        let gids = self.gids(port)?;
        choose_gid(layer, &gids).map_err(|why| Error::NoGid {
            device: self.name.clone(),
            port,
            why: why.to_owned(),
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
