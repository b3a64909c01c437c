//! The kinds of fabrics. A new fabric is a variant of [`NicFabric`].

use std::ops::{Deref, DerefMut};

use serde::{Serialize, de::DeserializeOwned};

pub use crate::entry::{
    CONNECTIONS, DataPort, FabricLayers, FoundNic, KeyProblem, LinkSocket, NicEntry, NicFacts,
    NicKeys, NicPlace, NicUse,
};
use crate::{ib::IbKeys, ofi::OfiKeys, tcp::TcpKeys};

/// A NIC's fabric, with the keys that only this fabric has.
#[derive(Clone, Debug, PartialEq, Eq, Serialize)]
#[serde(untagged)]
pub enum NicFabric {
    /// Sockets.
    Tcp(TcpKeys),
    /// InfiniBand or RoCE: queue pairs.
    Ib(IbKeys),
    /// A libfabric provider: endpoints.
    Ofi(OfiKeys),
}

/// Keys that make an entry one of the fabric beside them, in order of precedence. An entry without
/// any of them is of the default fabric.
pub const NAMING_KEYS: [(&str, &[&str]); 2] = [("ofi", &["ofi"]), ("ib", &["device", "match"])];

/// Does something with each kind of fabric.
pub trait EachFabric {
    /// `make` makes a [`NicFabric`] of the keys `K` of the fabric `name`.
    fn visit<K: Default + Serialize + DeserializeOwned>(
        &mut self,
        name: &'static str,
        make: fn(K) -> NicFabric,
    );
}

impl NicFabric {
    /// Calls `each` with every kind of fabric.
    pub fn each(each: &mut impl EachFabric) {
        each.visit("tcp", NicFabric::Tcp);
        each.visit("ib", NicFabric::Ib);
        each.visit("ofi", NicFabric::Ofi);
    }

    /// Returns this fabric with the defaults of its keys.
    pub fn defaults(&self) -> Self {
        match self {
            NicFabric::Tcp(_) => NicFabric::Tcp(TcpKeys::default()),
            NicFabric::Ib(_) => NicFabric::Ib(IbKeys::default()),
            NicFabric::Ofi(_) => NicFabric::Ofi(OfiKeys::default()),
        }
    }
}

impl Default for NicFabric {
    fn default() -> Self {
        NicFabric::Tcp(TcpKeys::default())
    }
}

impl Deref for NicFabric {
    type Target = dyn NicKeys;

    fn deref(&self) -> &Self::Target {
        match self {
            NicFabric::Tcp(keys) => keys,
            NicFabric::Ib(keys) => keys,
            NicFabric::Ofi(keys) => keys,
        }
    }
}

impl DerefMut for NicFabric {
    fn deref_mut(&mut self) -> &mut Self::Target {
        match self {
            NicFabric::Tcp(keys) => keys,
            NicFabric::Ib(keys) => keys,
            NicFabric::Ofi(keys) => keys,
        }
    }
}
