//! The same tests on the in-process provider, which shows that it keeps the contract that real
//! devices keep; and what it offers beyond: pulled cables, failed devices, counts.
#![allow(clippy::expect_used, clippy::unwrap_used)]

#[macro_use]
#[path = "soft_roce/cases.rs"]
mod cases;
#[macro_use]
#[path = "soft_roce/rig.rs"]
mod rig;

#[path = "soft_roce/control.rs"]
mod control;
#[path = "soft_roce/data.rs"]
mod data;
#[path = "soft_roce/failure.rs"]
mod failure;

use std::sync::Arc;
use std::time::Duration;

use failure::first_failure;
use rig::{Settings, connect, readable};
use verbs::{AsyncEvent, PortState, QpCaps, SendChain, Verbs, Wc, WcStatus, Write, stub};

fn devices() -> (Arc<Verbs>, String, String) {
    (stub::verbs(), "stub0".to_owned(), "stub1".to_owned())
}

common_cases!();

#[test]
fn a_pulled_cable_is_an_event_and_writes_fail() {
    let (a, b) = connect(Settings::default());
    assert_eq!(a.context.next_async_event().expect("reading"), None);
    stub::set_port(&b.context, false);
    assert!(readable(&b.context, Duration::from_secs(1)));
    assert_eq!(
        b.context.next_async_event().expect("reading"),
        Some(AsyncEvent::PortDown { port: 1 })
    );
    assert_eq!(
        b.context.query_port(1).expect("the port").state,
        PortState::Down
    );
    b.receive(1);
    a.send(&[a.write(&b, 1, 8)]);
    assert_eq!(first_failure(&a).status(), WcStatus::RETRY_EXC_ERR);
    stub::set_port(&b.context, true);
    assert_eq!(
        b.context.next_async_event().expect("reading"),
        Some(AsyncEvent::PortActive { port: 1 })
    );
}

#[test]
fn a_failed_device_says_so() {
    let (a, _b) = connect(Settings::default());
    stub::fail_device(&a.context);
    assert_eq!(
        a.context.next_async_event().expect("reading"),
        Some(AsyncEvent::DeviceFatal)
    );
}

#[test]
fn a_refused_write_breaks_the_peer_too_and_names_its_queue_pair() {
    let (a, b) = connect(Settings::default());
    let mut write = a.write(&b, 9, 64);
    write.remote.rkey ^= 0x100;
    a.send(&[write]);
    let cause = "IBV_EVENT_QP_ACCESS_ERR";
    let event = b.context.next_async_event().expect("reading");
    assert_eq!(
        event,
        Some(AsyncEvent::QpFatal {
            qp_num: b.qp.qp_num(),
            cause
        })
    );
}

/// Fills, drains and wraps a deep queue, with one signaled write in 64.
#[test]
fn a_deep_queue_wraps() {
    const DEPTH: u64 = 8192;
    const ROUNDS: u64 = 20;
    let caps = QpCaps {
        max_send_wr: DEPTH as u32,
        max_recv_wr: DEPTH as u32,
        max_inline_data: 64,
    };
    let (a, b) = connect(Settings {
        caps,
        cqe: 2 * DEPTH as u32,
        ..Settings::default()
    });
    let mut sends = SendChain::new(64, 64);
    let mut wcs = [Wc::default(); 128];
    for _ in 0..ROUNDS {
        b.receive(DEPTH as usize);
        for id in 0..DEPTH {
            let write = Write {
                signaled: id % 64 == 63,
                remote: b.at(id * 64),
                ..a.write(&b, id, 64)
            };
            sends.push(&write).expect("room");
            if sends.room() == 0 {
                assert_eq!(a.qp.post_send(&mut sends), Ok(64));
            }
        }
        // Every place is taken, although every write is done: only polling retires.
        sends.push(&a.write(&b, 0, 0)).expect("room");
        let full = a.qp.post_send(&mut sends);
        assert!(full.is_err_and(|error| error.is_full()));
        sends.clear();

        let mut retired = 0;
        while retired < DEPTH {
            let taken = a.cq.poll(&mut wcs).expect("polling");
            assert!(taken > 0 && wcs[..taken].iter().all(Wc::is_success));
            retired += 64 * taken as u64;
        }
        let mut next = 0;
        while next < DEPTH {
            let taken = b.cq.poll(&mut wcs).expect("polling");
            for wc in &wcs[..taken] {
                assert_eq!(wc.imm(), Some(next as u32));
                next += 1;
            }
        }
    }
}
