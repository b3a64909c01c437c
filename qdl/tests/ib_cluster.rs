//! Tests of a frontend's cluster against real nodes over queue pairs, all in one process: on the
//! stub provider, or on the two devices of `QDL_RDMA_DEVICES`.

#[path = "cluster/harness.rs"]
mod harness;

use std::{
    sync::{Arc, Mutex},
    time::{Duration, Instant},
};

use fabric::{
    Endpoint, Grants, Region, Window,
    ib::{IbCfgs, IbConnection, IbDevice, IbDeviceCfgs, IbResources, IbWishes},
    wire::Stream,
};
use harness::*;
use qdl::{
    config::NicConfig,
    control::{Auth, ClientParams, ClientSession, ConnectionRequest, RequestTransport, Timing},
    run::{request_stride, response_stride},
    serve::Service,
    testkit::{assert_has, ib_keys},
};
use record::NodeFacts;

/// Returns the devices of the frontend and the accelerator; each rail is a port of them.
fn devices() -> [String; 2] {
    match std::env::var("QDL_RDMA_DEVICES") {
        Ok(names) => {
            let (one, two) = names.split_once(',').expect("two devices");
            [one.to_owned(), two.to_owned()]
        }
        Err(_) => ["stub0".to_owned(), "stub1".to_owned()],
    }
}

/// Returns whether the devices are other than the stub's.
fn on_devices() -> bool {
    std::env::var_os("QDL_RDMA_DEVICES").is_some()
}

/// Two rails between the two devices, one for each of the frontend's entries.
fn two_rails(change: &str) -> (Running, qdl::config::FrontendConfig) {
    let [one, two] = devices();
    let m = model();
    // An emulated machine delays acknowledgements for long; with the default that counts as a loss.
    let nic = || {
        let mut nic = NicConfig::ib(&two);
        ib_keys(&mut nic).timeout = 18;
        nic
    };
    let node = Running::with("acc-a", "127.0.0.1:0", &m, 1 << 30, vec![nic(), nic()]);
    // A user who is not root has little lockable memory; a device in a guest has more.
    let slots = if on_devices() { 32 } else { 4 };
    let entry = format!(
        "  - device: {one}\n    queue_pairs: 4\n    slots: {slots}\n    timeout: 18\n{change}"
    );
    let config = config_with(&[&node], &m, &format!("{entry}{entry}"), "");
    (node, config)
}

static ALONE: Mutex<()> = Mutex::new(());

fn digests(change: &str, total: usize) {
    let _alone = ALONE.lock();
    let (_node, config) = two_rails(change);
    let front = Front::connect(&config, 512, total);
    assert_eq!(front.cluster.fabric(), "ib");
    front.issue_in_bursts(total, 5_000);
    front.wait_done();
    assert_eq!(front.check(), 0, "nothing went again");
}

fn samples() -> usize {
    if on_devices() { 4_000 } else { 20_000 }
}

#[test]
fn every_response_is_the_digest_of_its_own_sample() {
    digests("", samples());
}

#[test]
fn split_writes_carry_every_length() {
    digests("    adaptive_routing: {split_above: 1000}\n", samples());
}

#[test]
fn a_sleeping_rail_is_woken_by_events() {
    digests("    completion: {mode: event}\n", samples() / 4);
}

#[test]
fn one_refused_sample_in_forty_is_tried_again_and_nothing_else() {
    let _alone = ALONE.lock();
    let (m, [one, two]) = (model(), devices());
    let service: Arc<dyn Service> = Arc::new(Picky::default());
    let nics = vec![NicConfig::ib(&two)];
    let node = Running::serving("acc-a", "127.0.0.1:0", &m, 1 << 30, nics, &service);
    let nics = format!("  - device: {one}\n    queue_pairs: 2\n    slots: 32\n    timeout: 18\n");
    let front = Front::connect(&config_with(&[&node], &m, &nics, ""), 512, 2_000);
    front.issue_in_bursts(2_000, 500);
    front.wait_done();
    picked(front);
}

#[test]
fn a_nic_that_is_missing_is_named() {
    let m = model();
    let [_, two] = devices();
    let nic = NicConfig::ib(&two);
    let node = Running::with("acc-a", "127.0.0.1:0", &m, 1 << 30, vec![nic]);
    let config = config_with(&[&node], &m, "  - device: stub9\n", "");
    let text = Front::try_connect(&config, 4, 1).err().expect("refused");
    assert!(text.contains("nics[0]") && text.contains("stub9"), "{text}");
}

#[test]
fn fabrics_that_differ_are_named_at_both_ends() {
    let _alone = ALONE.lock();
    let m = model();
    let [one, _] = devices();
    let node = Running::start("acc-a", "127.0.0.1:0", &m, 1 << 30);
    let config = config_with(&[&node], &m, &format!("  - device: {one}\n"), "");
    let text = Front::try_connect(&config, 4, 1).err().expect("refused");
    assert_has(&text, &["asks for the ib fabric", "acc-a is tcp"]);
}

#[test]
fn slots_beyond_the_budget_are_refused_in_words() {
    let _alone = ALONE.lock();
    let m = model();
    let [one, two] = devices();
    let nic = NicConfig::ib(&two);
    let node = Running::with("acc-a", "127.0.0.1:0", &m, 1 << 20, vec![nic]);
    let config = config_with(&[&node], &m, &format!("  - device: {one}\n"), "");
    let text = Front::try_connect(&config, 4, 1).err().expect("refused");
    assert_has(&text, &["memory_mib", "acc-a"]);
}

/// The frontend's request: 16 connections, each with its half of a queue pair.
fn halves(resources: &Arc<IbResources>, cfgs: &IbCfgs) -> Vec<(IbConnection, ConnectionRequest)> {
    const SLOTS: usize = 64;
    let m = model();
    let stride = response_stride(&m).expect("small");
    let half = |connection| {
        let region = Arc::new(Region::new(stride * SLOTS).expect("memory"));
        let grants = Arc::new(Grants::new(SLOTS));
        let endpoint = Endpoint {
            window: Window::new(region.clone(), 0, stride, grants).expect("fits"),
            sources: vec![region],
            peer_slots: SLOTS,
            peer_stride: request_stride(&m).expect("small"),
            peer_stream: Stream::None,
            send_depth: 64,
        };
        let half = IbConnection::prepare(resources, endpoint, cfgs).expect("half");
        let request = ConnectionRequest {
            connection,
            nic: 0,
            gpu_turn: 0,
            epoch: 1,
            slots: SLOTS as u32,
            request_stride: request_stride(&m).expect("small") as u32,
            response_stride: stride as u32,
            transport: RequestTransport::Ib { end: half.end() },
        };
        (half, request)
    };
    (0..16).map(half).collect()
}

/// The node's memory suffices for one frontend's connections but not for two.
#[test]
fn a_frontend_that_leaves_while_connections_are_opened_leaves_nothing_behind() {
    let _alone = ALONE.lock();
    let m = model();
    let [one, two] = devices();
    let nics = vec![NicConfig::ib(&two)];
    let node = Running::with("acc-a", "127.0.0.1:0", &m, 200 << 20, nics);
    let device = IbDevice::open(&IbDeviceCfgs::new(&one)).expect("stub");
    let cfgs = IbCfgs::resolve(&IbWishes::new(&one), device.limits(), 64).expect("cfgs");
    let resources = IbResources::new(device).expect("pd");
    let params = ClientParams {
        address: node.address.to_string(),
        node: "fe".to_owned(),
        auth: Auth::Unset,
        model: m,
        stream: Stream::None,
        facts: NodeFacts::default(),
        timing: Timing::default(),
    };
    let one_round = async |round: usize| {
        let end = Instant::now() + Duration::from_secs(30);
        loop {
            assert!(Instant::now() < end, "round {round}: its memory is in use");
            let Ok(session) = ClientSession::connect(params.clone()).await else {
                // The node serves the previous session until its connections are down.
                tokio::time::sleep(Duration::from_millis(20)).await;
                continue;
            };
            let (halves, asked): (Vec<_>, Vec<_>) = halves(&resources, &cfgs).into_iter().unzip();
            let opened = session.handle.open(asked);
            let opened = match round {
                // The session leaves before the answer arrives.
                0 => true,
                _ => opened.within(Duration::from_secs(5)).await.is_ok(),
            };
            session.handle.bye();
            drop(halves);
            let mut events = session.events;
            while events.next().await.is_some() {}
            if opened {
                break;
            }
        }
    };
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    runtime.block_on(async {
        for round in 0..3 {
            one_round(round).await;
        }
    });
}
