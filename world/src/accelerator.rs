//! An accelerator of a world: a real node, whose threads, sockets, NICs and engine the world plays.

use std::{
    cell::RefCell,
    path::Path,
    sync::{Arc, Mutex},
};

use qdl::{
    config::{AcceleratorConfig, parse_accelerator},
    connection::NicThread,
    control::{self, LocalNode, RolePart, Timing},
    run::{EngineTotals, NodeCore, NodeHandle, NodeParams, NodeParts, Stop},
    serve::{OnConnectionLost, Preparing, Server, Service},
    topology::LinkWatch,
    wire::Description,
};
use record::{EngineInfo, NodeFacts};
use tokio::task::JoinHandle;

use crate::{
    book::{Door, Loss, Shared},
    engine::Engine,
    frontend::{auth, blocking, crew, model, threads, timing},
    plan::Plan,
    stream::Streams,
};
use fabric::{Nic, clock, os::Near, testkit::sim_nic::SimNics};

/// What an accelerator is when it starts: as before, or other than before in one thing.
#[derive(Clone, Copy, Debug, PartialEq, Eq)]
pub enum Program {
    Same,
    Engine,
    Model,
    Token,
    Name,
    Heartbeat,
    /// The texts that it sends hold a control character.
    Texts,
}

impl Program {
    pub const OTHERS: [Program; 6] = [
        Program::Engine,
        Program::Model,
        Program::Token,
        Program::Name,
        Program::Heartbeat,
        Program::Texts,
    ];
}

/// How an accelerator that stops goes on.
#[derive(Clone, Copy, Debug)]
pub struct Leaving {
    /// A companion's job outlasts the stop.
    pub is_late: bool,
    /// Time until it starts again, and as what.
    pub again: Option<(u64, Program)>,
}

/// A node while it runs.
pub struct Accelerator {
    pub handle: NodeHandle,
    pub stop: Stop,
    /// The task that serves frontends.
    pub serving: JoinHandle<Option<String>>,
    /// The companions of its NIC threads.
    preparing: Vec<Preparing>,
    book: Shared,
    /// Its server has stopped.
    pub has_stopped: bool,
}

const FILE: &str = "node: acc\nauth: none\ncontrol: {listen: '127.0.0.1:0'}\n\
    engine: {kind: digest}\nnics: [{listen: '127.0.0.1:0'}, {listen: '127.0.0.1:0'}]\n\
    model: {name: m, max_input_bytes: 4}\n";

fn config(plan: &Plan, server: usize) -> AcceleratorConfig {
    thread_local! {
        static CONFIG: RefCell<Option<AcceleratorConfig>> = const { RefCell::new(None) };
    }
    let read = || parse_accelerator(FILE, "acc.yaml", Path::new(".")).expect("a sound file");
    let mut config = CONFIG.with_borrow_mut(|known| known.get_or_insert_with(read).clone());
    config.node = format!("acc-{server}");
    config.nics.truncate(plan.shape.nics as usize);
    config.memory_mib = plan.shape.memory_mib as usize;
    config.deadlines.drain_ms = plan.shape.drain_ms;
    config
}

impl Accelerator {
    /// Starts node `server`. Passes each NIC thread to `add`.
    pub fn new(
        plan: &Plan,
        (server, program): (usize, Program),
        world: (&Shared, &Streams, &SimNics, &Arc<Mutex<Engine>>),
        mut add: impl FnMut(NicThread),
    ) -> Self {
        let shape = &plan.shape;
        let (book, streams, nics, engine) = world;
        let name = match program {
            Program::Engine => "other",
            _ => "digest",
        };
        let mut own_model = model(shape);
        if program == Program::Model {
            own_model.name = "other".to_owned();
        }
        let own = |own| LocalNode {
            node: match program {
                Program::Name => "front".to_owned(),
                _ => format!("acc-{server}"),
            },
            auth: auth(shape, program == Program::Token),
            model: own_model.clone(),
            own,
            facts: NodeFacts::default(),
            timing: match program {
                Program::Heartbeat => slow(timing(shape)),
                _ => timing(shape),
            },
        };
        let local = own(RolePart::Loading);
        let made = control::Server::without_listener(Streams::address(server), local);
        let (port, mut reception) = made.expect("sound settings");
        reception.blocking = blocking(shape);
        streams.set_door(server, Some(reception));
        let totals = engine.clone();
        let params = NodeParams {
            sut_name: format!("acc-{server} ({name}){}", control_character(program)),
            model: own_model,
            engine_info: EngineInfo {
                name: name.to_owned(),
                tokens: shape.prefill > 0,
                role: shape.role(server),
                ..EngineInfo::default()
            },
            once: false,
            engine: Arc::new(move || {
                let engine = totals.lock().expect("no engine panics");
                EngineTotals {
                    progress: engine.steps[server],
                    batches: engine.batches[server].clone(),
                    standing: engine.standing(server, clock::now_ns()),
                    ..EngineTotals::default()
                }
            }),
            describe: Arc::new(move || match server {
                0 => Err("a simulation".to_owned()),
                _ => Ok(Description {
                    machine: "{}".to_owned(),
                    config: FILE.to_owned() + control_character(program),
                }),
            }),
        };
        let service: Arc<dyn Service> = Arc::new(Door(book.clone(), server));
        let each_nic = 0..shape.nics as usize;
        let nic = |_| -> Box<dyn Nic> { Box::new(nics.nic(server, shape.depth_back as usize)) };
        let parts = NodeParts {
            nics: each_nic.clone().map(nic).collect(),
            near: each_nic.clone().map(|_| Near::default()).collect(),
            links: each_nic.map(|_| LinkWatch::default()).collect(),
            service: service.clone(),
            thread_times: Vec::new,
        };
        let mut companions = None;
        let make = |lost: &Arc<OnConnectionLost>| {
            let (lost, seen) = (lost.clone(), book.clone());
            let observed: Arc<OnConnectionLost> = Arc::new(move |l| {
                let mut book = seen.lock();
                book.is_news = true;
                book.losses.push(Loss {
                    connection: usize::from(l.connection),
                    epoch: l.epoch,
                    cause: l.cause.clone(),
                    server: Some((server, l.session)),
                });
                drop(book);
                lost(l);
            });
            let threads = threads(shape, "back");
            let made = Server::assemble(threads, &crew(shape), &service, &observed);
            let (made, of_back, preparing) = made?;
            of_back.into_iter().for_each(&mut add);
            companions = Some(preparing);
            Ok(made)
        };
        let core = NodeCore::new(config(plan, server), params, parts, port, make);
        let core = core.expect("descriptors for the NIC threads");
        let (handle, stop, reports) = (core.handle(), core.stopper(), book.clone());
        let serving = core.serve(move |report| {
            let mut book = reports.lock();
            book.say(|| format!("acc-{server} has served: clean {}", report.clean));
            book.served.push((server, report.clone()));
        });
        Accelerator {
            handle,
            stop,
            serving: tokio::spawn(serving),
            preparing: companions.expect("made"),
            book: book.clone(),
            has_stopped: false,
        }
    }

    /// Lets the companions of the NIC threads do all their jobs; false if they have none.
    pub fn prepare(&self) -> bool {
        let mut has_worked = false;
        for share in 0..self.companions() {
            while self.step(share) {
                has_worked = true;
            }
        }
        has_worked
    }

    pub fn companions(&self) -> usize {
        self.preparing.len()
    }

    /// Lets a companion do a job; false if it has none.
    pub fn step(&self, companion: usize) -> bool {
        let Some(companion) = self.preparing.get(companion) else {
            return false;
        };
        self.book.lock().is_preparing = true;
        let has_worked = companion.step();
        self.book.lock().is_preparing = false;
        has_worked
    }
}

/// Heartbeats less often than the frontend wants them.
fn slow(mut timing: Timing) -> Timing {
    timing.heartbeat.every *= 3;
    timing
}

fn control_character(program: Program) -> &'static str {
    match program {
        Program::Texts => "\u{1}",
        _ => "",
    }
}

/// Bytes of a memory budget that are in use when all nodes have ended.
pub fn check_memory(handles: &[NodeHandle]) -> Option<String> {
    let used = handles.iter().map(NodeHandle::memory_in_use);
    let used = used.max().filter(|used| *used > 0);
    used.map(|bytes| format!("budget: {bytes} bytes are in use after the end"))
}
