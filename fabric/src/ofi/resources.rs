//! The domain of a NIC, and the registrations of its send sources.
//!
//! All connections share the registration of a source, if the provider needs one. A window is
//! registered for its connection alone, and its endpoint owns that registration.

use std::sync::Arc;

use ofi::{Domain, Mr};

use super::OfiDevice;
use crate::{
    OpenError, Region,
    nic::{Sources, ofi_memory, random},
};

/// Domain of one NIC, with the registrations of its send sources.
#[derive(Debug)]
pub struct OfiResources {
    device: Arc<OfiDevice>,
    domain: Arc<Domain>,
    sources: Sources<Mr>,
}

impl OfiResources {
    /// Opens the NIC's domain.
    ///
    /// # Errors
    /// [`OpenError::Local`] if the provider refuses.
    pub fn new(device: Arc<OfiDevice>) -> Result<Arc<Self>, OpenError> {
        let domain = device.near().run(|| Domain::open(device.info()))?;
        Ok(Arc::new(OfiResources {
            device,
            domain,
            sources: Sources::default(),
        }))
    }

    /// The NIC of this domain.
    pub fn device(&self) -> &Arc<OfiDevice> {
        &self.device
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Registers `region` as a send source, or returns the existing registration.
    ///
    /// # Errors
    /// [`OpenError::Local`] if the registration fails.
    pub(crate) fn source(&self, region: &Arc<Region>) -> Result<Arc<Mr>, OpenError> {
        let near = self.device.near();
        self.sources.get(region, || {
            let (memory, key) = (ofi_memory(region, 0, region.len())?, random("random key")?);
            Ok(near.run(|| Mr::source(&self.domain, memory, key))?)
        })
    }

    /// Keeps these sources registered while no connection is up.
    ///
    /// # Errors
    /// [`OpenError::Local`] if a registration fails.
    pub fn keep(&self, regions: &[Arc<Region>]) -> Result<(), OpenError> {
        for region in regions {
            self.sources.keep(self.source(region)?);
        }
        Ok(())
    }
}
