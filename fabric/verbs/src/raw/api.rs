//! Table of libibverbs' exported functions.
//!
//! `dlsym` without a version returns a symbol's default version. In libibverbs that is the current
//! ABI (`IBVERBS_1.1` and later), not the 1.0 compatibility version. Some names of the header are
//! macros or inline functions: `ibv_reg_mr` calls `ibv_reg_mr_iova2`; `ibv_query_gid_ex` is
//! exported with a leading underscore and takes the entry's size.

use std::ffi::{c_int, c_uint, c_void};

use libloading::Library;

use super::types::*;
use crate::Error;

api! {
    "libibverbs that can be used (rdma-core 30 is the oldest)"
    required {
        get_device_list: unsafe extern "C" fn(*mut c_int) -> *mut *mut ibv_device
            = "ibv_get_device_list";
        free_device_list: unsafe extern "C" fn(*mut *mut ibv_device) = "ibv_free_device_list";
        open_device: unsafe extern "C" fn(*mut ibv_device) -> *mut ibv_context = "ibv_open_device";
        close_device: unsafe extern "C" fn(*mut ibv_context) -> c_int = "ibv_close_device";
        get_async_event: unsafe extern "C" fn(*mut ibv_context, *mut ibv_async_event) -> c_int
            = "ibv_get_async_event";
        ack_async_event: unsafe extern "C" fn(*mut ibv_async_event) = "ibv_ack_async_event";
        query_device: unsafe extern "C" fn(*mut ibv_context, *mut ibv_device_attr) -> c_int
            = "ibv_query_device";
        /// Fills only the first 48 bytes of an [`ibv_port_attr`].
        query_port: unsafe extern "C" fn(*mut ibv_context, u8, *mut ibv_port_attr) -> c_int
            = "ibv_query_port";
        alloc_pd: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_pd = "ibv_alloc_pd";
        dealloc_pd: unsafe extern "C" fn(*mut ibv_pd) -> c_int = "ibv_dealloc_pd";
        dereg_mr: unsafe extern "C" fn(*mut ibv_mr) -> c_int = "ibv_dereg_mr";
        create_comp_channel: unsafe extern "C" fn(*mut ibv_context) -> *mut ibv_comp_channel
            = "ibv_create_comp_channel";
        destroy_comp_channel: unsafe extern "C" fn(*mut ibv_comp_channel) -> c_int
            = "ibv_destroy_comp_channel";
        create_cq: unsafe extern "C" fn(*mut ibv_context, c_int, *mut c_void, *mut ibv_comp_channel, c_int)
            -> *mut ibv_cq
            = "ibv_create_cq";
        destroy_cq: unsafe extern "C" fn(*mut ibv_cq) -> c_int = "ibv_destroy_cq";
        get_cq_event: unsafe extern "C" fn(*mut ibv_comp_channel, *mut *mut ibv_cq, *mut *mut c_void)
            -> c_int
            = "ibv_get_cq_event";
        ack_cq_events: unsafe extern "C" fn(*mut ibv_cq, c_uint) = "ibv_ack_cq_events";
        create_qp: unsafe extern "C" fn(*mut ibv_pd, *mut ibv_qp_init_attr) -> *mut ibv_qp
            = "ibv_create_qp";
        modify_qp: unsafe extern "C" fn(*mut ibv_qp, *mut ibv_qp_attr, c_int) -> c_int
            = "ibv_modify_qp";
        destroy_qp: unsafe extern "C" fn(*mut ibv_qp) -> c_int = "ibv_destroy_qp";
        /// Since rdma-core 30. Takes the size of the entry.
        query_gid_ex: unsafe extern "C" fn(*mut ibv_context, u32, u32, *mut ibv_gid_entry, u32, usize)
            -> c_int
            = "_ibv_query_gid_ex";
        /// Since rdma-core 28. Accepts optional access flags and masks those that the kernel lacks.
        reg_mr_iova2: unsafe extern "C" fn(*mut ibv_pd, *mut c_void, usize, u64, c_uint)
            -> *mut ibv_mr
            = "ibv_reg_mr_iova2";
    }
    optional {
        /// Since rdma-core 34. Registers another device's memory, such as a GPU's.
        reg_dmabuf_mr: unsafe extern "C" fn(*mut ibv_pd, u64, usize, u64, c_int, c_int)
            -> *mut ibv_mr
            = "ibv_reg_dmabuf_mr";
    }
}
