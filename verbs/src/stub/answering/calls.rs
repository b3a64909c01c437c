//! The functions of the table. What is not here is the other stub's.
//!
//! They are called by the safe layer only, with objects that were created here and are live: that
//! is what each SAFETY line refers to as "the caller's contract" (libibverbs' own).

use std::ffi::{c_int, c_void};
use std::mem::zeroed;
use std::ptr;
use std::sync::atomic::{Ordering, fence};

use super::objects::{AnsweringCq, AnsweringQp, Entry, devices, far_end};
use crate::raw::*;
use crate::stub::objects::{StubChannel, StubContext};
use crate::stub::table::{self, MAX_CQE, MAX_QP_WR, leak, set_errno};
use crate::stub::{MAX_INLINE, fabric};

/// The exported functions.
pub fn api() -> Api {
    Api {
        get_device_list,
        free_device_list,
        get_device_guid,
        open_device,
        create_cq,
        destroy_cq,
        create_qp,
        modify_qp,
        destroy_qp,
        ..table::api()
    }
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    // SAFETY: the caller's contract.
    unsafe { count.write(devices().len() as c_int) };
    // The list is the one that is kept: nobody writes to it.
    devices().as_ptr().cast_mut()
}

unsafe extern "C" fn free_device_list(_: *mut *mut ibv_device) {}

unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    let at = devices().iter().position(|&d| d == device);
    (0xfeed_0000 + at.unwrap_or(0) as u64).to_be()
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Some(mut context) = StubContext::create(device) else {
        return ptr::null_mut();
    };
    // SAFETY: null pointers and absent functions are values of this table.
    let empty: ibv_context_ops = unsafe { zeroed() };
    context.raw.ops = ibv_context_ops {
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        ..empty
    };
    Box::into_raw(context).cast()
}

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
    leak(AnsweringCq::new(ibv_cq {
        context,
        channel,
        cq_context,
        cqe,
        ..empty
    }))
}

pub unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's contract: from `create_cq`, destroyed once. Its events go with it, under
    // the lock that channels have.
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
        drop(Box::from_raw(cq.cast::<AnsweringCq>()));
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
        leak(AnsweringQp::new(raw, caps.max_send_wr))
    }
}

pub unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's contract: from `create_qp`, destroyed once.
    unsafe { drop(Box::from_raw(qp.cast::<AnsweringQp>())) };
    0
}

pub unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, _: c_int) -> c_int {
    let qp = qp.cast::<AnsweringQp>();
    // SAFETY: the caller's contract.
    let (lock, attr) = unsafe { (&(*qp).lock, &*attr) };
    // SAFETY: live, and its lock is held; the queue is live while the queue pair is.
    lock.with(|| unsafe {
        if attr.qp_state == IBV_QPS_RTR {
            let Some(far) = far_end(attr.dest_qp_num) else {
                return libc::EINVAL;
            };
            (*qp).delay_ns = far.delay_ns;
            // A queue is one queue pair's, which is connected once.
            let _ = (*(*qp).raw.recv_cq.cast::<AnsweringCq>()).far.set(far);
        }
        (*qp).raw.state = attr.qp_state;
        0
    })
}

/// Nanoseconds on a clock that only goes forward.
fn now_ns() -> u64 {
    let mut t = libc::timespec {
        tv_sec: 0,
        tv_nsec: 0,
    };
    // SAFETY: writable.
    unsafe { libc::clock_gettime(libc::CLOCK_MONOTONIC, &raw mut t) };
    t.tv_sec as u64 * 1_000_000_000 + t.tv_nsec as u64
}

/// Wakes who sleeps for this queue, once for each time it was armed.
///
/// # Safety
/// `cq` must be live.
unsafe fn wake(cq: *mut AnsweringCq) {
    // Pairs with the fence of `req_notify_cq`: it sees the entry, or we see that it is armed.
    fence(Ordering::SeqCst);
    // SAFETY: live, as the caller promises; channels are used under the lock.
    unsafe {
        let armed = &(*cq).armed.0;
        let channel = (*cq).raw.channel.cast::<StubChannel>();
        if armed.load(Ordering::Relaxed)
            && armed.swap(false, Ordering::AcqRel)
            && !channel.is_null()
        {
            fabric::with(|_| (*channel).events.raise(cq.cast()));
        }
    }
}

pub unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, _: c_int) -> c_int {
    let cq = cq.cast::<AnsweringCq>();
    // SAFETY: the caller's contract.
    unsafe {
        (*cq).armed.0.store(true, Ordering::Release);
        fence(Ordering::SeqCst);
        if !(*cq).is_empty() {
            wake(cq);
        }
    }
    0
}

pub unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wcs: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's contract.
    let cq = unsafe { &*cq.cast::<AnsweringCq>() };
    if cq.is_empty() {
        return 0;
    }
    cq.polls.with(|| {
        let (head, mut tail) = (cq.head(), cq.tail());
        let (mut taken, mut now) = (0, 0);
        while tail != head && taken < room {
            // SAFETY: the lock is held, and it lies between the two.
            let entry = unsafe { cq.entry(tail) };
            if entry.due_ns > now {
                now = now_ns();
                if entry.due_ns > now {
                    break;
                }
            }
            let wc = if entry.send {
                Some(sent(&entry))
            } else if cq.receives.load(Ordering::Relaxed) == 0 {
                break;
            } else {
                arrived(cq, &entry)
            };
            tail += 1;
            let Some(wc) = wc else { continue };
            // SAFETY: the caller's contract: `room` entries are writable.
            unsafe { wcs.add(taken as usize).write(wc) };
            taken += 1;
        }
        cq.taken(tail);
        taken
    })
}

fn sent(entry: &Entry) -> ibv_wc {
    ibv_wc {
        wr_id: entry.wr_id,
        status: entry.status,
        opcode: IBV_WC_RDMA_WRITE,
        qp_num: entry.qp_num,
        ..ibv_wc::default()
    }
}

/// Asks the far end, and consumes a receive for what it answers.
fn arrived(cq: &AnsweringCq, entry: &Entry) -> Option<ibv_wc> {
    let answered = cq.far.get().and_then(|far| (far.answer)(entry.imm))?;
    cq.receives.fetch_sub(1, Ordering::Relaxed);
    Some(ibv_wc {
        opcode: IBV_WC_RECV_RDMA_WITH_IMM,
        byte_len: answered.len,
        imm_data: answered.imm.to_be(),
        wc_flags: IBV_WC_WITH_IMM,
        qp_num: entry.qp_num,
        ..ibv_wc::default()
    })
}

pub unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    let qp = qp.cast::<AnsweringQp>();
    // SAFETY: the caller's contract.
    let lock = unsafe { &(*qp).lock };
    // SAFETY: live, and its lock is held.
    lock.with(|| unsafe { send(qp, wr, bad) })
}

/// # Safety
/// As [`post_send`], with the queue pair's lock.
unsafe fn send(
    qp: *mut AnsweringQp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's contract, and the lock is held; queues live while the queue pair does.
    unsafe {
        let (sends, receives) = (
            (*qp).raw.send_cq.cast::<AnsweringCq>(),
            (*qp).raw.recv_cq.cast::<AnsweringCq>(),
        );
        let (mut sent, mut arriving) = ((*sends).head(), (*receives).head());
        let before = (sent, arriving);
        let due_ns = match (*qp).delay_ns {
            0 => 0,
            delay => now_ns() + delay,
        };
        let failed = (*qp).raw.state == IBV_QPS_ERR;
        let mut errno = match (*qp).raw.state {
            IBV_QPS_RTS | IBV_QPS_ERR => 0,
            _ => libc::EINVAL,
        };
        while !wr.is_null() {
            let w = &*wr;
            write_entry(qp, w);
            let mut entry = Entry {
                due_ns,
                wr_id: w.wr_id,
                imm: u32::from_be(w.imm_data),
                qp_num: (*qp).raw.qp_num,
                ..Entry::default()
            };
            if errno == 0 && !failed && w.opcode == IBV_WR_RDMA_WRITE_WITH_IMM {
                match (*receives).put(arriving, entry) {
                    true => arriving += 1,
                    false => errno = libc::ENOMEM,
                }
            }
            if errno != 0 {
                bad.write(wr);
                break;
            }
            if failed || w.send_flags & IBV_SEND_SIGNALED != 0 {
                entry.send = true;
                entry.status = if failed { IBV_WC_WR_FLUSH_ERR } else { 0 };
                // The queue holds as many as the queue pair takes: there is room.
                sent += usize::from((*sends).put(sent, entry));
            }
            wr = w.next;
        }
        (*receives).publish(arriving);
        (*sends).publish(sent);
        if arriving != before.1 {
            wake(receives);
        }
        if sent != before.0 {
            wake(sends);
        }
        errno
    }
}

/// Writes what a provider writes into its queue.
///
/// # Safety
/// As [`send`].
unsafe fn write_entry(qp: *mut AnsweringQp, wr: &ibv_send_wr) {
    // SAFETY: the caller's contract, and the lock is held. A work request's list has as many
    // entries as it says; inline bytes are readable.
    unsafe {
        let entries = &mut (*qp).entries;
        let at = (*qp).next & (entries.len() - 1);
        (*qp).next += 1;
        let entry = &mut entries[at];
        let sge = if wr.num_sge > 0 {
            *wr.sg_list
        } else {
            ibv_sge::default()
        };
        entry.opcode = wr.opcode;
        entry.imm = wr.imm_data;
        entry.flags = wr.send_flags;
        entry.rkey = wr.wr.rdma.rkey;
        entry.remote = wr.wr.rdma.remote_addr;
        (entry.local, entry.lkey, entry.length) = (sge.addr, sge.lkey, sge.length);
        if wr.send_flags & IBV_SEND_INLINE != 0 {
            let len = (sge.length as usize).min(entry.inline.len());
            let from = ptr::with_exposed_provenance::<u8>(sge.addr as usize);
            ptr::copy_nonoverlapping(from, entry.inline.as_mut_ptr(), len);
        }
    }
}

pub unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    _: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's contract; the queue lives while the queue pair does.
    unsafe {
        let mut posted = 0;
        while !wr.is_null() {
            posted += 1;
            wr = (*wr).next;
        }
        let cq = (*qp).recv_cq.cast::<AnsweringCq>();
        (*cq).receives.fetch_add(posted, Ordering::Relaxed);
    }
    0
}
