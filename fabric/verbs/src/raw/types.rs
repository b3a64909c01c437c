//! Structures of the ABI, each `repr(C)`, with the header's field names.

use std::ffi::{c_char, c_int, c_uint, c_void};
use std::mem::{align_of, offset_of, size_of};

use libc::{pthread_cond_t, pthread_mutex_t};

/// An entry of an operations table that this project never calls.
pub(crate) type unused_op = *const c_void;

/// The object of an asynchronous event; the event's type selects the active member.
#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_async_element {
    pub cq: *mut ibv_cq,
    pub qp: *mut ibv_qp,
    pub srq: *mut ibv_srq,
    pub port_num: c_int,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub struct ibv_wr_rdma {
    pub remote_addr: u64,
    pub rkey: u32,
}

#[repr(C)]
#[derive(Clone, Copy)]
pub union ibv_wr_target {
    pub rdma: ibv_wr_rdma,
    /// An atomic operation; unused here, but part of the size.
    pub atomic: [u64; 4],
}

/// A shared receive queue; this project never creates one.
#[repr(C)]
pub struct ibv_srq {
    _opaque: [u8; 0],
}

pub(crate) type poll_cq_fn = unsafe extern "C" fn(*mut ibv_cq, c_int, *mut ibv_wc) -> c_int;
pub(crate) type req_notify_cq_fn = unsafe extern "C" fn(*mut ibv_cq, c_int) -> c_int;
pub(crate) type post_send_fn =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_send_wr, *mut *mut ibv_send_wr) -> c_int;
pub(crate) type post_recv_fn =
    unsafe extern "C" fn(*mut ibv_qp, *mut ibv_recv_wr, *mut *mut ibv_recv_wr) -> c_int;

structures! {
    #[derive(Clone, Copy)]
    union ibv_gid {
        raw: [u8; 16],
        global: [u64; 2],
    }

    #[derive(Clone, Copy)]
    struct ibv_gid_entry {
        gid: ibv_gid,
        gid_index: u32,
        port_num: u32,
        gid_type: u32,
        ndev_ifindex: u32,
    }

    struct ibv_device {
        _ops: [unused_op; 2],
        node_type: [c_int; 2],
        name: [c_char; 64],
        dev_name: [c_char; 64],
        dev_path: [c_char; 256],
        ibdev_path: [c_char; 256],
    }

    #[derive(Clone, Copy)]
    struct ibv_device_attr {
        fw_ver: [c_char; 64],
        node_guid: [u64; 2],
        max_mr_size: u64,
        page_size_cap: u64,
        vendor_id: [u32; 3],
        max_qp: c_int,
        max_qp_wr: c_int,
        device_cap_flags: [c_int; 3],
        max_cq: c_int,
        max_cqe: c_int,
        max_mr: [c_int; 22],
        max_pkeys: u16,
        local_ca_ack_delay: [u8; 2],
    }

    #[derive(Clone, Copy)]
    struct ibv_port_attr {
        state: c_uint,
        max_mtu: c_uint,
        active_mtu: c_uint,
        gid_tbl_len: c_int,
        port_cap_flags: [u32; 4],
        pkey_tbl_len: u16,
        lid: u16,
        sm_lid: u16,
        lmc: [u8; 5],
        active_width: u8,
        active_speed: u8,
        phys_state: u8,
        link_layer: u8,
        flags: u8,
        port_cap_flags2: u16,
    }

    #[derive(Clone, Copy)]
    struct ibv_async_event {
        element: ibv_async_element,
        event_type: c_uint,
    }

    #[derive(Clone, Copy, Debug, Default)]
    struct ibv_wc {
        wr_id: u64,
        status: c_uint,
        opcode: c_uint,
        vendor_err: u32,
        byte_len: u32,
        /// Network byte order.
        imm_data: u32,
        qp_num: u32,
        src_qp: u32,
        wc_flags: c_uint,
        pkey_index: [u16; 2],
        sl: [u8; 2],
    }

    struct ibv_pd {
        context: *mut ibv_context,
        handle: u32,
    }

    struct ibv_mr {
        context: *mut ibv_context,
        pd: *mut ibv_pd,
        addr: *mut c_void,
        length: usize,
        handle: u32,
        lkey: u32,
        rkey: u32,
    }

    #[derive(Clone, Copy)]
    struct ibv_global_route {
        dgid: ibv_gid,
        flow_label: u32,
        sgid_index: u8,
        hop_limit: u8,
        traffic_class: u8,
    }

    #[derive(Clone, Copy)]
    struct ibv_ah_attr {
        grh: ibv_global_route,
        dlid: u16,
        sl: u8,
        src_path_bits: u8,
        static_rate: u8,
        is_global: u8,
        port_num: u8,
    }

    #[derive(Clone, Copy, Default)]
    struct ibv_qp_cap {
        max_send_wr: u32,
        max_recv_wr: u32,
        max_send_sge: u32,
        max_recv_sge: u32,
        max_inline_data: u32,
    }

    struct ibv_qp_init_attr {
        qp_context: *mut c_void,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        cap: ibv_qp_cap,
        qp_type: c_uint,
        sq_sig_all: c_int,
    }

    #[derive(Clone, Copy)]
    struct ibv_qp_attr {
        qp_state: c_uint,
        cur_qp_state: c_uint,
        path_mtu: c_uint,
        path_mig_state: c_uint,
        qkey: u32,
        rq_psn: u32,
        sq_psn: u32,
        dest_qp_num: u32,
        qp_access_flags: c_uint,
        cap: ibv_qp_cap,
        ah_attr: ibv_ah_attr,
        alt_ah_attr: ibv_ah_attr,
        pkey_index: [u16; 2],
        en_sqd_async_notify: u8,
        sq_draining: u8,
        max_rd_atomic: u8,
        max_dest_rd_atomic: u8,
        min_rnr_timer: u8,
        port_num: u8,
        timeout: u8,
        retry_cnt: u8,
        rnr_retry: u8,
        alt_port_num: [u8; 2],
        rate_limit: u32,
    }

    #[derive(Clone, Copy, Default)]
    struct ibv_sge {
        addr: u64,
        length: u32,
        lkey: u32,
    }

    #[derive(Clone, Copy)]
    struct ibv_send_wr {
        wr_id: u64,
        next: *mut ibv_send_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
        opcode: c_uint,
        send_flags: c_uint,
        /// Network byte order.
        imm_data: u32,
        wr: ibv_wr_target,
        /// XRC's remote SRQ number; unused here.
        qp_type: u32,
        /// Memory-window binds and segmentation offload; unused here, but part of the size.
        bind_mw: [u64; 6],
    }

    #[derive(Clone, Copy)]
    struct ibv_recv_wr {
        wr_id: u64,
        next: *mut ibv_recv_wr,
        sg_list: *mut ibv_sge,
        num_sge: c_int,
    }

    struct ibv_qp {
        context: *mut ibv_context,
        qp_context: *mut c_void,
        pd: *mut ibv_pd,
        send_cq: *mut ibv_cq,
        recv_cq: *mut ibv_cq,
        srq: *mut ibv_srq,
        handle: u32,
        qp_num: u32,
        state: c_uint,
        qp_type: c_uint,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        events_completed: u32,
    }

    struct ibv_comp_channel {
        context: *mut ibv_context,
        fd: c_int,
        refcnt: c_int,
    }

    struct ibv_cq {
        context: *mut ibv_context,
        channel: *mut ibv_comp_channel,
        cq_context: *mut c_void,
        handle: u32,
        cqe: c_int,
        mutex: pthread_mutex_t,
        cond: pthread_cond_t,
        comp_events_completed: u32,
        async_events_completed: u32,
    }

    /// Operations that the C header calls through the context; they are not exported symbols.
    #[derive(Clone, Copy)]
    struct ibv_context_ops {
        _compat_query_device: [unused_op; 11],
        poll_cq: Option<poll_cq_fn>,
        req_notify_cq: Option<req_notify_cq_fn>,
        _compat_cq_event: [unused_op; 12],
        post_send: Option<post_send_fn>,
        post_recv: Option<post_recv_fn>,
        _compat_create_ah: [unused_op; 5],
    }

    struct ibv_context {
        device: *mut ibv_device,
        ops: ibv_context_ops,
        cmd_fd: c_int,
        async_fd: c_int,
        num_comp_vectors: c_int,
        mutex: pthread_mutex_t,
        abi_compat: *mut c_void,
    }
}
