//! What the devices take of themselves, so that a measurement over them can say how much of a
//! sample was theirs.

use std::mem::zeroed;
use std::ptr;
use std::time::Instant;

use super::objects::Answered;
use super::{calls, far_end};
use crate::raw::*;

/// Work requests of a turn.
const BURST: usize = 64;
const TURNS: usize = 2_000;
/// A turn is as long as the quickest of so many: what comes between makes it longer only.
const TRIES: usize = 10;

/// Nanoseconds for each work request of a WRITE with immediate, and for each answer.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Cost {
    /// Posted one at a time, a doorbell each.
    pub post_alone_ns: f64,
    /// Posted in chains of 64, one doorbell for all.
    pub post_ns: f64,
    /// Polled 32 at a time, without what the far end does for it.
    pub poll_ns: f64,
}

/// Measures it on this thread, with the delay that the far ends are to have.
#[must_use]
pub fn cost(delay_ns: u64) -> Cost {
    let queues = Queues::new(delay_ns);
    let mut best = [f64::INFINITY; 3];
    for _ in 0..TRIES {
        let (chain, polled) = queues.turns(BURST);
        let (alone, _) = queues.turns(1);
        for (best, ns) in best.iter_mut().zip([alone, chain, polled]) {
            *best = best.min(ns);
        }
    }
    Cost {
        post_alone_ns: best[0],
        post_ns: best[1],
        poll_ns: best[2],
    }
}

/// A queue pair with its queues, and nothing of the safe layer.
struct Queues {
    qp: *mut ibv_qp,
    cqs: [*mut ibv_cq; 2],
    delay_ns: u64,
}

impl Queues {
    fn new(delay_ns: u64) -> Self {
        let far = far_end(delay_ns, |imm| Some(Answered { imm, len: 24 }));
        // SAFETY: no channel and no context are needed here; zeroes are values of the attributes,
        // and everything lives until `drop`.
        unsafe {
            let cq =
                || calls::create_cq(ptr::null_mut(), 1024, ptr::null_mut(), ptr::null_mut(), 0);
            let cqs = [cq(), cq()];
            let mut pd = ibv_pd {
                context: ptr::null_mut(),
                handle: 0,
            };
            let mut init: ibv_qp_init_attr = zeroed();
            (init.send_cq, init.recv_cq) = (cqs[0], cqs[1]);
            (init.cap.max_send_wr, init.cap.max_recv_wr) = (512, 512);
            let qp = calls::create_qp(&raw mut pd, &raw mut init);
            let mut attr: ibv_qp_attr = zeroed();
            attr.dest_qp_num = far;
            for state in [IBV_QPS_RTR, IBV_QPS_RTS] {
                attr.qp_state = state;
                calls::modify_qp(qp, &raw mut attr, 0);
            }
            let queues = Queues { qp, cqs, delay_ns };
            queues.receive(4 * BURST);
            queues
        }
    }

    fn receive(&self, count: usize) {
        // SAFETY: zeroes are a receive of no bytes; the chain lives through the call.
        unsafe {
            let mut wrs: Vec<ibv_recv_wr> = (0..count).map(|_| zeroed()).collect();
            for i in 1..count {
                let next = &raw mut wrs[i];
                wrs[i - 1].next = next;
            }
            let mut bad = ptr::null_mut();
            calls::post_recv(self.qp, wrs.as_mut_ptr(), &raw mut bad);
        }
    }

    /// Nanoseconds for each work request posted in chains of `chain`, and for each answer polled.
    fn turns(&self, chain: usize) -> (f64, f64) {
        let mut sge = ibv_sge {
            addr: 0,
            length: 150_528,
            lkey: 1,
        };
        // SAFETY: zeroes are values of a work request; the chain is as long as the vector, which
        // lives through every call. The receive chain is made once, outside of what is timed.
        unsafe {
            let mut wrs: Vec<ibv_send_wr> = (0..chain).map(|_| zeroed()).collect();
            for i in 0..chain {
                wrs[i].opcode = IBV_WR_RDMA_WRITE_WITH_IMM;
                (wrs[i].sg_list, wrs[i].num_sge) = (&raw mut sge, 1);
                if i > 0 {
                    let next = &raw mut wrs[i];
                    wrs[i - 1].next = next;
                }
            }
            let mut wcs = [ibv_wc::default(); 32];
            let (mut posting, mut polling) = (0, 0);
            for _ in 0..TURNS {
                let begin = Instant::now();
                let mut bad = ptr::null_mut();
                for _ in 0..BURST / chain {
                    calls::post_send(self.qp, wrs.as_mut_ptr(), &raw mut bad);
                }
                let posted = Instant::now();
                // What is under way is not what it costs.
                while (posted.elapsed().as_nanos() as u64) < self.delay_ns {
                    std::hint::spin_loop();
                }
                let due = Instant::now();
                let mut left = BURST as i32;
                while left > 0 {
                    left -= calls::poll_cq(self.cqs[1], 32, wcs.as_mut_ptr());
                }
                polling += due.elapsed().as_nanos();
                posting += (posted - begin).as_nanos();
                self.receive(BURST);
            }
            let each = |ns: u128| ns as f64 / (TURNS * BURST) as f64;
            (each(posting), each(polling))
        }
    }
}

impl Drop for Queues {
    fn drop(&mut self) {
        // SAFETY: made by `new`, gone once.
        unsafe {
            calls::destroy_qp(self.qp);
            for cq in self.cqs {
                calls::destroy_cq(cq);
            }
        }
    }
}
