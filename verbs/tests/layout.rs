//! Compares every declaration of `verbs::raw` with the real C header: sizes, alignments, offsets
//! and constants.
//!
//! Needs a C compiler and libibverbs-dev; without them it says so and passes.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod c_layout;

use std::mem::{align_of, offset_of, size_of};

use c_layout::Expectations;
use verbs::raw;

/// Size, alignment and the named fields' offsets of structures that are called alike in C and Rust.
macro_rules! layouts {
    ($expected:ident: $($kind:ident $name:ident { $($($field:ident).+),* $(,)? })*) => {
        $(
            let c = concat!(stringify!($kind), " ", stringify!($name));
            $expected.insert(format!("sizeof({c})"), size_of::<raw::$name>() as u64);
            $expected.insert(format!("_Alignof({c})"), align_of::<raw::$name>() as u64);
            $(
                let field = stringify!($($field).+).replace(' ', "");
                let offset = offset_of!(raw::$name, $($field).+) as u64;
                $expected.insert(format!("offsetof({c}, {field})"), offset);
            )*
        )*
    };
}

fn expectations() -> Expectations {
    let mut expected = Expectations::new();
    layouts! { expected:
        union ibv_gid { raw, global }
        struct ibv_gid_entry { gid, gid_index, port_num, gid_type, ndev_ifindex }
        struct ibv_device { _ops, node_type, transport_type, name, dev_name, dev_path, ibdev_path }
        struct ibv_device_attr {
            fw_ver, node_guid, sys_image_guid, max_mr_size, page_size_cap, vendor_id,
            vendor_part_id, hw_ver, max_qp, max_qp_wr, device_cap_flags, max_sge,
            max_sge_rd, max_cq, max_cqe, max_mr, max_pd, max_qp_rd_atom, max_ee_rd_atom,
            max_res_rd_atom, max_qp_init_rd_atom, max_ee_init_rd_atom, atomic_cap,
            max_ee, max_rdd, max_mw, max_raw_ipv6_qp, max_raw_ethy_qp, max_mcast_grp,
            max_mcast_qp_attach, max_total_mcast_qp_attach, max_ah, max_fmr,
            max_map_per_fmr, max_srq, max_srq_wr, max_srq_sge, max_pkeys,
            local_ca_ack_delay, phys_port_cnt,
        }
        struct ibv_port_attr {
            state, max_mtu, active_mtu, gid_tbl_len, port_cap_flags, max_msg_sz,
            bad_pkey_cntr, qkey_viol_cntr, pkey_tbl_len, lid, sm_lid, lmc, max_vl_num,
            sm_sl, subnet_timeout, init_type_reply, active_width, active_speed,
            phys_state, link_layer, flags, port_cap_flags2,
        }
        struct ibv_async_event {
            element, element.cq, element.qp, element.srq, element.port_num, event_type
        }
        struct ibv_wc {
            wr_id, status, opcode, vendor_err, byte_len, imm_data, qp_num, src_qp,
            wc_flags, pkey_index, slid, sl, dlid_path_bits,
        }
        struct ibv_pd { context, handle }
        struct ibv_mr { context, pd, addr, length, handle, lkey, rkey }
        struct ibv_global_route { dgid, flow_label, sgid_index, hop_limit, traffic_class }
        struct ibv_ah_attr { grh, dlid, sl, src_path_bits, static_rate, is_global, port_num }
        struct ibv_qp_cap { max_send_wr, max_recv_wr, max_send_sge, max_recv_sge, max_inline_data }
        struct ibv_qp_init_attr { qp_context, send_cq, recv_cq, srq, cap, qp_type, sq_sig_all }
        struct ibv_qp_attr {
            qp_state, cur_qp_state, path_mtu, path_mig_state, qkey, rq_psn, sq_psn,
            dest_qp_num, qp_access_flags, cap, ah_attr, alt_ah_attr, pkey_index,
            alt_pkey_index, en_sqd_async_notify, sq_draining, max_rd_atomic,
            max_dest_rd_atomic, min_rnr_timer, port_num, timeout, retry_cnt, rnr_retry,
            alt_port_num, alt_timeout, rate_limit,
        }
        struct ibv_sge { addr, length, lkey }
        struct ibv_send_wr {
            wr_id, next, sg_list, num_sge, opcode, send_flags, imm_data,
            wr.rdma.remote_addr, wr.rdma.rkey, wr.atomic.remote_addr,
            wr.atomic.compare_add, wr.atomic.swap, wr.atomic.rkey, qp_type, bind_mw,
        }
        struct ibv_recv_wr { wr_id, next, sg_list, num_sge }
        struct ibv_qp {
            context, qp_context, pd, send_cq, recv_cq, srq, handle, qp_num, state,
            qp_type, mutex, cond, events_completed,
        }
        struct ibv_comp_channel { context, fd, refcnt }
        struct ibv_cq {
            context, channel, cq_context, handle, cqe, mutex, cond,
            comp_events_completed, async_events_completed,
        }
        struct ibv_context_ops {
            _compat_query_device, _compat_query_port, alloc_mw, bind_mw, dealloc_mw,
            poll_cq, req_notify_cq, post_srq_recv, post_send, post_recv,
            _compat_async_event,
        }
        struct ibv_context { device, ops, cmd_fd, async_fd, num_comp_vectors, mutex, abi_compat }
    }
    // The enumerators are negative nowhere in this list, so that they compare as plain numbers.
    for (name, value) in raw::CONSTANTS {
        expected.insert((*name).to_owned(), u64::from(*value));
    }
    expected
}

#[test]
fn every_declaration_agrees_with_the_c_header() {
    c_layout::compare(&expectations(), &["infiniband/verbs.h"], "libibverbs-dev");
}

#[test]
fn the_installed_library_has_every_function_and_says_whether_there_are_devices() {
    let library = match verbs::Verbs::load() {
        Ok(library) => library,
        Err(verbs::Error::NoLibrary { detail }) => {
            return println!("skipped: no libibverbs ({detail})");
        }
        Err(error) => panic!("{error}"),
    };
    match library.devices() {
        Ok(devices) => assert!(!devices.is_empty()),
        Err(error) => {
            assert!(matches!(error, verbs::Error::NoDevice { .. }), "{error}");
            println!("{error}");
        }
    }
}
