//! What a queue pair is told on its way from RESET to RTS, and the mask that belongs to each step.

use std::mem::MaybeUninit;

use super::context::Context;
use super::gid::{Gid, GidEntry};
use super::mr::Access;
use super::port::{LinkLayer, Mtu, PortAttr};
use crate::Error;
use crate::raw;

/// The sizes of a queue pair: what to ask for, and after creation what there is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct QpCaps {
    /// Work requests in the send queue.
    pub max_send_wr: u32,
    /// Receives in the receive queue; unused with a shared one.
    pub max_recv_wr: u32,
    /// Slices in one send.
    pub max_send_sge: u32,
    /// Slices in one receive.
    pub max_recv_sge: u32,
    /// Bytes that can ride inline.
    pub max_inline_data: u32,
}

impl Default for QpCaps {
    fn default() -> Self {
        Self {
            max_send_wr: 256,
            max_recv_wr: 256,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        }
    }
}

impl QpCaps {
    /// Refuses what the device cannot do. (Inline bytes have no limit that a device announces:
    /// creation fails.)
    pub(crate) fn check(&self, context: &Context) -> Result<(), Error> {
        let limits = context.limits();
        let check = |what, asked: u32, limit: u32, name| {
            context.check_limit(what, u64::from(asked), u64::from(limit), name)
        };
        check(
            "a send queue in work requests",
            self.max_send_wr,
            limits.max_qp_wr,
            "max_qp_wr",
        )?;
        check(
            "a receive queue in work requests",
            self.max_recv_wr,
            limits.max_qp_wr,
            "max_qp_wr",
        )?;
        check(
            "a send's slices",
            self.max_send_sge,
            limits.max_sge,
            "max_sge",
        )?;
        check(
            "a receive's slices",
            self.max_recv_sge,
            limits.max_sge,
            "max_sge",
        )
    }

    pub(crate) fn to_raw(self) -> raw::ibv_qp_cap {
        raw::ibv_qp_cap {
            max_send_wr: self.max_send_wr,
            max_recv_wr: self.max_recv_wr,
            max_send_sge: self.max_send_sge,
            max_recv_sge: self.max_recv_sge,
            max_inline_data: self.max_inline_data,
        }
    }

    pub(crate) fn from_raw(cap: &raw::ibv_qp_cap) -> Self {
        Self {
            max_send_wr: cap.max_send_wr,
            max_recv_wr: cap.max_recv_wr,
            max_send_sge: cap.max_send_sge,
            max_recv_sge: cap.max_recv_sge,
            max_inline_data: cap.max_inline_data,
        }
    }
}

/// RESET to INIT: which port, and what peers may do.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct InitAttr {
    /// The port, from 1.
    pub port: u8,
    /// Place in the port's partition key table, almost always 0.
    pub pkey_index: u16,
    /// What peers may do through this queue pair: remote writes, for this project.
    pub access: Access,
}

impl InitAttr {
    pub(crate) fn to_raw(self) -> (raw::ibv_qp_attr, u32) {
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_INIT;
        attr.port_num = self.port;
        attr.pkey_index = self.pkey_index;
        // Ordering is a matter of memory regions; a queue pair refuses the bit.
        attr.qp_access_flags = self.access.bits() & !raw::IBV_ACCESS_RELAXED_ORDERING;
        (
            attr,
            raw::IBV_QP_STATE
                | raw::IBV_QP_PKEY_INDEX
                | raw::IBV_QP_PORT
                | raw::IBV_QP_ACCESS_FLAGS,
        )
    }
}

/// How packets find the peer.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Path {
    /// This node's port, from 1.
    pub port: u8,
    /// The peer's local identifier; 0 on Ethernet.
    pub dlid: u16,
    /// The service level, 0 to 15.
    pub sl: u8,
    /// The global route, where there is one: always on Ethernet.
    pub global: Option<GlobalRoute>,
}

/// A route by GID.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct GlobalRoute {
    /// The peer's GID.
    pub dgid: Gid,
    /// Place of this node's GID in its port's table.
    pub sgid_index: u8,
    /// Routers that a packet may cross.
    pub hop_limit: u8,
    /// The traffic class (DSCP and ECN bits, on RoCE v2).
    pub traffic_class: u8,
}

impl Path {
    /// The path from a port with `local` chosen as its GID to the peer's `lid` and `gid`. It is by
    /// GID on Ethernet, where the port demands it, and when the peer is on another InfiniBand
    /// subnet; otherwise by LID alone.
    ///
    /// # Errors
    ///
    /// [`Error::Value`] when the GID's place in its table does not fit into a work request.
    pub fn new(
        port: u8,
        attr: &PortAttr,
        local: &GidEntry,
        lid: u16,
        gid: Gid,
        sl: u8,
        traffic_class: u8,
    ) -> Result<Self, Error> {
        let other_subnet = local.gid.0[..8] != gid.0[..8];
        let is_global =
            attr.link_layer == LinkLayer::Ethernet || attr.grh_required || lid == 0 || other_subnet;
        let sgid_index = u8::try_from(local.index).map_err(|_| Error::Value {
            field: "gid_index",
            value: u64::from(local.index),
            allowed: "0 to 255",
        })?;
        let global = is_global.then_some(GlobalRoute {
            dgid: gid,
            sgid_index,
            hop_limit: 64,
            traffic_class,
        });
        Ok(Self {
            port,
            dlid: lid,
            sl,
            global,
        })
    }

    fn to_raw(self) -> raw::ibv_ah_attr {
        let mut attr = zeroed().ah_attr;
        attr.dlid = self.dlid;
        attr.sl = self.sl;
        attr.port_num = self.port;
        if let Some(route) = self.global {
            attr.is_global = 1;
            attr.grh.dgid = route.dgid.to_raw();
            attr.grh.sgid_index = route.sgid_index;
            attr.grh.hop_limit = route.hop_limit;
            attr.grh.traffic_class = route.traffic_class;
        }
        attr
    }
}

/// INIT to RTR: who the peer is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtrAttr {
    /// How packets find it.
    pub path: Path,
    /// The payload of a packet; both ends alike.
    pub mtu: Mtu,
    /// The peer's queue pair.
    pub dest_qp_num: u32,
    /// The peer's first packet number, 24 bits.
    pub rq_psn: u32,
    /// RDMA reads that the peer may have outstanding here; none are used.
    pub max_dest_rd_atomic: u8,
    /// How long the peer is asked to wait when no receive is posted, as the specification's 5-bit
    /// code (12 is 0.64 ms).
    pub min_rnr_timer: u8,
}

impl RtrAttr {
    pub(crate) fn to_raw(self) -> Result<(raw::ibv_qp_attr, u32), Error> {
        within("rq_psn", self.rq_psn, 0xff_ffff, "at most 24 bits")?;
        within(
            "dest_qp_num",
            self.dest_qp_num,
            0xff_ffff,
            "at most 24 bits",
        )?;
        within(
            "min_rnr_timer",
            u32::from(self.min_rnr_timer),
            31,
            "0 to 31",
        )?;
        within("service level", u32::from(self.path.sl), 15, "0 to 15")?;
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_RTR;
        attr.path_mtu = self.mtu.code();
        attr.dest_qp_num = self.dest_qp_num;
        attr.rq_psn = self.rq_psn;
        attr.max_dest_rd_atomic = self.max_dest_rd_atomic;
        attr.min_rnr_timer = self.min_rnr_timer;
        attr.ah_attr = self.path.to_raw();
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

/// RTR to RTS: how long to try.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct RtsAttr {
    /// This queue pair's first packet number, 24 bits: what the peer has as `rq_psn`.
    pub sq_psn: u32,
    /// How long to wait for an acknowledgement: 4.096 us times 2 to this power. 0 waits for ever.
    pub timeout: u8,
    /// How often to send again, 0 to 7. (On rxe 7 is for ever.)
    pub retry_cnt: u8,
    /// How often to send again when the peer has no receive, 0 to 7. 7 is for ever.
    pub rnr_retry: u8,
    /// RDMA reads outstanding at once; none are used.
    pub max_rd_atomic: u8,
}

impl RtsAttr {
    pub(crate) fn to_raw(self) -> Result<(raw::ibv_qp_attr, u32), Error> {
        within("sq_psn", self.sq_psn, 0xff_ffff, "at most 24 bits")?;
        within("timeout", u32::from(self.timeout), 31, "0 to 31")?;
        within("retry_count", u32::from(self.retry_cnt), 7, "0 to 7")?;
        within("rnr_retry", u32::from(self.rnr_retry), 7, "0 to 7")?;
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_RTS;
        attr.sq_psn = self.sq_psn;
        attr.timeout = self.timeout;
        attr.retry_cnt = self.retry_cnt;
        attr.rnr_retry = self.rnr_retry;
        attr.max_rd_atomic = self.max_rd_atomic;
        let mask = raw::IBV_QP_STATE
            | raw::IBV_QP_SQ_PSN
            | raw::IBV_QP_TIMEOUT
            | raw::IBV_QP_RETRY_CNT
            | raw::IBV_QP_RNR_RETRY
            | raw::IBV_QP_MAX_QP_RD_ATOMIC;
        Ok((attr, mask))
    }
}

/// Any state to RESET or ERR.
pub(crate) fn bare(state: u32) -> (raw::ibv_qp_attr, u32) {
    let mut attr = zeroed();
    attr.qp_state = state;
    (attr, raw::IBV_QP_STATE)
}

fn within(field: &'static str, value: u32, max: u32, allowed: &'static str) -> Result<(), Error> {
    if value <= max {
        Ok(())
    } else {
        Err(Error::Value {
            field,
            value: u64::from(value),
            allowed,
        })
    }
}

pub(crate) fn zeroed() -> raw::ibv_qp_attr {
    // SAFETY: the structure holds integers and byte arrays only, for which zeroes are values.
    unsafe { MaybeUninit::zeroed().assume_init() }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::safe::gid::GidType;
    use crate::safe::port::PortState;

    fn port(link_layer: LinkLayer) -> PortAttr {
        PortAttr {
            state: PortState::Active,
            max_mtu: Mtu::B4096,
            active_mtu: Mtu::B4096,
            lid: 3,
            link_layer,
            grh_required: false,
            gid_tbl_len: 1,
            max_msg_sz: 1 << 30,
            gbps: None,
        }
    }

    fn entry(index: u32) -> GidEntry {
        GidEntry {
            gid: Gid([1; 16]),
            index,
            kind: GidType::Ib,
            ifindex: 0,
        }
    }

    #[test]
    fn ethernet_routes_by_gid_and_infiniband_by_lid_within_its_subnet() {
        let ib = port(LinkLayer::InfiniBand);
        let ethernet = port(LinkLayer::Ethernet);
        let path = |attr, lid, gid| {
            Path::new(1, attr, &entry(3), lid, gid, 0, 0)
                .expect("a small index")
                .global
        };
        assert!(path(&ethernet, 0, Gid([1; 16])).is_some_and(|route| route.sgid_index == 3));
        assert_eq!(path(&ib, 4, Gid([1; 16])), None);
        assert!(path(&ib, 4, Gid([2; 16])).is_some(), "another subnet");
        let required = PortAttr {
            grh_required: true,
            ..ib
        };
        assert!(path(&required, 4, Gid([1; 16])).is_some());
        assert!(Path::new(1, &ethernet, &entry(256), 0, Gid([1; 16]), 0, 0).is_err());
    }

    #[test]
    fn numbers_that_do_not_fit_are_named() {
        let rts = RtsAttr {
            sq_psn: 0,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 6,
            max_rd_atomic: 0,
        };
        for (attr, field) in [
            (
                RtsAttr {
                    sq_psn: 1 << 24,
                    ..rts
                },
                "sq_psn",
            ),
            (RtsAttr { timeout: 32, ..rts }, "timeout"),
            (
                RtsAttr {
                    retry_cnt: 8,
                    ..rts
                },
                "retry_count",
            ),
            (
                RtsAttr {
                    rnr_retry: 8,
                    ..rts
                },
                "rnr_retry",
            ),
        ] {
            let error = attr
                .to_raw()
                .err()
                .map(|error| error.to_string())
                .unwrap_or_default();
            assert!(error.starts_with(field), "{error}");
        }
    }
}
