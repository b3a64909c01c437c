//! The protection domain of a device and its memory registrations.
//!
//! Send sources (the QSL's samples, an accelerator's outputs) are registered once and shared by all
//! connections. Each connection registers its own window: the window's remote key lets the peer
//! write, and the key ends with the connection.

use std::sync::Arc;

use verbs::{Access, Mr, Pd};

use super::IbDevice;
use crate::{
    DeviceMemory, OpenError, Region, Window,
    nic::{CELL_BYTES, Sources},
    os::available_memory,
};

/// Protection domain of one device, with the registrations of its send sources.
#[derive(Debug)]
pub struct IbResources {
    device: Arc<IbDevice>,
    pd: Arc<Pd>,
    sources: Sources<Mr>,
}

impl IbResources {
    /// Allocates a protection domain on `device`.
    ///
    /// # Errors
    /// [`OpenError::Local`] if the allocation fails.
    pub fn new(device: Arc<IbDevice>) -> Result<Arc<Self>, OpenError> {
        let pd = Pd::alloc(device.context())?;
        Ok(Arc::new(IbResources {
            device,
            pd,
            sources: Sources::default(),
        }))
    }

    /// The device of this protection domain.
    pub fn device(&self) -> &Arc<IbDevice> {
        &self.device
    }

    pub(super) fn pd(&self) -> &Arc<Pd> {
        &self.pd
    }

    /// Registers `region` as a send source of this device, or returns the existing registration.
    ///
    /// # Errors
    /// [`OpenError::Local`] if the registration fails.
    pub(crate) fn source(&self, region: &Arc<Region>) -> Result<Arc<Mr>, OpenError> {
        let register = || self.register(region, 0, region.len(), Access::LocalRead);
        self.sources.get(region, register)
    }

    /// Keeps these sources registered while no connection is up, so that a new connection finds
    /// them.
    ///
    /// # Errors
    /// [`OpenError::Local`] if a registration fails.
    pub fn keep(&self, regions: &[Arc<Region>]) -> Result<(), OpenError> {
        for region in regions {
            self.sources.keep(self.source(region)?);
        }
        Ok(())
    }

    /// Registers exactly the slots of `window` for the peer's writes.
    pub(super) fn window(&self, window: &Window) -> Result<Arc<Mr>, OpenError> {
        let bytes = window.slots() * window.stride();
        tracing::debug!(
            "{}: {} slots of {} bytes in {} pages",
            self.device.name(),
            window.slots(),
            window.stride(),
            if window.region().is_huge() {
                "huge"
            } else {
                "ordinary"
            }
        );
        if let Some(device) = window.region().device() {
            return self.on_device(window, device, bytes);
        }
        let offset = window.slot_offset(0);
        self.register(window.region(), offset, bytes, Access::RemoteWrite)
    }

    /// Registers slots in GPU memory as a dma-buf, at the addresses that the GPU uses.
    fn on_device(
        &self,
        window: &Window,
        device: &dyn DeviceMemory,
        bytes: usize,
    ) -> Result<Arc<Mr>, OpenError> {
        let offset = window.slot_offset(0);
        let at = window.region().at(offset, bytes)?;
        let (dma_buf, begins) = device.dma_buf().map_err(|what| {
            let problem = format!("{} gives no dma-buf of its memory: {what}", device.device());
            OpenError::setting(self.device.name(), "gpudirect", problem)
        })?;
        let mr = Mr::register_dmabuf(
            &self.pd,
            dma_buf,
            begins + offset as u64,
            bytes,
            at as u64,
            Access::RemoteWrite,
            window.region().clone(),
        );
        Ok(mr?)
    }

    /// Allocates and registers one descriptor cell per slot for the peer's writes.
    pub(super) fn cells(&self, slots: usize) -> Result<(Arc<Region>, Arc<Mr>), OpenError> {
        let nodes = &self.device.near().nodes;
        let region = Arc::new(Region::on_nodes(slots * CELL_BYTES, nodes)?);
        let mr = self.register(&region, 0, region.len(), Access::RemoteWrite)?;
        Ok((region, mr))
    }

    /// Registers on cores near the device: the registration faults in missing pages on their node.
    fn register(
        &self,
        region: &Arc<Region>,
        offset: usize,
        len: usize,
        access: Access,
    ) -> Result<Arc<Mr>, OpenError> {
        let (at, owner) = (region.at(offset, len)?, region.clone());
        let near = self.device.near();
        // SAFETY: the range lies within the region, which stays mapped while it lives. References
        // to its bytes are made under the slot protocol only (see `Region`).
        Ok(near.run(|| unsafe { Mr::register(&self.pd, at, len, access, owner) })?)
    }
}

/// Checks that `bytes`, the slots of all connections of this node, fit into available memory and
/// the limit on locked memory. Call it before any allocation.
///
/// # Errors
/// [`OpenError::Local`] names the limit in bytes and the remedy.
pub fn check_memory(nic: &str, bytes: usize) -> Result<(), OpenError> {
    let refuse = |limit: u64, what: &str, remedy: &str| {
        let problem = format!(
            "the slots of all connections take {}, and {what} is {}: lower `slots` or the number \
             of connections{remedy}",
            size(bytes as u64),
            size(limit)
        );
        Err(OpenError::setting(nic, "slots", problem))
    };
    if let Some(available) = available_memory().filter(|a| bytes as u64 > *a) {
        return refuse(available, "available memory", "");
    }
    match locked_memory_limit() {
        Some(limit) if bytes as u64 > limit => refuse(
            limit,
            "the limit on locked memory",
            ", or raise `ulimit -l`",
        ),
        _ => Ok(()),
    }
}

fn size(bytes: u64) -> String {
    match bytes {
        b if b < 10 << 20 => format!("{} KiB", b >> 10),
        b => format!("{} MiB", b >> 20),
    }
}

/// The user's limit on locked memory in bytes (`ulimit -l`); `None` if unlimited.
pub fn locked_memory_limit() -> Option<u64> {
    // SAFETY: `geteuid` has no preconditions; `limit` lives through the call of `getrlimit`.
    let limit = unsafe {
        if libc::geteuid() == 0 {
            return None;
        }
        let mut limit = libc::rlimit {
            rlim_cur: 0,
            rlim_max: 0,
        };
        if libc::getrlimit(libc::RLIMIT_MEMLOCK, &raw mut limit) != 0 {
            return None;
        }
        limit.rlim_cur
    };
    (limit != libc::RLIM_INFINITY).then_some(limit)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::testkit::assert_has;
    use crate::{ib::IbKeys, os::Near};

    #[test]
    fn a_source_is_registered_once_and_let_go() {
        let device =
            IbDevice::open(&IbKeys::new("stub0"), &Near::default()).expect("a stub device");
        let resources = IbResources::new(device).expect("a domain");
        let region = Arc::new(Region::new(4096).expect("memory"));
        let (one, two) = (resources.source(&region), resources.source(&region));
        let (one, two) = (one.expect("registered"), two.expect("registered"));
        assert!(Arc::ptr_eq(&one, &two));
        drop((one, two));
        assert_eq!(Arc::strong_count(&region), 1, "no longer pinned");
        resources
            .keep(std::slice::from_ref(&region))
            .expect("registered");
        assert_eq!(Arc::strong_count(&region), 2, "kept");
    }

    #[test]
    fn more_than_there_is_is_refused_in_words() {
        let text = check_memory("mlx5_0", usize::MAX)
            .expect_err("no machine has that")
            .to_string();
        assert_has(&text, &["mlx5_0", "slots", "MiB"]);
        assert_eq!(
            (size(65_536), size(1 << 30)),
            ("64 KiB".to_owned(), "1024 MiB".to_owned())
        );
        check_memory("mlx5_0", 1 << 12).expect("a page");
    }
}
