//! Configuration of one NIC: its NIC thread and the keys of its fabric.
//!
//! An entry of `nics` is one mapping with keys in any order. [`NicConfig`] has the keys of every
//! NIC; [`TcpKeys`], [`IbKeys`] or [`OfiKeys`] has the keys of the NIC's fabric. The entry
//! determines the fabric: `ofi` names a libfabric provider, `device` or `match` RDMA devices, and
//! any other entry is a TCP NIC. `nic_keys.rs` reads the entry and refuses all other keys.

use std::net::{IpAddr, Ipv4Addr, SocketAddr};

use garde::Validate;
use serde::{Deserialize, Deserializer, de};

use super::{
    rules::{MAX_GPU, auto_within, core_list, within, within_some},
    values::{Auto, HELP, ip_address, never_or_number, some_socket_address, system_or_number},
};
use fabric::os::Congestion;
use fabric::wire::MAX_SLOTS;

/// Default of `post_from_issue_thread_up_to`: a copy of 16 KiB costs a few system calls.
const POST_UP_TO: usize = 16 << 10;
/// Memory for the slots of one connection with `slots: auto`, in bytes. If a NIC has more than
/// [`CONNECTIONS`] connections (or [`QUEUE_PAIRS`] queue pairs) to an accelerator, they share the
/// memory of [`CONNECTIONS`] (or [`QUEUE_PAIRS`]).
const AUTO_BYTES: usize = 64 << 20;
/// Minimum number of slots with `slots: auto`, within `AUTO_MOST_BYTES`.
pub(crate) const MIN_AUTO_SLOTS: usize = 16;
/// Maximum bytes of `MIN_AUTO_SLOTS` slots, shared likewise: larger samples get fewer slots.
const AUTO_MOST_BYTES: usize = 1 << 30;
/// Minimum number of slots for large samples: one sample arrives while another is computed.
const FEWEST_AUTO_SLOTS: usize = 2;
/// Maximum number of slots with `slots: auto`.
pub(crate) const MAX_AUTO_SLOTS: usize = 2048;

/// Connections to each accelerator until `connections: auto` is resolved.
pub const CONNECTIONS: usize = 2;
const QUEUE_PAIRS: usize = 4;
const MAX_CONNECTIONS: usize = 256;
/// Maximum time of spinning in microseconds: one second.
const MAX_SPIN_US: u64 = 1_000_000;
pub(super) const MAX_THREADS: usize = 1024;
const MAX_NUMA: u32 = 1023;
const MAX_DEPTH: u32 = 65_536;
/// Maximum number of retries: 7 means no limit in the verbs.
const MAX_RETRIES: u8 = 6;

/// One NIC: the keys that every NIC has, and the keys of the NIC's fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Validate)]
#[serde(default)]
#[garde(allow_unvalidated)]
pub struct NicConfig {
    /// Samples in flight on a connection, 1 to 8192; default `auto` ([`Self::resolve_slots`]). The
    /// frontend's value applies to both ends.
    #[garde(custom(auto_within(1..=MAX_SLOTS)))]
    pub slots: Auto<usize>,
    /// Payloads up to this many bytes are copied behind their header (TCP: 0 to 64 KiB, default
    /// 512) or sent inline in the work request (`ib`, `ofi`: 0 to 1024, default 64); see
    /// [`Self::inline_bytes`].
    pub inline_bytes: Option<u32>,
    /// How the NIC thread waits for completions.
    #[garde(dive)]
    pub completion: Completion,
    /// NUMA node of the NIC thread and its memory; default `auto`, the NIC's own node.
    #[garde(custom(auto_within(0..=MAX_NUMA)))]
    pub numa: Auto<u32>,
    /// Cores that the NIC thread is pinned to; default: on a machine with several NUMA nodes, the
    /// cores of the NIC's node.
    #[garde(custom(core_list))]
    pub cpus: Option<Vec<usize>>,
    /// Accelerator: the GPU nearest to the NIC. This GPU's engine gets the NIC's samples; default
    /// none: any engine.
    #[garde(custom(within_some(0..=MAX_GPU as u32)))]
    pub gpu: Option<u32>,
    /// Frontend: the GPUs of an accelerator that the connections lead to; default `own`.
    pub gpus: Gpus,
    /// The entry represents every NIC of this machine that is up and whose name matches. These NICs
    /// share the entry's other keys. `*` matches any text, `?` any letter. With `ofi` it selects
    /// domains of the provider, otherwise RDMA devices ([`crate::topology`] finds them).
    #[serde(rename = "match")]
    pub matching: Option<String>,
    /// Order of the NICs found by `match`; default: their order on the PCIe bus.
    pub group_by: Option<GroupBy>,
    /// Fabric of the NIC's connections.
    #[serde(skip)]
    pub fabric: NicFabric,
}

/// A NIC's fabric, with the keys that only this fabric has.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum NicFabric {
    /// Sockets.
    Tcp(TcpKeys),
    /// InfiniBand or RoCE: queue pairs.
    Ib(IbKeys),
    /// A libfabric provider: endpoints.
    Ofi(OfiKeys),
}

impl Default for NicFabric {
    fn default() -> Self {
        NicFabric::Tcp(TcpKeys::default())
    }
}

impl NicFabric {
    /// Returns `tcp`, `ib` or `ofi`.
    pub fn as_str(&self) -> &'static str {
        match self {
            NicFabric::Tcp(_) => "tcp",
            NicFabric::Ib(_) => "ib",
            NicFabric::Ofi(_) => "ofi",
        }
    }
}

with_defaults! {
/// Keys of a TCP NIC.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(default)]
#[garde(allow_unvalidated)]
pub struct TcpKeys {
    /// Frontend: local address of the data connections.
    #[serde(deserialize_with = "ip_address")]
    pub address: Option<IpAddr>,
    /// Accelerator: listening address and port of the data connections; with port 0 the system
    /// chooses the port.
    #[serde(deserialize_with = "some_socket_address")]
    pub listen: Option<SocketAddr>,
    /// Connections to each accelerator, 1 to 256; default `auto`, one for each thread of this NIC
    /// ([`crate::run::settle_connections`]). The frontend's value applies to both ends.
    #[garde(custom(auto_within(1..=MAX_CONNECTIONS)))]
    pub connections: Auto<usize>,
    /// Congestion control of the data connections on which this end sends. Default `auto`: the
    /// system's own, but CUBIC (or Reno) instead of BBR ([`Congestion`]). Other values: `system`,
    /// or a name that `net.ipv4.tcp_available_congestion_control` lists.
    #[serde(deserialize_with = "congestion")]
    pub congestion: Congestion = Congestion::Auto,
    /// `SO_SNDBUF` in bytes, 4 KiB to 1 GiB; default 1 MiB. `None` (`system`) leaves the size to
    /// the system, as does a size that the system does not grant (`net.core.wmem_max`).
    #[serde(deserialize_with = "system_or_number")]
    #[garde(custom(within_some(4096..=1 << 30)))]
    pub send_buffer_bytes: Option<usize> = Some(1 << 20),
    /// Frontend: maximum burst that the issuing thread posts, in payload bytes; default (`auto`)
    /// 16384. NIC threads post larger bursts; with 0, all. The minimum over all NICs applies.
    pub post_from_issue_thread_up_to: Auto<usize> = Auto::Fixed(POST_UP_TO),
}
}

impl TcpKeys {
    /// Returns the local or listening address. The port is 0 on a frontend.
    pub fn at(&self) -> SocketAddr {
        // Validation requires one of the two keys.
        let ip = self.address.unwrap_or(Ipv4Addr::UNSPECIFIED.into());
        self.listen.unwrap_or(SocketAddr::new(ip, 0))
    }
}

/// Keys of a NIC of a libfabric provider.
#[derive(Clone, Debug, Default, PartialEq, Eq, Deserialize, Validate)]
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
    /// Like [`TcpKeys::connections`].
    #[garde(custom(auto_within(1..=MAX_CONNECTIONS)))]
    pub connections: Auto<usize>,
    /// Like [`TcpKeys::post_from_issue_thread_up_to`].
    pub post_from_issue_thread_up_to: Auto<usize>,
}

with_defaults! {
/// Keys of a port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(default)]
#[garde(allow_unvalidated)]
pub struct IbKeys {
    /// Name of the RDMA device, as in `mlx5_0`; empty with `match`.
    pub device: String,
    /// Physical port, from 1; default 1.
    #[garde(custom(within(1..=254)))]
    pub port: u8 = 1,
    /// Index into the port's GID table; default `auto`, a RoCE v2 or InfiniBand GID that matches
    /// the peer's.
    pub gid_index: Auto<u8>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; default `auto`, the smaller of both ports'
    /// active MTUs.
    #[garde(custom(path_mtu))]
    pub mtu: Auto<u32>,
    /// Queue pairs to each accelerator, 1 to 256; default 4. The frontend's value counts.
    #[garde(custom(within(1..=MAX_CONNECTIONS)))]
    pub queue_pairs: usize = QUEUE_PAIRS,
    /// One write in this many is signaled: 1 to 32,768, at most half of `send_depth`; default 64.
    #[garde(custom(within(1..=MAX_DEPTH / 2)))]
    pub signal_every: u32 = 64,
    /// Depth of the send queue in work requests, 2 to 65,536; default `auto`, from the slots.
    #[garde(custom(auto_within(2..=MAX_DEPTH)))]
    pub send_depth: Auto<u32>,
    /// Depth of the receive queue in work requests, 1 to 65,536; default `auto`, the slots plus one
    /// batch.
    #[garde(custom(auto_within(1..=MAX_DEPTH)))]
    pub receive_depth: Auto<u32>,
    /// Accelerator: slots are in the memory of [`NicConfig::gpu`], where the NIC writes them
    /// (GPUDirect); default false. If the GPU cannot see the NIC's writes, the slots are in host
    /// memory, and a warning names the reason.
    pub gpudirect: bool,
    /// Marks a burst's last write solicited, so that a sleeping peer wakes once; default true.
    pub solicited: bool = true,
    /// Size above which a payload goes as two writes, so that the network may route the payload's
    /// packets adaptively; see [`AdaptiveRouting`].
    pub adaptive_routing: AdaptiveRouting,
    /// InfiniBand service level, 0 to 15; default 0.
    #[garde(custom(within(0..=15)))]
    pub service_level: u8,
    /// Traffic class of the GRH; on RoCE it is the IP header's DSCP and ECN. Default 0.
    pub traffic_class: u8,
    /// Local ACK timeout, 1 to 31: 4.096 us x 2^timeout. Default 14, 67 ms, which with 6 retries
    /// nominally gives up after half a second. 0 means no limit and is refused.
    #[garde(custom(within(1..=31)))]
    pub timeout: u8 = 14,
    /// Retries after a timeout, 0 to 6; default 6.
    #[garde(custom(within(0..=MAX_RETRIES)))]
    pub retry_count: u8 = 6,
    /// Retries after "receiver not ready", 0 to 6; default 6. 7 means no limit and is refused.
    #[garde(custom(within(0..=MAX_RETRIES)))]
    pub rnr_retry: u8 = 6,
    /// Time that a sender must wait before an `rnr_retry`, in the encoding of the verbs, 1 to 31;
    /// default 12, 0.64 ms.
    #[garde(custom(within(1..=31)))]
    pub min_rnr_timer: u8 = 12,
}
}

impl From<NicFabric> for NicConfig {
    fn from(fabric: NicFabric) -> Self {
        NicConfig {
            fabric,
            ..NicConfig::default()
        }
    }
}

impl NicConfig {
    /// Creates an accelerator's TCP NIC at this address with all defaults.
    pub fn tcp(listen: SocketAddr) -> Self {
        let listen = Some(listen);
        NicFabric::Tcp(TcpKeys {
            listen,
            ..TcpKeys::default()
        })
        .into()
    }

    /// Creates the NIC of this device's port 1 with all defaults.
    pub fn ib(device: impl Into<String>) -> Self {
        let device = device.into();
        NicFabric::Ib(IbKeys {
            device,
            ..IbKeys::default()
        })
        .into()
    }

    /// Creates the NIC of a libfabric provider's domain with all defaults.
    #[cfg(test)]
    pub(crate) fn ofi_domain(provider: impl Into<String>, domain: impl Into<String>) -> Self {
        NicFabric::Ofi(OfiKeys {
            provider: provider.into(),
            domain: Some(domain.into()),
            ..OfiKeys::default()
        })
        .into()
    }

    /// Returns the address or device, for messages.
    pub fn label(&self) -> String {
        match &self.fabric {
            NicFabric::Tcp(tcp) => match tcp.listen {
                Some(listen) if listen.port() != 0 => listen.to_string(),
                _ => tcp.at().ip().to_string(),
            },
            NicFabric::Ib(ib) => format!("{}:{}", ib.device, ib.port),
            NicFabric::Ofi(ofi) => {
                let address = ofi.address.map(|a| a.to_string());
                let nic = ofi.domain.clone().or(address).unwrap_or_default();
                format!("{}:{nic}", ofi.provider)
            }
        }
    }

    /// Returns the keys of an RDMA device; `None` for another fabric.
    pub(crate) fn as_ib(&self) -> Option<&IbKeys> {
        match &self.fabric {
            NicFabric::Ib(ib) => Some(ib),
            _ => None,
        }
    }

    /// Returns the keys of a libfabric NIC; `None` for another fabric.
    pub(crate) fn as_ofi(&self) -> Option<&OfiKeys> {
        match &self.fabric {
            NicFabric::Ofi(ofi) => Some(ofi),
            _ => None,
        }
    }

    /// Returns whether the NIC is an RDMA device.
    pub fn is_ib(&self) -> bool {
        self.as_ib().is_some()
    }

    /// Returns whether the NIC writes into memory that must be locked.
    pub fn locks_memory(&self) -> bool {
        let provider = self.as_ofi().map(|ofi| ofi.provider.as_str());
        self.is_ib() || provider.is_some_and(fabric::ofi::locks_memory)
    }

    /// Returns the maximum burst that the issuing thread posts, in payload bytes.
    pub fn post_up_to(&self) -> usize {
        let set = match &self.fabric {
            NicFabric::Tcp(tcp) => tcp.post_from_issue_thread_up_to,
            NicFabric::Ofi(ofi) => ofi.post_from_issue_thread_up_to,
            NicFabric::Ib(_) => Auto::Auto,
        };
        set.fixed().unwrap_or(POST_UP_TO)
    }

    /// Returns the number of connections or queue pairs to each accelerator.
    pub fn connections(&self) -> usize {
        match &self.fabric {
            NicFabric::Tcp(tcp) => tcp.connections.fixed().unwrap_or(CONNECTIONS),
            NicFabric::Ofi(ofi) => ofi.connections.fixed().unwrap_or(CONNECTIONS),
            NicFabric::Ib(ib) => ib.queue_pairs,
        }
    }

    /// Returns the key `connections`; `None` for a fabric without it.
    pub(crate) fn connections_mut(&mut self) -> Option<&mut Auto<usize>> {
        match &mut self.fabric {
            NicFabric::Tcp(tcp) => Some(&mut tcp.connections),
            NicFabric::Ofi(ofi) => Some(&mut ofi.connections),
            NicFabric::Ib(_) => None,
        }
    }

    /// Returns the maximum payload sent with its header or inline in the work request, in bytes.
    pub fn inline_bytes(&self) -> u32 {
        self.inline_bytes.unwrap_or(match self.fabric {
            NicFabric::Tcp(_) => 512,
            NicFabric::Ib(_) | NicFabric::Ofi(_) => 64,
        })
    }

    /// Returns the slots of a connection, for slots of `stride` bytes, the larger of request and
    /// response: the configured number, or as many as fit in 64 MiB, from 16 to 2048. If 16 slots
    /// exceed 1 GiB, as many as fit in 1 GiB, at least 2. More than 2 connections share the memory
    /// of 2; more than 4 queue pairs, that of 4.
    pub fn resolve_slots(&self, stride: usize) -> usize {
        match self.slots {
            Auto::Fixed(slots) => slots,
            Auto::Auto => {
                let usual = if self.is_ib() {
                    QUEUE_PAIRS
                } else {
                    CONNECTIONS
                };
                let share = |bytes: usize| bytes / self.connections().max(usual) * usual;
                let few = (share(AUTO_MOST_BYTES) / stride.max(1)).max(FEWEST_AUTO_SLOTS);
                (share(AUTO_BYTES) / stride.max(1))
                    .clamp(MIN_AUTO_SLOTS, MAX_AUTO_SLOTS)
                    .min(few)
            }
        }
    }
}

/// The accelerator's GPUs that the connections of a frontend's NIC lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpus {
    /// The GPU nearest to the NIC at the accelerator's end.
    #[default]
    Own,
    /// All GPUs in turn, from the nearest one on: if a GPU's own NIC is lost, samples reach the GPU
    /// across the accelerator's interior. Needs at least as many connections as GPUs.
    All,
}

/// Order of the NICs that one entry represents.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupBy {
    /// The NICs nearest to the first GPU, then the NICs nearest to the second GPU, and so on. On an
    /// accelerator each NIC feeds its GPU. Without GPUs, by NUMA node.
    Gpu,
}

/// Split writes: a payload above the threshold is a plain RDMA WRITE, which may arrive out of
/// order, followed by a WRITE_WITH_IMM, which arrives in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveRouting {
    /// Payloads above this many bytes are split; default `None` (`never`).
    #[serde(deserialize_with = "never_or_number")]
    pub split_above: Option<u32>,
}

with_defaults! {
/// How a NIC thread waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
#[garde(allow_unvalidated)]
pub struct Completion {
    /// Whether the thread spins, sleeps, or first spins and then sleeps; default `adaptive`.
    pub mode: CompletionMode = CompletionMode::Adaptive,
    /// Microseconds that `adaptive` spins without work before it sleeps, 0 to 1,000,000; default
    /// 50.
    #[garde(custom(within(0..=MAX_SPIN_US)))]
    pub spin_us: u64 = 50,
    /// Microseconds of spinning after which the thread yields its core between polls, 0 to
    /// 1,000,000; default 2. `None` (`never`) suits a thread with its own core.
    #[garde(custom(within_some(0..=MAX_SPIN_US)))]
    #[serde(deserialize_with = "never_or_number")]
    pub yield_after_us: Option<u64> = Some(2),
}
}

/// Kinds of waiting for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionMode {
    /// Spins and never sleeps: occupies one core.
    Poll,
    /// Sleeps whenever there is no work.
    Event,
    /// Spins for a while, then sleeps.
    Adaptive,
}

/// Decodes `auto`, `system` or the name of a congestion control.
fn congestion<'de, D: Deserializer<'de>>(deserializer: D) -> Result<Congestion, D::Error> {
    let name = String::deserialize(deserializer)?;
    name.parse().map_err(|what: String| {
        de::Error::custom(format!(
            "{what}{HELP}use auto, system, or a name that `sysctl \
             net.ipv4.tcp_available_congestion_control` lists, such as cubic"
        ))
    })
}

/// Rule: a name of 1 to 63 letters, digits and characters that `also` accepts. `wrong` is the
/// error, `right` the remedy.
pub(super) fn name_of(
    also: fn(char) -> bool,
    [wrong, right]: [&'static str; 2],
) -> impl FnOnce(&str, &()) -> garde::Result {
    move |value, ()| {
        let ok = |c: char| c.is_ascii_alphanumeric() || also(c);
        if (1..64).contains(&value.len()) && value.chars().all(ok) {
            Ok(())
        } else {
            Err(garde::Error::new(format!("{wrong}{HELP}{right}")))
        }
    }
}

pub(super) const NO_DEVICE: [&str; 2] = [
    "is no device name",
    "use a name that `ibv_devices` lists, such as mlx5_0",
];
const NO_PROVIDER: [&str; 2] = [
    "is no provider",
    "use a name that `fi_info` lists, such as efa or \"verbs;ofi_rxm\"",
];
const NO_DOMAIN: [&str; 2] = [
    "is no domain",
    "use a name that `fi_info` lists, such as rdmap0s6-rdm",
];

fn path_mtu(value: &Auto<u32>, (): &()) -> garde::Result {
    match value {
        Auto::Auto | Auto::Fixed(256 | 512 | 1024 | 2048 | 4096) => Ok(()),
        Auto::Fixed(other) => Err(garde::Error::new(format!(
            "is {other}{HELP}it must be auto, 256, 512, 1024, 2048 or 4096"
        ))),
    }
}
