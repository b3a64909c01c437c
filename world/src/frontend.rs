//! The frontend of a world: a real cluster, whose threads, sockets and NICs the world plays.

use std::{
    cell::RefCell,
    path::Path,
    sync::{Arc, atomic::AtomicBool},
};

use qdl::{
    config::{FrontendConfig, HealthConfig, parse_frontend},
    connection::{CrewPlan, EchoCfgs, NicThread, NicThreadCfgs, Spin},
    control::{Auth, Blocking, HeartbeatCfgs, LocalNode, RolePart, Timing, Token},
    counters::{Live, Recorder},
    dispatch::{
        Completer, ConnectionCfgs, DispatchCfgs, DispatchEvent, DispatchNic, Dispatcher, Owner,
        Sample,
    },
    model::{DType, ModelSpec, TensorSpec},
    run::{Cluster, ClusterEvent, ClusterParts, RetryPauses, slot_strides},
    topology::LinkWatch,
};
use record::NodeFacts;
use tokio::{sync::oneshot, task::JoinHandle};

use crate::{
    book::{Keeper, Loss, Shared},
    load::source,
    plan::{Plan, Shape, ms},
    stream::Streams,
};
use fabric::{Nic, os::Near, testkit::sim_nic::SimNics};

/// A time that no world reaches.
pub const HOUR: u64 = 3_600_000_000_000;

/// The frontend.
pub struct Frontend {
    pub cluster: Arc<Cluster>,
    pub dispatcher: Arc<Dispatcher>,
    /// The control task.
    pub control: JoinHandle<()>,
    /// Per NIC: whether its link is down.
    pub links: Vec<Arc<AtomicBool>>,
}

/// The model of both ends.
pub fn model(shape: &Shape) -> ModelSpec {
    let mut model = ModelSpec::opaque("m", shape.longest as usize, shape.answer as usize);
    model.output.ragged = shape.stream > 0;
    if shape.prefill > 0 {
        // Only requests of a model that answers in tokens have options.
        model.output = TensorSpec {
            dtype: DType::I32,
            shape: vec![shape.answer as usize / 4],
            ragged: true,
            ..model.output
        };
    }
    model
}

/// The token of all nodes, or another one.
pub fn auth(shape: &Shape, is_other: bool) -> Auth {
    let digits = [b'a' + u8::from(is_other); 64];
    match shape.token {
        0 if !is_other => Auth::None,
        _ => Auth::Token(Token::parse(&digits).expect("hexadecimal")),
    }
}

/// Thread of calls that may block, at both ends.
pub fn blocking(shape: &Shape) -> Blocking {
    Blocking::SameThread {
        after: ms(shape.slow_ms),
    }
}

/// Time limits of both ends' sessions.
pub fn timing(shape: &Shape) -> Timing {
    Timing {
        step: ms(shape.step_ms),
        heartbeat: HeartbeatCfgs {
            every: ms(shape.beat_ms),
            gone_after: ms(4 * shape.beat_ms),
        },
    }
}

pub fn crew(shape: &Shape) -> CrewPlan {
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

pub fn threads(shape: &Shape, name: &str) -> Vec<NicThreadCfgs> {
    let tick_ns = match shape.asleep {
        0 => shape.tick_us * 1_000,
        _ => HOUR,
    };
    let spin = Spin::new(shape.spin_us * 1_000);
    let cfgs = |i| NicThreadCfgs::new(format!("{name}-{i}"), spin, tick_ns);
    (0..crew(shape).nic_of.len()).map(cfgs).collect()
}

fn dispatch_cfgs(shape: &Shape) -> DispatchCfgs {
    let model = model(shape);
    let connection = |i: usize| {
        let peer = i / shape.each as usize;
        let role = shape.role(peer);
        let (request_stride, response_stride) = slot_strides(&model, role).expect("sizes");
        ConnectionCfgs {
            peer,
            role,
            nic_index: i % shape.nics as usize,
            slots: shape.slots as usize,
            response_stride,
            request_stride,
        }
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
        affinity_ns: shape.stay_us * 1_000,
        by_peer: shape.stream > 0,
        one_by_one: shape.one_by_one > 0,
        sources: if is_staged { vec![] } else { vec![source()] },
        staged_from: is_staged.then(source),
        connections: (0..shape.connections()).map(connection).collect(),
        crew: (shape.crew > 0).then(|| crew(shape)),
        send_depth: shape.depth_front as usize,
        stream: shape.stream(),
        ..DispatchCfgs::default()
    }
}

/// The file of a frontend with two NICs and three accelerators.
const FILE: &str = "node: front\nauth: none\nnics: [{address: 127.0.0.1}, {address: 127.0.0.1}]\n\
    accelerators: [{control: '127.0.0.1:1000'}, {control: '127.0.0.1:1001'}, \
    {control: '127.0.0.1:1002'}]\n\
    model: {name: m, inputs: [{name: input, dtype: u8, shape: [4], ragged: true}], \
    output: {name: output, dtype: u8, shape: [1]}}\n\
    dataset: {kind: random, count: 1, max_bytes: 4}\n";

fn config(shape: &Shape) -> FrontendConfig {
    thread_local! {
        static CONFIG: RefCell<Option<FrontendConfig>> = const { RefCell::new(None) };
    }
    let read = || parse_frontend(FILE, "front.yaml", Path::new(".")).expect("a sound file");
    let mut config = CONFIG.with_borrow_mut(|known| known.get_or_insert_with(read).clone());
    config.nics.truncate(shape.nics as usize);
    config.accelerators.truncate(shape.servers as usize);
    for (server, accelerator) in config.accelerators.iter_mut().enumerate() {
        accelerator.role = shape.role(server);
    }
    for nic in &mut config.nics {
        nic.slots = match shape.limits {
            0 => qdl::config::Auto::Fixed(shape.slots as usize),
            _ => qdl::config::Auto::Auto,
        };
    }
    config.model = model(shape);
    config.arbiter = shape.policy();
    config.health = HealthConfig {
        failed_hold_ms: 1,
        failed_hold_max_ms: 2,
        tick_ms: 1,
        ..HealthConfig::default()
    };
    config.warm_up.budget_ms = shape.warm_ms;
    config.warm_up.deadline_ms = shape.step_ms;
    let deadlines = &mut config.deadlines;
    deadlines.connect_ms = Some(shape.step_ms);
    deadlines.lost_ms = shape.lost_ms;
    deadlines.drain_ms = shape.drain_ms;
    deadlines.name_ms = shape.step_ms;
    deadlines.heartbeat_interval_ms = shape.beat_ms;
    deadlines.heartbeat_timeout_ms = 4 * shape.beat_ms;
    deadlines.echo_interval_ms = shape.echo_us / 1_000;
    deadlines.echo_timeout_ms = shape.silence_us / 1_000;
    config
}

/// Notes what the dispatcher tells the cluster.
struct Observed(Shared, Arc<dyn Owner>);

impl Owner for Observed {
    fn complete_empty(&self, samples: &[Sample]) {
        self.0.lock().completed_empty(samples);
        self.1.complete_empty(samples);
    }

    fn event(&self, event: DispatchEvent) {
        if let DispatchEvent::ConnectionLost {
            connection,
            epoch,
            cause,
            ..
        } = &event
        {
            self.0.lock().losses.push(Loss {
                connection: *connection,
                epoch: *epoch,
                cause: cause.clone(),
                server: None,
            });
        }
        self.0.lock().is_news = true;
        self.1.event(event);
    }
}

impl Frontend {
    /// Makes the frontend and spawns its control task. Passes each NIC thread to `add`.
    pub fn new(
        plan: &Plan,
        book: &Shared,
        streams: &Streams,
        nics: &SimNics,
        warm_up: Vec<Sample>,
        mut add: impl FnMut(NicThread),
    ) -> Self {
        let shape = &plan.shape;
        let share = |cfgs| {
            let recorder = (shape.records > 0).then(|| {
                let seen = book.clone();
                let recorder = Recorder::new(Arc::new(Live::new(1)), 0);
                recorder.observed(move |_, alike| seen.lock().recorded += alike)
            });
            let completer: Box<dyn Completer> = Box::new(Keeper(book.clone(), recorder));
            DispatchNic { cfgs, completer }
        };
        let shares = threads(shape, "front").into_iter().map(share).collect();
        let cfgs = dispatch_cfgs(shape);
        let each_nic = 0..shape.nics as usize;
        let nic = |_| -> Box<dyn Nic> { Box::new(nics.nic(0, shape.depth_front as usize)) };
        let links: Vec<Arc<AtomicBool>> = each_nic.clone().map(|_| Arc::default()).collect();
        let (said, ready) = (book.clone(), book.clone());
        let parts = ClusterParts {
            connections: cfgs.connections.clone(),
            nics: each_nic.clone().map(nic).collect(),
            near: each_nic.map(|_| Near::default()).collect(),
            links: links.iter().cloned().map(LinkWatch::Stated).collect(),
            local: LocalNode {
                node: "front".to_owned(),
                auth: auth(shape, false),
                model: model(shape),
                own: RolePart::Stream(shape.stream()),
                facts: NodeFacts::default(),
                timing: timing(shape),
            },
            connector: Arc::new(streams.clone()),
            blocking: blocking(shape),
            retry: RetryPauses {
                first: ms(shape.retry_ms),
                last: ms(shape.retry_ms * 20),
            },
            on_event: Arc::new(move |event| match event {
                // The owner has noted them.
                ClusterEvent::CompleteEmpty(_) => {}
                ClusterEvent::Aborted(cause) => {
                    let mut book = said.lock();
                    book.aborted = true;
                    book.say(|| format!("the cluster aborts: {cause}"));
                }
                ClusterEvent::Note(line) | ClusterEvent::Waiting(line) => {
                    said.lock().say(|| format!("the cluster says: {line}"));
                }
            }),
        };
        let mut dispatcher = None;
        let make = |owner| {
            let owner: Arc<dyn Owner> = Arc::new(Observed(book.clone(), owner));
            let (made, of_front) = Dispatcher::assemble(cfgs, shares, owner)?;
            of_front.into_iter().for_each(&mut add);
            Ok(dispatcher.insert(Arc::new(made)).clone())
        };
        let (up, is_up) = oneshot::channel();
        let made = Cluster::prepare(&config(shape), parts, make, move |result| {
            // The receiver is gone when the world ends.
            let _ = up.send(result);
        });
        let (cluster, control) = made.expect("a dispatcher");
        let cluster = Arc::new(cluster);
        let warming = cluster.clone();
        drop(tokio::spawn(async move {
            let warmed = match is_up.await {
                Ok(Ok(())) => warming.warm(warm_up).await.map(drop),
                Ok(Err(e)) => Err(e),
                Err(_) => return,
            };
            let mut book = ready.lock();
            book.say(|| format!("the cluster is ready: {warmed:?}"));
            book.ready = Some(warmed.is_ok());
        }));
        Frontend {
            cluster,
            dispatcher: dispatcher.expect("made"),
            control: tokio::spawn(control),
            links,
        }
    }
}
