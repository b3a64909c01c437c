//! GIDs (global identifiers) of a port, and the automatic choice among them. On RoCE a GID is the
//! port's IPv6 address, or its IPv4 address mapped to IPv6.

use std::net::Ipv6Addr;

use super::port::LinkLayer;
use crate::raw;

/// The packet format that a GID selects.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum GidType {
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
    pub kind: GidType,
}

/// The entry for `gid_index: auto`. On InfiniBand it is the first; on Ethernet a RoCE v2 one, IPv4
/// before routable IPv6 before link-local, then the lowest index. RoCE v1 is never chosen, because
/// IP routers do not forward it.
///
/// # Errors
///
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
