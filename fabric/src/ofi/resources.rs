//! The domain of a NIC, and memory that is sent from.
//!
//! Sources are registered once for all connections, where the provider wants that at all. A window
//! is registered for its connection alone and kept by its endpoint: see the fabric's own page.

use std::{io, sync::Arc};

use ofi::{Domain, Mr};

use super::{OfiDevice, OfiError};
use crate::{Region, sources::Sources};

/// See the module.
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
    /// [`OfiError::Ofi`].
    pub fn new(device: Arc<OfiDevice>) -> Result<Arc<Self>, OfiError> {
        let domain = device.near().run(|| Domain::open(device.info()))?;
        Ok(Arc::new(OfiResources {
            device,
            domain,
            sources: Sources::default(),
        }))
    }

    /// The NIC.
    pub fn device(&self) -> &Arc<OfiDevice> {
        &self.device
    }

    pub(super) fn domain(&self) -> &Arc<Domain> {
        &self.domain
    }

    /// Registers `region` as a send source, or returns the existing registration.
    ///
    /// # Errors
    /// [`OfiError::Ofi`].
    pub fn source(&self, region: &Arc<Region>) -> Result<Arc<Mr>, OfiError> {
        let near = self.device.near();
        self.sources.get(region, |part| {
            near.run(|| Mr::source(&self.domain, part, random_key()?).map_err(OfiError::from))
        })
    }

    /// Keeps these sources known whether a connection is up or not.
    ///
    /// # Errors
    /// [`OfiError::Ofi`].
    pub fn keep(&self, regions: &[Arc<Region>]) -> Result<(), OfiError> {
        for region in regions {
            self.sources.keep(self.source(region)?);
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
