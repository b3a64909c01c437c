//! A frontend that leaves in order, seen from the accelerator: after the answer to a drain, no
//! event on the sockets counts as a lost connection or a lost frontend.
#![cfg(not(qdl_loom))]

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
        ..NodeSetup::default()
    };
    Running::reporting(&small(), setup)
}

/// A frontend with one connection.
fn join(node: &Running) -> Peer {
    Peer::join(&node.address, &small(), 1)
}

/// A sample to slot 3, and its answer.
fn ask(front: &mut Peer) {
    front.send(0, 3, &[7; 64]);
    front.response(0);
}

fn drain(front: &Peer) {
    let (counters, ..) = front.get(front.session.handle.drain()).expect("drained");
    assert_eq!((counters.arrived, counters.responded), (1, 1));
}

/// Gives its connection up, and waits until the accelerator has heard of it.
fn give_up(front: &Peer) {
    let handle = &front.session.handle;
    handle.connection_lost(0, 1, "its thread was stopped");
    handle.connection_reset(0, 1);
    front.get(handle.name()).expect("it answers");
}

/// Breaks the protocol, and waits until the accelerator says so.
fn spoil(front: &mut Peer) {
    front.data[0].write_all(&[9; HEADER_BYTES]).expect("sent");
    front.hear(|e| matches!(e, ClientEvent::ConnectionLost { .. }).then_some(()));
}

fn report(reports: &Receiver<ServedReport>) -> ServedReport {
    reports
        .recv_timeout(Duration::from_secs(20))
        .expect("a report")
}

#[test]
fn connections_that_end_behind_a_drain_are_not_lost() {
    let (node, reports) = node();
    let mut front = join(&node);
    ask(&mut front);
    drain(&front);
    give_up(&front);
    front.leave();
    let report = report(&reports);
    assert!(report.clean && !report.total().lost, "{report:?}");
    assert_eq!(report.total().arrived, 1);
}

#[test]
fn a_frontend_whose_last_word_does_not_come_has_left_if_it_had_drained() {
    let (node, reports) = node();
    let mut front = join(&node);
    ask(&mut front);
    drain(&front);
    // Its tasks go with it, and say nothing.
    drop(front);
    let report = report(&reports);
    assert!(report.clean && !report.total().lost, "{report:?}");
}

#[test]
fn what_is_given_up_in_the_middle_is_lost() {
    let (node, reports) = node();
    let mut front = join(&node);
    ask(&mut front);
    give_up(&front);
    front.leave();
    let given_up = report(&reports);
    assert!(given_up.clean && given_up.total().lost, "{given_up:?}");

    // And a frontend that goes without a word is, though nothing was under way.
    let mut front = join(&node);
    ask(&mut front);
    drop(front);
    let gone = report(&reports);
    assert!(!gone.clean, "{gone:?}");
}

#[test]
fn a_drain_is_not_the_end_where_samples_come_after_it() {
    let (node, reports) = node();
    let mut front = join(&node);
    front.get(front.session.handle.drain()).expect("drained");
    ask(&mut front);
    give_up(&front);
    front.leave();
    let report = report(&reports);
    assert!(report.total().lost, "{report:?}");
}

#[test]
fn a_connection_that_breaks_the_protocol_is_lost_whenever_it_does() {
    let (node, reports) = node();
    let mut front = join(&node);
    ask(&mut front);
    drain(&front);
    spoil(&mut front);
    front.leave();
    let report = report(&reports);
    assert!(report.total().lost, "{report:?}");
}
