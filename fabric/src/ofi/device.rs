//! One NIC, as its provider offers it.

use std::{fmt, sync::Arc};

use ofi::{Info, Ofi, Place};

use super::{OfiError, OfiForm};
use crate::os::Near;

/// Names the library's file where it is not the system's own, such as that of a vendor's package in
/// a folder of its own.
const LIBRARY: &str = "QDL_LIBFABRIC";

/// For trials: a number here makes every connection of this process hand on what arrives in any
/// order, as if its provider kept none. The number is the seed.
const SHUFFLE: &str = "QDL_OFI_SHUFFLE";

/// Which NIC to find, and where its threads and memory belong.
#[derive(Clone, Debug, Default)]
pub struct OfiDeviceCfgs {
    /// The NIC as its user names it, for errors.
    pub label: String,
    /// libfabric's provider, such as `efa` or `tcp;ofi_rxm`.
    pub provider: String,
    /// The provider's name of the NIC.
    pub domain: Option<String>,
    /// An address of this machine, where the NIC is found by one.
    pub address: Option<String>,
    /// The NUMA node of its queues, and the cores there.
    pub near: Near,
}

/// See the module.
pub struct OfiDevice {
    info: Arc<Info>,
    near: Near,
    shuffle: Option<u64>,
}

impl OfiDevice {
    /// Finds a NIC with the libfabric of this machine, or with the file that the environment
    /// variable `QDL_LIBFABRIC` names.
    ///
    /// # Errors
    /// [`OfiError::Ofi`]: no library, one that is too old, no such provider or NIC, or one that
    /// cannot do what is needed. [`OfiError::Setting`]: a provider that is not to be trusted.
    pub fn open(cfgs: &OfiDeviceCfgs) -> Result<Arc<OfiDevice>, OfiError> {
        let ofi = match std::env::var(LIBRARY) {
            Ok(file) => Ofi::load_from(&file)?,
            Err(_) => Ofi::load()?,
        };
        let shuffle = std::env::var(SHUFFLE).ok().and_then(|s| s.parse().ok());
        Self::open_with(&ofi, cfgs, shuffle)
    }

    /// As [`OfiDevice::open`], with a library that is open already, and with arrivals in any order
    /// where `shuffle` is a seed.
    ///
    /// # Errors
    /// As [`OfiDevice::open`].
    pub fn open_with(
        ofi: &Arc<Ofi>,
        cfgs: &OfiDeviceCfgs,
        shuffle: Option<u64>,
    ) -> Result<Arc<OfiDevice>, OfiError> {
        if cfgs.provider == "shm" {
            return Err(OfiError::Setting {
                nic: cfgs.label.clone(),
                key: "ofi",
                problem:
                    "this provider takes its process down when a peer leaves first; two nodes \
                          of one machine can use \"tcp;ofi_rxm\" on 127.0.0.1"
                        .to_owned(),
            });
        }
        let near = cfgs.near.clone();
        let info = near.run(|| {
            ofi.find(&Place {
                provider: cfgs.provider.clone(),
                domain: cfgs.domain.clone(),
                address: cfgs.address.clone(),
            })
        })?;
        Ok(Arc::new(OfiDevice {
            info,
            near,
            shuffle,
        }))
    }

    /// What the provider says of it.
    pub fn info(&self) -> &Arc<Info> {
        &self.info
    }

    /// Where its threads and memory belong.
    pub fn near(&self) -> &Near {
        &self.near
    }

    /// Provider and domain.
    pub fn name(&self) -> String {
        format!("{}:{}", self.info.provider(), self.info.domain())
    }

    /// Whether writes arrive in the order in which they were posted.
    pub fn keeps_order(&self) -> bool {
        self.info.limits().keeps_order && self.shuffle.is_none()
    }

    pub(super) fn shuffle(&self) -> Option<u64> {
        self.shuffle
    }

    /// How writes to it say where they go and how long they are.
    pub fn form(&self) -> OfiForm {
        let layered = self.info.provider().contains("ofi_rxm");
        match (self.info.limits().data_bytes >= 8, layered) {
            (true, false) => OfiForm::Data,
            (true, true) => OfiForm::After,
            (false, true) => OfiForm::Cell,
            (false, false) => OfiForm::Completion,
        }
    }

    /// Whether bytes move only while somebody calls the provider: it is made of sockets or of
    /// shared memory, and no NIC works by itself.
    pub(super) fn moves_in_calls(&self) -> bool {
        let known = ["efa", "verbs", "cxi", "psm2", "psm3", "opx", "gni", "usnic"];
        !known.iter().any(|n| self.info.provider().starts_with(n))
    }

    /// Whether a queue must be empty when its endpoint is closed.
    pub(super) fn empties_its_queue(&self) -> bool {
        self.info.provider().contains("ofi_rxm") && !self.moves_in_calls()
    }

    /// Whether memory that a peer writes is locked, so that a NIC can write it.
    pub fn locks_memory(&self) -> bool {
        !self.moves_in_calls()
    }

    /// Regions that each connection registers.
    fn regions_each(&self) -> usize {
        let cells = usize::from(self.form() == OfiForm::Cell);
        1 + cells + usize::from(self.info.limits().registers_sources)
    }

    /// What this provider is asked to hold for so many connections, where it says how much it can.
    ///
    /// # Errors
    /// [`OfiError::Setting`]: more endpoints than it has.
    pub fn check(&self, connections: usize) -> Result<(), OfiError> {
        let most = self.info.limits().endpoints;
        if most > 0 && connections > most {
            return Err(OfiError::Setting {
                nic: self.name(),
                key: "connections",
                problem: format!(
                    "{connections} connections need an endpoint each, and the provider has {most}"
                ),
            });
        }
        // These it calls optimal, and may have more.
        for (what, wanted, best) in [
            (
                "completion queues",
                connections,
                self.info.limits().completion_queues,
            ),
            (
                "regions",
                connections * self.regions_each(),
                self.info.limits().regions,
            ),
        ] {
            if best > 0 && wanted > best {
                tracing::warn!(
                    "{}: {connections} connections take {wanted} {what}, and the provider is made \
                     for {best}: if opening one fails, lower `connections`",
                    self.name()
                );
            }
        }
        Ok(())
    }

    /// Whether the provider makes a socket of its own again without a word. (Over queue pairs what
    /// was on its way fails by name; and there a write may find no room though nothing is under
    /// way, as long as the peer does not look.)
    pub(super) fn remakes(&self) -> bool {
        let provider = self.info.provider();
        ["tcp", "net"].iter().any(|n| provider.starts_with(n))
    }
}

impl fmt::Debug for OfiDevice {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(&self.name())
    }
}
