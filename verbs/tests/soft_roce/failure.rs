//! What goes wrong, and how it is told.

use std::path::Path;
use std::process::Command;
use std::time::{Duration, Instant};

use verbs::{AsyncEvent, Payload, PortState, QpState, Wc, WcStatus, Write, raw};

use super::rig::{End, REGION, Settings, connect, readable};

/// The first completion that is not a success, after any number that are.
fn first_failure(end: &End) -> Wc {
    loop {
        let wc = end.completions(1)[0];
        if !wc.is_success() {
            return wc;
        }
    }
}

#[test]
fn a_wrong_rkey_is_refused_and_breaks_the_sender() {
    let Some((a, b)) = connect(Settings::default()) else {
        return;
    };
    b.receive(0, 1);
    let mut write = Write {
        signaled: false,
        ..a.write(&b, 9, 64)
    };
    write.remote.rkey ^= 0x5a5a;
    a.send(&[write]);
    let failed = first_failure(&a);
    assert_eq!(failed.status(), WcStatus::REM_ACCESS_ERR);
    assert_eq!((failed.wr_id(), failed.qp_num()), (9, a.qp.qp_num()));
    assert!(
        failed.status().to_string().contains("key"),
        "{}",
        failed.status()
    );
    assert_eq!(a.qp.query_state().expect("its state"), QpState::Err);
}

#[test]
fn one_byte_beyond_the_region_is_refused() {
    let Some((a, b)) = connect(Settings::default()) else {
        return;
    };
    b.receive(0, 2);
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

#[test]
fn no_receive_exhausts_the_rnr_retries() {
    let Some((a, b)) = connect(Settings::default()) else {
        return;
    };
    a.send(&[a.write(&b, 1, 8)]);
    assert_eq!(first_failure(&a).status(), WcStatus::RNR_RETRY_EXC_ERR);
}

#[test]
fn a_peer_that_is_gone_exhausts_the_retries() {
    let Some((a, b)) = connect(Settings::default()) else {
        return;
    };
    let write = a.write(&b, 1, 8);
    drop(b);
    a.send(&[write]);
    assert_eq!(first_failure(&a).status(), WcStatus::RETRY_EXC_ERR);
}

#[test]
fn err_gives_back_what_is_posted_and_what_comes_later() {
    let Some((_a, b)) = connect(Settings::default()) else {
        return;
    };
    b.receive(10, 3);
    b.qp.set_error().expect("moving to ERR");
    let flushed = b.completions(3);
    assert!(
        flushed
            .iter()
            .zip(10..)
            .all(|(wc, id)| wc.status() == WcStatus::WR_FLUSH_ERR && wc.wr_id() == id),
        "{flushed:?}"
    );
    assert_eq!(b.qp.query_state().expect("its state"), QpState::Err);
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

#[test]
fn a_failed_queue_pair_can_start_over() {
    let Some((a, _b)) = connect(Settings::default()) else {
        return;
    };
    let failed = a.qp.into_error().expect("moving to ERR");
    let reset = failed.into_reset().expect("moving to RESET");
    assert_eq!(reset.query_state().expect("its state"), QpState::Reset);
}

/// The cable of the guest, pulled; plugged in again on drop, whatever the test finds.
struct Pulled;

impl Pulled {
    fn pull() -> Self {
        ip(&["link", "set", "va", "down"]);
        Self
    }
}

impl Drop for Pulled {
    fn drop(&mut self) {
        ip(&["link", "set", "va", "up"]);
        // The interface's route went with it.
        ip(&[
            "route",
            "replace",
            "10.9.1.2/32",
            "dev",
            "va",
            "src",
            "10.9.1.1",
            "table",
            "101",
        ]);
    }
}

fn ip(arguments: &[&str]) {
    let status = Command::new("ip").args(arguments).status();
    assert!(
        status.is_ok_and(|status| status.success()),
        "ip {arguments:?}"
    );
}

/// Waits for an event of `end`'s device, past others.
fn wait_for(end: &End, wanted: AsyncEvent) {
    let deadline = Instant::now() + Duration::from_secs(5);
    let mut others = Vec::new();
    loop {
        while let Some(event) = end.context.next_async_event().expect("reading events") {
            if event == wanted {
                return;
            }
            others.push(event);
        }
        assert!(
            Instant::now() < deadline,
            "{wanted:?} did not come, only {others:?}"
        );
        readable(&end.context, Duration::from_millis(100));
    }
}

#[test]
fn a_pulled_cable_is_an_event_and_so_is_its_return() {
    if !Path::new("/sys/class/net/va").exists() {
        println!("skipped: there is no cable to pull (cargo xtask soft-roce has one)");
        return;
    }
    let Some((a, b)) = connect(Settings::default()) else {
        return;
    };
    let pulled = Pulled::pull();
    wait_for(&a, AsyncEvent::PortDown { port: 1 });
    wait_for(&b, AsyncEvent::PortDown { port: 1 });
    assert_ne!(
        a.context.query_port(1).expect("the port").state,
        PortState::Active
    );
    // The device leaves its queue pairs alone: only a write shows that the peer is out of reach.
    assert_eq!(a.qp.query_state().expect("its state"), QpState::Rts);
    a.send(&[a.write(&b, 1, 8)]);
    let failed = first_failure(&a).status();
    // With the interface its route is gone, which soft-RoCE calls its own fault; a NIC retries first.
    assert!(
        [WcStatus(raw::IBV_WC_LOC_QP_OP_ERR), WcStatus::RETRY_EXC_ERR].contains(&failed),
        "{failed}"
    );

    drop(pulled);
    wait_for(&a, AsyncEvent::PortActive { port: 1 });
}
