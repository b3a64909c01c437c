//! Tests of a frontend's cluster against real nodes over queue pairs, all in one process: on the
//! stub provider, or on the two devices of `QDL_RDMA_DEVICES`.

use std::sync::Mutex;

use crate::harness::*;
use qdl::{
    config::NicConfig,
    testkit::{assert_has, ib_keys},
};

/// Returns the devices of the frontend and the accelerator; each rail is a port of them.
fn devices() -> [String; 2] {
    match std::env::var("QDL_RDMA_DEVICES") {
        Ok(names) => {
            let (one, two) = names.split_once(',').expect("two devices");
            [one.to_owned(), two.to_owned()]
        }
        Err(_) => ["stub0".to_owned(), "stub1".to_owned()],
    }
}

fn on_devices() -> bool {
    std::env::var_os("QDL_RDMA_DEVICES").is_some()
}

fn two_rails() -> (Running, qdl::config::FrontendConfig) {
    let [one, two] = devices();
    // An emulated machine delays acknowledgements for long; with the default that counts as a loss.
    let nic = || {
        let mut nic = NicConfig::ib(&two);
        ib_keys(&mut nic).timeout = 18;
        nic
    };
    let node = Running::over(vec![nic(), nic()]);
    // A user who is not root has little lockable memory; a device in a guest has more.
    let slots = if on_devices() { 32 } else { 4 };
    let entry =
        format!("  - device: {one}\n    queue_pairs: 4\n    slots: {slots}\n    timeout: 18\n");
    let config = config_with(&[&node], &format!("{entry}{entry}"), "");
    (node, config)
}

static ALONE: Mutex<()> = Mutex::new(());

#[test]
fn every_response_is_the_digest_of_its_own_sample() {
    let _alone = ALONE.lock();
    let total = if on_devices() { 4_000 } else { 20_000 };
    let (_node, config) = two_rails();
    let front = Front::connect(&config, 512, total);
    assert_eq!(front.cluster.fabric(), "ib");
    front.issue_in_bursts(total, 5_000);
    front.wait_done();
    assert_eq!(front.check(), 0, "nothing went again");
}

#[test]
fn a_nic_that_is_missing_is_named() {
    let [_, two] = devices();
    let nic = NicConfig::ib(&two);
    let node = Running::over(vec![nic]);
    let config = config_with(&[&node], "  - device: stub9\n", "");
    let text = Front::try_connect(&config, 4, 1).err().expect("refused");
    assert!(text.contains("nics[0]") && text.contains("stub9"), "{text}");
}

#[test]
fn fabrics_that_differ_are_named_at_both_ends() {
    let _alone = ALONE.lock();
    let [one, _] = devices();
    let node = Running::named("acc-a");
    let config = config_with(&[&node], &format!("  - device: {one}\n"), "");
    let text = Front::try_connect(&config, 4, 1).err().expect("refused");
    assert_has(&text, &["asks for the ib fabric", "acc-a is tcp"]);
}
