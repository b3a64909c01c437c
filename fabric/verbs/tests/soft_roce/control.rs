//! The control path: opening, querying, refusing.

use std::sync::Arc;

use verbs::{Access, Cq, Error, GidType, Mr, Pd, PortState, Qp, QpCaps};

use super::devices;
use super::rig::{Bytes, CAPS};

pub fn the_devices_are_listed_and_described() {
    let (verbs, one, two) = devices();
    let names = verbs.devices().expect("devices");
    assert!(names.contains(&one) && names.contains(&two), "{names:?}");

    let context = verbs.open(&one).expect("the device");
    assert!(context.limits().max_qp_wr >= 8192, "{:?}", context.limits());
    let port = context.query_port(1).expect("the port");
    assert_eq!(port.state, PortState::Active);
    assert!(port.gid_tbl_len > 0, "{port:?}");
}

pub fn auto_finds_the_ipv4_gid() {
    let (verbs, one, _) = devices();
    let context = verbs.open(&one).expect("the device");
    let chosen = context.auto_gid(1).expect("a GID");
    assert_eq!(chosen.kind, GidType::RoceV2);
    assert!(
        chosen.gid.to_ipv4_mapped().is_some(),
        "{chosen:?} of {:?}",
        context.gids(1)
    );
}

pub fn another_device_is_refused_with_the_names_there_are() {
    let (verbs, one, _) = devices();
    let error = verbs.open("mlx5_99").expect_err("no such device");
    assert!(matches!(error, Error::UnknownDevice { .. }));
    assert!(
        error.to_string().contains("mlx5_99") && error.to_string().contains(&one),
        "{error}"
    );
}

pub fn beyond_a_limit_the_limit_is_named() {
    let (verbs, one, _) = devices();
    let context = verbs.open(&one).expect("the device");
    let limits = context.limits().clone();
    let error = Cq::create(&context, limits.max_cqe + 1, None, 0, 0).expect_err("too many entries");
    assert!(
        error.to_string().contains("max_cqe") && error.to_string().contains(&one),
        "{error}"
    );

    let pd = Pd::alloc(&context).expect("a domain");
    let cq = Cq::create(&context, 16, None, 0, 0).expect("a queue");
    let caps = QpCaps {
        max_send_wr: limits.max_qp_wr + 1,
        ..CAPS
    };
    let error = Qp::create(&pd, &cq, &cq, caps).expect_err("too many sends");
    assert!(error.to_string().contains("max_qp_wr"), "{error}");
    let caps = QpCaps {
        max_inline_data: 1 << 20,
        ..CAPS
    };
    let error = Qp::create(&pd, &cq, &cq, caps).expect_err("a megabyte inline");
    assert!(
        error.to_string().contains("1048576 inline bytes"),
        "{error}"
    );
}

pub fn a_region_outlives_everything_that_made_it() {
    let (verbs, one, _) = devices();
    let context = verbs.open(&one).expect("the device");
    let memory = Arc::new(Bytes::new(1 << 22));
    let region = Mr::register(
        &Pd::alloc(&context).expect("a domain"),
        &memory,
        Access::LocalRead,
    )
    .expect("a region");
    drop(context);
    assert_eq!(Arc::strong_count(&memory), 2, "the region keeps its memory");
    assert!(region.slice((1 << 22) - 1, 2).is_err());
    drop(region);
    assert_eq!(Arc::strong_count(&memory), 1);
}

pub fn another_devices_queue_is_refused() {
    let (verbs, one, two) = devices();
    let (one, two) = (
        verbs.open(&one).expect("a device"),
        verbs.open(&two).expect("a device"),
    );
    let pd = Pd::alloc(&one).expect("a domain");
    let own = Cq::create(&one, 16, None, 0, 0).expect("a queue");
    let foreign = Cq::create(&two, 16, None, 0, 0).expect("a queue");
    let error = Qp::create(&pd, &own, &foreign, CAPS).expect_err("a foreign queue");
    assert!(matches!(error, Error::Mismatch { .. }), "{error}");
    assert!(
        error.to_string().contains(one.name()) && error.to_string().contains(two.name()),
        "{error}"
    );
}
