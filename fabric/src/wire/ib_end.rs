//! Description of one end of a queue pair, sent over the authenticated control session.

use std::net::Ipv6Addr;

use serde::{Deserialize, Serialize};

/// A registered region that the peer may write.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IbRegion {
    /// Address of the first byte, in the owning node's address space.
    pub address: u64,
    /// Length in bytes.
    pub length: u64,
    /// Remote key of the registration.
    pub rkey: u32,
}

/// Description of one end of a queue pair.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct IbEnd {
    /// Queue pair number on its device, 24 bits.
    pub qp_num: u32,
    /// Packet sequence number of the first packet that this end sends, 24 bits.
    pub psn: u32,
    /// Local identifier of the port; 0 on Ethernet.
    pub lid: u16,
    /// Global identifier of the port.
    pub gid: Ipv6Addr,
    /// Largest path MTU of this end, in bytes. The connection uses the smaller of both ends.
    pub mtu: u32,
    /// Whether this end marks the last write of each burst solicited. Only then may the peer sleep
    /// until a solicited completion.
    pub solicited: bool,
    /// Region of the slots.
    pub slots: IbRegion,
    /// Region of the descriptor cells beside the slots, 16 bytes each.
    pub cells: IbRegion,
}
