//! Attributes of a queue pair's state changes, with the attribute mask of each change.

use std::mem::MaybeUninit;
use std::net::Ipv6Addr;

use super::context::Context;
use super::gid::GidEntry;
use super::port::{LinkLayer, Mtu, PortAttr};
use crate::Error;
use crate::raw;

/// Most routers that a packet may cross.
const HOP_LIMIT: u8 = 64;

/// Sizes of a queue pair: the requested ones, and after creation the granted ones. A work request
/// has at most one slice.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCaps {
    /// Work requests in the send queue.
    pub max_send_wr: u32,
    /// Receives in the receive queue.
    pub max_recv_wr: u32,
    /// Inline bytes per work request.
    pub max_inline_data: u32,
}

impl QpCaps {
    /// Refuses queue sizes above the device's limits. A device reports no limit of inline bytes;
    /// exceeding it fails the creation.
    pub(crate) fn check(&self, context: &Context) -> Result<(), Error> {
        for (what, asked) in [
            ("a send queue in work requests", self.max_send_wr),
            ("a receive queue in work requests", self.max_recv_wr),
        ] {
            let limit = u64::from(context.limits().max_qp_wr);
            context.check_limit(what, u64::from(asked), limit, "max_qp_wr")?;
        }
        Ok(())
    }

    pub(crate) fn to_raw(self) -> raw::ibv_qp_cap {
        raw::ibv_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: self.max_inline_data,
        }
    }

    pub(crate) fn from_raw(cap: &raw::ibv_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_inline_data: cap.max_inline_data,
        }
    }
}

/// RESET to INIT: the port (from 1) and the peer's write permission.
pub(crate) fn init(port: u8) -> (raw::ibv_qp_attr, u32) {
    let mut attr = zeroed();
    attr.qp_state = raw::IBV_QPS_INIT;
    attr.port_num = port;
    attr.qp_access_flags = raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_LOCAL_WRITE;
    let mask =
        raw::IBV_QP_STATE | raw::IBV_QP_PKEY_INDEX | raw::IBV_QP_PORT | raw::IBV_QP_ACCESS_FLAGS;
    (attr, mask)
}

/// The address of the peer, as packets carry it.
#[derive(Clone, Copy)]
pub struct Path(raw::ibv_ah_attr);

impl Path {
    /// The path from `port`, with the GID `local`, to the peer's `lid` and `gid`. It uses the GID
    /// on Ethernet, if the port requires it, and for a peer on another InfiniBand subnet; otherwise
    /// the LID alone.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] if the GID's index exceeds 255 or the service level exceeds 15.
    pub fn new(
        port: u8,
        attr: &PortAttr,
        local: &GidEntry,
        lid: u16,
        gid: Ipv6Addr,
        service_level: u8,
        traffic_class: u8,
    ) -> Result<Self, Error> {
        within("gid_index", local.index, 255, "0 to 255")?;
        within("service level", service_level.into(), 15, "0 to 15")?;
        let other_subnet = local.gid.octets()[..8] != gid.octets()[..8];
        let mut raw = zeroed().ah_attr;
        raw.port_num = port;
        raw.dlid = lid;
        raw.sl = service_level;
        if attr.link_layer == LinkLayer::Ethernet || attr.grh_required || lid == 0 || other_subnet {
            raw.is_global = 1;
            raw.grh.dgid.raw = gid.octets();
            raw.grh.sgid_index = local.index as u8;
            raw.grh.hop_limit = HOP_LIMIT;
            raw.grh.traffic_class = traffic_class;
        }
        Ok(Self(raw))
    }

    /// The peer's GID, if the path uses it.
    pub(crate) fn gid(&self) -> Option<Ipv6Addr> {
        // SAFETY: every bit pattern is valid for the byte array.
        (self.0.is_global != 0).then(|| Ipv6Addr::from(unsafe { self.0.grh.dgid.raw }))
    }

    pub(crate) fn lid(&self) -> u16 {
        self.0.dlid
    }
}

/// INIT to RTR: the peer and the path to it. The peer gets no read access.
#[derive(Clone, Copy)]
pub struct RtrAttr {
    /// Path to the peer.
    pub path: Path,
    /// Largest payload of a packet; the same at both ends.
    pub mtu: Mtu,
    /// Number of the peer's queue pair.
    pub dest_qp_num: u32,
    /// The peer's first packet sequence number, 24 bits.
    pub rq_psn: u32,
    /// Wait that this end requests of the peer when it has no posted receive, as the
    /// specification's 5-bit code (12 is 0.64 ms).
    pub min_rnr_timer: u8,
}

impl RtrAttr {
    pub(crate) fn to_raw(self) -> Result<(raw::ibv_qp_attr, u32), Error> {
        within("rq_psn", self.rq_psn, 0xff_ffff, "at most 24 bits")?;
        let number = self.dest_qp_num;
        within("dest_qp_num", number, 0xff_ffff, "at most 24 bits")?;
        within("min_rnr_timer", self.min_rnr_timer.into(), 31, "0 to 31")?;
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_RTR;
        attr.path_mtu = self.mtu.code();
        attr.dest_qp_num = self.dest_qp_num;
        attr.rq_psn = self.rq_psn;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr.ah_attr = self.path.0;
        let mask = raw::IBV_QP_STATE
            | raw::IBV_QP_AV
            | raw::IBV_QP_PATH_MTU
            | raw::IBV_QP_DEST_QPN
            | raw::IBV_QP_RQ_PSN
            | raw::IBV_QP_MAX_DEST_RD_ATOMIC
            | raw::IBV_QP_MIN_RNR_TIMER;
        Ok((attr, mask))
    }
}

/// RTR to RTS: the sender's timeout and retries.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttr {
    /// This queue pair's first packet sequence number, 24 bits: the peer's `rq_psn`.
    pub sq_psn: u32,
    /// Timeout of an acknowledgement: 4.096 µs * 2^timeout. 0 waits without end.
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7. On rxe, 7 retries without end.
    pub retry_cnt: u8,
    /// Retries after an RNR NAK (no posted receive), 0 to 7. 7 retries without end.
    pub rnr_retry: u8,
}

impl RtsAttr {
    pub(crate) fn to_raw(self) -> Result<(raw::ibv_qp_attr, u32), Error> {
        within("sq_psn", self.sq_psn, 0xff_ffff, "at most 24 bits")?;
        within("timeout", self.timeout.into(), 31, "0 to 31")?;
        within("retry_count", self.retry_cnt.into(), 7, "0 to 7")?;
        within("rnr_retry", self.rnr_retry.into(), 7, "0 to 7")?;
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_RTS;
        attr.sq_psn = self.sq_psn;
        attr.timeout = self.timeout;
        attr.retry_cnt = self.retry_cnt;
        attr.rnr_retry = self.rnr_retry;
        let mask = raw::IBV_QP_STATE
            | raw::IBV_QP_SQ_PSN
            | raw::IBV_QP_TIMEOUT
            | raw::IBV_QP_RETRY_CNT
            | raw::IBV_QP_RNR_RETRY
            | raw::IBV_QP_MAX_QP_RD_ATOMIC;
        Ok((attr, mask))
    }
}

/// Any state to ERR.
pub(crate) fn error() -> (raw::ibv_qp_attr, u32) {
    let mut attr = zeroed();
    attr.qp_state = raw::IBV_QPS_ERR;
    (attr, raw::IBV_QP_STATE)
}

fn within(field: &'static str, value: u32, max: u32, allowed: &'static str) -> Result<(), Error> {
    if value <= max {
        return Ok(());
    }
    Err(Error::Value {
        field,
        value: u64::from(value),
        allowed,
    })
}

fn zeroed() -> raw::ibv_qp_attr {
    // SAFETY: the structure holds integers and byte arrays only, for which zeroes are valid.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safe::gid::GidType;
    use crate::safe::port::PortState;

    #[test]
    fn ethernet_routes_by_gid_and_infiniband_by_lid_within_its_subnet() {
        let port = |link_layer, grh_required| PortAttr {
            state: PortState::Active,
            active_mtu: Mtu::from_bytes(4096).expect("an MTU"),
            lid: 3,
            link_layer,
            grh_required,
            gid_tbl_len: 1,
            gbps: None,
        };
        let (near, far) = (Ipv6Addr::from([1; 16]), Ipv6Addr::from([2; 16]));
        let entry = |index| GidEntry {
            gid: near,
            index,
            kind: GidType::Ib,
        };
        let ethernet = port(LinkLayer::Ethernet, false);
        let ib = port(LinkLayer::InfiniBand, false);
        let required = port(LinkLayer::InfiniBand, true);
        for (attr, lid, gid, by_gid) in [
            (&ethernet, 0, near, true),
            (&ib, 4, near, false),
            (&ib, 4, far, true),
            (&required, 4, near, true),
        ] {
            let path = Path::new(1, attr, &entry(3), lid, gid, 0, 0).expect("a small index");
            assert_eq!(path.gid(), by_gid.then_some(gid), "{attr:?}");
            assert_eq!(path.0.grh.sgid_index, if by_gid { 3 } else { 0 });
        }
        assert!(Path::new(1, &ethernet, &entry(256), 0, near, 0, 0).is_err());
        assert!(Path::new(1, &ethernet, &entry(3), 0, near, 16, 0).is_err());
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        let attr = |sq_psn, timeout, retry_cnt, rnr_retry| RtsAttr {
            sq_psn,
            timeout,
            retry_cnt,
            rnr_retry,
        };
        for (attr, field) in [
            (attr(1 << 24, 14, 6, 6), "sq_psn"),
            (attr(0, 32, 6, 6), "timeout"),
            (attr(0, 14, 8, 6), "retry_count"),
            (attr(0, 14, 6, 8), "rnr_retry"),
        ] {
            let error = attr.to_raw().err().map(|error| error.to_string());
            assert!(error.is_some_and(|e| e.starts_with(field)), "{field}");
        }
    }
}
