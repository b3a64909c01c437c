//! Tests of a frontend's cluster against real nodes over loopback sockets, all in one process, as
//! LoadGen and the engines see them.

use std::{
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
    },
    time::Duration,
};

use crate::fake::Fake;
use crate::harness::*;
use fabric::tcp::{ConnectionSecret, Preamble, TcpDevice};
use qdl::{
    config::NicConfig,
    dispatch::{Completer, Response},
    testkit::{assert_has, eventually, rig::Hoard},
};

fn million() -> usize {
    // A release build takes the whole million; the suite runs a part by default.
    let given = std::env::var("QDL_DIGEST_SAMPLES").ok();
    given.and_then(|n| n.parse().ok()).unwrap_or(20_000)
}

#[test]
fn every_response_is_the_digest_of_its_own_sample() {
    let (a, b) = (Running::named("acc-a"), Running::named("acc-b"));
    let total = million();
    let front = Front::connect(&config(&[&a, &b], 3, ""), 2048, total);
    let (name, _) = front.cluster.name().expect("both answer");
    assert_eq!(name, "Network SUT: acc-a (digest) + acc-b (digest)");
    front.issue_in_bursts(total, 20_000);
    front.wait_done();
    assert_eq!(front.check(), 0, "nothing went again");
}

/// Completes nothing while a test holds the gate.
struct Gated {
    gate: Arc<Mutex<()>>,
    waits: Arc<AtomicBool>,
    inner: Box<dyn Completer>,
}

impl Completer for Gated {
    fn complete(&mut self, responses: &mut dyn ExactSizeIterator<Item = Response<'_>>) {
        self.waits.store(true, Ordering::SeqCst);
        let _open = self.gate.lock().expect("alive");
        self.inner.complete(responses);
    }
}

#[test]
fn an_accelerator_comes_back_though_a_nic_thread_hangs() {
    let nics = || vec![tcp_nic(), tcp_nic()];
    let a = Running::over(nics());
    let address = a.address.to_string();
    let nic = "  - {address: 127.0.0.1, connections: 1, slots: 64}\n";
    // One thread per NIC: only one of them hangs.
    let extra = "nic_threads: 2\ndeadlines: {connect_ms: 1000, lost_ms: 50000}\n";
    let c = config_with(&[&a], &nic.repeat(2), extra);
    let (gate, waits) = (Arc::new(Mutex::new(())), Arc::new(AtomicBool::new(false)));
    let front = Front::try_connect_with(&c, 64, 3000, &mut |rail, inner| match rail {
        0 => inner,
        _ => Box::new(Gated {
            gate: gate.clone(),
            waits: waits.clone(),
            inner,
        }),
    })
    .unwrap_or_else(|e| panic!("{e}"));
    front.issue(0..1000);
    front.wait_done();
    let held = gate.lock().expect("alive");
    waits.store(false, Ordering::SeqCst);
    front.issue(1000..2000);
    eventually("nothing came back over the second", || {
        waits.load(Ordering::SeqCst)
    });
    drop(a);
    let again = Running::start(NodeSetup {
        control: address.clone(),
        nics: nics(),
        ..NodeSetup::default()
    });
    // The second connection cannot be taken down; the frontend does not wait for it without limit.
    front.wait_noted("stay out of use");
    front.wait_noted("is back");
    front.issue(2000..3000);
    let last = || front.book.seen[2000..].iter();
    eventually("the first connection carries nothing", || {
        last().all(|s| s.load(Ordering::Relaxed) == 1)
    });
    drop(held);
    // The second connection is taken down late, and connected again.
    front.wait_noted("is up again");
    front.wait_done();
    front.check();
    drop(again);
}

#[test]
fn a_path_that_swallows_everything_holds_up_no_other_connection() {
    let fake = Fake::start();
    let extra = "deadlines: {connect_ms: 60000, lost_ms: 50000}\n";
    let nics = "  - {address: 127.0.0.1, connections: 2, slots: 64}\n";
    let c = config_at(&[fake.control], nics, extra);
    let front = Front::connect(&c, 64, 2000);
    front.issue(0..1000);
    front.wait_done();
    let wait = |what: &str, holds: &dyn Fn() -> bool| {
        eventually(what, holds);
    };
    fake.swallow(1);
    fake.cut(1);
    wait("the second was never tried again", &|| {
        fake.swallowed() == 1
    });
    // A thread now waits a minute for that connection. Meanwhile the other connection is lost too.
    front.wait_noted("connection fake/1 lost");
    fake.cut(0);
    // No connection is left.
    front.wait_noted("fake lost ");
    front.issue(1000..2000);
    let outstanding = || front.cluster.dispatcher().outstanding();
    wait("the first was never made again", &|| outstanding() == 0);
    front.check();
}

/// If the session ends while a frontend waits for a connection, the start fails at once with the
/// session's end, not with the connection's timeout.
#[test]
fn a_session_that_ends_during_a_start_is_what_the_start_says() {
    let mut fake = Fake::start();
    fake.swallow(1);
    let extra = "deadlines: {connect_ms: 60000, lost_ms: 50000}\n";
    let nics = "  - {address: 127.0.0.1, connections: 2, slots: 64}\n";
    let c = config_at(&[fake.control], nics, extra);
    let starting = std::thread::spawn(move || Front::try_connect(&c, 64, 10).err());
    eventually("the second was never opened", || fake.swallowed() != 0);
    fake.end_session();
    eventually("it waits for a minute", || starting.is_finished());
    let text = starting.join().expect("no panic").expect("no start");
    assert!(text.contains("its program ended or was killed"), "{text}");
    assert!(!text.contains("fake/1"), "{text}");
}

#[test]
fn slots_beyond_the_memory_budget_are_refused_in_words() {
    let a = Running::start(NodeSetup {
        memory: 1 << 20,
        ..NodeSetup::default()
    });
    let c = config(&[&a], 2, "");
    let error = Front::try_connect(&c, 1, 1).err().expect("refused");
    assert_has(&error, &["memory_mib", "acc-a"]);
}

/// Only the session says why an accelerator leaves in the warm-up.
#[test]
fn a_session_that_ends_in_the_warm_up_is_the_cause_of_its_failure() {
    let service = Arc::new(Hoard::default());
    let node = Running::start(NodeSetup {
        service: service.clone(),
        ..NodeSetup::default()
    });
    let front = Front::connect(&config(&[&node], 2, ""), 4, 4);
    let sample = front.sample(0);
    let failed = std::thread::scope(|scope| {
        let warming = scope.spawn(|| front.cluster.warm_up(vec![sample]));
        eventually("samples", || !service.0.lock().expect("alive").is_empty());
        node.stop.stop("the fan is broken");
        service.0.lock().expect("alive").clear();
        warming.join().expect("no panic")
    });
    let text = failed.expect_err("no answer").to_string();
    assert_has(&text, &["failed its warm-up", "the fan is broken"]);
}

fn run_over(config: &qdl::config::FrontendConfig) {
    let front = Front::connect(config, 8, 100);
    front.issue(0..100);
    front.wait_done();
    assert_eq!(front.check(), 0, "nothing went again");
}

#[test]
fn an_accelerator_that_listens_on_all_addresses_of_both_families_is_used_over_either() {
    let all = NicConfig::tcp("[::]:0".parse().expect("an address"));
    let node = Running::start(NodeSetup {
        control: "[::]:0".to_owned(),
        nics: vec![all],
        ..NodeSetup::default()
    });
    for own in ["127.0.0.1", "::1"] {
        let ip: std::net::IpAddr = own.parse().expect("an address");
        let control = (ip, node.address.port()).into();
        let nics = format!("  - address: '{own}'\n");
        run_over(&config_at(&[control], &nics, ""));
        // The NIC's address family differs from that of the control plane's address.
        let other = if own == "::1" { "127.0.0.1" } else { "::1" };
        let nics = format!("  - address: '{other}'\n");
        let e = Front::try_connect(&config_at(&[control], &nics, ""), 1, 1).err();
        assert_has(&e.expect("no way"), &[other, "one is IPv4, the other IPv6"]);
    }
    let four = NicConfig::tcp("0.0.0.0:0".parse().expect("an address"));
    let node = Running::start(NodeSetup {
        control: "[::]:0".to_owned(),
        nics: vec![four],
        ..NodeSetup::default()
    });
    let control = (std::net::Ipv6Addr::LOCALHOST, node.address.port()).into();
    let c = config_at(&[control], "  - address: '::1'\n", "");
    let e = Front::try_connect(&c, 1, 1).err().expect("no way");
    assert_has(&e, &["nics[0] of", "listen on [::]"]);
}

#[tokio::test]
async fn a_connection_to_the_port_of_the_other_plane_is_refused_by_name() {
    let free = std::net::TcpListener::bind("127.0.0.1:0").and_then(|l| l.local_addr());
    let data = free.expect("a port");
    let node = std::thread::spawn(move || Running::over(vec![NicConfig::tcp(data)]));
    let node = node.join().expect("started");
    let control = node.address;
    let error = std::thread::spawn(move || {
        let c = config_at(&[data], "  - address: 127.0.0.1\n", "");
        Front::try_connect(&c, 1, 1).err().expect("no control port")
    });
    let error = error.join().expect("no panic");
    let own = format!("whose control port is {}", control.port());
    assert_has(&error, &["the data port of nics[0] of acc-a", &own]);
    let preamble = Preamble::new(0, 1).expect("random bytes");
    let secret = ConnectionSecret {
        key: [0; 32],
        address: control,
    };
    let patience = Duration::from_secs(20);
    let error = TcpDevice::connect(control.ip(), control, &preamble, &secret, None, patience).await;
    let error = error.expect_err("no data port").to_string();
    assert_has(&error, &["it is a control port"]);
}
