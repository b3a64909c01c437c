//! The real nodes of a world: a dispatcher and servers, with their threads not started.

use std::{collections::BTreeSet, io, sync::Arc};

use qdl::{
    config::HealthConfig,
    connection::{CrewPlan, EchoCfgs, NicThread, NicThreadCfgs, Spin},
    counters::{Live, Recorder},
    dispatch::{Completer, ConnectionCfgs, DispatchCfgs, DispatchNic, Dispatcher, Owner},
    rails::{ConnectionRail, PeerCfgs, RailArbiter, RailId},
    response::{RESPONSE_HEADER_BYTES, RESPONSE_TRAILER_BYTES},
    serve::{OnConnectionLost, Preparing, Server, Service},
};

use crate::{
    book::{Door, Keeper, Shared},
    load::source,
    plan::{Plan, Shape},
};

/// A time that no world reaches.
pub const HOUR: u64 = 3_600_000_000_000;

/// The real nodes.
pub struct Nodes {
    pub dispatcher: Arc<Dispatcher>,
    pub servers: Vec<Server>,
    /// Per accelerator: the companions of its NIC threads.
    pub preparing: Vec<Vec<Preparing>>,
}

fn crew(shape: &Shape) -> CrewPlan {
    let nics = shape.nics as usize;
    let (nic_of, thread_of) = match shape.crew {
        0 => ((0..nics).collect(), (0..nics).collect()),
        1 => ((0..nics).collect(), vec![0; nics]),
        _ => (
            (0..2 * nics).map(|i| i / 2).collect(),
            (0..2 * nics).collect(),
        ),
    };
    CrewPlan { nic_of, thread_of }
}

fn threads(shape: &Shape, name: &str) -> Vec<NicThreadCfgs> {
    let tick_ns = match shape.asleep {
        0 => shape.tick_us * 1_000,
        _ => HOUR,
    };
    let spin = Spin::new(shape.spin_us * 1_000);
    let cfgs = |i| NicThreadCfgs::new(format!("{name}-{i}"), spin, tick_ns);
    (0..crew(shape).nic_of.len()).map(cfgs).collect()
}

fn dispatch_cfgs(shape: &Shape) -> DispatchCfgs {
    let trailer = match shape.stream {
        0 => 0,
        _ => RESPONSE_TRAILER_BYTES,
    };
    let connection = |i: usize| ConnectionCfgs {
        peer: i / shape.each as usize,
        nic_index: i % shape.nics as usize,
        slots: shape.slots as usize,
        response_stride: RESPONSE_HEADER_BYTES + (shape.answer as usize).max(64) + trailer,
        request_stride: shape.longest as usize,
    };
    let (interval_ns, timeout_ns) = match shape.asleep {
        0 => (shape.echo_us * 1_000, shape.silence_us * 1_000),
        _ => (HOUR, HOUR),
    };
    let is_staged = shape.staged > 0;
    DispatchCfgs {
        policy: shape.policy(),
        echo: EchoCfgs {
            interval_ns,
            timeout_ns,
        },
        post_up_to: shape.up_to,
        stay_ns: shape.stay_us * 1_000,
        one_by_one: shape.one_by_one > 0,
        sources: if is_staged { vec![] } else { vec![source()] },
        staged_from: is_staged.then(source),
        connections: (0..shape.connections()).map(connection).collect(),
        crew: Some(crew(shape)),
        send_depth: shape.depth_front as usize,
        stream: shape.stream(),
        ..DispatchCfgs::default()
    }
}

/// Chooses rails by health, where the plan says so.
fn by_health(shape: &Shape, dispatcher: &Dispatcher) {
    let (each, nics) = (shape.each as usize, shape.nics as usize);
    let rail = |i: usize| ConnectionRail {
        peer: i / each,
        rail: RailId((i % nics) as u8),
        target: 0,
        nic: i % nics,
    };
    let peer = |p: usize| {
        let of_peer: BTreeSet<usize> = (p * each..(p + 1) * each).map(|i| i % nics).collect();
        PeerCfgs {
            policy: shape.policy(),
            health: HealthConfig {
                failed_hold_ms: 1,
                failed_hold_max_ms: 2,
                ..HealthConfig::default()
            },
            rails: nics,
            targets: vec![of_peer.into_iter().map(|r| RailId(r as u8)).collect()],
        }
    };
    let peers: Vec<_> = (0..shape.servers as usize).map(peer).collect();
    let connections = (0..shape.connections()).map(rail).collect();
    let arbiter = RailArbiter::new(&peers, connections).expect("1 or 2 rails to each peer");
    dispatcher.choose_by_health(arbiter, 1_000_000, Box::new(|_| None));
}

impl Nodes {
    /// Makes the nodes. Passes each NIC thread to `add`, with its node: 0 for the frontend.
    ///
    /// # Errors
    /// No descriptor is left.
    pub fn new(
        plan: &Plan,
        book: &Shared,
        mut add: impl FnMut(usize, NicThread),
    ) -> io::Result<Self> {
        let shape = &plan.shape;
        let nic = |cfgs| {
            let recorder = (shape.records > 0).then(|| {
                let seen = book.clone();
                let recorder = Recorder::new(Arc::new(Live::new(1)), 0);
                recorder.observed(move |_, alike| seen.lock().recorded += alike)
            });
            let completer: Box<dyn Completer> = Box::new(Keeper(book.clone(), recorder));
            DispatchNic { cfgs, completer }
        };
        let nics = threads(shape, "front").into_iter().map(nic).collect();
        let owner: Arc<dyn Owner> = Arc::new(book.clone());
        let made = Dispatcher::assemble(dispatch_cfgs(shape), nics, owner);
        let (dispatcher, of_front) = made.map_err(io::Error::other)?;
        of_front.into_iter().for_each(|thread| add(0, thread));
        let (mut servers, mut preparing) = (Vec::new(), Vec::new());
        for server in 0..shape.servers as usize {
            let service: Arc<dyn Service> = Arc::new(Door(book.clone(), server));
            let lost_book = book.clone();
            let lost: Arc<OnConnectionLost> = Arc::new(move |l| lost_book.lock().lost.push(l));
            let made = Server::assemble(threads(shape, "back"), &crew(shape), &service, &lost);
            let (made, of_back, companions) = made?;
            of_back.into_iter().for_each(|t| add(server + 1, t));
            servers.push(made);
            preparing.push(companions);
        }
        if shape.policy().is_by_health() {
            by_health(shape, &dispatcher);
        }
        let auto = vec![shape.limits > 0; shape.connections()];
        dispatcher.limit_slots(&auto);
        Ok(Nodes {
            dispatcher: Arc::new(dispatcher),
            servers,
            preparing,
        })
    }
}
