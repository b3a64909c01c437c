//! The frontend's connections to all accelerators, from connect to finish.

use std::{
    collections::BTreeMap,
    sync::{
        Arc, Mutex,
        atomic::{AtomicBool, Ordering},
        mpsc::RecvTimeoutError,
    },
    thread::JoinHandle,
    time::Duration,
};

use fabric::{MAX_SLOTS, Nic, Region, RegionError, clock::now_ns, os::Near};
use record::{
    BatchSizes, GpuRecord, NicUse, NodeUse, Places, SystemRecord, WarmUpRecord, timeline::NodeSide,
};
use tokio::{
    sync::{mpsc, watch},
    time::Instant,
};

use super::{
    asked::{Answers, Asked},
    cluster_state::{ClusterState, ConnectionOf, EventRouter, OnClusterEvent, REASON},
    control_thread::{Inboxes, LOADING, control},
    outage::Outages,
    peer_state::PeerState,
};
use crate::{
    config::FrontendConfig,
    connection::join_all,
    control::{Blocking, ClientHandle, Connector, Counters, LocalNode, Pending, Sockets, block_on},
    dispatch::{
        Completer, ConnectionCfgs, DispatchCfgs, DispatchError, DispatchNic, Dispatcher, Owner,
        Sample, WarmUpCfgs, WarmUpError,
    },
    model::Lengths,
    run::{
        crew::{frontend_crew, near},
        error::RunError,
        life::frontend_end::RetryPauses,
        lock, nics,
        places::places,
        settings, slot_strides,
    },
    topology::LinkWatch,
};

/// Time limit for the control thread to end after the stop.
const LEAVING: Duration = Duration::from_secs(10);
/// Time limit for accelerators to report their work before the run starts.
const USE: Duration = Duration::from_secs(1);
/// Time limit for the accelerators' totals after an abort.
const LAST_WORDS: Duration = Duration::from_millis(200);

/// Memory of the samples.
#[derive(Clone, Debug, Default)]
pub struct SampleMemory {
    /// Registered source regions; a sample's `source` is an index into this list.
    pub sources: Vec<Arc<Region>>,
    /// Unregistered memory, from which samples are copied (`qsl: staged`).
    pub staged_from: Option<Arc<Region>>,
}

impl SampleMemory {
    /// One region with a copy of these bytes.
    ///
    /// # Errors
    /// The system has no memory left.
    pub fn of(bytes: &[u8]) -> Result<Self, RegionError> {
        let region = Region::new(bytes.len())?;
        // SAFETY: no other thread and no device knows this region yet.
        unsafe { region.store(0, bytes) }?;
        Ok(SampleMemory {
            sources: vec![Arc::new(region)],
            staged_from: None,
        })
    }
}

/// The parts of a cluster around its dispatcher.
pub struct ClusterParts {
    /// Connections of the dispatcher.
    pub connections: Vec<ConnectionCfgs>,
    /// The open NICs, in the order of the configuration.
    pub nics: Vec<Box<dyn Nic>>,
    /// Placement of each NIC.
    pub near: Vec<Near>,
    /// State of each NIC's link.
    pub links: Vec<LinkWatch>,
    /// This node in its sessions.
    pub local: LocalNode,
    /// Opens the streams of the sessions.
    pub connector: Arc<dyn Connector>,
    /// Thread that makes the local halves of connections.
    pub blocking: Blocking,
    /// Pauses before a connection or a session is made again.
    pub retry: RetryPauses,
    /// Consumer of the cluster's events.
    pub on_event: Arc<OnClusterEvent>,
}

/// An accelerator's totals: counters, batches, GPUs, and the work of its node.
pub type Totals = (Counters, BatchSizes, Vec<GpuRecord>, NodeUse);

/// The frontend's connections to all accelerators.
pub struct Cluster {
    pub(super) state: Arc<ClusterState>,
    stop: watch::Sender<bool>,
    control: Option<JoinHandle<()>>,
    /// The warm-up, and the time of its begin.
    pub(super) warmed: Mutex<Option<(WarmUpRecord, u64)>>,
    near: Vec<Near>,
}

impl Cluster {
    /// Connects to every accelerator, checks models and names, and opens every connection.
    /// `completer` makes the completer of each share of the NICs ([`frontend_crew`]). Waits for an
    /// accelerator for at most [`Deadlines::connect`](crate::config::Deadlines::connect), and
    /// longer while the accelerator loads its model.
    /// Each step has the deadline [`Deadlines::step`](crate::config::Deadlines::step): all
    /// handshakes together, and for one accelerator after another the grant, the connecting and the
    /// start.
    ///
    /// # Errors
    /// [`RunError`] names the peer or the configuration key.
    pub fn connect(
        config: &FrontendConfig,
        memory: SampleMemory,
        completer: &mut dyn FnMut(usize) -> Box<dyn Completer>,
        on_event: Arc<OnClusterEvent>,
    ) -> Result<Cluster, RunError> {
        let connections = plan(config)?;
        let answers = Lengths::of_outputs(&config.model)
            .map_err(|e| RunError::new(format!("model {}: {e}", config.model.name)))?;
        let d = &config.deadlines;
        let slots = connections
            .iter()
            .map(|l| l.slots * l.response_stride)
            .sum();
        let nics = config.nics.iter().enumerate().map(|(i, keys)| {
            let nic = nics::open(
                i,
                keys,
                d,
                config.accelerators.len() * keys.facts().connections,
            )?;
            let kept = nic
                .check_memory(slots)
                .and_then(|()| nic.keep(&memory.sources));
            kept.map(|()| nic).map_err(RunError::of_nic(i))
        });
        let nics = nics.collect::<Result<Vec<_>, _>>()?;
        let near = near(&config.nics);
        let crew = frontend_crew(config);
        let shares = crew.nic_of.iter().enumerate();
        let shares = shares.map(|(share, nic)| {
            let completer = completer(share);
            let mut cfgs = settings::frontend_nic_thread(*nic, config, &near[*nic]);
            cfgs.begin = completer.begin();
            DispatchNic { cfgs, completer }
        });
        let shares = shares.collect();
        let links = config.nics.iter().map(LinkWatch::of_nic).collect();
        let parts = ClusterParts {
            connections: connections.clone(),
            nics,
            near,
            links,
            local: settings::frontend_node(config)?,
            connector: Arc::new(Sockets),
            blocking: Blocking::SecondThread,
            retry: RetryPauses::default(),
            on_event,
        };
        let cfgs = DispatchCfgs {
            sources: memory.sources,
            staged_from: memory.staged_from,
            connections,
            crew: Some(crew),
            answers: Some(answers),
            ..settings::dispatch(config)
        };
        let (ready, is_ready) = std::sync::mpsc::channel();
        let (mut cluster, control) = Cluster::prepare(
            config,
            parts,
            |owner| Dispatcher::new(cfgs, shares, owner).map(Arc::new),
            // An error means that `connect` has given up.
            move |result| drop(ready.send(result)),
        )?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .build()
            .map_err(RunError::of_control_thread)?;
        let thread = std::thread::Builder::new().name("qdl-control".to_owned());
        let control = thread.spawn(move || runtime.block_on(control));
        cluster.control = Some(control.map_err(RunError::of_control_thread)?);
        // Upper bound of all steps: two for the whole cluster and three per accelerator, each with
        // its own deadline, and one until all connections are up.
        let steps = 3 + 3 * config.accelerators.len() as u32;
        let deadline = LOADING + d.connect() + d.step().saturating_mul(steps) + LEAVING;
        match is_ready.recv_timeout(deadline) {
            Ok(ready) => ready.map(|()| cluster),
            Err(RecvTimeoutError::Timeout) => {
                let text = format!("not done with bringing connections up after {deadline:?}");
                Err(RunError::of_control_thread(text))
            }
            Err(RecvTimeoutError::Disconnected) => Err(RunError::of_control_thread("it ended")),
        }
    }

    /// Makes a cluster and the task that brings it up and runs it, on a thread with a tokio runtime
    /// or by hand. `dispatcher` makes the dispatcher for its owner. The task reports to `ready`
    /// once every connection is up, and ends after [`Cluster::stop`].
    ///
    /// # Errors
    /// The dispatcher cannot be made.
    pub fn prepare(
        config: &FrontendConfig,
        parts: ClusterParts,
        dispatcher: impl FnOnce(Arc<dyn Owner>) -> Result<Arc<Dispatcher>, DispatchError>,
        ready: impl FnOnce(Result<(), RunError>) + Send + 'static,
    ) -> Result<(Cluster, impl Future<Output = ()> + Send + 'static), RunError> {
        let (losses, inboxes): (Vec<_>, Vec<_>) = config
            .accelerators
            .iter()
            .map(|_| mpsc::unbounded_channel())
            .unzip();
        let connection_of = connection_of(&parts.connections);
        let (abort, reasons) = mpsc::unbounded_channel();
        let state = Arc::new(ClusterState {
            dispatcher: std::sync::OnceLock::new(),
            connector: parts.connector,
            blocking: parts.blocking,
            local: parts.local,
            retry: parts.retry,
            peers: config
                .accelerators
                .iter()
                .enumerate()
                .map(|(i, a)| {
                    let connections = connection_of.iter().filter(|(peer, _)| *peer == i);
                    Mutex::new(PeerState {
                        address: a.control.to_string(),
                        outages: Outages::new(connections.count()),
                        ..PeerState::default()
                    })
                })
                .collect(),
            config: config.clone(),
            on_event: parts.on_event,
            began: Instant::now(),
            closing: AtomicBool::new(false),
            aborted: AtomicBool::new(false),
            reasons: abort,
            losses,
            lost: Mutex::default(),
            ends: Mutex::new(vec![None; connection_of.len()]),
            rails: std::sync::OnceLock::new(),
            links: parts.links,
            connection_of,
            nics: parts.nics,
        });
        let dispatcher = dispatcher(Arc::new(EventRouter(Arc::downgrade(&state))))?;
        let _ = state.dispatcher.set(dispatcher);
        let (stop, stopped) = watch::channel(false);
        let inboxes = Inboxes {
            losses: inboxes,
            reasons,
            stopped,
        };
        let task = control(state.clone(), inboxes, ready);
        let cluster = Cluster {
            state,
            stop,
            control: None,
            warmed: Mutex::default(),
            near: parts.near,
        };
        Ok((cluster, task))
    }

    /// Warms every connection up with these samples, one per size in use, as `warm_up` configures.
    /// Called before the first sample is issued. `None` where the warm-up is turned off.
    ///
    /// # Errors
    /// [`RunError`] names the connection that failed.
    pub fn warm_up(&self, samples: Vec<Sample>) -> Result<Option<WarmUpRecord>, RunError> {
        block_on(self.warm(samples))
    }

    /// Requests every accelerator's work so far. A missing answer costs a line of the summary, not
    /// the run.
    async fn read_use(&self) {
        let answers = self.ask(ClientHandle::drain).within(USE).await;
        for (i, answer) in answers.into_iter().enumerate() {
            let answer = answer.and_then(Result::ok);
            self.state.peer(i).used[0] = answer.map(|(_, _, _, used)| used);
        }
    }

    /// Work of this node's NIC threads so far.
    pub fn nic_use(&self) -> NicUse {
        self.state.dispatcher().nic_use()
    }

    /// As [`Cluster::warm_up`], on a task.
    ///
    /// # Errors
    /// As [`Cluster::warm_up`].
    pub async fn warm(&self, samples: Vec<Sample>) -> Result<Option<WarmUpRecord>, RunError> {
        let config = self.state.config.warm_up;
        if !config.is_on() {
            self.read_use().await;
            return Ok(None);
        }
        let dispatcher = self.state.dispatcher();
        let cfgs = WarmUpCfgs {
            samples,
            budget: config.budget(),
            deadline: config.deadline(),
            is_repeated: false,
        };
        let began_ns = now_ns();
        let report = match dispatcher.warm_up(&cfgs).await {
            Ok(report) => report,
            Err(e) => return Err(self.failed_warm_up(&e).await),
        };
        *lock(&self.warmed) = Some((report, began_ns));
        // Reads the work so far, which includes the warm-up and is not the run's.
        self.read_use().await;
        Ok(Some(report))
    }

    async fn failed_warm_up(&self, e: &WarmUpError) -> RunError {
        let connection = e.connection();
        let (peer, number) = self.state.connection_of[connection];
        let mut why = e.to_string();
        if e.is_loss() {
            // The end of the session says more than that of the connection.
            tokio::time::sleep(REASON).await;
            let known = self.state.peer(peer).outages.last_cause(number);
            why = known.unwrap_or(why);
        }
        RunError::new(format!(
            "connection {} (nics[{}], accelerator at {}) failed its warm-up: {why}",
            self.state.connection_name(connection),
            self.state.dispatcher().connection(connection).nic_index,
            self.state.peer(peer).address
        ))
    }

    /// Warms up again before a later phase, whose samples LoadGen has loaded anew: idle connections
    /// have lost their congestion windows. The warm-up takes about as long as the loading (`idle`),
    /// but a tenth to the whole of the budget. Connections that are down are skipped. A connection
    /// that fails now is lost as in the middle of a run. Requires an earlier [`Cluster::warm_up`].
    pub fn warm_up_again(&self, samples: Vec<Sample>, idle: Duration) {
        block_on(self.warm_again(samples, idle));
    }

    /// As [`Cluster::warm_up_again`], on a task.
    pub async fn warm_again(&self, samples: Vec<Sample>, idle: Duration) {
        let config = self.state.config.warm_up;
        if !config.is_on() {
            return;
        }
        let budget = config.budget();
        let cfgs = WarmUpCfgs {
            samples,
            budget: idle.max(budget / 10).min(budget),
            deadline: config.deadline(),
            is_repeated: true,
        };
        match self.state.dispatcher().warm_up(&cfgs).await {
            Ok(report) => {
                if let Some((first, _)) = lock(&self.warmed).as_mut() {
                    first.took_ms += report.took_ms;
                }
            }
            Err(e) => tracing::debug!("warming up again: connection {}: {e}", e.connection()),
        }
    }

    /// The dispatcher, which sends samples ([`Dispatcher::issue`]).
    pub fn dispatcher(&self) -> &Dispatcher {
        self.state.dispatcher()
    }

    /// Sends an accelerator a frame that a sound frontend does not send, by its number.
    #[cfg(feature = "testkit")]
    pub fn lie(&self, peer: usize, n: u64) {
        if let Some(handle) = &self.state.peer(peer).handle {
            handle.lie(n);
        }
    }

    /// Aborts the run: completes outstanding and later samples empty.
    pub fn abort(&self, cause: &str) {
        self.state.abort(cause);
    }

    /// Drains outstanding samples, ends every session with a bye, and stops every thread.
    pub fn finish(mut self) -> SystemRecord {
        let sides = block_on(self.leave());
        if self.state.dispatcher().outstanding() > 0 {
            self.abort("not answered within `deadlines.drain_ms`");
        }
        // Stops the NIC threads before the byes: a connection closed first by its peer looks lost.
        self.state.dispatcher().stop();
        self.stop_control();
        self.record(sides)
    }

    /// Drains outstanding samples, and takes each accelerator's side of the run and its totals.
    /// Nothing is reconnected any more. The caller then stops the dispatcher, and this cluster.
    pub async fn leave(&self) -> Vec<NodeSide> {
        let (state, dispatcher) = (&self.state, self.state.dispatcher());
        let deadline = state.config.deadlines.drain();
        let (mut sides, mut wait, mut is_drained) = (Vec::new(), LAST_WORDS, true);
        // An aborted run has no time for that.
        if !state.aborted.load(Ordering::SeqCst) {
            is_drained = dispatcher.drain(deadline).await;
            if !is_drained {
                let left = dispatcher.outstanding();
                let line = format!("{left} samples were still outstanding after {deadline:?}");
                state.note(&line);
            }
            // While the run is open.
            (sides, wait) = (self.sides().await, deadline);
        }
        state.closing.store(true, Ordering::SeqCst);
        let totals = self.ask(ClientHandle::drain).within(wait).await;
        // An idle decode node may get samples behind its totals, from prefill nodes.
        let has_roles = state.config.accelerators.iter().any(|a| !a.role.is_both());
        if is_drained || !has_roles {
            self.take_totals(totals);
        }
        sides
    }

    fn take_totals(&self, answers: Answers<Totals>) {
        for (i, answer) in answers.into_iter().enumerate() {
            if let Some(Ok((counters, batches, gpus, used))) = answer {
                let mut peer = self.state.peer(i);
                peer.drained = Some(counters);
                peer.heartbeat = None;
                peer.batches = batches;
                peer.gpus = gpus;
                peer.used[1] = Some(used);
            }
        }
    }

    /// Ends the sessions with a bye, and then the control task.
    pub fn stop(&self) {
        self.state.closing.store(true, Ordering::SeqCst);
        // An error means that the control task has ended.
        let _ = self.stop.send(true);
    }

    /// One request to each accelerator whose session is up.
    pub(super) fn ask<T>(&self, ask: impl Fn(&ClientHandle) -> Pending<T>) -> Asked<T> {
        let asked = self.state.each_peer(|peer| peer.handle.as_ref().map(&ask));
        Asked(asked)
    }

    /// The record of the run, once the dispatcher and the control task have ended.
    pub fn record(&self, sides: Vec<NodeSide>) -> SystemRecord {
        let state = &self.state;
        let ledger = state.dispatcher().counts();
        let (events, _) = self.happened();
        let warm_up = lock(&self.warmed).take();
        let warm_up = warm_up.map(|(report, _)| WarmUpRecord {
            // Those of later phases too, and those answered after a phase had failed.
            samples: ledger.warmed,
            ..report
        });
        let mut connections = state.dispatcher().connection_records();
        for (i, record) in connections.iter_mut().enumerate() {
            record.name = state.connection_name(i);
        }
        for (i, why) in &*lock(&state.lost) {
            connections[*i].lost.push(why.clone());
        }
        let accelerators = (0..state.peers.len())
            .map(|i| {
                let connections = state.connection_of.iter().filter(|(peer, _)| *peer == i);
                let mut peer = state.peer(i);
                // An accelerator without an answer to the drain has reported no later totals.
                peer.session_over(|at_ns| state.in_run(at_ns));
                peer.record(connections.count())
            })
            .collect();
        let (_, losses) = self.happened();
        let refusals = state
            .each_peer(|peer| peer.refusals.records().to_vec())
            .concat();
        let rails = (0..state.peers.len())
            .filter_map(|p| {
                let node = state.peer(p).node.clone();
                let report = state.dispatcher().rail_report(p);
                Some(state.rails.get()?.records(&report, p, &node))
            })
            .flatten()
            .collect();
        let nics = state.config.nics.iter().map(|n| n.facts().label);
        let (staged_copies, staged_bytes) = state.dispatcher().staged();
        SystemRecord {
            refusals,
            ledger,
            accelerators,
            connections,
            rails,
            warm_up,
            staged_copies,
            staged_bytes,
            queued: state.dispatcher().queued(),
            posting_rule: Some(state.dispatcher().posting_rule()),
            losses,
            facts: Some(state.local.facts.clone()),
            events,
            sides,
            readings: self.readings(),
            nic_threads: state.dispatcher().nic_threads() as u64,
            waits: state.dispatcher().waits(),
            places: Places {
                samples: state.dispatcher().sample_nodes().into_iter().collect(),
                ..places(nics.zip(&self.near), state.dispatcher().placed())
            },
            ..SystemRecord::default()
        }
    }

    fn stop_control(&mut self) {
        self.stop();
        if let Some(thread) = self.control.take() {
            join_all(vec![thread], LEAVING);
        }
    }
}

impl Drop for Cluster {
    fn drop(&mut self) {
        self.stop_control();
        // Stops the NIC threads while the state, which takes their events, still exists.
        self.state.dispatcher().stop();
    }
}

/// Peer of each connection, and its index within the peer.
fn connection_of(connections: &[ConnectionCfgs]) -> ConnectionOf {
    let mut next: BTreeMap<usize, u16> = BTreeMap::new();
    let number = |c: &ConnectionCfgs| {
        let next = next.entry(c.peer).or_default();
        *next += 1;
        (c.peer, *next - 1)
    };
    connections.iter().map(number).collect()
}

/// Plans the connections: every NIC entry has its connections to every accelerator. Returns each
/// connection's settings.
///
/// # Errors
/// [`RunError`]: sizes overflow, or there are too many connections.
pub(crate) fn plan(config: &FrontendConfig) -> Result<Vec<ConnectionCfgs>, RunError> {
    let too_large = || RunError::new(format!("model {}: its sizes overflow", config.model.name));
    let mut connections = Vec::new();
    for (peer, accelerator) in config.accelerators.iter().enumerate() {
        let role = accelerator.role;
        let strides = slot_strides(&config.model, role);
        let (request, response) = strides.ok_or_else(too_large)?;
        if request == 0 || request > u32::MAX as usize || response > u32::MAX as usize {
            return Err(RunError::new(format!(
                "model {}: {request} bytes a sample and {response} a response; both must be 1 to \
                 {}",
                config.model.name,
                u32::MAX
            )));
        }
        let mut index = 0u16;
        for (nic_index, nic) in config.nics.iter().enumerate() {
            let slots = nic.resolve_slots(request.max(response)).clamp(1, MAX_SLOTS);
            for _ in 0..nic.facts().connections {
                connections.push(ConnectionCfgs {
                    peer,
                    role,
                    nic_index,
                    slots,
                    response_stride: response,
                    request_stride: request,
                });
                index = index.checked_add(1).ok_or_else(|| {
                    RunError::new("more than 65,535 connections to one accelerator".to_owned())
                })?;
            }
        }
    }
    Ok(connections)
}
