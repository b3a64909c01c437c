//! One NIC of a node: what its rail thread does and where it runs, and the sizes of its connections.

use std::net::SocketAddr;

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{
    Auto, IbNicConfig,
    rules::{auto_within, core_list, within, within_some},
    values::never_or_number,
};
use crate::{
    fabric::MAX_SLOTS,
    os::Near,
    rail::{Spin, spin::DEFAULT_YIELD_AFTER_NS},
    topology::{LinkWatch, Topology},
};

/// Default of [`TcpNicConfig::connections`].
pub const DEFAULT_CONNECTIONS: usize = 2;
/// Default of [`Completion::spin_us`].
pub const DEFAULT_SPIN_US: u64 = 50;
/// Default of [`Completion::yield_after_us`].
pub const DEFAULT_YIELD_AFTER_US: u64 = DEFAULT_YIELD_AFTER_NS / 1000;
/// Default of [`TcpNicConfig::send_buffer_bytes`].
pub const DEFAULT_SEND_BUFFER_BYTES: usize = 1 << 20;
/// Default of [`TcpNicConfig::inline_bytes`].
pub const DEFAULT_TCP_INLINE_BYTES: usize = 512;
/// Default of [`TcpNicConfig::post_from_issue_thread_up_to`].
pub const DEFAULT_POST_FROM_ISSUE_THREAD_UP_TO: usize = 16 << 10;
/// Memory that `slots: auto` gives the slots of one connection, in bytes.
pub const DEFAULT_BYTES_PER_CONNECTION: usize = 64 << 20;
/// Fewest slots that `slots: auto` chooses.
pub const MIN_AUTO_SLOTS: usize = 16;
/// Most slots that `slots: auto` chooses.
pub const MAX_AUTO_SLOTS: usize = 2048;

/// Most connections on one NIC to one accelerator.
pub(super) const MAX_CONNECTIONS: usize = 256;
/// Longest spin in microseconds: one second.
const MAX_SPIN_US: u64 = 1_000_000;
/// Largest NUMA node number.
pub(super) const MAX_NUMA: u32 = 1023;

/// One NIC, by fabric.
#[derive(Clone, Debug, PartialEq)]
pub enum NicConfig {
    /// Sockets on an address.
    Tcp(TcpNicConfig),
    /// Queue pairs on an RDMA device.
    Ib(IbNicConfig),
}

impl NicConfig {
    /// `tcp` or `ib`.
    pub fn fabric(&self) -> &'static str {
        match self {
            NicConfig::Tcp(_) => "tcp",
            NicConfig::Ib(_) => "ib",
        }
    }

    /// Address or device, for messages.
    pub fn label(&self) -> String {
        match self {
            NicConfig::Tcp(nic) if nic.bind.port() == 0 => nic.bind.ip().to_string(),
            NicConfig::Tcp(nic) => nic.bind.to_string(),
            NicConfig::Ib(nic) => format!("{}:{}", nic.device, nic.port),
        }
    }

    /// Connections or queue pairs to each accelerator.
    pub fn connections(&self) -> usize {
        match self {
            NicConfig::Tcp(nic) => nic.connections,
            NicConfig::Ib(nic) => nic.queue_pairs,
        }
    }

    /// Slots of each connection, for slots of `stride` bytes.
    pub fn resolve_slots(&self, stride: usize) -> usize {
        match self {
            NicConfig::Tcp(nic) => nic.resolve_slots(stride),
            NicConfig::Ib(nic) => nic.resolve_slots(stride),
        }
    }

    /// On an accelerator the GPU it is nearest to, where the file says so.
    pub fn gpu(&self) -> Option<u32> {
        match self {
            NicConfig::Tcp(nic) => nic.gpu,
            NicConfig::Ib(nic) => nic.gpu,
        }
    }

    /// On a frontend whether its connections go round all GPUs of an accelerator.
    pub fn all_gpus(&self) -> bool {
        match self {
            NicConfig::Tcp(nic) => nic.gpus == Gpus::All,
            NicConfig::Ib(nic) => nic.gpus == Gpus::All,
        }
    }

    /// How its rail thread waits.
    pub fn completion(&self) -> Completion {
        match self {
            NicConfig::Tcp(nic) => nic.completion,
            NicConfig::Ib(nic) => nic.completion,
        }
    }

    /// Its NUMA node, where the machine has several: the configured one, or that of the hardware where it is known.
    pub fn node(&self, topology: &Topology) -> Option<u32> {
        match self {
            NicConfig::Tcp(nic) => nic.node(topology),
            NicConfig::Ib(nic) => nic.node(topology),
        }
    }

    /// Where its threads run and its connections' memory lies: on its node, but for cores that `cpus` names.
    pub fn near(&self, topology: &Topology) -> Near {
        let near = topology.near(self.node(topology).as_slice());
        match self.cpus() {
            Some(cpus) => Near {
                cpus: cpus.to_vec(),
                ..near
            },
            None => near,
        }
    }

    /// Cores its rail thread is pinned to.
    pub fn cpus(&self) -> Option<&[usize]> {
        match self {
            NicConfig::Tcp(nic) => nic.cpus.as_deref(),
            NicConfig::Ib(nic) => nic.cpus.as_deref(),
        }
    }
}

impl Validate for NicConfig {
    type Context = ();

    fn validate_into(
        &self,
        ctx: &(),
        parent: &mut dyn FnMut() -> garde::Path,
        report: &mut garde::Report,
    ) {
        match self {
            NicConfig::Tcp(nic) => nic.validate_into(ctx, parent, report),
            NicConfig::Ib(nic) => nic.validate_into(ctx, parent, report),
        }
    }
}

/// Where belongs what several NICs use: on their nodes, as far as these are known.
pub fn near_all<'a>(nics: impl IntoIterator<Item = &'a NicConfig>, topology: &Topology) -> Near {
    let nodes = nics.into_iter().filter_map(|n| n.node(topology));
    topology.near(&nodes.collect::<Vec<_>>())
}

/// A warning for each NIC whose rail thread is pinned to cores of another NUMA node than its own, or whose `numa` names a node
/// that is not there.
pub fn pinning_warnings(nics: &[NicConfig]) -> Vec<String> {
    let Ok(topology) = Topology::of_this_machine() else {
        return Vec::new();
    };
    let warning = |nic: &NicConfig| {
        let device = match nic {
            NicConfig::Ib(n) => n.device.clone(),
            NicConfig::Tcp(n) => LinkWatch::of_address(n.bind.ip()).interface()?.to_owned(),
        };
        topology.pinning_warning(&device, nic.cpus()?)
    };
    let nowhere = |nic: &NicConfig| {
        let node = nic.node(&topology)?;
        let is_there = topology.nodes.iter().any(|n| n.id == node);
        (topology.has_several_nodes() && !is_there).then(|| {
            let nic = nic.label();
            format!("{nic}: this machine has no NUMA node {node}: its `numa` changes nothing")
        })
    };
    let far = nics.iter().filter_map(warning);
    far.chain(nics.iter().filter_map(nowhere)).collect()
}

/// A NIC on the TCP fabric.
#[derive(Clone, Debug, PartialEq, Eq, Validate)]
pub struct TcpNicConfig {
    /// On a frontend (`address:`) the local address that data connections leave from, with port 0. On an
    /// accelerator (`listen:`) the address and port that they arrive at; with port 0 the system chooses one.
    #[garde(skip)]
    pub bind: SocketAddr,
    /// Connections to each accelerator, 1 to 256; default 2. The frontend's number counts.
    #[garde(custom(within(1..=MAX_CONNECTIONS)))]
    pub connections: usize,
    /// Slots of each connection, 1 to 8192; default `auto` ([`Self::resolve_slots`]). The
    /// frontend's number counts.
    #[garde(custom(auto_within(1..=MAX_SLOTS)))]
    pub slots: Auto<usize>,
    /// How the rail thread waits.
    #[garde(dive)]
    pub completion: Completion,
    /// `SO_SNDBUF` in bytes, 4 KiB to 1 GiB; default 1 MiB. `None` (`system`) leaves it to the system, and so does a size that
    /// the system does not grant (`net.core.wmem_max`).
    #[garde(custom(within_some(4096..=1 << 30)))]
    pub send_buffer_bytes: Option<usize>,
    /// Payloads up to this many bytes are copied behind their header, 0 to 64 KiB; default 512.
    #[garde(custom(within(0..=65_536)))]
    pub inline_bytes: usize,
    /// Payloads up to this many bytes are posted by the thread that issues them, larger ones by the rail
    /// thread; default 16 KiB. Of no meaning on an accelerator.
    #[garde(skip)]
    pub post_from_issue_thread_up_to: usize,
    /// NUMA node of its threads and memory; default `auto`, the node of the NIC that has the address.
    #[garde(custom(auto_within(0..=MAX_NUMA)))]
    pub numa: Auto<u32>,
    /// Cores the rail thread is pinned to; default those of its node, where the machine has several.
    #[garde(custom(core_list))]
    pub cpus: Option<Vec<usize>>,
    /// On an accelerator the GPU it is nearest to, whose engine its samples go to; default none: any engine.
    #[garde(skip)]
    pub gpu: Option<u32>,
    /// On a frontend the GPUs of an accelerator that its connections lead to; default `own`.
    #[garde(skip)]
    pub gpus: Gpus,
}

impl TcpNicConfig {
    /// Its NUMA node, where the machine has several: the configured one, or that of the interface that has the address.
    pub fn node(&self, topology: &Topology) -> Option<u32> {
        let own = || topology.node_of_address(self.bind.ip());
        self.numa.fixed().or_else(own)
    }

    /// A NIC at this address with every default.
    pub fn new(bind: SocketAddr) -> Self {
        TcpNicConfig {
            bind,
            connections: DEFAULT_CONNECTIONS,
            slots: Auto::Auto,
            completion: Completion::default(),
            send_buffer_bytes: Some(DEFAULT_SEND_BUFFER_BYTES),
            inline_bytes: DEFAULT_TCP_INLINE_BYTES,
            post_from_issue_thread_up_to: DEFAULT_POST_FROM_ISSUE_THREAD_UP_TO,
            numa: Auto::Auto,
            cpus: None,
            gpu: None,
            gpus: Gpus::default(),
        }
    }

    /// Slots of each connection, for slots of `stride` bytes.
    pub fn resolve_slots(&self, stride: usize) -> usize {
        resolve_slots(self.slots, stride)
    }
}

/// Slots of a connection, for slots of `stride` bytes: the configured number, or as many as 64 MiB hold,
/// at least 16 and at most 2048.
pub fn resolve_slots(slots: Auto<usize>, stride: usize) -> usize {
    match slots {
        Auto::Fixed(slots) => slots,
        Auto::Auto => {
            (DEFAULT_BYTES_PER_CONNECTION / stride.max(1)).clamp(MIN_AUTO_SLOTS, MAX_AUTO_SLOTS)
        }
    }
}

/// Which GPUs of an accelerator the connections of a frontend's NIC lead to.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Gpus {
    /// The one that the NIC at the other end is nearest to.
    #[default]
    Own,
    /// One after the other, beginning with that one: a GPU is reached even when its own NIC is lost, across the
    /// accelerator's interior. As many connections as GPUs, at least.
    All,
}

/// How a rail thread waits for completions.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields, default)]
pub struct Completion {
    /// Spin, sleep, or first the one and then the other; default `adaptive`.
    #[garde(skip)]
    pub mode: CompletionMode,
    /// Microseconds that `adaptive` spins without work before it sleeps, 0 to 1,000,000; default 50.
    #[garde(custom(within(0..=MAX_SPIN_US)))]
    pub spin_us: u64,
    /// Microseconds of spinning after which the thread lets others run between two looks, 0 to 1,000,000; default 2.
    /// `None` (`never`) is for a thread that has a core to itself.
    #[garde(custom(within_some(0..=MAX_SPIN_US)))]
    #[serde(with = "never_or_number")]
    pub yield_after_us: Option<u64>,
}

impl Default for Completion {
    fn default() -> Self {
        Completion {
            mode: CompletionMode::default(),
            spin_us: DEFAULT_SPIN_US,
            yield_after_us: Some(DEFAULT_YIELD_AFTER_US),
        }
    }
}

impl Completion {
    /// How a rail thread looks for work: not at all before it sleeps for `event`, and without an end for `poll`.
    pub fn spin(&self) -> Spin {
        Spin {
            yield_after_ns: self
                .yield_after_us
                .map_or(u64::MAX, |us| us.saturating_mul(1000)),
            sleep_after_ns: match self.mode {
                CompletionMode::Poll => u64::MAX,
                CompletionMode::Event => 0,
                CompletionMode::Adaptive => self.spin_us.saturating_mul(1000),
            },
        }
    }
}

/// Kinds of waiting.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum CompletionMode {
    /// Never sleep: one core is spent on it.
    Poll,
    /// Sleep whenever there is nothing to do.
    Event,
    /// Spin for a while, then sleep.
    #[default]
    Adaptive,
}
