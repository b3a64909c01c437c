//! Frontends that stop waiting for connections which an accelerator opens slowly: the accelerator
//! takes down connections that open too late. Uses the stub provider, whose queue pairs can be
//! counted.
#![cfg(not(qdl_loom))]

#[path = "cluster/harness.rs"]
mod harness;

use std::{
    sync::{Arc, Mutex, mpsc},
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
    control::{
        ClientEvent, ClientSession, ConnectionGrant, ConnectionRequest, Pending, RequestTransport,
    },
    run::{request_stride, response_stride},
    serve::{Arrival, Service},
    testkit::{
        eventually_or, ib_keys,
        peer::{self, client},
    },
};
use record::ServedReport;
use verbs::stub;

const SLOTS: usize = 16;
const PATIENCE: Duration = Duration::from_secs(20);

/// A service with slots in ordinary memory, whose allocation waits for the gate.
#[derive(Default)]
struct Gated {
    gate: Mutex<()>,
    asked: Mutex<Option<mpsc::Sender<()>>>,
}

impl Gated {
    /// Returns a channel that reports each arrival at the gate.
    fn hear(&self) -> mpsc::Receiver<()> {
        let (tell, told) = mpsc::channel();
        *self.asked.lock().expect("alive") = Some(tell);
        told
    }
}

impl Service for Gated {
    fn arrived(&self, arrivals: &mut Vec<Arrival>) {
        Digest.arrived(arrivals);
    }

    fn slots(&self, _gpu: Option<u32>, bytes: usize) -> Result<Arc<Region>, String> {
        if let Some(tell) = &*self.asked.lock().expect("alive") {
            let _ = tell.send(());
        }
        let _open = self.gate.lock();
        Region::new(bytes).map(Arc::new).map_err(|e| e.to_string())
    }
}

/// A node over `stub1` with memory for two connections, and the reports of its sessions.
fn node(service: &Arc<Gated>) -> (Running, mpsc::Receiver<ServedReport>) {
    let m = model();
    let mut nic = NicConfig::ib("stub1");
    ib_keys(&mut nic).gpudirect = true;
    let service: Arc<dyn Service> = service.clone();
    let slot = request_stride(&m).expect("small") + response_stride(&m).expect("small");
    let memory = 2 * SLOTS * slot;
    Running::reporting("acc-a", &m, memory, nic, &service)
}

fn wait_for_queue_pairs(expected: usize) {
    eventually_or(
        || {
            format!(
                "{} queue pairs are left, {expected} expected",
                stub::live().queue_pairs
            )
        },
        || stub::live().queue_pairs == expected,
    );
}

#[test]
fn a_frontend_that_leaves_during_open_leaves_nothing_behind() {
    let service = Arc::new(Gated::default());
    let (node, reports) = node(&service);
    let nics = format!("  - {{device: stub0, queue_pairs: 2, slots: {SLOTS}}}\n");
    let config = |extra: &str| config_with(&[&node], &model(), &nics, extra);
    let held = service.gate.lock().expect("alive");
    let hasty = "deadlines: {connect_ms: 300}\n";
    let refused = Front::try_connect(&config(hasty), 4, 1).err();
    assert!(refused.is_some_and(|e| e.contains("300")), "it left");
    reports.recv_timeout(PATIENCE).expect("its session is over");
    drop(held);
    // The next session gets the whole budget, once the late connections are down.
    let end = Instant::now() + PATIENCE;
    let front = loop {
        match Front::try_connect(&config(""), 64, 500) {
            Ok(front) => break front,
            Err(e) => assert!(Instant::now() < end, "{e}"),
        }
    };
    front.issue(0..500);
    front.wait_done();
    assert_eq!(front.check(), 0);
    wait_for_queue_pairs(0);
}

/// Creates the frontend's half of a queue pair.
fn half(resources: &Arc<IbResources>) -> IbConnection {
    let stride = response_stride(&model()).expect("small");
    let region = Arc::new(Region::new(SLOTS * stride).expect("memory"));
    let window = Window::new(region.clone(), 0, stride, Arc::new(Grants::new(SLOTS)));
    let endpoint = Endpoint {
        window: window.expect("fits"),
        sources: vec![region],
        peer_slots: SLOTS,
        peer_stride: request_stride(&model()).expect("small"),
        peer_stream: Stream::None,
        send_depth: 16,
    };
    let limits = resources.device().limits().clone();
    let cfgs = IbCfgs::resolve(&IbWishes::new("stub0"), &limits, SLOTS).expect("fits");
    IbConnection::prepare(resources, endpoint, &cfgs).expect("prepared")
}

fn request(connection: u16, epoch: u32, half: &IbConnection) -> ConnectionRequest {
    let transport = RequestTransport::Ib { end: half.end() };
    ConnectionRequest {
        epoch,
        ..peer::request(connection, SLOTS, &model(), transport)
    }
}

/// A frontend gives up a connection that the accelerator is still opening. The session and its
/// other connection continue; the accelerator takes down the late connection and confirms it; the
/// next epoch is granted.
#[test]
fn a_connection_given_up_while_it_is_opened_costs_nothing_else() {
    let service = Arc::new(Gated::default());
    let (node, _reports) = node(&service);
    let runtime = tokio::runtime::Builder::new_current_thread()
        .enable_all()
        .build()
        .expect("a runtime");
    let device = IbDevice::open(&IbDeviceCfgs::new("stub0")).expect("the stub");
    let resources = IbResources::new(device).expect("a domain");
    let params = client(&node.address, &model());
    let mut session = runtime
        .block_on(ClientSession::connect(params))
        .expect("taken");
    let handle = session.handle.clone();
    let open = |connection, epoch, half: &IbConnection| {
        handle.open(vec![request(connection, epoch, half)])
    };
    let granted = |p: Pending<Vec<ConnectionGrant>>| {
        let g = runtime.block_on(p.within(PATIENCE)).expect("granted");
        (g[0].connection, g[0].epoch)
    };
    let name = || runtime.block_on(handle.name().within(PATIENCE));

    let healthy = half(&resources);
    assert_eq!(granted(open(0, 1, &healthy)), (0, 1));
    let asked = service.hear();
    let held = service.gate.lock().expect("alive");
    let slow = half(&resources);
    // The accelerator opens one connection; another waits behind it.
    let _late = (open(1, 1, &slow), open(2, 1, &slow));
    name().expect("what was asked before is on its way");
    asked.recv_timeout(PATIENCE).expect("being opened");
    for connection in [1, 2] {
        handle.connection_lost(connection, 1, "nothing came in time");
        handle.connection_reset(connection, 1);
    }
    drop(slow);
    let named = name().expect("the session lives on");
    assert_eq!(named, "acc-a (digest)");
    drop(held);
    let mut confirmed = Vec::new();
    while confirmed.len() < 2 {
        let next =
            runtime.block_on(async { tokio::time::timeout(PATIENCE, session.events.next()).await });
        match next.expect("both are taken down again") {
            Some(ClientEvent::ConnectionReset { connection, epoch }) => {
                confirmed.push((connection, epoch))
            }
            Some(ClientEvent::Gone(cause)) => panic!("{cause}"),
            _ => {}
        }
    }
    confirmed.sort_unstable();
    assert_eq!(confirmed, [(1, 1), (2, 1)]);
    // Both ends of the healthy connection.
    wait_for_queue_pairs(2);
    let again = half(&resources);
    assert_eq!(granted(open(1, 2, &again)), (1, 2), "there is room");
    handle.bye();
    while runtime.block_on(session.events.next()).is_some() {}
    drop((healthy, again));
    wait_for_queue_pairs(0);
}
