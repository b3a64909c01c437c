//! Queue pairs of reliable connections (RC), with their state in their type.

use std::ffi::c_int;
use std::fmt;
use std::marker::PhantomData;
use std::mem;
use std::net::Ipv6Addr;
use std::ptr::{self, NonNull};
use std::sync::Arc;

use crate::chain::{RecvChain, SendChain};
use crate::cq::{Cq, unsupported};
use crate::error::{Error, OpError};
use crate::mr::Pd;
use crate::port::{GidEntry, Mtu, PortAttr};
use crate::raw;

/// Most routers that a packet may cross.
const HOP_LIMIT: u8 = 64;

/// State INIT: bound to a port; takes receives.
#[derive(Debug)]
pub enum Init {}

/// State RTS (ready to send): connected; sends and receives.
#[derive(Debug)]
pub enum Rts {}

/// An RC queue pair that was moved to state `S`. The device may move it to ERR on its own; its
/// completions then carry an error status.
pub struct Qp<S> {
    inner: Inner,
    state: PhantomData<fn() -> S>,
}

struct Inner {
    raw: NonNull<raw::ibv_qp>,
    send: raw::post_send_fn,
    recv: raw::post_recv_fn,
    port: u8,
    caps: QpCaps,
    pd: Arc<Pd>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
}

// SAFETY: providers lock in every call on a queue pair; only `drop` destroys it.
unsafe impl Send for Inner {}
// SAFETY: as for `Send`.
unsafe impl Sync for Inner {}

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

/// The peer, the path to it, and the limits of waiting for it. Packets carry the GID on Ethernet,
/// if the port requires a GID, and to another InfiniBand subnet; otherwise the LID alone.
#[derive(Debug, Clone)]
pub struct Connect<'a> {
    /// Attributes of the local port.
    pub port: &'a PortAttr,
    /// GID of the local port.
    pub local: GidEntry,
    /// LID of the peer's port.
    pub lid: u16,
    /// GID of the peer's port.
    pub gid: Ipv6Addr,
    /// InfiniBand service level, 0 to 15.
    pub service_level: u8,
    /// Traffic class of the GRH (global routing header).
    pub traffic_class: u8,
    /// Largest payload of a packet; the same at both ends.
    pub mtu: Mtu,
    /// Number of the peer's queue pair.
    pub dest_qp_num: u32,
    /// The peer's first packet sequence number, 24 bits.
    pub rq_psn: u32,
    /// This queue pair's first packet sequence number, 24 bits: the peer's `rq_psn`.
    pub sq_psn: u32,
    /// Wait that this end requests of the peer when it has no posted receive, as the
    /// specification's 5-bit code (12 is 0.64 ms).
    pub min_rnr_timer: u8,
    /// Timeout of an acknowledgement: 4.096 µs * 2^timeout. 0 waits without end.
    pub timeout: u8,
    /// Retries after a timeout, 0 to 7. On rxe, 7 retries without end.
    pub retry_count: u8,
    /// Retries after an RNR NAK (no posted receive), 0 to 7. 7 retries without end.
    pub rnr_retry: u8,
}

impl Connect<'_> {
    /// Refuses a number of the peer that its field in the packet cannot hold.
    fn check(&self) -> Result<(), Error> {
        let sent = [("rq_psn", self.rq_psn), ("dest_qp_num", self.dest_qp_num)];
        match sent.iter().find(|(_, value)| *value > 0xff_ffff) {
            Some((field, value)) => {
                let text = format!("{field} is {value}, but must be at most 24 bits");
                Err(Error::Refused(text))
            }
            None => Ok(()),
        }
    }

    /// The peer's address, as packets from `port` carry it.
    fn address(&self, port: u8) -> raw::ibv_ah_attr {
        let mut raw = zeroed().ah_attr;
        raw.port_num = port;
        raw.dlid = self.lid;
        raw.sl = self.service_level;
        let other_subnet = self.local.gid.octets()[..8] != self.gid.octets()[..8];
        let routed = self.port.is_ethernet || self.port.grh_required;
        if routed || self.lid == 0 || other_subnet {
            raw.is_global = 1;
            raw.grh.dgid.raw = self.gid.octets();
            raw.grh.sgid_index = self.local.index as u8;
            raw.grh.hop_limit = HOP_LIMIT;
            raw.grh.traffic_class = self.traffic_class;
        }
        raw
    }
}

impl Qp<Init> {
    /// Creates a queue pair, binds it to a port, counted from 1, and permits the peer's writes
    /// (RESET to INIT). Only signaled sends complete.
    ///
    /// # Errors
    /// [`Error::Verb`]: sizes above the device's limits, or a completion queue of another device.
    pub fn create(
        pd: &Arc<Pd>,
        send_cq: &Arc<Cq>,
        recv_cq: &Arc<Cq>,
        caps: QpCaps,
        port: u8,
    ) -> Result<Self, Error> {
        let context = &pd.context;
        context.check_same("ibv_create_qp", &send_cq.context)?;
        context.check_same("ibv_create_qp", &recv_cq.context)?;
        let (send, recv) = {
            // SAFETY: `context` is open, and its operations table is constant.
            let ops = unsafe { &(*context.as_raw()).ops };
            ops.post_send
                .zip(ops.post_recv)
                .ok_or_else(|| unsupported("posting work requests", context))?
        };
        let mut init = raw::ibv_qp_init_attr {
            qp_context: ptr::null_mut(),
            send_cq: send_cq.as_raw(),
            recv_cq: recv_cq.as_raw(),
            srq: ptr::null_mut(),
            cap: raw::ibv_qp_cap {
                max_send_wr: caps.max_send_wr,
                max_recv_wr: caps.max_recv_wr,
                max_send_sge: 1,
                max_recv_sge: 1,
                max_inline_data: caps.max_inline_data,
            },
            qp_type: raw::IBV_QPT_RC,
            sq_sig_all: 0,
        };
        // SAFETY: domain and queues are live; `init` is writable through the call.
        let raw = unsafe { (context.api().create_qp)(pd.as_raw(), &raw mut init) };
        let raw = NonNull::new(raw).ok_or_else(|| {
            Error::verb_errno("ibv_create_qp", || {
                format!(
                    "creating a queue pair with {} sends, {} receives and {} inline bytes on {}",
                    caps.max_send_wr,
                    caps.max_recv_wr,
                    caps.max_inline_data,
                    context.name()
                )
            })
        })?;
        let qp = Self {
            inner: Inner {
                raw,
                send,
                recv,
                port,
                caps: QpCaps {
                    max_send_wr: init.cap.max_send_wr,
                    max_recv_wr: init.cap.max_recv_wr,
                    max_inline_data: init.cap.max_inline_data,
                },
                pd: Arc::clone(pd),
                send_cq: Arc::clone(send_cq),
                recv_cq: Arc::clone(recv_cq),
            },
            state: PhantomData,
        };
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_INIT;
        attr.port_num = port;
        attr.qp_access_flags = raw::IBV_ACCESS_REMOTE_WRITE | raw::IBV_ACCESS_LOCAL_WRITE;
        let mask = raw::IBV_QP_PKEY_INDEX | raw::IBV_QP_PORT | raw::IBV_QP_ACCESS_FLAGS;
        qp.modify(attr, mask, || {
            format!("binding to port {port} (RESET to INIT)")
        })?;
        Ok(qp)
    }

    /// Connects the queue pair (INIT to RTR to RTS): then it sends and receives. The peer gets no
    /// read access.
    ///
    /// # Errors
    /// [`Error::Refused`] or [`Error::Verb`]; the queue pair is then destroyed.
    pub fn connect(self, to: &Connect<'_>) -> Result<Qp<Rts>, Error> {
        to.check()?;
        let address = to.address(self.inner.port);
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_RTR;
        attr.path_mtu = to.mtu.code();
        attr.dest_qp_num = to.dest_qp_num;
        attr.rq_psn = to.rq_psn;
        attr.min_rnr_timer = to.min_rnr_timer;
        attr.ah_attr = address;
        let mask = raw::IBV_QP_AV
            | raw::IBV_QP_PATH_MTU
            | raw::IBV_QP_DEST_QPN
            | raw::IBV_QP_RQ_PSN
            | raw::IBV_QP_MAX_DEST_RD_ATOMIC
            | raw::IBV_QP_MIN_RNR_TIMER;
        self.modify(attr, mask, || {
            let (number, lid) = (to.dest_qp_num, to.lid);
            let at = match address.is_global {
                0 => String::new(),
                _ => format!(" at GID {}", to.gid),
            };
            format!("connecting to queue pair {number}{at}, LID {lid} (INIT to RTR)")
        })?;
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_RTS;
        attr.sq_psn = to.sq_psn;
        attr.timeout = to.timeout;
        attr.retry_cnt = to.retry_count;
        attr.rnr_retry = to.rnr_retry;
        let mask = raw::IBV_QP_SQ_PSN
            | raw::IBV_QP_TIMEOUT
            | raw::IBV_QP_RETRY_CNT
            | raw::IBV_QP_RNR_RETRY
            | raw::IBV_QP_MAX_QP_RD_ATOMIC;
        self.modify(attr, mask, || "starting to send (RTR to RTS)".to_owned())?;
        Ok(Qp {
            inner: self.inner,
            state: PhantomData,
        })
    }
}

impl Qp<Rts> {
    /// Posts all of `chain` with one doorbell.
    ///
    /// # Errors
    /// [`OpError`]; work requests that the device refused stay in the chain.
    pub fn post_send(&self, chain: &mut SendChain) -> Result<(), OpError> {
        chain.post(|first, bad| {
            // SAFETY: the queue pair is live. The chain outlives the call and owns its linked work
            // requests and their inline bytes. Keys name all other memory, and the device checks
            // keys.
            unsafe { (self.inner.send)(self.inner.raw.as_ptr(), first, bad) }
        })
    }
}

impl<S> Qp<S> {
    /// Posts `count` receives of `chain` with one call, at most as many as the chain holds. Returns
    /// the number of posted receives.
    ///
    /// # Errors
    /// [`OpError`]; some receives may have been posted before the failure.
    pub fn post_recv(&self, chain: &mut RecvChain, count: usize) -> Result<usize, OpError> {
        chain.post(count, |first, bad| {
            // SAFETY: the queue pair is live. The chain outlives the call and owns its linked
            // receives, which have no memory.
            unsafe { (self.inner.recv)(self.inner.raw.as_ptr(), first, bad) }
        })
    }

    /// Moves the queue pair to ERR: posted and later work requests complete with
    /// `IBV_WC_WR_FLUSH_ERR`. Takes `&self`, since other threads may be posting.
    pub fn set_error(&self) -> Result<(), Error> {
        let mut attr = zeroed();
        attr.qp_state = raw::IBV_QPS_ERR;
        self.modify(attr, 0, || "moving it to ERR".to_owned())
    }

    /// The queue pair's number on its device.
    pub fn qp_num(&self) -> u32 {
        // SAFETY: the queue pair is live, and its number is constant.
        unsafe { (*self.inner.raw.as_ptr()).qp_num }
    }

    /// The sizes that the device has granted; they may exceed the requested sizes.
    pub fn caps(&self) -> QpCaps {
        self.inner.caps
    }

    /// Changes the state and the attributes in `mask`.
    fn modify(
        &self,
        mut attr: raw::ibv_qp_attr,
        mask: u32,
        doing: impl FnOnce() -> String,
    ) -> Result<(), Error> {
        let context = &self.inner.pd.context;
        let raw = self.inner.raw.as_ptr();
        let mask = (mask | raw::IBV_QP_STATE) as c_int;
        // SAFETY: the queue pair is live; `attr` holds every attribute that `mask` names.
        match unsafe { (context.api().modify_qp)(raw, &raw mut attr, mask) } {
            0 => Ok(()),
            result => Err(Error::verb("ibv_modify_qp", result, || {
                let (doing, number, device) = (doing(), self.qp_num(), context.name());
                format!("{doing}, queue pair {number} on {device}")
            })),
        }
    }
}

fn zeroed() -> raw::ibv_qp_attr {
    // SAFETY: the structure holds integers and byte arrays only, for which zeroes are valid.
    unsafe { mem::zeroed() }
}

impl Drop for Inner {
    fn drop(&mut self) {
        // SAFETY: `create` made the queue pair, and only this `drop` destroys it.
        let result = unsafe { (self.pd.context.api().destroy_qp)(self.raw.as_ptr()) };
        if result != 0 {
            mem::forget((
                Arc::clone(&self.pd),
                Arc::clone(&self.send_cq),
                Arc::clone(&self.recv_cq),
            ));
        }
    }
}

impl<S> fmt::Debug for Qp<S> {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (number, device) = (self.qp_num(), self.inner.pd.context.name());
        write!(f, "Qp({number} of {device}: {:?})", self.inner.caps)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::port::PortState;
    use crate::{CompChannel, stub};

    fn port(is_ethernet: bool, grh_required: bool) -> PortAttr {
        PortAttr {
            state: PortState::ACTIVE,
            active_mtu: Mtu::from_bytes(4096).expect("an MTU"),
            lid: 3,
            is_ethernet,
            grh_required,
            gid_tbl_len: 1,
            gbps: None,
        }
    }

    fn connect(port: &PortAttr, lid: u16, gid: [u8; 16]) -> Connect<'_> {
        Connect {
            port,
            local: GidEntry {
                gid: Ipv6Addr::from([1; 16]),
                index: 3,
                is_roce_v2: false,
            },
            lid,
            gid: Ipv6Addr::from(gid),
            service_level: 0,
            traffic_class: 0,
            mtu: port.active_mtu,
            dest_qp_num: 0,
            rq_psn: 0,
            sq_psn: 0,
            min_rnr_timer: 12,
            timeout: 14,
            retry_count: 6,
            rnr_retry: 6,
        }
    }

    #[test]
    fn objects_of_another_device_are_refused_with_both_names() {
        let verbs = stub::verbs();
        let [one, two] = ["stub0", "stub1"].map(|name| verbs.open(name).expect("a stub device"));
        let channels = [&one, &two].map(|context| CompChannel::create(context).expect("a channel"));
        let queue = |context, channel| Cq::create(context, 16, channel, 0, 0);
        let own = queue(&one, &channels[0]).expect("a queue");
        let foreign = queue(&two, &channels[1]).expect("a queue");
        let pd = Pd::alloc(&one).expect("a domain");
        let caps = QpCaps {
            max_send_wr: 1,
            max_recv_wr: 1,
            max_inline_data: 0,
        };
        for error in [
            queue(&one, &channels[1]).err(),
            Qp::create(&pd, &foreign, &own, caps, 1).err(),
            Qp::create(&pd, &own, &foreign, caps, 1).err(),
        ] {
            let text = error.expect("refused").to_string();
            assert!(text.contains("stub0") && text.contains("stub1"), "{text}");
        }
    }

    #[test]
    fn ethernet_routes_by_gid_and_infiniband_by_lid_within_its_subnet() {
        let (near, far) = ([1; 16], [2; 16]);
        for (port, lid, gid, by_gid) in [
            (port(true, false), 0, near, true),
            (port(false, false), 4, near, false),
            (port(false, false), 4, far, true),
            (port(false, true), 4, near, true),
        ] {
            let address = connect(&port, lid, gid).address(1);
            let (is_global, index) = (address.is_global, address.grh.sgid_index);
            let expected = if by_gid { (1, 3) } else { (0, 0) };
            assert_eq!((is_global, index), expected, "{port:?}");
            // SAFETY: every bit pattern is valid for the byte array.
            let carried = unsafe { address.grh.dgid.raw };
            assert_eq!(carried, if by_gid { gid } else { [0; 16] });
        }
    }
}
