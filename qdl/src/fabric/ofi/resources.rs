//! The domain of a NIC, and memory that is sent from.
//!
//! Sources are registered once for all connections, where the provider wants that at all. A window
//! is registered for its connection alone and kept by its endpoint: see the fabric's own page.

use std::{
    io,
    ptr::NonNull,
    sync::{Arc, Mutex, PoisonError, Weak},
};

use ofi::{Domain, Memory, Mr};

use super::{OfiDevice, OfiError};
use crate::fabric::Region;

/// See the module.
#[derive(Debug)]
pub struct OfiResources {
    device: Arc<OfiDevice>,
    domain: Arc<Domain>,
    /// Sources by the address of their region. A source keeps its region alive, so an address is
    /// not used again while its entry lives.
    sources: Mutex<Vec<(usize, Weak<Mr>)>>,
    /// Those that stay registered while no connection is up.
    kept: Mutex<Vec<Arc<Mr>>>,
}

/// Part of a region.
pub(super) struct Part {
    region: Arc<Region>,
    offset: usize,
    len: usize,
}

// SAFETY: the part was checked to lie within the region when it was
// made, and the region stays mapped as long as it lives. References
// to its bytes are made under the slot protocol only (see `Region`).
unsafe impl Memory for Part {
    fn addr(&self) -> NonNull<u8> {
        let at = self.region.base().wrapping_add(self.offset);
        NonNull::new(at).unwrap_or(NonNull::dangling())
    }

    fn len(&self) -> usize {
        self.len
    }
}

impl Part {
    pub fn new(region: &Arc<Region>, offset: usize, len: usize) -> Result<Arc<Self>, OfiError> {
        region.at(offset, len)?;
        Ok(Arc::new(Part {
            region: region.clone(),
            offset,
            len,
        }))
    }
}

impl OfiResources {
    /// Opens the NIC's domain.
    ///
    /// # Errors
    /// [`OfiError::Ofi`].
    pub fn new(device: Arc<OfiDevice>) -> Result<Arc<Self>, OfiError> {
        let domain = device.near().run(|| Domain::open(device.info()))?;
        Ok(Arc::new(OfiResources {
            device,
            domain,
            sources: Mutex::default(),
            kept: Mutex::default(),
        }))
    }

    /// The NIC.
    pub fn device(&self) -> &Arc<OfiDevice> {
        &self.device
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Makes memory known that is to be sent from, or finds what is known of it.
    ///
    /// # Errors
    /// [`OfiError::Ofi`].
    pub fn source(&self, region: &Arc<Region>) -> Result<Arc<Mr>, OfiError> {
        let key = Arc::as_ptr(region) as usize;
        let mut sources = self.sources.lock().unwrap_or_else(PoisonError::into_inner);
        sources.retain(|(_, mr)| mr.strong_count() > 0);
        if let Some(mr) = sources
            .iter()
            .find_map(|(k, mr)| (*k == key).then(|| mr.upgrade()).flatten())
        {
            return Ok(mr);
        }
        let part = Part::new(region, 0, region.len())?;
        let near = self.device.near();
        let mr =
            near.run(|| Mr::source(&self.domain, part, random_key()?).map_err(OfiError::from))?;
        sources.push((key, Arc::downgrade(&mr)));
        Ok(mr)
    }

    /// Keeps these sources known whether a connection is up or not.
    ///
    /// # Errors
    /// [`OfiError::Ofi`].
    pub fn keep(&self, regions: &[Arc<Region>]) -> Result<(), OfiError> {
        for region in regions {
            let mr = self.source(region)?;
            self.kept
                .lock()
                .unwrap_or_else(PoisonError::into_inner)
                .push(mr);
        }
        Ok(())
    }
}

/// A key that nobody can guess, for providers that leave it to their users.
pub(super) fn random_key() -> Result<u64, OfiError> {
    let mut b = [0; 8];
    getrandom::fill(&mut b).map_err(|e| OfiError::System {
        what: "random key",
        source: io::Error::other(e.to_string()),
    })?;
    Ok(u64::from_le_bytes(b))
}
