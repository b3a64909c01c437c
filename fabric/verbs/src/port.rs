//! Attributes of a port: state, MTU, rate, and its GIDs (global identifiers) with the automatic
//! choice among them. On RoCE a GID is the port's IPv6 address, or its IPv4 address mapped to IPv6.

use std::net::Ipv6Addr;

use crate::Error;
use crate::raw;

/// Attributes that a port reports.
#[derive(Debug, Clone, PartialEq)]
pub struct PortAttr {
    /// Link and subnet state; only an active port carries traffic.
    pub state: PortState,
    /// Largest MTU that the link currently supports.
    pub active_mtu: Mtu,
    /// The local identifier on an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// InfiniBand, or Ethernet for RoCE.
    pub(crate) link_layer: LinkLayer,
    /// Whether even local traffic requires a global routing header (GID).
    pub(crate) grh_required: bool,
    /// Entries in the GID table, empty ones included.
    pub(crate) gid_tbl_len: u32,
    /// Data rate of the link in Gbit/s; `None` if the device reports an unknown code.
    pub gbps: Option<f64>,
}

/// State of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PortState {
    /// No link.
    Down,
    /// A link that no subnet manager has configured.
    Init,
    /// Configured, but not yet carrying traffic.
    Armed,
    /// Carrying traffic.
    Active,
    /// A code of a newer library, or `IBV_PORT_NOP`.
    Other(u32),
}

/// Link layer of a port.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum LinkLayer {
    /// InfiniBand: addressed by LID.
    InfiniBand,
    /// Ethernet: RoCE, addressed by GID.
    Ethernet,
    /// The device does not report the link layer.
    Unspecified,
}

/// The largest payload of one packet. Both ends of a connection must use the same one.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u32);

impl Mtu {
    /// The MTU in bytes.
    #[must_use]
    pub fn bytes(self) -> u32 {
        128 << self.0
    }

    /// The MTU of exactly `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Value`] unless `bytes` is 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: u32) -> Result<Self, Error> {
        (raw::IBV_MTU_256..=raw::IBV_MTU_4096)
            .map(Self)
            .find(|mtu| mtu.bytes() == bytes)
            .ok_or(Error::Value {
                field: "mtu",
                value: u64::from(bytes),
                allowed: "256, 512, 1024, 2048 or 4096",
            })
    }

    /// The enumerator of libibverbs.
    pub(crate) fn code(self) -> u32 {
        self.0
    }

    /// From libibverbs' enumerator. An unknown one becomes 256 bytes, which every path supports.
    fn from_code(code: u32) -> Self {
        match code {
            raw::IBV_MTU_256..=raw::IBV_MTU_4096 => Self(code),
            _ => Self(raw::IBV_MTU_256),
        }
    }
}

impl PortAttr {
    pub(crate) fn from_raw(attr: &raw::ibv_port_attr) -> Self {
        Self {
            state: match attr.state {
                raw::IBV_PORT_DOWN => PortState::Down,
                raw::IBV_PORT_INIT => PortState::Init,
                raw::IBV_PORT_ARMED => PortState::Armed,
                raw::IBV_PORT_ACTIVE => PortState::Active,
                other => PortState::Other(other),
            },
            active_mtu: Mtu::from_code(attr.active_mtu),
            lid: attr.lid,
            link_layer: match u32::from(attr.link_layer) {
                raw::IBV_LINK_LAYER_INFINIBAND => LinkLayer::InfiniBand,
                raw::IBV_LINK_LAYER_ETHERNET => LinkLayer::Ethernet,
                _ => LinkLayer::Unspecified,
            },
            grh_required: u32::from(attr.flags) & raw::IBV_QPF_GRH_REQUIRED != 0,
            gid_tbl_len: u32::try_from(attr.gid_tbl_len).unwrap_or(0),
            gbps: gbps(attr.active_width, attr.active_speed),
        }
    }
}

/// Data rate of a link in Gbit/s, from the one-hot codes of its lane count and lane speed.
fn gbps(width: u8, speed: u8) -> Option<f64> {
    let connections = match width {
        1 => 1.0,
        2 => 4.0,
        4 => 8.0,
        8 => 12.0,
        16 => 2.0,
        _ => return None,
    };
    let connection = match speed {
        1 => 2.5,
        2 => 5.0,
        4 | 8 => 10.0,
        16 => 14.0,
        32 => 25.0,
        64 => 50.0,
        128 => 100.0,
        _ => return None,
    };
    Some(connections * connection)
}

/// The packet format that a GID selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum GidType {
    /// InfiniBand.
    Ib,
    /// RoCE v1: an Ethernet frame type of its own, not routable.
    RoceV1,
    /// RoCE v2: UDP over IP.
    RoceV2,
    /// A code of a newer library.
    Other(u32),
}

impl GidType {
    pub(crate) fn from_raw(code: u32) -> Self {
        match code {
            raw::IBV_GID_TYPE_IB => Self::Ib,
            raw::IBV_GID_TYPE_ROCE_V1 => Self::RoceV1,
            raw::IBV_GID_TYPE_ROCE_V2 => Self::RoceV2,
            other => Self::Other(other),
        }
    }
}

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Ipv6Addr,
    /// Index in the port's GID table.
    pub index: u32,
    /// The packet format that the GID selects.
    pub(crate) kind: GidType,
}

/// The entry for `gid_index: auto`. On InfiniBand it is the first; on Ethernet a RoCE v2 one, IPv4
/// before routable IPv6 before link-local, then the lowest index. RoCE v1 is never chosen, because
/// IP routers do not forward it.
///
/// # Errors
/// The reason why no entry is usable, as text.
pub(crate) fn choose_gid(layer: LinkLayer, gids: &[GidEntry]) -> Result<GidEntry, &'static str> {
    if layer != LinkLayer::Ethernet {
        return gids
            .iter()
            .min_by_key(|entry| entry.index)
            .copied()
            .ok_or("its GID table is empty: is the link up?");
    }
    let rank = |entry: &GidEntry| match entry.gid {
        gid if gid.to_ipv4_mapped().is_some() => 0,
        gid if !gid.is_unicast_link_local() => 1,
        _ => 2,
    };
    gids.iter()
        .filter(|entry| entry.kind == GidType::RoceV2)
        .min_by_key(|entry| (rank(entry), entry.index))
        .copied()
        .ok_or("no entry is RoCE v2: give the network interface an IP address and bring it up")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn mtus_are_the_five_there_are() {
        for bytes in [256, 512, 1024, 2048, 4096] {
            let mtu = Mtu::from_bytes(bytes).expect("a real MTU");
            assert_eq!(mtu.bytes(), bytes);
            assert_eq!(Mtu::from_code(mtu.code()), mtu);
        }
        assert!(
            Mtu::from_bytes(1500)
                .expect_err("no MTU")
                .to_string()
                .contains("mtu is 1500")
        );
        assert_eq!(Mtu::from_code(99).bytes(), 256);
    }

    #[test]
    fn rates_of_known_links() {
        assert_eq!(gbps(2, 64), Some(200.0), "HDR, four connections");
        assert_eq!(gbps(2, 128), Some(400.0), "NDR, four connections");
        assert_eq!(gbps(2, 0), None);
        assert_eq!(gbps(3, 64), None);
    }

    fn entry(index: u32, kind: GidType, address: &str) -> GidEntry {
        GidEntry {
            gid: address.parse().expect("an address"),
            index,
            kind,
        }
    }

    #[test]
    fn auto_on_ethernet_prefers_ipv4_over_roce_v2() {
        let table = [
            entry(0, GidType::RoceV1, "fe80::1"),
            entry(1, GidType::RoceV2, "fe80::1"),
            entry(2, GidType::RoceV1, "::ffff:10.9.1.1"),
            entry(3, GidType::RoceV2, "::ffff:10.9.1.1"),
            entry(4, GidType::RoceV2, "2001:db8::1"),
        ];
        let chosen =
            |table: &[GidEntry]| choose_gid(LinkLayer::Ethernet, table).map(|entry| entry.index);
        assert_eq!(chosen(&table), Ok(3));
        assert_eq!(chosen(&[table[4], table[1]]), Ok(4));
        assert_eq!(chosen(&[table[1]]), Ok(1));
        let none = chosen(&[table[0], table[2]]).expect_err("no RoCE v2");
        assert!(none.contains("RoCE v2"));
    }

    #[test]
    fn auto_on_infiniband_takes_the_first() {
        let table = [1, 0].map(|index| entry(index, GidType::Ib, "fe80::1"));
        let chosen = choose_gid(LinkLayer::InfiniBand, &table);
        assert_eq!(chosen.map(|entry| entry.index), Ok(0));
        assert!(choose_gid(LinkLayer::InfiniBand, &[]).is_err());
    }
}
