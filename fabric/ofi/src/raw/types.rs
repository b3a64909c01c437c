//! Structures of `rdma/fabric.h` and its companions, and the tables of functions of objects.
//!
//! libfabric exports few symbols. Each object begins with a [`fid`] and points to tables of
//! functions, which the header's inline functions call. A table's `size` is its filled length.
//! Structures grow only at their ends, and the library allocates those that this project fills
//! (`fi_dupinfo`), so a newer library's structures are long enough.

use std::ffi::{c_char, c_int, c_void};
use std::mem::{align_of, offset_of, size_of};

use libc::iovec;

pub(crate) type fi_addr_t = u64;

structures! {
    struct fid {
        fclass: usize,
        context: *mut c_void,
        ops: *mut fi_ops,
    }

    struct fi_ops {
        size: usize,
        close: Option<unsafe extern "C" fn(*mut fid) -> c_int>,
        bind: Option<unsafe extern "C" fn(*mut fid, *mut fid, u64) -> c_int>,
        control: Option<unsafe extern "C" fn(*mut fid, c_int, *mut c_void) -> c_int>,
        ops_open: [usize; 3],
    }

    struct fi_tx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        inject_size: usize,
        size: usize,
        iov_limit: [usize; 2],
        tclass: u32,
    }

    struct fi_rx_attr {
        caps: u64,
        mode: u64,
        op_flags: u64,
        msg_order: u64,
        comp_order: u64,
        total_buffered_recv: usize,
        size: usize,
        iov_limit: usize,
    }

    struct fi_ep_attr {
        type_: c_int,
        protocol: [u32; 2],
        max_msg_size: usize,
        msg_prefix_size: [usize; 4],
        mem_tag_format: u64,
        tx_ctx_cnt: [usize; 3],
        auth_key: *mut u8,
    }

    struct fi_domain_attr {
        domain: *mut fid_domain,
        name: *mut c_char,
        threading: c_int,
        control_progress: [c_int; 4],
        mr_mode: c_int,
        mr_key_size: usize,
        cq_data_size: usize,
        cq_cnt: usize,
        ep_cnt: usize,
        tx_ctx_cnt: [usize; 7],
        mr_iov_limit: usize,
        caps: [u64; 2],
        auth_key: *mut u8,
        auth_key_size: [usize; 2],
        mr_cnt: usize,
        tclass: u32,
    }

    struct fi_fabric_attr {
        fabric: *mut fid_fabric,
        name: *mut c_char,
        prov_name: *mut c_char,
        prov_version: [u32; 2],
    }

    struct fi_info {
        next: *mut fi_info,
        caps: u64,
        mode: u64,
        addr_format: u32,
        src_addrlen: [usize; 2],
        src_addr: [*mut c_void; 2],
        handle: *mut fid,
        tx_attr: *mut fi_tx_attr,
        rx_attr: *mut fi_rx_attr,
        ep_attr: *mut fi_ep_attr,
        domain_attr: *mut fi_domain_attr,
        fabric_attr: *mut fi_fabric_attr,
        nic: *mut fid_nic,
    }

    struct fi_link_attr {
        address: *mut c_char,
        mtu: usize,
        speed: usize,
        state: c_int,
        network_type: *mut c_char,
    }

    struct fid_nic {
        fid: fid,
        device_attr: [*mut c_void; 2],
        link_attr: *mut fi_link_attr,
        prov_attr: *mut c_void,
    }

    struct fi_ops_fabric {
        size: usize,
        domain: Option<unsafe extern "C" fn(*mut fid_fabric, *mut fi_info, *mut *mut fid_domain,
            *mut c_void) -> c_int>,
        passive_ep: [usize; 3],
        trywait: Option<unsafe extern "C" fn(*mut fid_fabric, *mut *mut fid, c_int) -> c_int>,
        domain2: usize,
    }

    struct fid_fabric {
        fid: fid,
        ops: *mut fi_ops_fabric,
        api_version: u32,
    }

    struct fi_av_attr {
        type_: c_int,
        rx_ctx_bits: c_int,
        count: usize,
        ep_per_node: usize,
        name: *const c_char,
        map_addr: *mut c_void,
        flags: u64,
    }

    struct fi_cq_attr {
        size: usize,
        flags: u64,
        format: c_int,
        wait_obj: c_int,
        signaling_vector: c_int,
        wait_cond: c_int,
        wait_set: *mut c_void,
    }

    struct fi_ops_domain {
        size: usize,
        av_open: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_av_attr, *mut *mut fid_av,
            *mut c_void) -> c_int>,
        cq_open: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_cq_attr, *mut *mut fid_cq,
            *mut c_void) -> c_int>,
        endpoint: Option<unsafe extern "C" fn(*mut fid_domain, *mut fi_info, *mut *mut fid_ep,
            *mut c_void) -> c_int>,
    }

    struct fi_ops_mr {
        size: usize,
        reg: [usize; 2],
        regattr: Option<unsafe extern "C" fn(*mut fid, *const fi_mr_attr, u64, *mut *mut fid_mr)
            -> c_int>,
    }

    struct fid_domain {
        fid: fid,
        ops: *mut fi_ops_domain,
        mr: *mut fi_ops_mr,
    }

    /// The structure's prefix, known to every library since 1.0; `flags` select the rest.
    struct fi_mr_attr {
        mr_iov: *const iovec,
        iov_count: usize,
        access: u64,
        offset: u64,
        requested_key: u64,
        context: *mut c_void,
        auth_key_size: usize,
        auth_key: *mut u8,
        iface: c_int,
        /// A union: the device's number, interpreted by `iface`.
        device: u64,
    }

    struct fid_mr {
        fid: fid,
        mem_desc: *mut c_void,
        key: u64,
    }

    struct fi_ops_av {
        size: usize,
        insert: Option<unsafe extern "C" fn(*mut fid_av, *const c_void, usize, *mut fi_addr_t, u64,
            *mut c_void) -> c_int>,
        insertsvc: [usize; 2],
        remove: Option<unsafe extern "C" fn(*mut fid_av, *mut fi_addr_t, usize, u64) -> c_int>,
        lookup: usize,
        straddr: Option<unsafe extern "C" fn(*mut fid_av, *const c_void, *mut c_char, *mut usize)
            -> *const c_char>,
    }

    struct fid_av {
        fid: fid,
        ops: *mut fi_ops_av,
    }

    struct fi_ops_cm {
        size: usize,
        setname: usize,
        getname: Option<unsafe extern "C" fn(*mut fid, *mut c_void, *mut usize) -> c_int>,
    }

    struct fi_ops_msg {
        size: usize,
        recv: Option<unsafe extern "C" fn(*mut fid_ep, *mut c_void, usize, *mut c_void, fi_addr_t,
            *mut c_void) -> isize>,
    }

    struct fi_rma_iov {
        addr: u64,
        len: usize,
        key: u64,
    }

    struct fi_msg_rma {
        msg_iov: *const iovec,
        desc: *mut *mut c_void,
        iov_count: usize,
        addr: fi_addr_t,
        rma_iov: *const fi_rma_iov,
        rma_iov_count: usize,
        context: *mut c_void,
        data: u64,
    }

    struct fi_ops_rma {
        size: usize,
        read: [usize; 5],
        writemsg: Option<unsafe extern "C" fn(*mut fid_ep, *const fi_msg_rma, u64) -> isize>,
        inject: [usize; 3],
    }

    struct fid_ep {
        fid: fid,
        ops: *mut c_void,
        cm: *mut fi_ops_cm,
        msg: *mut fi_ops_msg,
        rma: *mut fi_ops_rma,
        tagged: [*mut c_void; 3],
    }

    #[derive(Clone, Copy, Debug)]
    struct fi_cq_data_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
    }

    /// The layout up to 1.19; newer libraries write more for programs of a newer API.
    struct fi_cq_err_entry {
        op_context: *mut c_void,
        flags: u64,
        len: usize,
        buf: *mut c_void,
        data: u64,
        tag: u64,
        olen: usize,
        err: c_int,
        prov_errno: c_int,
        err_data: *mut c_void,
        err_data_size: usize,
    }

    struct fi_ops_cq {
        size: usize,
        read: Option<unsafe extern "C" fn(*mut fid_cq, *mut c_void, usize) -> isize>,
        readfrom: usize,
        readerr: Option<unsafe extern "C" fn(*mut fid_cq, *mut fi_cq_err_entry, u64) -> isize>,
        sread: [usize; 3],
        strerror: Option<unsafe extern "C" fn(*mut fid_cq, c_int, *const c_void, *mut c_char, usize)
            -> *const c_char>,
    }

    struct fid_cq {
        fid: fid,
        ops: *mut fi_ops_cq,
    }

    /// Memory that a provider may use during an operation, if the provider requests this.
    struct fi_context2 {
        internal: [*mut c_void; 8],
    }
}
