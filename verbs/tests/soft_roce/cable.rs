//! A cable that is pulled, and plugged in again.

use std::process::Command;
use std::time::{Duration, Instant};

use verbs::{AsyncEvent, PortState, WcStatus};

use super::failure::first_failure;
use super::rig::{End, Settings, connect, readable};

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
#[ignore = "needs an RDMA device: cargo xtask soft-roce"]
fn a_pulled_cable_is_an_event_and_so_is_its_return() {
    let (a, b) = connect(Settings::default());
    let pulled = Pulled::pull();
    wait_for(&a, AsyncEvent::PortDown { port: 1 });
    wait_for(&b, AsyncEvent::PortDown { port: 1 });
    assert_ne!(
        a.context.query_port(1).expect("the port").state,
        PortState::Active
    );
    // The device leaves its queue pairs alone: only a write shows that the peer is out of reach.
    a.send(&[a.write(&b, 1, 8)]);
    let failed = first_failure(&a).status();
    // With the interface its route is gone, which soft-RoCE calls its own fault; a NIC retries
    // first.
    assert!(
        [
            WcStatus(verbs::raw::IBV_WC_LOC_QP_OP_ERR),
            WcStatus::RETRY_EXC_ERR
        ]
        .contains(&failed),
        "{failed}"
    );

    drop(pulled);
    wait_for(&a, AsyncEvent::PortActive { port: 1 });
}
