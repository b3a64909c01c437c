//! Connections that an accelerator opens too late: it takes them down. Uses the stub provider,
//! whose queue pairs can be counted.
#![cfg(not(feature = "loom"))]

#[path = "cluster/harness.rs"]
mod harness;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fabric::{Broken, Region};
use harness::*;
use qdl::{
    config::{FrontendConfig, NicConfig},
    run::{request_stride, response_stride},
    serve::{Arrival, Service},
    testkit::{eventually_or, ib_keys},
};
use verbs::stub;

const SLOTS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(20);

/// A service with slots in ordinary memory, whose allocation waits for the gate.
#[derive(Default)]
struct Gated(Mutex<()>);

impl Service for Gated {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        Digest.arrived(arrivals);
    }

    fn slots(&self, _gpu: Option<u32>, bytes: usize) -> Result<Arc<Region>, String> {
        let _open = self.0.lock();
        Region::new(bytes).map(Arc::new).map_err(|e| e.to_string())
    }
}

/// Settings of a node over `stub1` with memory for two connections.
fn node(service: &Arc<Gated>) -> NodeSetup {
    let m = model();
    let mut nic = NicConfig::ib("stub1");
    ib_keys(&mut nic).gpudirect = true;
    let slot = request_stride(&m).expect("small") + response_stride(&m).expect("small");
    NodeSetup {
        memory: 2 * SLOTS * slot,
        nics: vec![nic],
        service: service.clone(),
        drain_ms: 100,
        ..NodeSetup::default()
    }
}

fn frontend(node: &Running, deadlines: &str) -> FrontendConfig {
    let nics = format!("  - {{device: stub0, queue_pairs: 2, slots: {SLOTS}}}\n");
    config_with(&[node], &nics, deadlines)
}

fn wait_for_queue_pairs(expected: usize) {
    let left = || stub::live().queue_pairs;
    let text = || format!("{} queue pairs are left, {expected} expected", left());
    eventually_or(text, || left() == expected);
}

#[test]
fn a_frontend_that_leaves_during_open_leaves_nothing_behind() {
    let service = Arc::new(Gated::default());
    let (node, reports) = Running::reporting(node(&service));
    let held = service.0.lock().expect("alive");
    let hasty = frontend(&node, "deadlines: {connect_ms: 300}\n");
    let refused = Front::try_connect(&hasty, 4, 1).err();
    assert!(refused.is_some_and(|e| e.contains("300")), "it left");
    reports.recv_timeout(PATIENCE).expect("its session is over");
    drop(held);
    // The next session gets the whole budget, once the late connections are down.
    let end = Instant::now() + PATIENCE;
    let front = loop {
        match Front::try_connect(&frontend(&node, ""), 64, 500) {
            Ok(front) => break front,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
    };
    front.issue(0..500);
    front.wait_done();
    assert_eq!(front.check(), 0);
    wait_for_queue_pairs(0);
}

/// The frontend gives up a connection that the accelerator is still opening. The session and its
/// other connection continue; the next epoch is granted once the late one is down, since there is
/// memory for two connections only.
#[test]
fn a_connection_given_up_while_it_is_opened_costs_nothing_else() {
    let service = Arc::new(Gated::default());
    let node = Running::start(node(&service));
    let deadlines = "deadlines: {connect_ms: 300, lost_ms: 50000}\n";
    let front = Front::connect(&frontend(&node, deadlines), 64, 1000);
    let held = service.0.lock().expect("alive");
    let cause = Broken::GivenUp("as the test has it".to_owned());
    front.cluster.dispatcher().give_up(1, 1, cause);
    front.wait_noted("connection acc-a/1 lost");
    // Longer than the frontend waits for the answer.
    let end = Instant::now() + Duration::from_millis(900);
    let mut hundreds = (0..10).map(|i| 100 * i);
    while Instant::now() < end {
        hundreds
            .next()
            .into_iter()
            .for_each(|i| front.issue(i..i + 100));
        front.wait_done();
        std::thread::sleep(Duration::from_millis(10));
    }
    drop(held);
    front.wait_noted("connection acc-a/1 is up again");
    hundreds.for_each(|i| front.issue(i..i + 100));
    front.wait_done();
    // Both ends of two connections.
    wait_for_queue_pairs(4);
    let notes = front.book.notes.lock().expect("alive").join("\n");
    assert!(!notes.contains("acc-a/0"), "{notes}");
    assert_eq!(front.check(), 0, "nothing went again");
    wait_for_queue_pairs(0);
}
