//! The life of a queue pair: created with its receives posted, connected to its peer, destroyed.
//!
//! ```text
//!   frontend                                    accelerator
//!   IbConnection::prepare   RESET -> INIT
//!   open   { qp_num, psn, gid, regions } ---->  prepare    RESET -> INIT
//!                                               connect    INIT -> RTR -> RTS
//!   connect INIT -> RTR -> RTS  <-------------- opened { qp_num, psn, gid, regions }
//!   start ----------------------------------->
//! ```

use std::sync::{
    Arc,
    atomic::{AtomicU8, AtomicU64, Ordering},
};

use verbs::{CompChannel, Connect, Cq, Init, Mr, Mtu, Notify, Qp, QpCaps, RecvChain, RemoteSlice};

use super::{
    IbCfgs, IbEnd, IbRegion, IbResources,
    device::PortNow,
    rx::IbRx,
    shared::{Sends, Shared},
    tx::{IbTx, SPARE, Target},
};
use crate::{
    Endpoint, Link, OpenError, Region,
    nic::{CELL_BYTES, Cause, covers, random},
};

/// Next free token. A token identifies a completion queue in events; a connection takes two.
static TOKENS: AtomicU64 = AtomicU64::new(0);

/// A queue pair in INIT: its receives are posted, its peer is not yet known.
pub struct IbConnection {
    // Drop order: the queue pair goes before the queues and registrations that it uses.
    qp: Qp<Init>,
    send_cq: Arc<Cq>,
    recv_cq: Arc<Cq>,
    channel: Arc<CompChannel>,
    token: u64,
    window: Arc<Mr>,
    cells: Arc<Mr>,
    cell_memory: Arc<Region>,
    sources: Vec<Arc<Mr>>,
    endpoint: Endpoint,
    cfgs: IbCfgs,
    psn: u32,
    port: PortNow,
    resources: Arc<IbResources>,
}

impl IbConnection {
    /// Registers the endpoint's memory, creates the queue pair and posts its receives.
    ///
    /// # Errors
    /// [`OpenError`] of the first step that fails. Everything created until then is released.
    pub fn prepare(
        resources: &Arc<IbResources>,
        endpoint: Endpoint,
        cfgs: &IbCfgs,
    ) -> Result<Self, OpenError> {
        let device = resources.device();
        let port = device.port_now()?;
        let context = device.context();
        let window = resources.window(&endpoint.window)?;
        let (cell_memory, cells) = resources.cells(endpoint.window.slots())?;
        let sources = endpoint
            .sources
            .iter()
            .map(|r| resources.source(r))
            .collect::<Result<Vec<_>, _>>()?;
        let cfgs = cfgs.within(endpoint.send_depth);
        let token = 2 * TOKENS.fetch_add(1, Ordering::Relaxed);
        let channel = CompChannel::create(context)?;
        let vector = (token / 2) as u32 % context.num_comp_vectors().max(1);
        let recv_cq = Cq::create(context, cfgs.receive_depth, &channel, token, vector)?;
        // When the queue pair fails, every send completes, signaled or not.
        let sends = cfgs.send_depth + SPARE;
        let send_cq = Cq::create(context, sends, &channel, token + 1, vector)?;
        let caps = QpCaps {
            max_send_wr: sends,
            max_recv_wr: cfgs.receive_depth,
            max_inline_data: cfgs.keys.inline_bytes.max(CELL_BYTES as u32),
        };
        let qp = Qp::create(resources.pd(), &send_cq, &recv_cq, caps, port.port)?;
        let receives = cfgs.receive_depth as usize;
        qp.post_recv(&mut RecvChain::new(receives), receives)
            .map_err(|e| {
                let problem = format!("posting {receives} receives: {e}");
                OpenError::setting(device.name(), "receive_depth", problem)
            })?;
        Ok(IbConnection {
            qp,
            send_cq,
            recv_cq,
            channel,
            token,
            window,
            cells,
            cell_memory,
            sources,
            endpoint,
            cfgs,
            // 24 random bits, so that a new queue pair accepts no packets of the previous queue
            // pair.
            psn: random("random packet number")? as u32 & 0xff_ffff,
            port,
            resources: resources.clone(),
        })
    }

    /// This end's address, keys and settings, for the peer to connect.
    pub fn end(&self) -> IbEnd {
        let region = |mr: &Mr| {
            let r = mr.remote();
            IbRegion {
                address: r.addr,
                length: mr.len() as u64,
                rkey: r.rkey,
            }
        };
        IbEnd {
            qp_num: self.qp.qp_num(),
            psn: self.psn,
            lid: self.port.attr.lid,
            gid: self.port.gid.gid,
            mtu: self.port.mtu(&self.cfgs).bytes(),
            solicited: self.cfgs.keys.solicited,
            slots: region(&self.window),
            cells: region(&self.cells),
        }
    }

    /// Connects the queue pair to its peer's end (INIT to RTR to RTS). Then both directions work.
    ///
    /// # Errors
    /// [`OpenError::Refused`] names the field, [`OpenError::Local`] the verb. Everything is
    /// released.
    pub fn connect(self, peer: &IbEnd) -> Result<Link, OpenError> {
        let (e, keys) = (&self.endpoint, &self.cfgs.keys);
        let region = |r: &IbRegion| (r.address, r.length);
        covers(
            "slots.length",
            region(&peer.slots),
            e.peer_slots,
            e.peer_stride,
        )?;
        covers(
            "cells.length",
            region(&peer.cells),
            e.peer_slots,
            CELL_BYTES,
        )?;
        let qp = self.qp.connect(&Connect {
            port: &self.port.attr,
            local: self.port.gid,
            lid: peer.lid,
            gid: peer.gid,
            service_level: keys.service_level,
            traffic_class: keys.traffic_class,
            mtu: Mtu::from_bytes(peer.mtu)?.min(self.port.mtu(&self.cfgs)),
            dest_qp_num: peer.qp_num,
            rq_psn: peer.psn,
            sq_psn: self.psn,
            min_rnr_timer: keys.min_rnr_timer,
            timeout: keys.timeout,
            retry_count: keys.retry_count,
            rnr_retry: self.cfgs.rnr_retry,
        })?;
        let mut registered = vec![self.window, self.cells];
        registered.extend(self.sources.iter().cloned());
        let shared = Arc::new(Shared {
            qp,
            send_cq: self.send_cq,
            recv_cq: self.recv_cq,
            channel: self.channel,
            token: self.token,
            watched: self.resources.device().watched().clone(),
            sends: Sends::default(),
            cause: Cause::default(),
            gone: AtomicU8::new(0),
            _registered: registered,
            _resources: self.resources,
        });
        shared.watched.add(&shared);
        let notify = if self.cfgs.keys.solicited && peer.solicited {
            Notify::Solicited
        } else {
            Notify::Any
        };
        let remote = |r: &IbRegion| RemoteSlice {
            addr: r.address,
            rkey: r.rkey,
        };
        let target = Target {
            slots: remote(&peer.slots),
            cells: remote(&peer.cells),
        };
        let rx = IbRx::new(
            shared.clone(),
            self.endpoint.window.clone(),
            self.cell_memory,
            self.cfgs.receive_depth,
            self.cfgs.receive_batch,
            notify,
        );
        Ok(Link {
            tx: Box::new(IbTx::new(
                shared,
                self.endpoint,
                self.sources,
                target,
                self.cfgs,
            )),
            rx: Box::new(rx),
        })
    }
}

impl PortNow {
    /// The configured MTU, at most the port's active MTU.
    fn mtu(&self, cfgs: &IbCfgs) -> Mtu {
        let active = self.attr.active_mtu;
        cfgs.mtu.map_or(active, |m| m.min(active))
    }
}

impl std::fmt::Debug for IbConnection {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        write!(
            f,
            "IbConnection(queue pair {} of {:?})",
            self.qp.qp_num(),
            self.resources.device()
        )
    }
}

#[cfg(all(test, not(feature = "loom")))]
mod tests {
    use std::time::{Duration, Instant};

    use super::{
        super::{IbDevice, IbKeys},
        *,
    };
    use crate::{Broken, Event, Imm, os::Near, testkit};

    /// Four slots; the grant of slot 0 is open.
    fn endpoint() -> Endpoint {
        let endpoint = testkit::endpoint(4, 64, 8);
        endpoint.window.grants().open(0);
        endpoint
    }

    /// Connects two stub devices; `change` modifies the first queue pair before it connects.
    fn link(linger: Duration, change: impl Fn(&Qp<Init>)) -> (Link, Link) {
        let [a, b] = ["stub0", "stub1"].map(|name| {
            let device =
                IbDevice::open(&IbKeys::new(name), &Near::default()).expect("a stub device");
            let mut cfgs =
                IbCfgs::resolve(&IbKeys::new(name), device.limits(), 4).expect("within limits");
            cfgs.linger = linger;
            let resources = IbResources::new(device).expect("a domain");
            IbConnection::prepare(&resources, endpoint(), &cfgs).expect("prepared")
        });
        change(&a.qp);
        let (at_a, at_b) = (a.end(), b.end());
        let a = a.connect(&at_b).expect("connected");
        (a, b.connect(&at_a).expect("connected"))
    }

    #[test]
    fn a_goodbye_to_a_lost_peer_is_sent_once_and_never_blocks() {
        let (mut a, _b) = link(Duration::from_secs(3), verbs::stub::swallow);
        assert!(!a.tx.finish(), "it has retired, or was waited for");
        let end = Instant::now() + Duration::from_secs(30);
        while !a.tx.finish() {
            assert!(Instant::now() < end, "it lingers for ever");
        }
        let counts = a.tx.counts();
        assert_eq!(
            (counts.work_requests, counts.doorbells, counts.retired),
            (1, 1, 0)
        );
    }

    #[test]
    fn a_goodbye_that_has_retired_ends_the_wait_at_once() {
        let (mut a, mut b) = link(Duration::from_secs(3600), |_| {});
        let imm = Imm::new(0, 1);
        a.tx.post(&testkit::post(0, 8, imm)).expect("room");
        assert!(a.tx.finish(), "{a:?}");
        assert_eq!(a.tx.counts().retired, 2);
        let mut events = Vec::new();
        while b.rx.poll(8, &mut |e| events.push(e)) > 0 {}
        let arrived = Event::Arrived { imm, at: 0, len: 8 };
        assert_eq!(events, [arrived, Event::Broken(Broken::Closed)]);
    }
}
