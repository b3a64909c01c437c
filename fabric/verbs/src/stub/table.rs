//! Functions of the stub's table; each takes the fabric's lock.
//!
//! Only the safe layer calls these functions, with live objects that the stub has created. SAFETY
//! lines name this "the caller's contract", which is libibverbs' own. An object is a structure of
//! libibverbs that carries its number in a field reserved for the library. The object's state is in
//! the fabric's tables.

use std::collections::VecDeque;
use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::zeroed;
use std::os::fd::AsRawFd;
use std::ptr;

use super::fabric::{self, Armed, Cq, Device, Events, Qp, Region};
use crate::raw::*;

const DEVICES: usize = 4;

/// Limits that the stub reports, and the most inline bytes.
const MAX_CQE: c_int = 131_072;
const MAX_QP_WR: c_int = 32_768;
const MAX_INLINE: u32 = 512;

/// Alignment of mappings in bytes.
const PAGE: u64 = 4096;

/// RNR retry count that means "without end".
const WITHOUT_END: u8 = 7;

pub(crate) fn api() -> Api {
    Api {
        get_device_list,
        free_device_list,
        open_device,
        close_device,
        get_async_event,
        ack_async_event,
        query_device,
        query_port,
        query_gid_ex,
        alloc_pd,
        dealloc_pd,
        reg_mr_iova2,
        reg_dmabuf_mr: Some(reg_dmabuf_mr),
        dereg_mr,
        create_comp_channel,
        destroy_comp_channel,
        create_cq,
        destroy_cq,
        get_cq_event,
        ack_cq_events,
        create_qp,
        modify_qp,
        destroy_qp,
    }
}

/// Reports a failure as libibverbs does: a null pointer, with `errno` set.
fn refused<T>(errno: c_int) -> *mut T {
    // SAFETY: the pointer leads to the calling thread's `errno`.
    unsafe { *libc::__errno_location() = errno };
    ptr::null_mut()
}

fn no_event() -> c_int {
    refused::<()>(libc::EAGAIN);
    -1
}

fn leak<T>(value: T) -> *mut T {
    Box::into_raw(Box::new(value))
}

/// The number of an open device.
///
/// # Safety
/// `context` is an open context of the stub.
pub(crate) unsafe fn number_of(context: *mut ibv_context) -> u32 {
    // SAFETY: `number_of`'s contract.
    unsafe { (*context).cmd_fd as u32 }
}

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let list: [_; DEVICES] = std::array::from_fn(|index| {
        // SAFETY: null pointers and zeroes are valid for every field.
        let mut device: ibv_device = unsafe { zeroed() };
        for (to, from) in device.name.iter_mut().zip(format!("stub{index}").bytes()) {
            *to = from as c_char;
        }
        leak(device)
    });
    // SAFETY: the caller's contract.
    unsafe { count.write(DEVICES as c_int) };
    leak(list).cast()
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the caller's contract: from `get_device_list`, freed once.
    let list = unsafe { Box::from_raw(list.cast::<[*mut ibv_device; DEVICES]>()) };
    for device in *list {
        // SAFETY: each device was leaked by `get_device_list` and is freed once.
        drop(unsafe { Box::from_raw(device) });
    }
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    let Some(events) = Events::new() else {
        return ptr::null_mut();
    };
    let async_fd = events.fd.as_raw_fd();
    // SAFETY: the caller's contract: a listed device, whose name ends in its index.
    let index = unsafe { (*device).name[4] as u8 - b'0' };
    let up = true;
    let number = fabric::with(|fabric| fabric.contexts.add(Device { index, up, events }));
    // SAFETY: null pointers, absent functions, zeroed locks and zeroes are valid for the fields.
    let mut context: ibv_context = unsafe { zeroed() };
    context.cmd_fd = number as c_int;
    context.async_fd = async_fd;
    context.num_comp_vectors = 1;
    context.ops.poll_cq = Some(poll_cq);
    context.ops.req_notify_cq = Some(req_notify_cq);
    context.ops.post_send = Some(post_send);
    context.ops.post_recv = Some(post_recv);
    leak(context)
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's contract: from `open_device`, closed once.
    let context = unsafe { Box::from_raw(context) };
    fabric::with(|fabric| fabric.contexts.remove(context.cmd_fd as u32));
    0
}

unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's contract.
    let number = unsafe { number_of(context) };
    match fabric::with(|fabric| fabric.contexts[number].events.take()) {
        Some(taken) => {
            // SAFETY: the caller's contract.
            unsafe { event.write(taken) };
            0
        }
        None => no_event(),
    }
}

unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller's contract; zeroes are valid for every field.
    unsafe {
        attr.write(ibv_device_attr {
            max_qp: 4096,
            max_qp_wr: MAX_QP_WR,
            max_cq: 4096,
            max_cqe: MAX_CQE,
            max_mr_size: u64::MAX,
            ..zeroed()
        });
    }
    0
}

unsafe extern "C" fn query_port(
    context: *mut ibv_context,
    port: u8,
    attr: *mut ibv_port_attr,
) -> c_int {
    if port != 1 {
        return libc::EINVAL;
    }
    // SAFETY: the caller's contract; zeroes are valid for every field.
    unsafe {
        let number = number_of(context);
        let up = fabric::with(|fabric| fabric.contexts[number].up);
        attr.write(ibv_port_attr {
            state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
            active_mtu: IBV_MTU_4096,
            gid_tbl_len: 2,
            active_width: 2,
            active_speed: 64,
            link_layer: IBV_LINK_LAYER_ETHERNET as u8,
            ..zeroed()
        });
    }
    0
}

/// GID entry 0 is 10.0.0.1 on the first device, 10.0.0.2 on the second, and so on.
unsafe extern "C" fn query_gid_ex(
    context: *mut ibv_context,
    port_num: u32,
    gid_index: u32,
    entry: *mut ibv_gid_entry,
    _: u32,
    _: usize,
) -> c_int {
    if gid_index != 0 {
        return libc::ENODATA;
    }
    // SAFETY: the caller's contract.
    unsafe {
        let number = number_of(context);
        let last = fabric::with(|fabric| fabric.contexts[number].index) + 1;
        let raw = [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last];
        entry.write(ibv_gid_entry {
            gid: ibv_gid { raw },
            gid_index,
            port_num,
            gid_type: IBV_GID_TYPE_ROCE_V2,
            ndev_ifindex: 1,
        });
    }
    0
}

unsafe extern "C" fn alloc_pd(context: *mut ibv_context) -> *mut ibv_pd {
    leak(ibv_pd { context, handle: 0 })
}

unsafe extern "C" fn dealloc_pd(pd: *mut ibv_pd) -> c_int {
    // SAFETY: the caller's contract: from `alloc_pd`, freed once.
    drop(unsafe { Box::from_raw(pd) });
    0
}

unsafe extern "C" fn reg_mr_iova2(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    access: c_uint,
) -> *mut ibv_mr {
    add(Region {
        pd,
        addr: addr as u64,
        len: length as u64,
        access,
        mapped: addr as u64,
    })
}

/// Accepts any descriptor that can be mapped as a dma-buf, such as a memfd.
unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let before = offset % PAGE;
    // SAFETY: the kernel chooses a free address for the shared mapping, so it aliases no Rust
    // object.
    let base = unsafe {
        libc::mmap(
            ptr::null_mut(),
            length + before as usize,
            libc::PROT_READ | libc::PROT_WRITE,
            libc::MAP_SHARED,
            fd,
            (offset - before) as libc::off_t,
        )
    };
    if base == libc::MAP_FAILED {
        return ptr::null_mut();
    }
    add(Region {
        pd,
        addr: iova,
        len: length as u64,
        access: access as u32,
        mapped: base as u64 + before,
    })
}

fn add(region: Region) -> *mut ibv_mr {
    let key = fabric::with(|fabric| fabric.add_region(region));
    leak(ibv_mr {
        context: ptr::null_mut(),
        pd: region.pd,
        addr: ptr::without_provenance_mut(region.addr as usize),
        length: region.len as usize,
        handle: 0,
        lkey: key,
        rkey: key,
    })
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's contract: from `add`, deregistered once.
    let mr = unsafe { Box::from_raw(mr) };
    let region = fabric::with(|fabric| fabric.remove_region(mr.lkey));
    if let Some(mapped) = region.filter(|r| r.mapped != r.addr).map(|r| r.mapped) {
        let before = mapped % PAGE;
        let base = ptr::with_exposed_provenance_mut((mapped - before) as usize);
        // SAFETY: `reg_dmabuf_mr` mapped these bytes, and no write can find the removed region.
        unsafe { libc::munmap(base, mr.length + before as usize) };
    }
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let Some(events) = Events::new() else {
        return ptr::null_mut();
    };
    let fd = events.fd.as_raw_fd();
    let refcnt = fabric::with(|fabric| fabric.channels.add(events)) as c_int;
    leak(ibv_comp_channel {
        context,
        fd,
        refcnt,
    })
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's contract: from `create_comp_channel`, destroyed once.
    let channel = unsafe { Box::from_raw(channel) };
    fabric::with(|fabric| fabric.channels.remove(channel.refcnt as u32));
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    token: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    let number = unsafe { (*channel).refcnt } as u32;
    match fabric::with(|fabric| fabric.channels[number].take()) {
        Some(taken) => {
            // SAFETY: the caller's contract; `destroy_cq` removes the events of its queue.
            unsafe {
                cq.write(taken);
                token.write((*taken).cq_context);
            }
            0
        }
        None => no_event(),
    }
}

unsafe extern "C" fn ack_cq_events(_: *mut ibv_cq, _: c_uint) {}

unsafe extern "C" fn create_cq(
    context: *mut ibv_context,
    cqe: c_int,
    cq_context: *mut c_void,
    channel: *mut ibv_comp_channel,
    _: c_int,
) -> *mut ibv_cq {
    if !(1..=MAX_CQE).contains(&cqe) {
        return refused(libc::EINVAL);
    }
    // SAFETY: the caller's contract; null pointers, zeroed locks and zeroes are valid.
    unsafe {
        let mut raw: ibv_cq = zeroed();
        (raw.context, raw.channel) = (context, channel);
        (raw.cq_context, raw.cqe) = (cq_context, cqe);
        let raw = leak(raw);
        let channel = channel.as_ref().map(|channel| channel.refcnt as u32);
        let cq = Cq {
            raw,
            context: number_of(context),
            channel,
            depth: cqe as usize,
            entries: VecDeque::with_capacity(cqe as usize),
            armed: Armed::No,
        };
        (*raw).handle = fabric::with(|fabric| fabric.cqs.add(cq));
        raw
    }
}

unsafe extern "C" fn destroy_cq(cq: *mut ibv_cq) -> c_int {
    // SAFETY: the caller's contract: from `create_cq`, destroyed once.
    unsafe {
        fabric::with(|fabric| {
            fabric.cqs.remove((*cq).handle);
            if let Some(channel) = (*cq).channel.as_ref() {
                let events = &mut fabric.channels[channel.refcnt as u32];
                events.waiting.retain(|&other| other != cq);
            }
        });
        drop(Box::from_raw(cq));
    }
    0
}

unsafe extern "C" fn create_qp(pd: *mut ibv_pd, init: *mut ibv_qp_init_attr) -> *mut ibv_qp {
    // SAFETY: the caller's contract; null pointers, zeroed locks and zeroes are valid.
    unsafe {
        let init = &*init;
        let caps = init.cap;
        let depth = caps.max_send_wr.max(caps.max_recv_wr);
        if caps.max_inline_data > MAX_INLINE || depth > MAX_QP_WR as u32 {
            return refused(libc::EINVAL);
        }
        let raw: *mut ibv_qp = leak(zeroed());
        let cqs = [(*init.send_cq).handle, (*init.recv_cq).handle];
        let qp = Qp {
            raw,
            context: number_of((*pd).context),
            pd,
            cqs,
            caps,
            state: IBV_QPS_RESET,
            peer: 0,
            remote_write: false,
            waits_for_receives: false,
            swallow: false,
            outstanding: 0,
            unsignaled: 0,
            receives: VecDeque::with_capacity(caps.max_recv_wr as usize),
        };
        (*raw).qp_num = fabric::with(|fabric| fabric.qps.add(qp));
        raw
    }
}

unsafe extern "C" fn destroy_qp(qp: *mut ibv_qp) -> c_int {
    // SAFETY: the caller's contract: from `create_qp`, destroyed once.
    let qp = unsafe { Box::from_raw(qp) };
    fabric::with(|fabric| fabric.qps.remove(qp.qp_num));
    0
}

/// The attributes that the specification requires for each state change of a reliable connection.
fn required(from: u32, to: u32) -> Option<u32> {
    match (from, to) {
        (_, IBV_QPS_ERR) => Some(0),
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

unsafe extern "C" fn modify_qp(qp: *mut ibv_qp, attr: *mut ibv_qp_attr, mask: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let (number, attr) = unsafe { ((*qp).qp_num, &*attr) };
    fabric::with(|fabric| {
        let qp = &mut fabric.qps[number];
        let needed = required(qp.state, attr.qp_state).map(|needed| needed | IBV_QP_STATE);
        if needed != Some(mask as u32) {
            return libc::EINVAL;
        }
        qp.state = attr.qp_state;
        match attr.qp_state {
            IBV_QPS_ERR => fabric.enter_error(number),
            IBV_QPS_INIT => qp.remote_write = attr.qp_access_flags & IBV_ACCESS_REMOTE_WRITE != 0,
            IBV_QPS_RTR => qp.peer = attr.dest_qp_num,
            IBV_QPS_RTS => qp.waits_for_receives = attr.rnr_retry == WITHOUT_END,
            _ => {}
        }
        0
    })
}

unsafe extern "C" fn poll_cq(cq: *mut ibv_cq, room: c_int, wcs: *mut ibv_wc) -> c_int {
    // SAFETY: the caller's contract.
    let cq = unsafe { (*cq).handle };
    fabric::with(|fabric| {
        let mut taken = 0;
        while taken < room {
            let Some(wc) = fabric.poll(cq) else { break };
            // SAFETY: the caller's contract: `room` entries are writable.
            unsafe { wcs.add(taken as usize).write(wc) };
            taken += 1;
        }
        taken
    })
}

unsafe extern "C" fn req_notify_cq(cq: *mut ibv_cq, solicited_only: c_int) -> c_int {
    // SAFETY: the caller's contract.
    let cq = unsafe { (*cq).handle };
    fabric::with(|fabric| {
        let armed = &mut fabric.cqs[cq].armed;
        // Arming for solicited completions does not undo arming for all.
        *armed = if solicited_only == 0 || *armed == Armed::Any {
            Armed::Any
        } else {
            Armed::Solicited
        };
    });
    0
}

unsafe extern "C" fn post_send(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_send_wr,
    bad: *mut *mut ibv_send_wr,
) -> c_int {
    // SAFETY: the caller's contract, which covers the pointers of each work request.
    fabric::with(|fabric| unsafe {
        while let Some(request) = wr.as_ref() {
            let sge = request.sg_list.as_ref().filter(|_| request.num_sge > 0);
            let errno = fabric.send((*qp).qp_num, request, sge);
            if errno != 0 {
                bad.write(wr);
                return errno;
            }
            wr = request.next;
        }
        0
    })
}

unsafe extern "C" fn post_recv(
    qp: *mut ibv_qp,
    mut wr: *mut ibv_recv_wr,
    bad: *mut *mut ibv_recv_wr,
) -> c_int {
    // SAFETY: the caller's contract.
    fabric::with(|fabric| unsafe {
        while let Some(receive) = wr.as_ref() {
            let errno = fabric.receive((*qp).qp_num, receive.wr_id);
            if errno != 0 {
                bad.write(wr);
                return errno;
            }
            wr = receive.next;
        }
        0
    })
}
