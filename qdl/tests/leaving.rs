//! A frontend that leaves in order, seen from the accelerator: after the answer to a drain, no
//! event on the sockets counts as a lost connection or a lost frontend.
#![cfg(not(feature = "loom"))]

#[path = "cluster/harness.rs"]
mod harness;

use std::{io::Write, sync::mpsc::Receiver, time::Duration};

use fabric::tcp::HEADER_BYTES;
use harness::*;
use qdl::{control::ClientEvent, model::ModelSpec, testkit::peer::Peer};
use record::ServedReport;

fn small() -> ModelSpec {
    ModelSpec::opaque("digest", 64, 8)
}

fn node() -> (Running, Receiver<ServedReport>) {
    let setup = NodeSetup {
        memory: 1 << 20,
        drain_ms: 100,
        model: small(),
        ..NodeSetup::default()
    };
    Running::reporting(setup)
}

/// A step of a frontend; `None` once it has left.
type FrontendStep = fn(Peer) -> Option<Peer>;

/// Sends a sample to slot 3, and takes its answer.
fn ask(mut front: Peer) -> Option<Peer> {
    front.send(0, 3, &[7; 64]);
    front.response(0);
    Some(front)
}

fn first_drain(front: Peer) -> Option<Peer> {
    front.get(front.session.handle.drain()).expect("drained");
    Some(front)
}

fn drain(front: Peer) -> Option<Peer> {
    let (counters, ..) = front.get(front.session.handle.drain()).expect("drained");
    assert_eq!((counters.arrived, counters.responded), (1, 1));
    Some(front)
}

/// Gives its connection up, and waits until the accelerator has handled that.
fn give_up(front: Peer) -> Option<Peer> {
    let handle = &front.session.handle;
    handle.connection_lost(0, 1, "its thread was stopped");
    handle.connection_reset(0, 1);
    front.get(handle.name()).expect("it answers");
    Some(front)
}

/// Breaks the protocol, and waits until the accelerator says so.
fn spoil(mut front: Peer) -> Option<Peer> {
    front.data[0].write_all(&[9; HEADER_BYTES]).expect("sent");
    front.hear(|e| matches!(e, ClientEvent::ConnectionLost { .. }).then_some(()));
    Some(front)
}

fn leave(front: Peer) -> Option<Peer> {
    front.leave();
    None
}

/// A frontend's steps; whether its session was clean, and whether its connection was lost, where
/// that does not depend on which end comes first.
type Case = (&'static str, &'static [FrontendStep], bool, Option<bool>);

#[test]
fn connections_that_end_behind_a_drain_are_not_lost() {
    let (node, reports) = node();
    let cases: [Case; 6] = [
        ("in order", &[ask, drain, give_up, leave], true, Some(false)),
        ("no bye, but a drain", &[ask, drain], true, Some(false)),
        ("in the middle", &[ask, give_up, leave], true, Some(true)),
        (
            "a sample behind the drain",
            &[first_drain, ask, give_up, leave],
            true,
            Some(true),
        ),
        (
            "a broken protocol",
            &[ask, drain, spoil, leave],
            true,
            Some(true),
        ),
        ("no word", &[ask], false, None),
    ];
    for (what, steps, clean, lost) in cases {
        let front = Peer::join(&node.address, &small(), 1);
        // Its tasks end with it, and send nothing more.
        drop(steps.iter().try_fold(front, |front, step| step(front)));
        let report = reports.recv_timeout(Duration::from_secs(20));
        let report = report.expect("a report");
        let total = report.total();
        let found = (report.clean, lost.map(|_| total.lost));
        assert_eq!(found, (clean, lost), "{what}: {report:?}");
        assert_eq!(total.arrived, 1, "{what}");
    }
}
