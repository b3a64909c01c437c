use std::sync::{Arc, Mutex};

use super::{Answered, far_end, verbs};
use crate::safe::*;

const SLOTS: u32 = 4;

struct Rig {
    qp: Qp<Rts>,
    sends: Arc<Cq>,
    receives: Arc<Cq>,
    channel: Arc<CompChannel>,
    heard: Arc<Mutex<Vec<u32>>>,
}

impl Rig {
    /// One whose answers are the immediates plus one, but for `u32::MAX`, which has none.
    fn new(delay_ns: u64, receives_posted: usize) -> Self {
        let heard = Arc::<Mutex<Vec<u32>>>::default();
        let log = heard.clone();
        let far = far_end(delay_ns, move |imm| {
            log.lock().expect("alive").push(imm);
            (imm != u32::MAX).then(|| Answered {
                imm: imm + 1,
                len: 24,
            })
        });
        let context = verbs().open("feed63").expect("a device");
        let pd = Pd::alloc(&context).expect("a domain");
        let channel = CompChannel::create(&context).expect("a channel");
        let sends = Cq::create(&context, SLOTS, Some(&channel), 1, 0).expect("a queue");
        let receives = Cq::create(&context, SLOTS, Some(&channel), 2, 0).expect("a queue");
        let caps = QpCaps {
            max_send_wr: SLOTS,
            max_recv_wr: 64,
            max_send_sge: 1,
            max_recv_sge: 1,
            max_inline_data: 64,
        };
        let qp = Qp::create(&pd, &sends, &receives, caps).expect("a queue pair");
        let init = InitAttr {
            port: 1,
            pkey_index: 0,
            access: Access::REMOTE_WRITE,
        };
        let qp = qp.into_init(&init).expect("INIT");
        let mut chain = RecvChain::new(64);
        (0..receives_posted).for_each(|_| chain.push(0).expect("room"));
        qp.post_recv(&mut chain).expect("posted");
        let port = context.query_port(1).expect("a port");
        let gid = context.auto_gid(1).expect("a GID");
        let to = Gid([0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, 9]);
        let rtr = RtrAttr {
            path: Path::new(1, &port, &gid, 0, to, 0, 0).expect("a path"),
            mtu: Mtu::from_bytes(4096).expect("a size"),
            dest_qp_num: far,
            rq_psn: 0,
            max_dest_rd_atomic: 0,
            min_rnr_timer: 12,
        };
        let qp = qp.into_rtr(&rtr).expect("RTR");
        let rts = RtsAttr {
            sq_psn: 0,
            timeout: 14,
            retry_cnt: 6,
            rnr_retry: 6,
            max_rd_atomic: 0,
        };
        Rig {
            qp: qp.into_rts(&rts).expect("RTS"),
            sends,
            receives,
            channel,
            heard,
        }
    }

    /// Posts these immediates; how many the device took.
    fn post(&self, imms: &[u32], signaled: bool) -> usize {
        let mut chain = SendChain::new(64, 64);
        for &imm in imms {
            let write = Write {
                wr_id: u64::from(imm),
                payload: Payload::Empty,
                remote: RemoteSlice { addr: 0, rkey: 0 },
                imm: Some(imm),
                signaled,
                solicited: true,
            };
            chain.push(&write).expect("room");
        }
        // What it did not take is left in the chain.
        let _ = self.qp.post_send(&mut chain);
        imms.len() - chain.len()
    }

    fn arrived(&self) -> Vec<(Option<u32>, u32)> {
        let mut wcs = [Wc::default(); 8];
        let n = self.receives.poll(&mut wcs).expect("alive");
        wcs[..n].iter().map(|w| (w.imm(), w.byte_len())).collect()
    }
}

#[test]
fn every_immediate_is_answered_once_and_in_order() {
    let rig = Rig::new(0, 8);
    assert_eq!(rig.post(&[1, u32::MAX, 7], true), 3);
    assert_eq!(rig.arrived(), [(Some(2), 24), (Some(8), 24)]);
    assert_eq!(rig.arrived(), []);
    assert_eq!(*rig.heard.lock().expect("alive"), [1, u32::MAX, 7]);
    let mut wcs = [Wc::default(); 8];
    assert_eq!(rig.sends.poll(&mut wcs).expect("alive"), 3);
    assert_eq!(wcs[2].wr_id(), 7);
}

#[test]
fn nothing_comes_before_it_is_due() {
    let hour = 3_600_000_000_000;
    let rig = Rig::new(hour, 8);
    rig.post(&[1], false);
    assert_eq!(rig.arrived(), []);
    assert!(rig.heard.lock().expect("alive").is_empty());
}

#[test]
fn an_answer_waits_for_a_receive_and_a_full_queue_takes_no_more() {
    let rig = Rig::new(0, 1);
    assert_eq!(
        rig.post(&[1, 2, 3, 4, 5], false),
        4,
        "the fifth has no room"
    );
    assert_eq!(rig.arrived(), [(Some(2), 24)]);
    assert_eq!(rig.arrived(), [], "no receive is left");
    let mut chain = RecvChain::new(8);
    (0..8).for_each(|_| chain.push(0).expect("room"));
    rig.qp.post_recv(&mut chain).expect("posted");
    assert_eq!(rig.arrived().len(), 3);
}

#[test]
fn an_armed_queue_raises_one_event() {
    let rig = Rig::new(0, 8);
    let events = || {
        let mut tokens = Vec::new();
        rig.channel.take_events(|t| tokens.push(t)).expect("alive");
        tokens
    };
    rig.post(&[1], false);
    assert_eq!(events(), []);
    rig.receives.arm(Notify::Solicited).expect("armed");
    assert_eq!(events(), [2], "something was under way");
    assert_eq!(rig.arrived().len(), 1);
    rig.receives.arm(Notify::Solicited).expect("armed");
    assert_eq!(events(), []);
    rig.post(&[1], false);
    rig.post(&[2], false);
    assert_eq!(events(), [2]);
}

#[test]
fn what_it_costs_is_a_time() {
    let cost = super::cost(0);
    assert!(cost.post_ns > 0.0 && cost.poll_ns > 0.0 && cost.post_alone_ns > 0.0);
}
