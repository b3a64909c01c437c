//! An opened device: its limits, its ports, its GIDs.

use std::mem::{MaybeUninit, size_of};
use std::net::Ipv6Addr;
use std::ptr::NonNull;
use std::sync::Arc;

use super::gid::{GidEntry, GidType, choose_gid};
use super::library::Verbs;
use super::port::PortAttr;
use crate::error::{Error, errno_of};
use crate::raw;

/// An opened device.
pub struct Context {
    verbs: Arc<Verbs>,
    raw: NonNull<raw::ibv_context>,
    pub(super) name: String,
    limits: DeviceLimits,
}

// SAFETY: libibverbs locks inside of every call on a context; the context itself is freed only in
// `drop`.
unsafe impl Send for Context {}
// SAFETY: as above.
unsafe impl Sync for Context {}

/// What a device can do at most, as it says itself.
#[derive(Debug, Clone, PartialEq, Eq, Default)]
pub struct DeviceLimits {
    /// Queue pairs.
    pub max_qp: u32,
    /// Work requests in one queue.
    pub max_qp_wr: u32,
    /// Completion queues.
    pub max_cq: u32,
    /// Entries in one completion queue.
    pub max_cqe: u32,
    /// Bytes in one memory region.
    pub max_mr_size: u64,
}

impl Context {
    /// Takes over a context that was just opened, and closes it again when something fails.
    ///
    /// # Safety
    ///
    /// `raw` must be open, from `verbs`, and owned by nobody else.
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
        // SAFETY: the context is open; the descriptor is a plain number.
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

    /// What the device can do at most.
    #[must_use]
    pub fn limits(&self) -> &DeviceLimits {
        &self.limits
    }

    /// How many interrupt vectors completion queues can be spread over.
    #[must_use]
    pub fn num_comp_vectors(&self) -> u32 {
        // SAFETY: the context is open; the field does not change.
        u32::try_from(unsafe { (*self.raw.as_ptr()).num_comp_vectors }).unwrap_or(0)
    }

    /// The raw context, valid for as long as `self`.
    pub(crate) fn as_raw(&self) -> *mut raw::ibv_context {
        self.raw.as_ptr()
    }

    pub(crate) fn api(&self) -> &raw::Api {
        self.verbs.api()
    }

    /// Refuses what exceeds one of the device's limits.
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

    /// Refuses an object of another device, which the library would take for one of its own.
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
        // SAFETY: the context is open and the attributes are writable.
        let result = unsafe { (self.api().query_device)(self.as_raw(), attr.as_mut_ptr()) };
        if result != 0 {
            return Err(Error::verb("ibv_query_device", result, || {
                format!("asking {} for its limits", self.name)
            }));
        }
        // SAFETY: zeroed bytes are valid for every field, and the call has filled them in.
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

    /// A port's state, speed and address. Ports count from 1.
    ///
    /// # Errors
    ///
    /// The verb's, for instance when there is no such port.
    pub fn query_port(&self, port: u8) -> Result<PortAttr, Error> {
        let mut attr = MaybeUninit::<raw::ibv_port_attr>::zeroed();
        // SAFETY: the context is open and the attributes are writable. The exported function fills
        // in the first 48 bytes, which hold everything that is read of them.
        let result = unsafe { (self.api().query_port)(self.as_raw(), port, attr.as_mut_ptr()) };
        if result != 0 {
            return Err(Error::verb("ibv_query_port", result, || {
                format!("asking {} about port {port}", self.name)
            }));
        }
        // SAFETY: zeroed bytes are valid for every field, and the call has filled them in.
        Ok(PortAttr::from_raw(&unsafe { attr.assume_init() }))
    }

    /// The port's GIDs, without the empty entries of its table.
    ///
    /// # Errors
    ///
    /// The verb's.
    pub fn gids(&self, port: u8) -> Result<Vec<GidEntry>, Error> {
        let table = self.query_port(port)?.gid_tbl_len;
        let mut gids = Vec::new();
        for index in 0..table {
            gids.extend(self.gid(port, index)?);
        }
        Ok(gids)
    }

    /// One entry of the port's GID table, `None` when it is empty.
    ///
    /// # Errors
    ///
    /// The verb's, other than that the entry is empty.
    pub fn gid(&self, port: u8, index: u32) -> Result<Option<GidEntry>, Error> {
        let mut entry = MaybeUninit::<raw::ibv_gid_entry>::zeroed();
        // SAFETY: the context is open, and the entry is writable for the size given.
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
        // SAFETY: zeroed bytes are valid for every field, and the call has filled them in.
        let entry = unsafe { entry.assume_init() };
        // SAFETY: every byte of a GID is a byte.
        let gid = Ipv6Addr::from(unsafe { entry.gid.raw });
        Ok((!gid.is_unspecified()).then(|| GidEntry {
            gid,
            index,
            kind: GidType::from_raw(entry.gid_type),
        }))
    }

    /// The GID that `auto` means on this port: on InfiniBand the first; on Ethernet a RoCE v2 one,
    /// IPv4 before routable IPv6 before link-local.
    ///
    /// # Errors
    ///
    /// [`Error::NoGid`] with the reason, or a verb's.
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
        // SAFETY: opened by this library, closed once; everything made from it held an `Arc` of
        // `self` and is gone.
        unsafe { (self.api().close_device)(self.as_raw()) };
    }
}

/// Makes a descriptor that libibverbs owns nonblocking.
pub(crate) fn set_nonblocking(fd: i32, doing: impl FnOnce() -> String) -> Result<(), Error> {
    // SAFETY: only flags of the descriptor are read and written; no memory is involved.
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
