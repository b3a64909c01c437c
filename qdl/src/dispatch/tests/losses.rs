//! Connections that are cut, silent or given up: samples in flight are sent again, and memory is
//! freed with its last reader.

use std::{sync::Arc, time::Duration};

use super::{rig::*, *};
use crate::serve::Service;

/// Cuts each of three connections twenty times and reconnects it, while samples flow.
pub(crate) fn cut_and_make_again(b: &Bench) {
    let mut faults = b.connect_all(Over::Memory);
    let n = 6000u64;
    let mut epochs = [1u32; 3];
    for id in 0..n {
        let s = b.sample(id);
        b.dispatcher.issue(&[s]);
        if id % 100 == 50 {
            let connection = (id / 100) as usize % 3;
            if let Some(f) = faults[connection].take() {
                f.cut();
                // The connection is down before it is made again.
                let seen = |e: &DispatchEvent| {
                    matches!(e, DispatchEvent::ConnectionLost { connection: l, epoch, .. }
                        if (*l, *epoch) == (connection, epochs[connection]))
                };
                eventually_or(
                    || format!("the loss of connection {connection} was never reported"),
                    || b.book.events.lock().expect("alive").iter().any(seen),
                );
                epochs[connection] += 1;
                faults[connection] = b.connect(connection, epochs[connection], Over::Memory);
            }
        }
    }
    b.drain();
    b.check(n);
    assert_eq!(b.dispatcher.counts().connections_lost, 60);
}

#[test]
fn samples_of_a_lost_connection_go_again_over_another() {
    cut_and_make_again(&Bench::of(3, 8));
}

#[test]
fn re_dispatch_sends_what_was_in_flight_again() {
    // The first service answers nothing, so everything
    // sent is in flight when its connection is cut.
    let b = Bench::new(RigCfgs::new(2, 32), Arc::new(Hoard::default()));
    let fault = b.connect(0, 1, Over::Memory);
    b.wait_up(1);
    b.issue(0..40);
    std::thread::sleep(Duration::from_millis(20));
    fault.expect("memory").cut();
    b.wait_up(0);
    let back = Bench::of(2, 32);
    // Connection 1 leads to a server that answers.
    let (serve, near, far, _) = b.halves(1);
    back.server.attach(0, serve, far);
    b.dispatcher.attach(1, 1, near);
    b.drain();
    b.check(40);
    assert_eq!(
        b.dispatcher.counts().again,
        32,
        "as many as there were slots"
    );
}

#[test]
fn a_peer_that_says_nothing_is_given_up_and_an_abort_completes_everything() {
    let b = Bench::of(1, 8);
    // A link whose far end is not polled: the peer is stopped, its memory still there.
    let (_serve, near, _far, _) = b.halves(0);
    b.dispatcher.attach(0, 1, near);
    b.wait_up(1);
    b.issue(0..100);
    b.wait_up(0);
    b.wait_events(1);
    {
        let events = b.book.events.lock().expect("alive");
        let DispatchEvent::ConnectionLost { cause, again, .. } = &events[0] else {
            panic!("{events:?}")
        };
        assert!(cause.by_silence(), "{cause}");
        assert_eq!(*again, 8);
    }
    assert_eq!(b.dispatcher.outstanding(), 100);
    b.dispatcher.abort("test");
    b.dispatcher.issue(&[b.sample(100)]);
    b.drain();
    let answers = b.book.answers.lock().expect("alive");
    assert_eq!(answers.len(), 101);
    assert!(
        answers.values().all(|a| *a == (1, None)),
        "each once, and empty"
    );
}

#[test]
fn a_connection_is_quiet_when_no_arrival_reads_it() {
    let hoard = Arc::new(Hoard::default());
    let b = Bench::new(RigCfgs::new(1, 8), hoard.clone());
    let fault = b.connect(0, 1, Over::Memory).expect("memory");
    b.wait_up(1);
    b.dispatcher.issue(&[b.sample(0), b.sample(1)]);
    eventually("nothing arrived", || {
        hoard.0.lock().expect("alive").len() >= 2
    });
    fault.cut();
    assert_eq!(b.next_lost().epoch, 1);
    let arrivals = std::mem::take(&mut *hoard.0.lock().expect("alive"));
    // The batch may go on reading; its answers go nowhere.
    assert_eq!(arrivals[0].input(), b.input(0));
    let origin = Arc::downgrade(arrivals[0].origin());
    let mut arrivals = arrivals;
    Digest.arrived(&mut arrivals);
    assert_eq!(
        origin.strong_count(),
        0,
        "the connection's memory is let go with its last reader"
    );
}
