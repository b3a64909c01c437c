//! One NIC on the InfiniBand/RoCE fabric: the values of `IbCfgs` as YAML gives them. What the device
//! itself allows is checked when it is opened.

use garde::Validate;
use serde::Deserialize;

use super::{
    Auto, Completion, Gpus,
    nic::{MAX_CONNECTIONS, MAX_NUMA, resolve_slots},
    rules::{Findings, HELP, auto_within, core_list, within, within_some},
    values::never_or_number,
};
use crate::{fabric::MAX_SLOTS, topology::Topology};

/// Default of [`IbNicConfig::port`].
pub const DEFAULT_IB_PORT: u8 = 1;
/// Default of [`IbNicConfig::gid_index`].
pub const DEFAULT_GID_INDEX: Auto<u8> = Auto::Auto;
/// Default of [`IbNicConfig::mtu`].
pub const DEFAULT_MTU: Auto<u32> = Auto::Auto;
/// Default of [`IbNicConfig::queue_pairs`].
pub const DEFAULT_QUEUE_PAIRS: usize = 4;
/// Default of [`IbNicConfig::inline_bytes`].
pub const DEFAULT_IB_INLINE_BYTES: u32 = 64;
/// Default of [`IbNicConfig::signal_every`].
pub const DEFAULT_SIGNAL_EVERY: u32 = 64;
/// Default of [`IbNicConfig::send_depth`].
pub const DEFAULT_SEND_DEPTH: Auto<u32> = Auto::Auto;
/// Default of [`IbNicConfig::receive_depth`].
pub const DEFAULT_RECEIVE_DEPTH: Auto<u32> = Auto::Auto;
/// Default of [`IbNicConfig::solicited`].
pub const DEFAULT_SOLICITED: bool = true;
/// Default of [`AdaptiveRouting::split_above`].
pub const DEFAULT_SPLIT_ABOVE: Option<u32> = None;
/// Default of [`IbNicConfig::service_level`].
pub const DEFAULT_SERVICE_LEVEL: u8 = 0;
/// Default of [`IbNicConfig::traffic_class`].
pub const DEFAULT_TRAFFIC_CLASS: u8 = 0;
/// Default of [`IbNicConfig::timeout`]: 67 ms, which with 6 retries nominally gives up after half a second.
pub const DEFAULT_TIMEOUT: u8 = 14;
/// Default of [`IbNicConfig::retry_count`].
pub const DEFAULT_RETRY_COUNT: u8 = 6;
/// Default of [`IbNicConfig::rnr_retry`].
pub const DEFAULT_RNR_RETRY: u8 = 6;
/// Default of [`IbNicConfig::min_rnr_timer`]: 0.64 ms.
pub const DEFAULT_MIN_RNR_TIMER: u8 = 12;

/// Deepest queue, in work requests.
const MAX_DEPTH: u32 = 65_536;
/// Most retries: 7 would mean "for ever".
const MAX_RETRIES: u8 = 6;

/// A NIC on the InfiniBand/RoCE fabric.
#[derive(Clone, Debug, PartialEq, Eq, Validate)]
pub struct IbNicConfig {
    /// Name of the RDMA device, as in `mlx5_0`.
    #[garde(custom(device_name))]
    pub device: String,
    /// Physical port, from 1; default 1.
    #[garde(custom(within(1..=254)))]
    pub port: u8,
    /// Index into the port's GID table; default `auto`, a RoCE v2 or InfiniBand GID that fits the peer's.
    #[garde(skip)]
    pub gid_index: Auto<u8>,
    /// Path MTU in bytes: 256, 512, 1024, 2048 or 4096; default `auto`, the smaller of both ports' active MTUs.
    #[garde(custom(path_mtu))]
    pub mtu: Auto<u32>,
    /// Queue pairs to each accelerator, 1 to 256; default 4. The frontend's number counts.
    #[garde(custom(within(1..=MAX_CONNECTIONS)))]
    pub queue_pairs: usize,
    /// Slots of each queue pair, 1 to 8192; default `auto` ([`Self::resolve_slots`]). The
    /// frontend's number counts.
    #[garde(custom(auto_within(1..=MAX_SLOTS)))]
    pub slots: Auto<usize>,
    /// Payloads up to this many bytes ride in the work request, 0 to 1024; default 64.
    #[garde(custom(within(0..=1024)))]
    pub inline_bytes: u32,
    /// One write in this many is signaled, 1 to 32,768; default 64. Never more than half the send queue.
    #[garde(custom(within(1..=MAX_DEPTH / 2)))]
    pub signal_every: u32,
    /// Depth of the send queue in work requests, 2 to 65,536; default `auto`, from the slots.
    #[garde(custom(auto_within(2..=MAX_DEPTH)))]
    pub send_depth: Auto<u32>,
    /// Depth of the receive queue in work requests, 1 to 65,536; default `auto`, the slots and one batch more.
    #[garde(custom(auto_within(1..=MAX_DEPTH)))]
    pub receive_depth: Auto<u32>,
    /// Marks the last write of a burst solicited, so that a sleeping peer wakes once; default true.
    #[garde(skip)]
    pub solicited: bool,
    /// How the rail thread waits.
    #[garde(dive)]
    pub completion: Completion,
    /// Split writes for adaptive routing.
    #[garde(dive)]
    pub adaptive_routing: AdaptiveRouting,
    /// InfiniBand service level, 0 to 15; default 0.
    #[garde(custom(within(0..=15)))]
    pub service_level: u8,
    /// Traffic class of the GRH, which is the IP header's DSCP and ECN on RoCE, 0 to 255; default 0.
    #[garde(skip)]
    pub traffic_class: u8,
    /// Local ACK timeout, 1 to 31: 4.096 us x 2^timeout; default 14. (0, which means "for ever", is refused.)
    #[garde(custom(within(1..=31)))]
    pub timeout: u8,
    /// Retries after a timeout, 0 to 6; default 6.
    #[garde(custom(within(0..=MAX_RETRIES)))]
    pub retry_count: u8,
    /// Retries after "receiver not ready", 0 to 6; default 6. (7, which means "for ever", is refused.)
    #[garde(custom(within(0..=MAX_RETRIES)))]
    pub rnr_retry: u8,
    /// What this side asks a sender to wait before such a retry, as the verbs encode it, 1 to 31; default 12.
    #[garde(custom(within(1..=31)))]
    pub min_rnr_timer: u8,
    /// NUMA node of its threads and memory; default `auto`, the device's own from sysfs.
    #[garde(custom(auto_within(0..=MAX_NUMA)))]
    pub numa: Auto<u32>,
    /// GPU that this NIC feeds, by its index; default none.
    #[garde(custom(within_some(0..=255)))]
    pub gpu: Option<u32>,
    /// On an accelerator: slots lie in the memory of `gpu`, where the NIC writes them (GPUDirect); default false. Where what
    /// it writes is not seen there, they lie in the host's memory, and a warning says why.
    #[garde(skip)]
    pub gpudirect: bool,
    /// On a frontend the GPUs of an accelerator that its connections lead to; default `own`.
    #[garde(skip)]
    pub gpus: Gpus,
    /// Cores the rail thread is pinned to; default none.
    #[garde(custom(core_list))]
    pub cpus: Option<Vec<usize>>,
}

/// Split writes: a payload above the threshold goes as a plain RDMA WRITE, which may be delivered out of
/// order, followed by a WRITE_WITH_IMM, which may not.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Validate)]
pub struct AdaptiveRouting {
    /// Payloads of more bytes than this are split; default `None` (`never`).
    #[garde(skip)]
    pub split_above: Option<u32>,
}

/// [`AdaptiveRouting`] as YAML gives it.
#[derive(Clone, Copy, Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct AdaptiveRoutingFile {
    #[serde(deserialize_with = "never_or_number::deserialize")]
    pub(super) split_above: Option<u32>,
}

impl IbNicConfig {
    /// Its NUMA node, where the machine has several: the configured one, or the device's own where it is known.
    pub fn node(&self, topology: &Topology) -> Option<u32> {
        let own = || topology.node_of_device(&self.device);
        self.numa.fixed().or_else(own)
    }

    /// Port 1 of this device with every default.
    pub fn new(device: impl Into<String>) -> Self {
        IbNicConfig {
            device: device.into(),
            port: DEFAULT_IB_PORT,
            gid_index: DEFAULT_GID_INDEX,
            mtu: DEFAULT_MTU,
            queue_pairs: DEFAULT_QUEUE_PAIRS,
            slots: Auto::Auto,
            inline_bytes: DEFAULT_IB_INLINE_BYTES,
            signal_every: DEFAULT_SIGNAL_EVERY,
            send_depth: DEFAULT_SEND_DEPTH,
            receive_depth: DEFAULT_RECEIVE_DEPTH,
            solicited: DEFAULT_SOLICITED,
            completion: Completion::default(),
            adaptive_routing: AdaptiveRouting {
                split_above: DEFAULT_SPLIT_ABOVE,
            },
            service_level: DEFAULT_SERVICE_LEVEL,
            traffic_class: DEFAULT_TRAFFIC_CLASS,
            timeout: DEFAULT_TIMEOUT,
            retry_count: DEFAULT_RETRY_COUNT,
            rnr_retry: DEFAULT_RNR_RETRY,
            min_rnr_timer: DEFAULT_MIN_RNR_TIMER,
            numa: Auto::Auto,
            gpu: None,
            gpudirect: false,
            gpus: Gpus::default(),
            cpus: None,
        }
    }

    /// Slots of each queue pair, for slots of `stride` bytes.
    pub fn resolve_slots(&self, stride: usize) -> usize {
        resolve_slots(self.slots, stride)
    }

    /// Relations between keys, for the NIC found at `path`.
    pub(super) fn relations(&self, path: &str, out: &mut Findings) {
        if let Some(depth) = self.send_depth.fixed()
            && self.signal_every > depth / 2
        {
            out.add(
                format!("{path}.signal_every"),
                format!(
                    "one write in {} is signaled, in a send queue of {depth}",
                    self.signal_every
                ),
                format!(
                    "set signal_every to at most half of send_depth, {}",
                    depth / 2
                ),
            );
        }
        if let (Some(depth), Some(slots)) = (self.receive_depth.fixed(), self.slots.fixed())
            && (depth as usize) < slots
        {
            out.add(
                format!("{path}.receive_depth"),
                format!("{depth} receives are fewer than the {slots} slots that can arrive"),
                format!("set receive_depth to at least {slots}, or to `auto`"),
            );
        }
    }
}

fn device_name(value: &str, (): &()) -> garde::Result {
    let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '_' | '-' | '.');
    if !value.is_empty() && value.len() < 64 && value.chars().all(ok) {
        Ok(())
    } else {
        Err(garde::Error::new(format!(
            "is no device name{HELP}use a name that `ibv_devices` lists, such as mlx5_0"
        )))
    }
}

fn path_mtu(value: &Auto<u32>, (): &()) -> garde::Result {
    match value {
        Auto::Auto | Auto::Fixed(256 | 512 | 1024 | 2048 | 4096) => Ok(()),
        Auto::Fixed(other) => Err(garde::Error::new(format!(
            "is {other}{HELP}it must be auto, 256, 512, 1024, 2048 or 4096"
        ))),
    }
}
