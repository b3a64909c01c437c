//! Attributes of a port: state, MTU, rate, and its GIDs (global identifiers) with the automatic
//! choice among them. On RoCE a GID is the port's IPv6 address, or its IPv4 address mapped to IPv6.

use std::fmt;
use std::net::Ipv6Addr;

use crate::Error;
use crate::raw;

/// Attributes that a port reports.
#[derive(Debug, Clone, PartialEq)]
pub struct PortAttr {
    /// Link and subnet state.
    pub state: PortState,
    /// Largest MTU that the link currently supports.
    pub active_mtu: Mtu,
    /// The local identifier on an InfiniBand subnet; 0 on Ethernet.
    pub lid: u16,
    /// The link is Ethernet: RoCE, addressed by GID. Otherwise InfiniBand, addressed by LID.
    pub(crate) is_ethernet: bool,
    /// Whether even local traffic requires a global routing header (GID).
    pub(crate) grh_required: bool,
    /// Entries in the GID table, empty ones included.
    pub(crate) gid_tbl_len: u32,
    /// Data rate of the link in Gbit/s; `None` if the device reports an unknown code.
    pub gbps: Option<f64>,
}

/// State of a port: libibverbs' number, displayed by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct PortState(u32);

impl PortState {
    /// Only an active port carries traffic.
    pub const ACTIVE: Self = Self(raw::IBV_PORT_ACTIVE);
}

impl fmt::Display for PortState {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self.0 {
            raw::IBV_PORT_DOWN => f.write_str("Down"),
            raw::IBV_PORT_INIT => f.write_str("Init"),
            raw::IBV_PORT_ARMED => f.write_str("Armed"),
            raw::IBV_PORT_ACTIVE => f.write_str("Active"),
            other => write!(f, "Other({other})"),
        }
    }
}

/// The largest payload of one packet. Both ends of a connection must use the same MTU.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub struct Mtu(u32);

impl Mtu {
    /// The MTU in bytes.
    pub fn bytes(self) -> u32 {
        128 << self.0
    }

    /// The MTU of exactly `bytes` bytes.
    ///
    /// # Errors
    /// [`Error::Refused`] unless `bytes` is 256, 512, 1024, 2048 or 4096.
    pub fn from_bytes(bytes: u32) -> Result<Self, Error> {
        (raw::IBV_MTU_256..=raw::IBV_MTU_4096)
            .map(Self)
            .find(|mtu| mtu.bytes() == bytes)
            .ok_or_else(|| {
                let allowed = "256, 512, 1024, 2048 or 4096";
                Error::Refused(format!("mtu is {bytes}, but must be {allowed}"))
            })
    }

    pub(crate) fn code(self) -> u32 {
        self.0
    }

    /// Converts libibverbs' enumerator. Unknown codes become 256 bytes, which every path supports.
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
            state: PortState(attr.state),
            active_mtu: Mtu::from_code(attr.active_mtu),
            lid: attr.lid,
            is_ethernet: u32::from(attr.link_layer) == raw::IBV_LINK_LAYER_ETHERNET,
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

/// An entry of a port's GID table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GidEntry {
    /// The GID.
    pub gid: Ipv6Addr,
    /// Index in the port's GID table.
    pub index: u32,
    /// Selects RoCE v2, which is UDP over IP. RoCE v1 is not routable.
    pub(crate) is_roce_v2: bool,
}

/// The entry for `gid_index: auto`. On InfiniBand the first entry; on Ethernet a RoCE v2 entry,
/// IPv4 before routable IPv6 before link-local, then the lowest index. RoCE v1 is never chosen,
/// because IP routers do not forward it.
pub(crate) fn choose_gid(ethernet: bool, gids: &[GidEntry]) -> Result<GidEntry, &'static str> {
    if !ethernet {
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
        .filter(|entry| entry.is_roce_v2)
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

    fn entry(index: u32, is_roce_v2: bool, address: &str) -> GidEntry {
        GidEntry {
            gid: address.parse().expect("an address"),
            index,
            is_roce_v2,
        }
    }

    #[test]
    fn auto_on_ethernet_prefers_ipv4_over_roce_v2() {
        let table = [
            entry(0, false, "fe80::1"),
            entry(1, true, "fe80::1"),
            entry(2, false, "::ffff:10.9.1.1"),
            entry(3, true, "::ffff:10.9.1.1"),
            entry(4, true, "2001:db8::1"),
        ];
        let chosen = |table: &[GidEntry]| choose_gid(true, table).map(|entry| entry.index);
        assert_eq!(chosen(&table), Ok(3));
        assert_eq!(chosen(&[table[4], table[1]]), Ok(4));
        assert_eq!(chosen(&[table[1]]), Ok(1));
        let none = chosen(&[table[0], table[2]]).expect_err("no RoCE v2");
        assert!(none.contains("RoCE v2"));
    }

    #[test]
    fn auto_on_infiniband_takes_the_first() {
        let table = [1, 0].map(|index| entry(index, false, "fe80::1"));
        let chosen = choose_gid(false, &table);
        assert_eq!(chosen.map(|entry| entry.index), Ok(0));
        assert!(choose_gid(false, &[]).is_err());
    }
}
