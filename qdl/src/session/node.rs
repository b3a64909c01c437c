//! The accelerator's side: one frontend at a time, its lanes and their memory.

use std::{
    collections::HashMap,
    net::SocketAddr,
    sync::{
        Arc, Mutex, MutexGuard, OnceLock, PoisonError, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::{Duration, Instant},
};

use tokio::{
    net::{TcpListener, TcpStream},
    sync::watch,
};

use super::{
    request_stride, response_stride,
    transport::{IbNic, ServerNic},
};
use crate::{
    config::IbNicConfig,
    control::{
        self, Auth, ControlError, Counters, ErrorCode, GrantTransport, LaneGrant, LaneRequest,
        Refusal, RequestTransport, ServerHandle, ServerParams, SessionHandler, Timing,
        message::Hex,
    },
    fabric::{
        Broken, MAX_SLOTS,
        ib::{IbError, check_memory},
        tcp::{self, Preamble, TcpCfgs, TcpDevice, TcpError},
    },
    model::ModelSpec,
    quarantine::Quarantine,
    rail::RailCfgs,
    serve::{LaneLost, OnLaneLost, ServeCounts, ServeLane, ServeLaneCfgs, Server, Service},
    stats::BatchSizes,
};

/// How often quarantined lanes are looked at.
const LOOK: Duration = Duration::from_millis(5);

/// Writes queued on a connection before its doorbell must be rung.
const SEND_DEPTH: usize = 256;

/// Handshakes that may be under way at once.
const HANDSHAKES: usize = 32;

/// One NIC of the node.
#[derive(Clone, Debug)]
pub struct NodeNic {
    /// Its rail thread.
    pub rail: RailCfgs,
    /// What carries its connections.
    pub fabric: NodeFabric,
}

/// What carries the connections of a [`NodeNic`].
#[derive(Clone, Debug)]
pub enum NodeFabric {
    /// Sockets.
    Tcp {
        /// Where data connections arrive.
        listen: SocketAddr,
        /// Their sizes.
        cfgs: TcpCfgs,
    },
    /// Queue pairs of an RDMA device.
    Ib(IbNicConfig),
}

/// What the engine has done since the node was started.
#[derive(Clone, Debug, Default)]
pub struct EngineTotals {
    /// Inputs copied before the engine could read them.
    pub copies: u64,
    /// Its batches.
    pub batches: BatchSizes,
}

/// What a node is made of.
#[derive(Clone)]
pub struct NodeParams {
    /// Its name, unique among all nodes.
    pub node: String,
    /// What it adds to the SUT's name.
    pub sut_name: String,
    /// Where the control plane listens.
    pub control: SocketAddr,
    /// How frontends prove who they are.
    pub auth: Auth,
    /// What its engine runs.
    pub model: ModelSpec,
    /// Its NICs, one rail thread each.
    pub nics: Vec<NodeNic>,
    /// Most bytes of slots, all connections together.
    pub memory: usize,
    /// Deadlines of the control plane.
    pub timing: Timing,
    /// How long batches may take to end after a session before its memory is written off.
    pub drain: Duration,
    /// Serve one frontend, then end.
    pub once: bool,
    /// Asks the engine for its totals.
    pub engine: Arc<dyn Fn() -> EngineTotals + Send + Sync>,
}

/// A node that could not be started.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The control plane.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// The data ports.
    #[error(transparent)]
    Data(#[from] TcpError),
    /// An RDMA device.
    #[error("nics[{index}]: {source}")]
    Ib {
        /// Which entry of `nics`.
        index: usize,
        /// What failed.
        source: IbError,
    },
    /// Threads or descriptors.
    #[error("starting: {0}")]
    Io(#[from] std::io::Error),
    /// The model's sizes.
    #[error("model {0}: its sizes overflow")]
    Model(String),
}

/// Ends a node from any thread.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<Option<String>>);

impl Stop {
    /// The node takes leave of its frontend, with these words, and ends.
    pub fn stop(&self, why: &str) {
        self.0.send_if_modified(|w| {
            let first = w.is_none();
            if first {
                *w = Some(why.to_owned());
            }
            first
        });
    }
}

/// See the module.
pub struct Node {
    params: NodeParams,
    shared: Arc<Shared>,
    control: control::Server,
    nics: Arc<[ServerNic]>,
    /// The data ports, with the rail each belongs to.
    data: Vec<(usize, TcpListener, TcpCfgs)>,
    runtime: tokio::runtime::Runtime,
    stop: watch::Sender<Option<String>>,
}

/// What rail threads, tasks and sessions share.
struct Shared {
    rails: Server,
    /// Sessions so far.
    sessions: AtomicU64,
    current: Mutex<Option<Arc<Session>>>,
    /// Lanes whose memory may still be in use, with its bytes.
    allocated: Mutex<Vec<(Weak<ServeLane>, usize)>>,
    /// What lanes that are no more had answered, and had to drop.
    settled: Mutex<(u64, u64)>,
}

fn lock<T>(m: &Mutex<T>) -> MutexGuard<'_, T> {
    m.lock().unwrap_or_else(PoisonError::into_inner)
}

impl Node {
    /// Binds every port and starts the rail threads, which deliver to `service`.
    ///
    /// # Errors
    /// [`NodeError`] names the port or key at fault.
    pub fn start(params: NodeParams, service: &Arc<dyn Service>) -> Result<Node, NodeError> {
        let overflow = || NodeError::Model(params.model.name.clone());
        request_stride(&params.model).ok_or_else(overflow)?;
        response_stride(&params.model).ok_or_else(overflow)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()?;
        let _inside = runtime.enter();
        let (mut nics, mut data) = (Vec::new(), Vec::new());
        for (index, nic) in params.nics.iter().enumerate() {
            nics.push(match &nic.fabric {
                NodeFabric::Tcp { listen, cfgs } => {
                    let listener = TcpDevice::listen(*listen)?;
                    let address = listener.local_addr().unwrap_or(*listen);
                    data.push((index, listener, *cfgs));
                    ServerNic::Tcp(address)
                }
                NodeFabric::Ib(config) => IbNic::open(config)
                    .map(ServerNic::Ib)
                    .map_err(|source| NodeError::Ib { index, source })?,
            });
        }
        let control = runtime.block_on(control::Server::bind(
            params.control,
            ServerParams {
                node: params.node.clone(),
                auth: params.auth.clone(),
                model: params.model.clone(),
                timing: params.timing,
                pending: HANDSHAKES,
            },
        ))?;
        let back: Arc<OnceLock<Weak<Shared>>> = Arc::default();
        let weak = back.clone();
        let lost: Arc<OnLaneLost> = Arc::new(move |l: LaneLost| {
            if let Some(shared) = weak.get().and_then(Weak::upgrade) {
                shared.lost(&l);
            }
        });
        let rails = params.nics.iter().map(|n| n.rail.clone()).collect();
        let shared = Arc::new(Shared {
            rails: Server::new(rails, service, &lost)?,
            sessions: AtomicU64::new(0),
            current: Mutex::default(),
            allocated: Mutex::default(),
            settled: Mutex::default(),
        });
        let _ = back.set(Arc::downgrade(&shared));
        let (stop, _) = watch::channel(None);
        Ok(Node {
            params,
            shared,
            control,
            nics: nics.into(),
            data,
            runtime,
            stop,
        })
    }

    /// Where the control plane listens, with the port the system chose.
    pub fn control_address(&self) -> SocketAddr {
        self.control.address()
    }

    /// For ending it.
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Serves frontends, one after the other, until stopped (or one, with `once`). Returns why it ended,
    /// if it was stopped.
    pub fn run(self) -> Option<String> {
        let Node {
            params,
            shared,
            mut control,
            nics,
            data,
            runtime,
            stop,
        } = self;
        let params = Arc::new(params);
        let why = runtime.block_on(async {
            for (rail, listener, cfgs) in data {
                tokio::spawn(let_in(listener, rail, shared.clone(), cfgs));
            }
            let mut stopped = stop.subscribe();
            loop {
                let session = tokio::select! {
                    s = control.accept_session() => s,
                    why = told(&mut stopped) => break Some(why),
                };
                let session = match session {
                    Ok(s) => s,
                    Err(e) => break Some(e.to_string()),
                };
                let peer = session.peer_node().to_owned();
                tracing::info!("serving {peer} ({})", session.peer_address());
                let state = Arc::new(Session {
                    id: shared.sessions.fetch_add(1, Ordering::Relaxed) + 1,
                    params: params.clone(),
                    shared: Arc::downgrade(&shared),
                    handle: session.handle(),
                    local: session.peer_address(),
                    nics: nics.clone(),
                    lanes: Mutex::default(),
                    waiting: Mutex::default(),
                    arrived_before: shared.rails.counts().arrived,
                    settled_before: *lock(&shared.settled),
                    engine_before: (params.engine)(),
                });
                *lock(&shared.current) = Some(state.clone());
                let handle = session.handle();
                let watching = tokio::spawn(state.clone().watch());
                let mut running = tokio::spawn(session.run(state.clone()));
                let ended = tokio::select! {
                    cause = &mut running => Ok(cause),
                    why = told(&mut stopped) => {
                        handle.close(ErrorCode::ShuttingDown, &why);
                        let _ = tokio::time::timeout(Duration::from_secs(1), &mut running).await;
                        Err(why)
                    }
                };
                watching.abort();
                // Rail threads still report the lanes they take down: until then it is the current session.
                state.release(params.drain).await;
                *lock(&shared.current) = None;
                match ended {
                    Ok(Ok(cause)) if cause.is_clean() => tracing::info!("{peer} is done"),
                    Ok(Ok(cause)) => tracing::warn!("the session with {peer} ended: {cause}"),
                    Ok(Err(e)) => tracing::warn!("the session with {peer} failed: {e}"),
                    Err(why) => break Some(why),
                }
                if params.once {
                    break None;
                }
            }
        });
        shared.rails.stop();
        runtime.shutdown_timeout(Duration::from_millis(200));
        why
    }

    /// What the rail threads have done so far.
    pub fn counts(&self) -> ServeCounts {
        self.shared.rails.counts()
    }
}

impl Shared {
    fn lost(&self, l: &LaneLost) {
        let current = lock(&self.current).clone();
        if let Some(session) = current.filter(|s| s.id == l.session) {
            session.lost_here(l);
        }
    }

    /// Bytes of slots in use, those that a batch still reads included.
    fn in_use(&self) -> usize {
        let mut allocated = lock(&self.allocated);
        allocated.retain(|(lane, _)| lane.strong_count() > 0);
        allocated.iter().map(|(_, bytes)| bytes).sum()
    }
}

/// Waits until the node is told to end, and returns why.
async fn told(stopped: &mut watch::Receiver<Option<String>>) -> String {
    match stopped.wait_for(Option::is_some).await {
        Ok(why) => why.clone().unwrap_or_default(),
        // The node itself holds the sender.
        Err(_) => std::future::pending().await,
    }
}

/// Lets data connections in that show the key of a lane.
async fn let_in(listener: TcpListener, rail: usize, shared: Arc<Shared>, cfgs: TcpCfgs) {
    loop {
        match listener.accept().await {
            Ok((stream, address)) => {
                let shared = shared.clone();
                tokio::spawn(async move {
                    if let Err(why) = welcome(stream, rail, &shared, &cfgs).await {
                        tracing::warn!("data connection from {address} shown out: {why}");
                    }
                });
            }
            Err(e) => {
                // Out of descriptors, most likely: wait until some are given back.
                tracing::warn!("data port: cannot accept: {e}");
                tokio::time::sleep(Duration::from_millis(50)).await;
            }
        }
    }
}

async fn welcome(
    mut stream: TcpStream,
    rail: usize,
    shared: &Shared,
    cfgs: &TcpCfgs,
) -> Result<(), String> {
    let preamble = TcpDevice::read_preamble(&mut stream)
        .await
        .ok_or("it does not begin with this protocol's preamble")?;
    let session = lock(&shared.current)
        .clone()
        .ok_or("no frontend is being served")?;
    let waiting = session
        .take_waiting(&preamble)
        .ok_or("its key is not one that was handed out")?;
    let (lane, expected) = waiting;
    if expected != rail {
        return Err(format!("its lane belongs to NIC {expected}, not {rail}"));
    }
    TcpDevice::welcome(&mut stream)
        .await
        .and_then(|()| stream.into_std())
        .and_then(|s| tcp::link(s, lane.endpoint(SEND_DEPTH), cfgs))
        .map(|link| shared.rails.attach(rail, lane, link))
        .map_err(|e| e.to_string())
}

struct LaneState {
    /// There while its memory is in use.
    lane: Option<Arc<ServeLane>>,
    quarantine: Quarantine,
    rail: usize,
    /// Its local side is destroyed (or was never made).
    down: bool,
}

/// One frontend being served.
struct Session {
    id: u64,
    params: Arc<NodeParams>,
    shared: Weak<Shared>,
    handle: ServerHandle,
    /// The frontend's address; data addresses are given in its family.
    local: SocketAddr,
    nics: Arc<[ServerNic]>,
    lanes: Mutex<HashMap<u16, LaneState>>,
    /// Lanes granted whose data connection has not come yet, by key.
    waiting: Mutex<HashMap<[u8; 16], u16>>,
    arrived_before: u64,
    settled_before: (u64, u64),
    engine_before: EngineTotals,
}

impl Session {
    /// The lane a preamble names, once, if its key and epoch are right.
    fn take_waiting(&self, p: &Preamble) -> Option<(Arc<ServeLane>, usize)> {
        let lane = lock(&self.waiting).remove(&p.key)?;
        let mut lanes = lock(&self.lanes);
        let state = lanes.get_mut(&lane)?;
        let fits =
            p.lane == lane && state.quarantine.epoch() == p.epoch && state.quarantine.is_live();
        let serve = state.lane.clone().filter(|_| fits)?;
        state.down = false;
        Some((serve, state.rail))
    }

    /// The rail thread has destroyed this end of a lane.
    fn lost_here(&self, l: &LaneLost) {
        let mut lanes = lock(&self.lanes);
        if let Some(state) = lanes.get_mut(&l.lane)
            && state.quarantine.epoch() == l.epoch
        {
            state.down = true;
            if state.quarantine.lost(l.epoch) {
                self.handle.lane_lost(l.lane, l.epoch, &l.cause.to_string());
                tracing::info!(
                    "connection {} (epoch {}) lost: {}",
                    l.lane,
                    l.epoch,
                    l.cause
                );
            }
        }
    }

    /// Confirms to the frontend when this end of a lost lane is down and no batch reads its slots.
    async fn watch(self: Arc<Self>) {
        loop {
            tokio::time::sleep(LOOK).await;
            let mut lanes = lock(&self.lanes);
            for (number, state) in lanes.iter_mut() {
                self.let_go(*number, state);
            }
        }
    }

    fn let_go(&self, number: u16, state: &mut LaneState) {
        if state.quarantine.is_live() || !state.down {
            return;
        }
        if let Some(lane) = state.lane.take_if(|l| l.readers() == 0) {
            self.settle(&lane);
            drop(lane);
            let epoch = state.quarantine.epoch();
            state.quarantine.reset_here(epoch);
            self.handle.lane_reset(number, epoch);
        }
    }

    fn settle(&self, lane: &ServeLane) {
        if let Some(shared) = self.shared.upgrade() {
            let mut settled = lock(&shared.settled);
            settled.0 += lane.responded();
            settled.1 += lane.late();
        }
    }

    /// After the session: every lane goes, and with the last batch that reads it its memory.
    async fn release(&self, patience: Duration) {
        let end = Instant::now() + patience;
        loop {
            let busy = {
                let mut lanes = lock(&self.lanes);
                lanes.retain(|_, state| {
                    let gone = state.lane.take_if(|l| state.down && l.readers() == 0);
                    if let Some(lane) = &gone {
                        self.settle(lane);
                    }
                    state.lane.is_some()
                });
                lanes.len()
            };
            if busy == 0 {
                return;
            }
            if Instant::now() >= end {
                tracing::warn!(
                    "{busy} connections are still read by batches after {patience:?}; their slots stay out of use"
                );
                return;
            }
            tokio::time::sleep(LOOK).await;
        }
    }

    fn totals(&self) -> (Counters, bool) {
        let Some(shared) = self.shared.upgrade() else {
            return (Counters::default(), true);
        };
        let (mut responded, mut late) = *lock(&shared.settled);
        {
            let lanes = lock(&self.lanes);
            for lane in lanes.values().filter_map(|s| s.lane.as_ref()) {
                responded += lane.responded();
                late += lane.late();
            }
        }
        let mut counters = Counters {
            arrived: shared.rails.counts().arrived - self.arrived_before,
            responded: responded - self.settled_before.0,
            dropped_late: late - self.settled_before.1,
            ..Counters::default()
        };
        let engine = (self.params.engine)();
        counters.copies = engine.copies.saturating_sub(self.engine_before.copies);
        counters.batches = engine.batches.since(&self.engine_before.batches).batches();
        (
            counters,
            counters.arrived <= counters.responded + counters.dropped_late,
        )
    }

    fn grant(&self, shared: &Shared, r: &LaneRequest) -> Result<LaneGrant, Refusal> {
        let refuse = |code, text| Err(Refusal { code, text });
        let model = &self.params.model;
        let (request, response) = (
            request_stride(model).unwrap_or(usize::MAX),
            response_stride(model).unwrap_or(usize::MAX),
        );
        let slots = r.slots as usize;
        if slots == 0 || slots > MAX_SLOTS {
            let text = format!(
                "lane {}: {slots} slots, 1 to {MAX_SLOTS} are possible",
                r.lane
            );
            return refuse(ErrorCode::Protocol, text);
        }
        if (r.request_stride as usize, r.response_stride as usize) != (request, response) {
            let text = format!(
                "lane {}: slots of {} and {} bytes, model {} has {request} and {response}",
                r.lane, r.request_stride, r.response_stride, model.name
            );
            return refuse(ErrorCode::Model, text);
        }
        let cfgs = ServeLaneCfgs {
            session: self.id,
            lane: r.lane,
            epoch: r.epoch,
            slots,
            request_stride: request,
            response_stride: response,
        };
        let bytes = cfgs.bytes().unwrap_or(usize::MAX);
        let in_use = shared.in_use();
        if in_use.saturating_add(bytes) > self.params.memory {
            let text = format!(
                "lane {}: {slots} slots take {} MiB, {} of {} MiB are in use: raise `memory_mib` of {}, or \
                 lower `slots` or `connections` of the frontend",
                r.lane,
                bytes >> 20,
                in_use >> 20,
                self.params.memory >> 20,
                self.params.node
            );
            return refuse(ErrorCode::Budget, text);
        }
        let rail = usize::from(r.rail) % self.params.nics.len().max(1);
        let no_random = |e: ControlError| Refusal {
            code: ErrorCode::ShuttingDown,
            text: e.to_string(),
        };
        let key = Hex::<16>::random().map_err(no_random)?;
        let no_memory = |e: &dyn std::error::Error| Refusal {
            code: ErrorCode::Budget,
            text: format!("lane {}: {e}", r.lane),
        };
        let lane = Arc::new(ServeLane::new(cfgs).map_err(|e| no_memory(&e))?);
        let (transport, link) = match (&self.nics[rail], &r.transport) {
            (ServerNic::Tcp(address), RequestTransport::Tcp {}) => {
                let address = self.reachable(*address);
                (GrantTransport::Tcp { address }, None)
            }
            (ServerNic::Ib(nic), RequestTransport::Ib { end }) => {
                check_memory(nic.name(), bytes).map_err(|e| no_memory(&e))?;
                let (end, link) = nic
                    .accept(lane.endpoint(SEND_DEPTH), end)
                    .map_err(|e| no_memory(&e))?;
                (GrantTransport::Ib { end }, Some(link))
            }
            (nic, wanted) => {
                let text = format!(
                    "lane {}: asks for the {} fabric, and nics[{rail}] of {} is {}",
                    r.lane,
                    wanted.fabric(),
                    self.params.node,
                    nic.fabric()
                );
                return refuse(ErrorCode::Protocol, text);
            }
        };
        {
            let mut lanes = lock(&self.lanes);
            let state = lanes.entry(r.lane).or_insert_with(|| LaneState {
                lane: None,
                quarantine: Quarantine::new(),
                rail,
                down: true,
            });
            if let Err(e) = state.quarantine.open(r.epoch) {
                return refuse(ErrorCode::Protocol, format!("lane {}: {e}", r.lane));
            }
            lock(&shared.allocated).push((Arc::downgrade(&lane), bytes));
            *state = LaneState {
                lane: Some(lane.clone()),
                quarantine: state.quarantine.clone(),
                rail,
                // Until a data connection comes there is nothing to take down.
                down: link.is_none(),
            };
        }
        match link {
            Some(link) => shared.rails.attach(rail, lane, link),
            None => {
                lock(&self.waiting).insert(key.0, r.lane);
            }
        }
        Ok(LaneGrant {
            lane: r.lane,
            epoch: r.epoch,
            slots: r.slots,
            key,
            transport,
        })
    }

    /// The address by which the frontend reached the control plane serves for data too, where none is configured.
    fn reachable(&self, mut address: SocketAddr) -> SocketAddr {
        if address.ip().is_unspecified() {
            address.set_ip(if self.local.ip().is_loopback() {
                self.local.ip()
            } else {
                self.params.control.ip()
            });
        }
        address
    }

    /// Takes grants back that were made for a request which failed as a whole.
    fn take_back(&self, shared: &Shared, grants: &[LaneGrant]) {
        let taken: Vec<_> = grants.iter().map(|g| (g.lane, g.epoch)).collect();
        let session = self.id;
        let cause = Broken::GivenUp("its request was refused as a whole".to_owned());
        // Those over a queue pair are up already.
        shared.rails.give_up(
            move |c: &ServeLaneCfgs| c.session == session && taken.contains(&(c.lane, c.epoch)),
            &cause,
        );
        let mut lanes = lock(&self.lanes);
        let mut waiting = lock(&self.waiting);
        for g in grants {
            lanes.remove(&g.lane);
            waiting.remove(&g.key.0);
        }
    }
}

impl SessionHandler for Session {
    fn open(&self, requests: &[LaneRequest]) -> Result<Vec<LaneGrant>, Refusal> {
        let Some(shared) = self.shared.upgrade() else {
            return Err(Refusal {
                code: ErrorCode::ShuttingDown,
                text: "this node is stopping".to_owned(),
            });
        };
        let mut grants = Vec::with_capacity(requests.len());
        for r in requests {
            match self.grant(&shared, r) {
                Ok(g) => grants.push(g),
                Err(refusal) => {
                    self.take_back(&shared, &grants);
                    return Err(refusal);
                }
            }
        }
        Ok(grants)
    }

    fn start(&self) -> Result<(), Refusal> {
        Ok(())
    }

    fn lane_lost(&self, lane: u16, epoch: u32, cause: &str) {
        {
            let mut lanes = lock(&self.lanes);
            if let Some(state) = lanes.get_mut(&lane) {
                state.quarantine.lost(epoch);
            }
        }
        lock(&self.waiting).retain(|_, l| *l != lane);
        if let Some(shared) = self.shared.upgrade() {
            let session = self.id;
            let which =
                move |c: &ServeLaneCfgs| (c.session, c.lane, c.epoch) == (session, lane, epoch);
            let cause = Broken::GivenUp(format!("the frontend lost it: {cause}"));
            shared.rails.give_up(which, &cause);
        }
    }

    fn lane_reset(&self, lane: u16, epoch: u32) {
        if let Some(state) = lock(&self.lanes).get_mut(&lane) {
            state.quarantine.reset_there(epoch);
        }
    }

    fn drain(&self) -> Option<Counters> {
        let (counters, done) = self.totals();
        done.then_some(counters)
    }

    fn batches(&self) -> BatchSizes {
        (self.params.engine)()
            .batches
            .since(&self.engine_before.batches)
    }

    fn name(&self) -> String {
        self.params.sut_name.clone()
    }

    fn counters(&self) -> Counters {
        self.totals().0
    }

    fn gone(&self, cause: &ControlError) {
        lock(&self.waiting).clear();
        if let Some(shared) = self.shared.upgrade() {
            let session = self.id;
            let which = move |c: &ServeLaneCfgs| c.session == session;
            shared.rails.give_up(
                which,
                &Broken::GivenUp(format!("the session ended: {cause}")),
            );
        }
    }
}
