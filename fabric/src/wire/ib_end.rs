//! What one end of a queue pair tells the other, over the authenticated control session.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

/// A registered region that the peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IbRegion {
    /// Address of its first byte, on the node that has it.
    pub address: u64,
    /// Bytes in it.
    pub length: u64,
    /// The key that a write to it carries.
    pub rkey: u32,
}

/// One end of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IbEnd {
    /// Its number on its device, 24 bits.
    pub qp_num: u32,
    /// Number of the first packet it sends, 24 bits.
    pub psn: u32,
    /// Local identifier of its port; 0 on Ethernet.
    pub lid: u16,
    /// Global identifier of its port.
    pub gid: Ipv6Addr,
    /// Largest path MTU it can use, in bytes. The smaller of both ends is used.
    pub mtu: u32,
    /// Does it mark the last write of a burst solicited?
    /// Only then may the other end sleep for such alone.
    pub solicited: bool,
    /// Its slots.
    pub slots: IbRegion,
    /// Descriptor cells beside them, 16 bytes each.
    pub cells: IbRegion,
}
