//! One NIC of a libfabric provider.

use std::{fmt, sync::Arc};

use ofi::{Info, NicAddress, Ofi};

use super::{OfiForm, OfiKeys};
use crate::{OpenError, entry::NicKeys, os::Near};

/// Environment variable with the path of libfabric, for a vendor package outside the system's
/// library folders.
const LIBRARY: &str = "QDL_LIBFABRIC";

/// Environment variable for tests: a number, the seed. Every connection of this process then
/// reorders arrivals at random, as under a provider without write ordering.
const SHUFFLE: &str = "QDL_OFI_SHUFFLE";

/// Whether NICs of a provider move bytes by themselves, and so need windows that are locked in
/// memory. `provider` is the name as `fi_info` lists it.
pub(super) fn locks_memory(provider: &str) -> bool {
    let known = ["efa", "verbs", "cxi", "psm2", "psm3", "opx", "gni", "usnic"];
    known.iter().any(|name| provider.starts_with(name))
}

/// Version of the libfabric that [`OfiDevice::open`] uses; `None` without a usable one.
pub(super) fn library_version() -> Option<String> {
    let ofi = Ofi::load(std::env::var(LIBRARY).ok().as_deref()).ok()?;
    Some(ofi.version().to_string())
}

/// A NIC that its provider has reported, with its NUMA node.
pub struct OfiDevice {
    info: Arc<Info>,
    near: Near,
    shuffle: Option<u64>,
}

impl OfiDevice {
    /// Finds the NIC of these keys, with queues on the NUMA node `near`. Uses the system's
    /// libfabric, or the file in the environment variable `QDL_LIBFABRIC`.
    ///
    /// # Errors
    /// libfabric is missing or too old, the provider or NIC does not exist, the NIC lacks a
    /// capability, the keys name no single NIC, or the provider is `shm`, which is unsafe.
    pub fn open(keys: &OfiKeys, near: &Near) -> Result<Arc<OfiDevice>, OpenError> {
        let shuffle = std::env::var(SHUFFLE).ok().and_then(|s| s.parse().ok());
        Self::shuffled(keys, near, shuffle)
    }

    /// Finds a NIC as [`OfiDevice::open`] does. `shuffle` is a seed: arrivals then come in random
    /// order.
    ///
    /// # Errors
    /// As [`OfiDevice::open`].
    pub fn shuffled(
        keys: &OfiKeys,
        near: &Near,
        shuffle: Option<u64>,
    ) -> Result<Arc<OfiDevice>, OpenError> {
        let ofi = Ofi::load(std::env::var(LIBRARY).ok().as_deref())?;
        let refused =
            |key, problem: &str| Err(OpenError::setting(keys.facts().label, key, problem));
        if keys.provider == "shm" {
            return refused(
                "ofi",
                "this provider takes its process down when a peer leaves first; two nodes of one \
                 machine can use \"tcp;ofi_rxm\" on 127.0.0.1",
            );
        }
        if keys.domain.is_none() && keys.address.is_none() {
            return refused(
                "match",
                "this entry stands for several NICs, and is to be spelled out",
            );
        }
        let at = NicAddress {
            provider: keys.provider.clone(),
            domain: keys.domain.clone(),
            address: keys.address.map(|a| a.to_string()),
        };
        let info = near.run(|| ofi.find(&at))?;
        Ok(Arc::new(OfiDevice {
            info,
            near: near.clone(),
            shuffle,
        }))
    }

    /// The provider's description of the NIC.
    pub fn info(&self) -> &Arc<Info> {
        &self.info
    }

    /// The NUMA node of the NIC, and its cores.
    pub(crate) fn near(&self) -> &Near {
        &self.near
    }

    /// The NIC's name as `provider:domain`.
    pub fn name(&self) -> String {
        format!("{}:{}", self.info.provider(), self.info.domain())
    }

    /// Whether writes arrive in the order of their posts.
    pub fn keeps_order(&self) -> bool {
        self.info.limits().keeps_order && self.shuffle.is_none()
    }

    pub(super) fn shuffle(&self) -> Option<u64> {
        self.shuffle
    }

    /// The form of writes on this NIC: where the immediate and the length travel.
    pub fn form(&self) -> OfiForm {
        let layered = self.info.provider().contains("ofi_rxm");
        match (self.info.limits().data_bytes >= 8, layered) {
            (true, false) => OfiForm::Data,
            (true, true) => OfiForm::After,
            (false, true) => OfiForm::Cell,
            (false, false) => OfiForm::Completion,
        }
    }

    /// Whether bytes move only during calls of the provider, as over sockets and shared memory.
    pub(super) fn moves_in_calls(&self) -> bool {
        !self.locks_memory()
    }

    /// Whether the completion queue must be drained before its endpoint closes.
    pub(super) fn empties_its_queue(&self) -> bool {
        self.info.provider().contains("ofi_rxm") && !self.moves_in_calls()
    }

    /// Whether the NIC needs windows that are locked in memory.
    pub fn locks_memory(&self) -> bool {
        locks_memory(self.info.provider())
    }

    fn regions_each(&self) -> usize {
        let cells = usize::from(self.form() == OfiForm::Cell);
        1 + cells + usize::from(self.info.limits().registers_sources)
    }

    /// Checks the number of connections against the provider's limits. Warns above the optimum.
    ///
    /// # Errors
    /// The provider has fewer endpoints than `connections`.
    pub fn check(&self, connections: usize) -> Result<(), OpenError> {
        let most = self.info.limits().endpoints;
        if most > 0 && connections > most {
            let problem = format!(
                "{connections} connections need an endpoint each, and the provider has {most}"
            );
            return Err(OpenError::setting(self.name(), "connections", problem));
        }
        // The provider reports these numbers as optimal and may support more.
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

    /// Whether the provider reconnects a lost socket without an error. Then "no room, and nothing
    /// in flight" proves a loss. Over queue pairs it does not: the peer may not be polling.
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
