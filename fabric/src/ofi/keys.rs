//! Keys of a NIC of a libfabric provider.

use std::net::IpAddr;

use garde::Validate;
use serde::{Deserialize, Serialize};

use crate::{
    entry::MAX_CONNECTIONS,
    keys::{Auto, auto_within, ip_address, name_of, within},
    with_defaults,
};

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
