//! The domain of a NIC, and the registrations of its send sources.
//!
//! All connections share the registration of a source, if the provider needs one. A window is
//! registered for its connection alone, and its endpoint owns that registration.

use std::{io, sync::Arc};

use ofi::{Domain, Mr};

use super::{OfiDevice, OfiError};
use crate::{Region, sources::Sources};

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
    /// [`OfiError::Ofi`] if the provider refuses.
    pub fn new(device: Arc<OfiDevice>) -> Result<Arc<Self>, OfiError> {
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
    /// [`OfiError::Ofi`] if the registration fails.
    pub fn source(&self, region: &Arc<Region>) -> Result<Arc<Mr>, OfiError> {
        let near = self.device.near();
        self.sources.get(region, |part| {
            near.run(|| Mr::source(&self.domain, part, random_key()?).map_err(OfiError::from))
        })
    }

    /// Keeps these sources registered while no connection is up.
    ///
    /// # Errors
    /// [`OfiError::Ofi`] if a registration fails.
    pub fn keep(&self, regions: &[Arc<Region>]) -> Result<(), OfiError> {
        for region in regions {
            self.sources.keep(self.source(region)?);
        }
        Ok(())
    }
}

/// Draws a key that a peer cannot guess, for providers that let their users choose keys.
pub(super) fn random_key() -> Result<u64, OfiError> {
    let mut b = [0; 8];
    getrandom::fill(&mut b).map_err(|e| OfiError::System {
        what: "random key",
        source: io::Error::other(e.to_string()),
    })?;
    Ok(u64::from_le_bytes(b))
}
