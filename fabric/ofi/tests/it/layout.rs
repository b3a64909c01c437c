//! Compares every declaration of `ofi::raw` with the real C headers: sizes, offsets and constants.
//!
//! Needs a C compiler and libfabric-dev; without them it is skipped.

use crate::c_layout::{self, Expectations};
use ofi::raw;

/// Tables, of which the last functions are left out, and structures that newer headers make longer:
/// their offsets are compared, and no sizes.
const OPEN: &[&str] = &[
    "fi_domain_attr",
    "fi_ops_fabric",
    "fi_ops_domain",
    "fi_mr_attr",
    "fi_ops_av",
    "fi_ops_cm",
    "fi_ops_msg",
    "fi_cq_err_entry",
];

fn expectations() -> Expectations {
    let is_open = |c: &str| OPEN.iter().any(|o| c.ends_with(&format!(" {o})")));
    let layouts = raw::LAYOUTS.iter().filter(|(c, _)| !is_open(c));
    // A field that is called as a keyword of Rust ends in an underscore here.
    let layouts = layouts.map(|(c, n)| (c.replace("_)", ")"), *n as u64));
    let constants = raw::CONSTANTS.iter().map(|(c, n)| ((*c).to_owned(), *n));
    layouts.chain(constants).collect()
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
