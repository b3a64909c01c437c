//! The `ib` fabric on the real libibverbs and a real kernel driver.
//!
//! Runs when `QDL_RDMA_DEVICES` names two devices that can reach each other, such as `rxa,rxb`, and skips otherwise. The guest of
//! `cargo xtask soft-roce` sets it. Run with `--test-threads=1`: some tests disturb the link.
#![cfg(not(qdl_loom))]

#[path = "ib/cable.rs"]
mod cable;
#[path = "ib/cases.rs"]
mod cases;
#[path = "ib/rig.rs"]
mod rig;

use std::sync::Arc;

use cable::{Disturbed, Pulled};
use qdl::{
    config::Auto,
    fabric::{Broken, Imm},
};
use rig::{Pair, alone, endpoint, next_broken, post};
use verbs::Verbs;

/// The library and the names of the two devices, or why the tests do not run.
fn devices() -> Option<(Arc<Verbs>, String, String)> {
    let Ok(names) = std::env::var("QDL_RDMA_DEVICES") else {
        println!("skipped: QDL_RDMA_DEVICES is not set (cargo xtask soft-roce sets it)");
        return None;
    };
    let (one, two) = names
        .split_once(',')
        .expect("QDL_RDMA_DEVICES names two devices with a comma between");
    let verbs = Verbs::load().expect("libibverbs");
    Some((verbs, one.to_owned(), two.to_owned()))
}

qdl::fabric_conformance!(super::Disturbed(&[], |_| {}));

mod split {
    qdl::fabric_conformance!(super::super::Disturbed(&[], |nic| {
        nic.adaptive_routing.split_above = Some(100);
    }));
}

/// Packets are lost: a retry after 4 ms keeps the suite quick.
mod one_percent_loss {
    qdl::fabric_conformance!(super::super::Disturbed(&["loss", "1%"], |nic| nic
        .timeout =
        10));
}

mod five_milliseconds_delay {
    qdl::fabric_conformance!(super::super::Disturbed(&["delay", "5ms"], |_| {}));
}

#[test]
fn eight_thousand_slots_wrap() {
    let _alone = alone();
    if let Some(pair) = Pair::open(|nic| nic.send_depth = Auto::Fixed(8192)) {
        cases::wrap_the_tracker(&pair, 10);
    }
}

#[test]
fn a_pulled_cable_breaks_every_connection_in_words() {
    let _alone = alone();
    let Some(pair) = Pair::open(|_| {}).filter(|_| cable::is_here()) else {
        return;
    };
    let e = [endpoint(4, 64, 8), endpoint(4, 64, 8)];
    let (mut a, mut b) = pair.link(&e[0], &e[1]);
    let pulled = Pulled::pull();
    for (link, nic) in [(&mut a, &pair.nics[0]), (&mut b, &pair.nics[1])] {
        let broken = next_broken(link);
        let expected = format!("port 1 of {} is down", nic.device);
        assert_eq!(broken, Broken::Device(expected));
    }
    drop(pulled);
}

#[test]
fn a_peer_that_is_gone_without_a_word_is_told_by_the_retries() {
    let _alone = alone();
    let Some(pair) = Pair::open(|nic| nic.timeout = 10) else {
        return;
    };
    let e = [endpoint(4, 64, 8), endpoint(4, 64, 8)];
    let (ha, hb) = (pair.prepare(0, &e[0], 4), pair.prepare(1, &e[1], 4));
    let mut a = ha.connect(&hb.end()).expect("connected");
    // As after SIGKILL: the kernel destroys its queue pair, and nobody says goodbye.
    drop(hb);
    a.tx.post(&post(0, 40, Imm::new(0, 1))).expect("room");
    let _ = a.tx.flush();
    let text = next_broken(&mut a).to_string();
    assert!(
        text.contains("IBV_WC_RETRY_EXC_ERR") && text.contains("did not answer"),
        "{text}"
    );
}
