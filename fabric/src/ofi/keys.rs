//! Keys of a NIC of a libfabric provider.

use std::net::IpAddr;

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{OfiDevice, OfiNic, OfiResources, device::locks_memory};
use crate::{
    Nic, OpenError,
    keys::{Auto, auto_within, ip_address, name_of, within},
    kinds::{
        CONNECTIONS, DataPort, FoundNic, KeyProblem, MAX_CONNECTIONS, NicEntry, NicFacts, NicKeys,
        NicPlace, NicUse, POST_UP_TO,
    },
    with_defaults,
};

/// Socket providers, whose domains are network interfaces.
const SOCKETS: [&str; 4] = ["tcp", "net", "sockets", "udp"];

const NO_PROVIDER: [&str; 2] = [
    "is no provider",
    "use a name that `fi_info` lists, such as efa or \"verbs;ofi_rxm\"",
];
const NO_DOMAIN: [&str; 2] = [
    "is no domain",
    "use a name that `fi_info` lists, such as rdmap0s6-rdm",
];

with_defaults! {
/// Keys of a NIC of a libfabric provider.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(default)]
#[garde(allow_unvalidated)]
pub struct OfiKeys {
    /// Name of the provider, as `fi_info` lists it: `efa`, `verbs;ofi_rxm`.
    #[serde(rename = "ofi")]
    #[garde(custom(name_of(|c| "_-;".contains(c), NO_PROVIDER)))]
    pub provider: String,
    /// The NIC's name in the provider (`fi_info`: domain), as in `rdmap0s6-rdm`. This or `address`
    /// is required.
    #[garde(inner(custom(name_of(|c| c.is_ascii_graphic(), NO_DOMAIN))))]
    pub domain: Option<String>,
    /// An address of the NIC.
    #[serde(deserialize_with = "ip_address")]
    pub address: Option<IpAddr>,
    /// Like [`TcpKeys::connections`](crate::tcp::TcpKeys::connections).
    #[garde(custom(auto_within(1..=MAX_CONNECTIONS)))]
    pub connections: Auto<usize>,
    /// Payloads up to this many bytes are copied when they are posted, 0 to 1024; default 64.
    #[garde(custom(within(0..=1024)))]
    pub inline_bytes: u32 = 64,
    /// Like [`TcpKeys::post_from_issue_thread_up_to`](crate::tcp::TcpKeys).
    pub post_from_issue_thread_up_to: Auto<usize>,
}
}

impl OfiKeys {
    fn uses_sockets(&self) -> bool {
        SOCKETS.iter().any(|s| self.provider.starts_with(s))
    }
}

impl NicKeys for OfiKeys {
    fn facts(&self) -> NicFacts<'_> {
        let address = self.address.map(|a| a.to_string());
        let nic = self.domain.clone().or(address).unwrap_or_default();
        let domain = self.domain.as_deref().unwrap_or_default();
        NicFacts {
            fabric: "ofi",
            provider: Some(&self.provider),
            label: format!("{}:{nic}", self.provider),
            place: match self.address {
                Some(address) => NicPlace::Address(address),
                // EFA names the domain of `rdmap0s6` `rdmap0s6-rdm`.
                None => NicPlace::Device(domain.strip_suffix("-rdm").unwrap_or(domain), 1),
            },
            hardware: match self.uses_sockets() {
                true => "interface",
                false => "RDMA device",
            },
            listen: None,
            locks_memory: locks_memory(&self.provider),
            shares_threads: false,
            connections: self.connections.fixed().unwrap_or(CONNECTIONS),
            connections_key: "connections",
            connections_usual: CONNECTIONS,
            post_up_to: self
                .post_from_issue_thread_up_to
                .fixed()
                .unwrap_or(POST_UP_TO),
        }
    }

    fn connections_mut(&mut self) -> Option<&mut Auto<usize>> {
        Some(&mut self.connections)
    }

    fn choose(&mut self, nic: FoundNic<'_>) -> Option<String> {
        let domain = if self.uses_sockets() {
            self.address = Some(nic.address?);
            nic.netdev?.to_owned()
        } else {
            nic.port?;
            let suffix = if self.provider == "efa" { "-rdm" } else { "" };
            format!("{}{suffix}", nic.name)
        };
        self.domain = Some(domain.clone());
        Some(domain)
    }

    fn settle(&mut self) {
        let NicFacts {
            connections,
            post_up_to,
            ..
        } = self.facts();
        self.connections = Auto::Fixed(connections);
        self.post_from_issue_thread_up_to = Auto::Fixed(post_up_to);
    }

    fn check_ranges(&self) -> Result<(), garde::Report> {
        self.validate()
    }

    fn check(&self, entry: NicEntry) -> Vec<KeyProblem> {
        if self.domain.is_some() || self.address.is_some() || entry.is_group {
            return Vec::new();
        }
        let provider = &self.provider;
        vec![KeyProblem::new(
            "",
            "an `ofi` NIC needs `domain`, or the `address` that it has",
            format!("add `domain: NAME`: `fi_info -p '{provider}'` lists them"),
        )]
    }

    fn open(&self, purpose: NicUse<'_>) -> Result<(Box<dyn Nic>, Option<DataPort>), OpenError> {
        let device = OfiDevice::open(self, &purpose.near)?;
        device.check(purpose.connections)?;
        let info = device.info();
        tracing::info!(
            "{} is up: {}libfabric {}, writes arrive {}",
            device.name(),
            info.limits()
                .gbps
                .map_or(String::new(), |g| format!("{g} Gbit/s, ")),
            info.ofi().version(),
            if device.keeps_order() {
                "in order"
            } else {
                "in any order"
            },
        );
        let nic = OfiNic {
            resources: OfiResources::new(device)?,
            inline_bytes: self.inline_bytes,
        };
        Ok((Box::new(nic), None))
    }
}
