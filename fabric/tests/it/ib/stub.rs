//! The in-process provider alone: small queues, and failures that a test orders.

use super::rig::{Pair, endpoint, next_broken, post};
use fabric::{
    Broken, Imm, PostError,
    ib::{IbCfgs, IbConnection},
};
use verbs::stub;

mod small_queues {
    use super::super::Ib;

    fabric_conformance!(super::Ib(|keys| {
        keys.send_depth = fabric::keys::Auto::Fixed(17);
        keys.signal_every = 3;
        keys.inline_bytes = 16;
        keys.solicited = false;
    }));
}

#[test]
fn a_port_that_goes_down_is_a_cause_in_words() {
    let pair = Pair::open(|_| {});
    let e = [endpoint(4, 64, 8), endpoint(4, 64, 8)];
    let (mut a, _b) = pair.link(&e[0], &e[1]);
    stub::set_port(pair.resources[0].device().context(), false);
    let broken = next_broken(&mut a);
    assert_eq!(broken, Broken::Device("port 1 of stub0 is down".to_owned()));
    assert_eq!(
        a.tx.post(&post(0, 1, Imm::new(0, 1))),
        Err(PostError::Broken(broken))
    );
    let cfgs = IbCfgs::resolve(&pair.keys[0], pair.resources[0].device().limits(), 4);
    let again = IbConnection::prepare(&pair.resources[0], e[0].clone(), &cfgs.expect("fits"));
    let text = again.expect_err("the port is down").to_string();
    assert!(text.contains("stub0 port 1 is not active"), "{text}");
}

#[test]
fn a_failed_device_is_a_cause_in_words() {
    let pair = Pair::open(|_| {});
    let e = [endpoint(4, 64, 8), endpoint(4, 64, 8)];
    let (mut a, _b) = pair.link(&e[0], &e[1]);
    stub::fail_device(pair.resources[0].device().context());
    assert_eq!(
        next_broken(&mut a),
        Broken::Device("stub0 has failed".to_owned())
    );
}
