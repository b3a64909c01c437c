//! Keys of a port of an RDMA device.

use garde::Validate;
use serde::{Deserialize, Serialize};

use crate::{
    entry::MAX_CONNECTIONS,
    keys::{Auto, HELP, auto_within, never_or_number, within},
    with_defaults,
};

pub(super) const QUEUE_PAIRS: usize = 4;
const MAX_DEPTH: u32 = 65_536;
/// Maximum number of retries: 7 means no limit in the verbs.
const MAX_RETRIES: u8 = 6;

with_defaults! {
/// Keys of a port of an RDMA device.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
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
    /// Payloads up to this many bytes are sent inline in the work request, 0 to 1024; default 64.
    #[garde(custom(within(0..=1024)))]
    pub inline_bytes: u32 = 64,
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
    /// Accelerator: slots are in the memory of the entry's `gpu`, where the NIC writes them
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

/// Split writes: a payload above the threshold is a plain RDMA WRITE, which may arrive out of
/// order, followed by a WRITE_WITH_IMM, which arrives in order.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AdaptiveRouting {
    /// Payloads above this many bytes are split; default `None` (`never`).
    #[serde(with = "never_or_number")]
    pub split_above: Option<u32>,
}

fn path_mtu(value: &Auto<u32>, (): &()) -> garde::Result {
    match value {
        Auto::Auto | Auto::Fixed(256 | 512 | 1024 | 2048 | 4096) => Ok(()),
        Auto::Fixed(other) => Err(garde::Error::new(format!(
            "is {other}{HELP}it must be auto, 256, 512, 1024, 2048 or 4096"
        ))),
    }
}

impl IbKeys {
    /// Port 1 of `device`, with all defaults.
    pub fn new(device: &str) -> Self {
        IbKeys {
            device: device.to_owned(),
            ..IbKeys::default()
        }
    }
}
