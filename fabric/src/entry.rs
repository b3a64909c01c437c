//! An entry of `nics`: the facts that follow from its keys, the checks of its keys, and the NIC
//! that it opens.

use std::{
    io,
    net::{IpAddr, SocketAddr, TcpStream},
};

use garde::Validate;
use tokio::net::TcpListener;

use crate::{Endpoint, Link, Nic, OpenError, keys::Auto, os::Near};

/// Connections to each accelerator until `connections: auto` is resolved.
pub const CONNECTIONS: usize = 2;
/// Most connections of a NIC to each accelerator.
pub const MAX_CONNECTIONS: usize = 256;
/// Default of `post_from_issue_thread_up_to`: a copy of 16 KiB costs a few system calls.
pub const POST_UP_TO: usize = 16 << 10;

/// Place of a NIC on this machine.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum NicPlace<'a> {
    /// The network interface with this address.
    Address(IpAddr),
    /// A port of an RDMA device, or the network interface of this name.
    Device(&'a str, u8),
    /// No hardware of this machine: a fabric within memory, or a simulated one.
    NoHardware,
}

/// Facts about a NIC that follow from its keys.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct NicFacts<'a> {
    /// The fabric: `tcp`, `ib` or `ofi`.
    pub fabric: &'static str,
    /// Provider of libfabric; `None` for the other fabrics.
    pub provider: Option<&'a str>,
    /// Address or device, for messages.
    pub label: String,
    /// Place of the NIC.
    pub place: NicPlace<'a>,
    /// Keys that name one NIC. An entry with `match` leaves them to the topology.
    pub place_keys: &'static [&'static str],
    /// The library that posts the writes: `libibverbs`.
    pub library: &'static str,
    /// Hardware that the NIC needs: `interface` or `RDMA device`.
    pub hardware: &'static str,
    /// Address to which peers connect; `None` if they connect to no socket of this NIC.
    pub listen: Option<SocketAddr>,
    /// Whether the NIC writes into memory that must be locked.
    pub locks_memory: bool,
    /// Whether several NICs may use one NIC thread, and a NIC several.
    pub shares_threads: bool,
    /// Connections to each accelerator.
    pub connections: usize,
    /// Key of the number of connections.
    pub connections_key: &'static str,
    /// Usual number of connections, which share the memory for slots.
    pub connections_usual: usize,
    /// Maximum burst that the issuing thread posts, in payload bytes.
    pub post_up_to: usize,
}

/// Layers 3 and 4 of a fabric over one link layer. A layer that only the vendor names is empty.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct FabricLayers {
    /// Layer 3: `IPv4`.
    pub network: String,
    /// Layer 4: `TCP`.
    pub transport: String,
    /// All layers in one: `TCP/IPv4 over Ethernet`.
    pub protocol: String,
}

impl FabricLayers {
    /// `transport` on `network`, over the link layer `link`.
    pub fn new(transport: &str, network: &str, link: &str) -> Self {
        let upper = format!("{transport}/{network}");
        FabricLayers {
            network: network.to_owned(),
            transport: transport.to_owned(),
            protocol: format!("{} over {link}", upper.trim_end_matches('/')),
        }
    }

    /// Reliable connections: InfiniBand's own, else those of RoCE v2.
    pub fn reliable_connection(link: &str, ip: &str) -> Self {
        let (network, protocol) = match link {
            "InfiniBand" => (
                link.to_owned(),
                "InfiniBand reliable connection (RC) over InfiniBand".to_owned(),
            ),
            _ => (
                format!("UDP and {ip}, as RoCE v2"),
                format!("RoCE v2 (RC over UDP/{ip}) over {link}"),
            ),
        };
        FabricLayers {
            network,
            transport: "reliable connections (RC)".to_owned(),
            protocol,
        }
    }
}

/// The other keys of an entry, on which the fabric's keys depend.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub struct NicEntry {
    /// Whether the entry is in an accelerator's file.
    pub on_accelerator: bool,
    /// Whether the entry stands for several NICs.
    pub is_group: bool,
    /// Value of `slots`; `None` for `auto`.
    pub slots: Option<usize>,
    /// Value of `gpu`.
    pub gpu: Option<u32>,
}

/// A problem of a key that is valid alone.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct KeyProblem {
    /// The key; empty for the whole entry.
    pub key: &'static str,
    /// Description of the problem.
    pub what: String,
    /// The remedy.
    pub help: String,
}

impl KeyProblem {
    /// A problem of a key's value.
    pub fn new(key: &'static str, what: impl Into<String>, help: impl Into<String>) -> Self {
        let (what, help) = (what.into(), help.into());
        KeyProblem { key, what, help }
    }
}

/// A NIC of this machine, as `match` finds it.
#[derive(Clone, Copy, Debug)]
pub struct FoundNic<'a> {
    /// Name of the RDMA device or network interface.
    pub name: &'a str,
    /// Port of the RDMA device; `None` for a network interface.
    pub port: Option<u8>,
    /// Network interface on the port.
    pub netdev: Option<&'a str>,
    /// First address of the interface.
    pub address: Option<IpAddr>,
}

/// What a NIC is opened for.
#[derive(Clone, Debug, Default)]
pub struct NicUse<'a> {
    /// The NIC's name in log lines.
    pub label: &'a str,
    /// NUMA node of the NIC's queues, and the cores of that node.
    pub near: Near,
    /// Connections that this node makes or accepts.
    pub connections: usize,
    /// Time limit for unacknowledged data, in milliseconds.
    pub timeout_ms: u64,
    /// Whether frontends connect to this NIC.
    pub listens: bool,
}

/// Makes the two halves of a connection from a connected stream.
pub type LinkSocket = Box<dyn Fn(TcpStream, Endpoint) -> io::Result<Link> + Send + Sync>;

/// A listener for data connections, and the function that links the streams that it accepts.
pub type DataPort = (TcpListener, LinkSocket);

/// The keys of an entry that belong to the entry's fabric. `Validate` checks the range of each.
pub trait NicKeys: Validate<Context = ()> {
    /// The facts that follow from the keys.
    fn facts(&self) -> NicFacts<'_>;

    /// The layers above `link`, a NIC's link layer such as `Ethernet`. `ip` is `IPv4` or `IPv6`.
    fn layers(&self, link: &str, ip: &str) -> FabricLayers;

    /// The version of the fabric's library on this machine, if the library tells it.
    fn library_version(&self) -> Option<String> {
        None
    }

    /// The key of the number of connections, if the number may be `auto`.
    fn connections_mut(&mut self) -> Option<&mut Auto<usize>> {
        None
    }

    /// Replaces each `auto` by the value that the fabric chooses without a peer.
    fn settle(&mut self);

    /// Sets the keys that name the NIC, and returns the NIC's name in this fabric. `None` if the
    /// fabric cannot use the NIC.
    fn choose(&mut self, nic: FoundNic<'_>) -> Option<String> {
        let _ = nic;
        None
    }

    /// Checks how the keys go together.
    fn check(&self, entry: NicEntry) -> Vec<KeyProblem>;

    /// Opens the NIC, and its data port if it listens on a socket.
    ///
    /// # Errors
    /// [`OpenError`] names the NIC, the key and the cause.
    fn open(&self, purpose: NicUse<'_>) -> Result<(Box<dyn Nic>, Option<DataPort>), OpenError>;
}
