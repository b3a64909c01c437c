//! Failures, and the completions that report them.

use verbs::{Payload, Wc, WcStatus, Write};

use super::rig::{CAPS, End, REGION, connect};

/// The first failed completion; skips successful ones.
fn first_failure(end: &End) -> Wc {
    loop {
        let wc = end.completions(1)[0];
        if !wc.is_success() {
            return wc;
        }
    }
}

pub fn one_byte_beyond_the_region_is_refused() {
    let (a, b) = connect(CAPS);
    b.receive(2);
    let end = b.at(REGION as u64 - 100);
    a.send(&[Write {
        remote: end,
        ..a.write(&b, 1, 100)
    }]);
    assert!(a.completions(1)[0].is_success());
    a.send(&[Write {
        remote: end,
        ..a.write(&b, 2, 101)
    }]);
    assert_eq!(first_failure(&a).status(), WcStatus::REM_ACCESS_ERR);
}

pub fn no_receive_exhausts_the_rnr_retries() {
    let (a, b) = connect(CAPS);
    a.send(&[a.write(&b, 1, 8)]);
    assert_eq!(first_failure(&a).status(), WcStatus::RNR_RETRY_EXC_ERR);
}

pub fn a_peer_that_is_gone_exhausts_the_retries() {
    let (a, b) = connect(CAPS);
    let write = a.write(&b, 1, 8);
    drop(b);
    a.send(&[write]);
    assert_eq!(first_failure(&a).status(), WcStatus::RETRY_EXC_ERR);
}

pub fn err_gives_back_what_is_posted_and_what_comes_later() {
    let (_a, b) = connect(CAPS);
    b.receive(3);
    b.qp.set_error().expect("moving to ERR");
    let flushed = b.completions(3);
    assert!(
        flushed
            .iter()
            .all(|wc| wc.status() == WcStatus::WR_FLUSH_ERR),
        "{flushed:?}"
    );
    b.send(&[Write {
        payload: Payload::Empty,
        signaled: false,
        ..b.write(&b, 20, 0)
    }]);
    let later = b.completions(1)[0];
    assert_eq!(
        (later.status(), later.wr_id()),
        (WcStatus::WR_FLUSH_ERR, 20)
    );
}
