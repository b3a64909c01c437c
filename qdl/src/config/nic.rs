//! Configuration of one NIC: its NIC thread and the keys of its fabric.
//!
//! An entry of `nics` is one mapping with keys in any order. [`NicConfig`] has the keys of every
//! NIC, [`NicFabric`] those of the NIC's fabric. The entry determines the fabric: `ofi` names a
//! libfabric provider, `device` or `match` RDMA devices, and any other entry is a TCP NIC.
//! `nic_keys.rs` reads the entry and refuses all other keys.

use std::net::{IpAddr, SocketAddr};

use fabric::{
    ib::IbKeys,
    keys::{Auto, never_or_number},
    kinds::{NicFabric, NicFacts},
    tcp::TcpKeys,
    wire::MAX_SLOTS,
};
use garde::Validate;
use serde::{Deserialize, Serialize};

use super::rules::{MAX_GPU, auto_within, core_list, within, within_some};

/// Memory for the slots of one connection with `slots: auto`, in bytes. If a NIC has more than the
/// usual connections to an accelerator, they share the memory of these.
const AUTO_BYTES: usize = 64 << 20;
/// Minimum number of slots with `slots: auto`, within `AUTO_MOST_BYTES`.
pub(crate) const MIN_AUTO_SLOTS: usize = 16;
/// Maximum bytes of `MIN_AUTO_SLOTS` slots, shared likewise: larger samples get fewer slots.
const AUTO_MOST_BYTES: usize = 1 << 30;
/// Minimum number of slots for large samples: one sample arrives while another is computed.
const FEWEST_AUTO_SLOTS: usize = 2;
/// Maximum number of slots with `slots: auto`.
pub(crate) const MAX_AUTO_SLOTS: usize = 2048;

/// Maximum time of spinning in microseconds: one second.
const MAX_SPIN_US: u64 = 1_000_000;
pub(super) const MAX_THREADS: usize = 1024;
const MAX_NUMA: u32 = 1023;

/// One NIC: the keys that every NIC has, and the keys of the NIC's fabric.
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(default)]
#[garde(allow_unvalidated)]
pub struct NicConfig {
    /// Samples in flight on a connection, 1 to 8192; default `auto` ([`Self::resolve_slots`]). The
    /// frontend's value applies to both ends.
    #[garde(custom(auto_within(1..=MAX_SLOTS)))]
    pub slots: Auto<usize>,
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
    #[serde(flatten, skip_deserializing)]
    pub fabric: NicFabric,
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

    /// Creates a frontend's TCP NIC at this address with all defaults.
    pub fn tcp_from(address: IpAddr) -> Self {
        let address = Some(address);
        NicFabric::Tcp(TcpKeys {
            address,
            ..TcpKeys::default()
        })
        .into()
    }

    /// Creates the NIC of this device's port 1 with all defaults.
    pub fn ib(device: impl Into<String>) -> Self {
        NicFabric::Ib(IbKeys::new(&device.into())).into()
    }

    /// Returns the facts that follow from the keys of the fabric.
    pub fn facts(&self) -> NicFacts<'_> {
        self.fabric.facts()
    }

    /// Returns the slots of a connection, for slots of `stride` bytes, the larger of request and
    /// response: the configured number, or as many as fit in 64 MiB, from 16 to 2048. If 16 slots
    /// exceed 1 GiB, as many as fit in 1 GiB, at least 2. More than 2 connections share the memory
    /// of 2; more than 4 queue pairs, that of 4.
    pub fn resolve_slots(&self, stride: usize) -> usize {
        match self.slots {
            Auto::Fixed(slots) => slots,
            Auto::Auto => {
                let NicFacts {
                    connections,
                    connections_usual: usual,
                    ..
                } = self.facts();
                let share = |bytes: usize| bytes / connections.max(usual) * usual;
                let few = (share(AUTO_MOST_BYTES) / stride.max(1)).max(FEWEST_AUTO_SLOTS);
                (share(AUTO_BYTES) / stride.max(1))
                    .clamp(MIN_AUTO_SLOTS, MAX_AUTO_SLOTS)
                    .min(few)
            }
        }
    }
}

/// The accelerator's GPUs that the connections of a frontend's NIC lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
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
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum GroupBy {
    /// The NICs nearest to the first GPU, then the NICs nearest to the second GPU, and so on. On an
    /// accelerator each NIC feeds its GPU. Without GPUs, by NUMA node.
    Gpu,
}

with_defaults! {
/// How a NIC thread waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
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
    #[serde(with = "never_or_number")]
    pub yield_after_us: Option<u64> = Some(2),
}
}

/// Kinds of waiting for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionMode {
    /// Spins and never sleeps: occupies one core.
    Poll,
    /// Sleeps whenever there is no work.
    Event,
    /// Spins for a while, then sleeps.
    Adaptive,
}
