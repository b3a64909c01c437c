//! The functions of the table: devices, domains, regions, channels and events here, queues in the
//! file beside.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::zeroed;
use std::ptr;

use super::objects::{Events, Region, StubChannel, StubContext, devices};
use super::queues::{
    create_cq, create_qp, destroy_cq, destroy_qp, modify_qp, poll_cq, post_recv, post_send,
    req_notify_cq,
};
use super::{DEVICES, fabric};
use crate::raw::*;

/// The limits that the stub announces.
pub const MAX_CQE: c_int = 131_072;
pub const MAX_QP_WR: c_int = 32_768;

/// What mappings begin at multiples of.
const PAGE: u64 = 4096;

/// The exported functions.
pub fn api() -> Api {
    Api {
        get_device_list,
        free_device_list,
        get_device_guid,
        open_device,
        close_device,
        get_async_event,
        ack_async_event,
        query_device,
        compat_query_port: query_port,
        query_gid,
        alloc_pd,
        dealloc_pd,
        compat_reg_mr,
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
        wc_status_str,
        query_gid_ex: Some(query_gid_ex),
        reg_mr_iova2: Some(reg_mr),
        reg_dmabuf_mr: Some(reg_dmabuf_mr),
    }
}

/// The functions that are called through a context.
pub fn operations() -> ibv_context_ops {
    // SAFETY: null pointers and absent functions are values of this table.
    let empty: ibv_context_ops = unsafe { zeroed() };
    ibv_context_ops {
        poll_cq: Some(poll_cq),
        req_notify_cq: Some(req_notify_cq),
        post_send: Some(post_send),
        post_recv: Some(post_recv),
        ..empty
    }
}

pub fn set_errno(errno: c_int) {
    // SAFETY: the calling thread's own errno.
    unsafe { *libc::__errno_location() = errno };
}

/// Moves a value to the heap and returns it as what it begins with.
pub fn leak<T, Raw>(value: T) -> *mut Raw {
    Box::into_raw(Box::new(value)).cast()
}

// The functions below are called by the safe layer only, with objects that the stub has created and
// that are live: that is what each SAFETY line refers to as "the caller's contract" (libibverbs'
// own).

unsafe extern "C" fn get_device_list(count: *mut c_int) -> *mut *mut ibv_device {
    let mut list = [ptr::null_mut(); DEVICES + 1];
    list[..DEVICES].copy_from_slice(devices());
    // SAFETY: the caller's contract.
    unsafe { count.write(DEVICES as c_int) };
    leak(list)
}

unsafe extern "C" fn free_device_list(list: *mut *mut ibv_device) {
    // SAFETY: the caller's contract: from `get_device_list`, freed once.
    drop(unsafe { Box::from_raw(list.cast::<[*mut ibv_device; DEVICES + 1]>()) });
}

fn index_of(device: *mut ibv_device) -> u8 {
    devices()
        .iter()
        .position(|&other| other == device)
        .unwrap_or(0) as u8
}

unsafe extern "C" fn get_device_guid(device: *mut ibv_device) -> u64 {
    (u64::from(index_of(device)) + 1).to_be()
}

unsafe extern "C" fn open_device(device: *mut ibv_device) -> *mut ibv_context {
    StubContext::create(device).map_or(ptr::null_mut(), |context| Box::into_raw(context).cast())
}

unsafe extern "C" fn close_device(context: *mut ibv_context) -> c_int {
    // SAFETY: the caller's contract: from `open_device`, closed once.
    drop(unsafe { Box::from_raw(context.cast::<StubContext>()) });
    0
}

/// Takes one from a queue of events: waits on its descriptor as a real provider does, which is to
/// say not at all once it is nonblocking.
unsafe fn take<T>(events: *mut Events<T>) -> Option<T> {
    // SAFETY: the caller's contract; the descriptor does not change.
    let fd = unsafe { (*events).fd };
    let mut count = [0_u8; 8];
    // SAFETY: eight writable bytes.
    if unsafe { libc::read(fd, count.as_mut_ptr().cast(), count.len()) } < 0 {
        return None;
    }
    // SAFETY: the caller's contract; the lock is held.
    let event = fabric::with(|_| unsafe { (*events).waiting.pop_front() });
    if event.is_none() {
        set_errno(libc::EAGAIN);
    }
    event
}

unsafe extern "C" fn get_async_event(
    context: *mut ibv_context,
    event: *mut ibv_async_event,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let events = &raw mut (*context.cast::<StubContext>()).events;
        take(events).map_or(-1, |taken| {
            event.write(taken);
            0
        })
    }
}

unsafe extern "C" fn ack_async_event(_: *mut ibv_async_event) {}

unsafe extern "C" fn query_device(_: *mut ibv_context, attr: *mut ibv_device_attr) -> c_int {
    // SAFETY: the caller's contract; zeroes are values of the structure.
    unsafe {
        attr.write(ibv_device_attr {
            max_qp: 4096,
            max_qp_wr: MAX_QP_WR,
            max_sge: 4,
            max_cq: 4096,
            max_cqe: MAX_CQE,
            max_mr: 4096,
            max_mr_size: u64::MAX,
            max_qp_rd_atom: 16,
            phys_port_cnt: 1,
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
    // SAFETY: the caller's contract; zeroes are values of the structure.
    unsafe {
        let up = fabric::with(|_| (*context.cast::<StubContext>()).port_up);
        attr.write(ibv_port_attr {
            state: if up { IBV_PORT_ACTIVE } else { IBV_PORT_DOWN },
            max_mtu: IBV_MTU_4096,
            active_mtu: IBV_MTU_4096,
            gid_tbl_len: 2,
            max_msg_sz: 1 << 30,
            active_width: 2,
            active_speed: 64,
            link_layer: IBV_LINK_LAYER_ETHERNET as u8,
            ..zeroed()
        });
    }
    0
}

/// 10.0.0.1 for the first device, and so on.
unsafe fn gid_of(context: *mut ibv_context) -> [u8; 16] {
    // SAFETY: the caller's contract.
    let last = index_of(unsafe { (*context).device }) + 1;
    [0, 0, 0, 0, 0, 0, 0, 0, 0, 0, 0xff, 0xff, 10, 0, 0, last]
}

unsafe extern "C" fn query_gid(
    context: *mut ibv_context,
    _: u8,
    index: c_int,
    gid: *mut ibv_gid,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        gid.write(ibv_gid {
            raw: if index == 0 { gid_of(context) } else { [0; 16] },
        })
    };
    0
}

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
        let gid = ibv_gid {
            raw: gid_of(context),
        };
        entry.write(ibv_gid_entry {
            gid,
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

unsafe extern "C" fn compat_reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    access: c_int,
) -> *mut ibv_mr {
    // SAFETY: the caller's contract.
    unsafe { reg_mr(pd, addr, length, addr as u64, access as c_uint) }
}

unsafe extern "C" fn reg_mr(
    pd: *mut ibv_pd,
    addr: *mut c_void,
    length: usize,
    _: u64,
    access: c_uint,
) -> *mut ibv_mr {
    let region = Region {
        key: 0,
        pd,
        addr: addr as u64,
        len: length as u64,
        access,
        mapped: None,
    };
    // SAFETY: the caller's contract.
    unsafe { add(pd, addr, length, region) }
}

/// A dma-buf is whatever can be mapped: a file in memory does for one.
unsafe extern "C" fn reg_dmabuf_mr(
    pd: *mut ibv_pd,
    offset: u64,
    length: usize,
    iova: u64,
    fd: c_int,
    access: c_int,
) -> *mut ibv_mr {
    let before = offset % PAGE;
    // SAFETY: a shared mapping at an address of the kernel's choice aliases nothing that has an
    // address here.
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
    let region = Region {
        key: 0,
        pd,
        addr: iova,
        len: length as u64,
        access: access as u32,
        mapped: Some(base as u64 + before),
    };
    // SAFETY: the caller's contract.
    unsafe {
        add(
            pd,
            ptr::with_exposed_provenance_mut(iova as usize),
            length,
            region,
        )
    }
}

/// # Safety
///
/// `pd` must be live.
unsafe fn add(pd: *mut ibv_pd, addr: *mut c_void, length: usize, region: Region) -> *mut ibv_mr {
    let key = fabric::with(|fabric| fabric.add_region(region));
    // SAFETY: the caller's contract.
    let context = unsafe { (*pd).context };
    leak(ibv_mr {
        context,
        pd,
        addr,
        length,
        handle: 0,
        lkey: key,
        rkey: key,
    })
}

unsafe extern "C" fn dereg_mr(mr: *mut ibv_mr) -> c_int {
    // SAFETY: the caller's contract: from `reg_mr`, deregistered once.
    let mr = unsafe { Box::from_raw(mr) };
    let region = fabric::with(|fabric| fabric.remove_region(mr.lkey));
    if let Some(mapped) = region.and_then(|r| r.mapped) {
        let before = mapped % PAGE;
        // SAFETY: mapped by `reg_dmabuf_mr` with this length, and no write finds the region any
        // more.
        unsafe {
            libc::munmap(
                ptr::with_exposed_provenance_mut((mapped - before) as usize),
                mr.length + before as usize,
            );
        }
    }
    0
}

unsafe extern "C" fn create_comp_channel(context: *mut ibv_context) -> *mut ibv_comp_channel {
    let Some(events) = Events::new() else {
        return ptr::null_mut();
    };
    leak(StubChannel {
        raw: ibv_comp_channel {
            context,
            fd: events.fd,
            refcnt: 0,
        },
        events,
    })
}

unsafe extern "C" fn destroy_comp_channel(channel: *mut ibv_comp_channel) -> c_int {
    // SAFETY: the caller's contract: from `create_comp_channel`, destroyed once.
    drop(unsafe { Box::from_raw(channel.cast::<StubChannel>()) });
    0
}

unsafe extern "C" fn get_cq_event(
    channel: *mut ibv_comp_channel,
    cq: *mut *mut ibv_cq,
    token: *mut *mut c_void,
) -> c_int {
    // SAFETY: the caller's contract.
    unsafe {
        let events = &raw mut (*channel.cast::<StubChannel>()).events;
        take(events).map_or(-1, |taken| {
            cq.write(taken.cast());
            token.write((*taken).raw.cq_context);
            0
        })
    }
}

unsafe extern "C" fn ack_cq_events(_: *mut ibv_cq, _: c_uint) {}

unsafe extern "C" fn wc_status_str(_: c_uint) -> *const c_char {
    c"status".as_ptr()
}
