//! The functions of the table that create, move and use queues, each under the fabric's lock.
//!
//! They are called by the safe layer only, with objects that the stub has created and that are
//! live: that is what each SAFETY line refers to as "the caller's contract" (libibverbs' own).

use std::collections::VecDeque;
use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr;

use super::objects::{Armed, StubChannel, StubContext, StubCq, StubQp};
use super::table::{MAX_CQE, MAX_QP_WR, leak, set_errno};
use super::{MAX_INLINE, fabric};
use crate::raw::*;

pub unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    if !(1..=MAX_CQE).contains(&cqe) {
        set_errno(libc::EINVAL);
        return ptr::null_mut();
    }
    // SAFETY: null pointers, zeroed locks and numbers are values of the structure.
    let empty: ibv_cq = unsafe { zeroed() };
    let raw = ibv_cq {
        context,
        channel,
        cq_context,
        cqe,
        ..empty
    };
    leak(StubCq {
        raw,
        entries: VecDeque::with_capacity(cqe as usize),
        armed: Armed::No,
    })
}

pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's contract: from `create_cq`, destroyed once. Its events go with it, under
    // the lock.
    unsafe {
        let channel = (*cq).channel.cast::<StubChannel>();
        if !channel.is_null() {
            fabric::with(|_| {
                (*channel)
                    .events
                    .waiting
                    .retain(|&other| other != cq.cast())
            });
        }
        drop(Box::from_raw(cq.cast::<StubCq>()));
    }
    0
}

pub unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's contract; null pointers, zeroed locks and numbers are values of the
    // structure.
    unsafe {
        let init = &*init;
        let caps = init.cap;
        if caps.max_inline_data > MAX_INLINE
            || caps.max_send_wr.max(caps.max_recv_wr) > MAX_QP_WR as u32
        {
            set_errno(libc::EINVAL);
            return ptr::null_mut();
        }
        let raw = ibv_qp {
            context: (*pd).context,
            pd,
            send_cq: init.send_cq,
            recv_cq: init.recv_cq,
            state: IBV_QPS_RESET,
            qp_type: init.qp_type,
            ..zeroed()
        };
        let qp = Box::into_raw(Box::new(StubQp {
            raw,
            caps,
            dest_qp_num: 0,
            remote_write: false,
            waits_for_receives: false,
            discard: false,
            swallow: false,
            outstanding: 0,
            unsignaled: 0,
            receives: VecDeque::with_capacity(caps.max_recv_wr as usize),
        }));
        (*qp).raw.qp_num = fabric::with(|fabric| fabric.add_qp(qp));
        qp.cast()
    }
}

pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's contract: from `create_qp`, destroyed once. It leaves the fabric before
    // it is freed.
    unsafe {
        fabric::with(|fabric| fabric.remove_qp((*qp).qp_num));
        drop(Box::from_raw(qp.cast::<StubQp>()));
    }
    0
}

/// Retries that do not end.
const WITHOUT_END: u8 = 7;

/// The attributes that each step must name, as the specification lists them for reliable
/// connections.
fn required(from: u32, to: u32) -> Option<u32> {
    match (from, to) {
        (_, IBV_QPS_RESET | IBV_QPS_ERR) => Some(0),
        (IBV_QPS_RESET, IBV_QPS_INIT) => {
            Some(IBV_QP_PKEY_INDEX | IBV_QP_PORT | IBV_QP_ACCESS_FLAGS)
        }
        (IBV_QPS_INIT, IBV_QPS_RTR) => Some(
            IBV_QP_AV
                | IBV_QP_PATH_MTU
                | IBV_QP_DEST_QPN
                | IBV_QP_RQ_PSN
                | IBV_QP_MAX_DEST_RD_ATOMIC
                | IBV_QP_MIN_RNR_TIMER,
        ),
        (IBV_QPS_RTR, IBV_QPS_RTS) => Some(
            IBV_QP_TIMEOUT
                | IBV_QP_RETRY_CNT
                | IBV_QP_RNR_RETRY
                | IBV_QP_SQ_PSN
                | IBV_QP_MAX_QP_RD_ATOMIC,
        ),
        _ => None,
    }
}

pub unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's contract; the lock is held.
    fabric::with(|fabric| unsafe {
        let (qp, attr) = (qp.cast::<StubQp>(), &*attr);
        let needed = required((*qp).raw.state, attr.qp_state).map(|needed| needed | IBV_QP_STATE);
        if needed != Some(mask as u32) {
            return libc::EINVAL;
        }
        match attr.qp_state {
            IBV_QPS_ERR => fabric.enter_error(qp),
            IBV_QPS_RESET => {
                (*qp).receives.clear();
                ((*qp).outstanding, (*qp).unsignaled, (*qp).dest_qp_num) = (0, 0, 0);
            }
            IBV_QPS_INIT => {
                (*qp).remote_write = attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE != 0
            }
            IBV_QPS_RTR => (*qp).dest_qp_num = attr.dest_qp_num,
            IBV_QPS_RTS => (*qp).waits_for_receives = attr.rnr_retry == WITHOUT_END,
            _ => {}
        }
        (*qp).raw.state = attr.qp_state;
        0
    })
}

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wcs: *mut ibv_wc) -> c_int {
    fabric::with(|fabric| {
        let mut taken = 0;
        while taken < room {
            // SAFETY: the caller's contract; the lock is held.
            let Some(wc) = (unsafe { fabric.poll(cq.cast()) }) else {
                break;
            };
            // SAFETY: the caller's contract: `room` entries are writable.
            unsafe { wcs.add(taken as usize).write(wc) };
            taken += 1;
        }
        taken
    })
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's contract; the lock is held.
    fabric::with(|_| unsafe {
        let armed = &mut (*cq.cast::<StubCq>()).armed;
        // Asking for less never takes back having asked for more.
        *armed = if solicited_only == 0 || *armed == Armed::Any {
            Armed::Any
        } else {
            Armed::Solicited
        };
    });
    0
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's contract; the lock is held.
    fabric::with(|fabric| unsafe {
        (*(*qp).context.cast::<StubContext>()).counts.doorbells += 1;
        while !wr.is_null() {
            let errno = fabric.send(qp.cast(), wr);
            if errno != 0 {
                bad.write(wr);
                return errno;
            }
            wr = (*wr).next;
        }
        0
    })
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's contract; the lock is held.
    fabric::with(|fabric| unsafe {
        let qp = qp.cast::<StubQp>();
        while !wr.is_null() {
            let errno = match (*qp).raw.state {
                IBV_QPS_RESET => libc::EINVAL,
                _ if (*qp).receives.len() == (*qp).caps.max_recv_wr as usize => libc::ENOMEM,
                _ => 0,
            };
            if errno != 0 {
                bad.write(wr);
                return errno;
            }
            (*(*qp).raw.context.cast::<StubContext>()).counts.receives += 1;
            if (*qp).raw.state == IBV_QPS_ERR {
                fabric.flush_receive(qp, (*wr).wr_id);
            } else {
                (*qp).receives.push_back((*wr).wr_id);
            }
            wr = (*wr).next;
        }
        0
    })
}
