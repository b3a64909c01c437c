//! Compares every declaration of `ofi::raw` with the real C headers: sizes, offsets and constants.
//!
//! Needs a C compiler and libfabric-dev; without them it says so and passes.
#![allow(clippy::expect_used)]

#[path = "../../verbs/tests/c_layout/mod.rs"]
mod c_layout;

use std::mem::{offset_of, size_of};

use c_layout::Expectations;
use ofi::raw;

/// Whole structures: their size too. Of a table, or a structure that newer headers make longer, the
/// offsets alone (`..`).
macro_rules! layouts {
    ($expected:ident: $($name:ident { $($field:ident),* $(,)? } $(($($open:tt)*))?;)*) => {
        $(
            let c = concat!("struct ", stringify!($name));
            if stringify!($($($open)*)?).is_empty() {
                $expected.insert(format!("sizeof({c})"), size_of::<raw::$name>() as u64);
            }
            $(
                let field = stringify!($field).trim_end_matches('_');
                let offset = offset_of!(raw::$name, $field) as u64;
                $expected.insert(format!("offsetof({c}, {field})"), offset);
            )*
        )*
    };
}

fn expectations() -> Expectations {
    let mut expected = Expectations::new();
    layouts! { expected:
        fid { fclass, context, ops };
        fi_ops { size, close, bind, control, ops_open, tostr, ops_set };
        fi_tx_attr {
            caps, mode, op_flags, msg_order, comp_order, inject_size, size, iov_limit,
            rma_iov_limit, tclass,
        };
        fi_rx_attr {
            caps, mode, op_flags, msg_order, comp_order, total_buffered_recv, size, iov_limit,
        };
        fi_ep_attr {
            type_, protocol, protocol_version, max_msg_size, msg_prefix_size, max_order_raw_size,
            max_order_war_size, max_order_waw_size, mem_tag_format, tx_ctx_cnt, rx_ctx_cnt,
            auth_key_size, auth_key,
        };
        fi_domain_attr {
            domain, name, threading, control_progress, data_progress, resource_mgmt, av_type,
            mr_mode, mr_key_size, cq_data_size, cq_cnt, ep_cnt, tx_ctx_cnt, rx_ctx_cnt,
            max_ep_tx_ctx, max_ep_rx_ctx, max_ep_stx_ctx, max_ep_srx_ctx, cntr_cnt, mr_iov_limit,
            caps, mode, auth_key, auth_key_size, max_err_data, mr_cnt, tclass,
        } (..);
        fi_fabric_attr { fabric, name, prov_name, prov_version, api_version };
        fi_info {
            next, caps, mode, addr_format, src_addrlen, dest_addrlen, src_addr, dest_addr, handle,
            tx_attr, rx_attr, ep_attr, domain_attr, fabric_attr, nic,
        };
        fi_link_attr { address, mtu, speed, state, network_type };
        fid_nic { fid, device_attr, bus_attr, link_attr, prov_attr };
        fi_ops_fabric { size, domain, passive_ep, eq_open, wait_open, trywait, domain2 } (..);
        fid_fabric { fid, ops, api_version };
        fi_av_attr { type_, rx_ctx_bits, count, ep_per_node, name, map_addr, flags };
        fi_cq_attr { size, flags, format, wait_obj, signaling_vector, wait_cond, wait_set };
        fi_ops_domain { size, av_open, cq_open, endpoint } (..);
        fi_ops_mr { size, reg, regv, regattr };
        fid_domain { fid, ops, mr };
        fi_mr_attr {
            mr_iov, iov_count, access, offset, requested_key, context, auth_key_size, auth_key,
            iface, device,
        } (..);
        fid_mr { fid, mem_desc, key };
        fi_ops_av { size, insert, insertsvc, insertsym, remove, lookup, straddr } (..);
        fid_av { fid, ops };
        fi_ops_cm { size, setname, getname } (..);
        fi_ops_msg { size, recv } (..);
        fi_rma_iov { addr, len, key };
        fi_msg_rma {
            msg_iov, desc, iov_count, addr, rma_iov, rma_iov_count, context, data,
        };
        fi_ops_rma {
            size, read, readv, readmsg, write, writev, writemsg, inject, writedata, injectdata,
        };
        fid_ep { fid, ops, cm, msg, rma, tagged, atomic, collective };
        fi_cq_data_entry { op_context, flags, len, buf, data };
        fi_cq_err_entry {
            op_context, flags, len, buf, data, tag, olen, err, prov_errno, err_data, err_data_size,
        } (..);
        fi_ops_cq { size, read, readfrom, readerr, sread, sreadfrom, signal, strerror };
        fid_cq { fid, ops };
        fi_context2 { internal };
    }
    for (name, value) in raw::CONSTANTS {
        expected.insert((*name).to_owned(), *value);
    }
    expected
}

#[test]
fn every_declaration_agrees_with_the_c_headers() {
    c_layout::compare(
        &expectations(),
        &[
            "rdma/fabric.h",
            "rdma/fi_cm.h",
            "rdma/fi_domain.h",
            "rdma/fi_endpoint.h",
            "rdma/fi_rma.h",
            "rdma/fi_errno.h",
        ],
        "libfabric-dev",
    );
}
