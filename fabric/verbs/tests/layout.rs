//! Compares every declaration of `verbs::raw` with the C header: sizes, alignments, offsets and
//! constants.
//!
//! Needs a C compiler and libibverbs-dev; without them it is skipped.
#![allow(clippy::expect_used, clippy::unwrap_used)]

mod c_layout;

use c_layout::Expectations;
use std::mem::offset_of;
use verbs::raw;

/// Offsets inside structures that have no name in C.
const NESTED: &[(&str, usize)] = &[
    (
        "offsetof(struct ibv_send_wr, wr.rdma.rkey)",
        offset_of!(raw::ibv_send_wr, wr.rdma.rkey),
    ),
    (
        "offsetof(struct ibv_async_event, element.port_num)",
        offset_of!(raw::ibv_async_event, element.port_num),
    ),
];

fn expectations() -> Expectations {
    let constants = raw::CONSTANTS.iter().map(|(c, n)| (*c, u64::from(*n)));
    let layouts = raw::LAYOUTS.iter().chain(NESTED);
    let layouts = layouts.map(|(c, n)| (*c, *n as u64));
    // No enumerator is negative, so unsigned comparison is exact.
    let all = layouts.chain(constants);
    all.map(|(c, n)| (c.to_owned(), n)).collect()
}

#[test]
fn every_declaration_agrees_with_the_c_header() {
    c_layout::compare(&expectations(), &["infiniband/verbs.h"], "libibverbs-dev");
}

#[test]
fn the_installed_library_has_every_function_and_says_whether_there_are_devices() {
    let library = match verbs::Verbs::load(None) {
        Ok(library) => library,
        Err(verbs::Error::NoLibrary { detail }) => {
            return println!("skipped: no libibverbs ({detail})");
        }
        Err(error) => panic!("{error}"),
    };
    let error = library.open("none").expect_err("no device has this name");
    let text = error.to_string();
    assert!(text.contains("no RDMA device"), "{text}");
}
