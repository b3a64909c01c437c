//! The accelerator's side of a run: serves one frontend at a time, with its connections and memory.

use std::{
    net::SocketAddr,
    sync::{
        Arc, Mutex, OnceLock, Weak,
        atomic::{AtomicU64, Ordering},
    },
    time::Duration,
};

use record::{BatchSizes, EngineInfo, EngineUse, GpuRecord, SequenceTotals, ServedReport};
use tokio::{net::TcpListener, sync::watch};

use super::{
    accept::let_in,
    api::NicError,
    budget::Budget,
    crew::{accelerator_crew, near},
    facts::node_facts,
    lock,
    ofi_nic::OfiNic,
    request_stride, response_stride,
    served::{Drained, Session},
    settings,
    side::Side,
    transport::{IbNic, ServerNic},
};
use crate::{
    config::{AcceleratorConfig, NicFabric},
    control::{self, AuthError, ControlError, ErrorCode, ServerParams},
    model::ModelSpec,
    rails::Score,
    serve::{ConnectionLost, OnConnectionLost, ServeConnection, ServeCounts, Server, Service},
    topology::LinkWatch,
    wire::Description,
};
use fabric::{
    os::{Near, more_open_files},
    tcp::{TcpCfgs, TcpDevice, TcpError},
};

/// Most places in the lobby of the control port, and in the lobbies of all data ports together. The
/// limit of open files is raised for them; otherwise each uses a quarter of the limit.
const PLACES: usize = 2_048;
/// Fewest places in a lobby.
const FEWEST_PLACES: usize = 32;

/// Totals of the engine since the node started.
#[derive(Clone, Debug, Default)]
pub struct EngineTotals {
    /// Inputs copied before the engine could read them.
    pub copies: u64,
    /// Batches by size.
    pub batches: BatchSizes,
    /// Totals of sequences, where the engine batches by itself.
    pub sequences: Option<SequenceTotals>,
    /// Health of this node's interior, where measured.
    pub interior: Option<Score>,
    /// Record of each GPU.
    pub gpus: Vec<GpuRecord>,
    /// Work of the engine.
    pub used: EngineUse,
}

/// Parameters of a node beside its configuration.
#[derive(Clone)]
pub struct NodeParams {
    /// This node's part of the SUT's name.
    pub sut_name: String,
    /// The engine's model, taken from the model file where the configuration leaves it open.
    pub model: ModelSpec,
    /// Description of the engine for frontends.
    pub engine_info: EngineInfo,
    /// Serves one frontend, then ends.
    pub once: bool,
    /// Returns the engine's totals.
    pub engine: Arc<dyn Fn() -> EngineTotals + Send + Sync>,
    /// Describes the node and its machine, or says why it cannot. Called on a thread that may
    /// block.
    pub describe: Describe,
}

/// Type of [`NodeParams::describe`].
pub type Describe = Arc<dyn Fn() -> Result<Description, String> + Send + Sync>;

/// Error of starting a node.
#[derive(Debug, thiserror::Error)]
pub enum NodeError {
    /// The control plane failed.
    #[error(transparent)]
    Control(#[from] ControlError),
    /// A data port failed.
    #[error(transparent)]
    Data(#[from] TcpError),
    /// An RDMA or libfabric NIC failed.
    #[error(transparent)]
    Nic(#[from] NicError),
    /// The token is invalid.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// No thread or descriptor is left.
    #[error("starting: {0}")]
    Io(#[from] std::io::Error),
    /// The model's sizes overflow.
    #[error("model {0}: its sizes overflow")]
    Model(String),
}

/// Handle that stops a node from any thread.
#[derive(Clone, Debug)]
pub struct Stop(watch::Sender<Option<String>>);

impl Stop {
    /// Stops the node, which sends the reason `why` to its frontend. Later calls have no effect.
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

/// The accelerator's node, before [`Node::run`].
pub struct Node {
    config: Arc<AcceleratorConfig>,
    params: Arc<NodeParams>,
    shared: Arc<Shared>,
    control: control::Server,
    nics: Arc<[ServerNic]>,
    links: Arc<[LinkWatch]>,
    /// Placement of each NIC.
    near: Arc<[Near]>,
    /// Listeners of the data ports, with the index of the NIC.
    data: Vec<(usize, TcpListener, TcpCfgs)>,
    runtime: tokio::runtime::Runtime,
    /// Places in the lobby of each data port.
    strangers: usize,
    stop: watch::Sender<Option<String>>,
}

/// State that NIC threads, tasks and sessions share.
pub(super) struct Shared {
    pub server: Server,
    /// Consumer of arrivals.
    pub service: Arc<dyn Service>,
    /// Number of sessions so far.
    pub sessions: AtomicU64,
    pub current: Mutex<Option<Arc<Session>>>,
    /// Memory budget of slots.
    pub budget: Budget<ServeConnection>,
    /// Totals of connections that have ended.
    pub settled: Mutex<Settled>,
}

/// Totals of connections that have ended.
#[derive(Clone, Copy, Debug, Default)]
pub(super) struct Settled {
    pub responded: u64,
    pub refused: u64,
    pub late: u64,
    pub parts: u64,
}

impl Node {
    /// Binds every port and starts the NIC threads, which deliver to `service`.
    ///
    /// # Errors
    /// [`NodeError`] names the port or key at fault.
    pub fn start(
        config: &AcceleratorConfig,
        params: NodeParams,
        service: &Arc<dyn Service>,
    ) -> Result<Node, NodeError> {
        let overflow = || NodeError::Model(params.model.name.clone());
        request_stride(&params.model).ok_or_else(overflow)?;
        response_stride(&params.model).ok_or_else(overflow)?;
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()?;
        let _inside = runtime.enter();
        let (files, more) = more_open_files(2 * PLACES as u64);
        let places = (more / 2).max(files / 4).min(PLACES as u64) as usize;
        let (mut nics, mut data, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for (index, nic) in config.nics.iter().enumerate() {
            links.push(settings::link(nic));
            nics.push(match &nic.fabric {
                NicFabric::Tcp(tcp) => {
                    let listen = tcp.at();
                    let congestion = settings::congestion(tcp, &nic.label())?;
                    let listener = TcpDevice::listen(listen, congestion.as_deref())?;
                    let address = listener.local_addr().unwrap_or(listen);
                    data.push((index, listener, settings::tcp(nic, tcp, &config.deadlines)));
                    ServerNic::Tcp(address)
                }
                NicFabric::Ib(ib) => IbNic::open(nic, ib)
                    .map(ServerNic::Ib)
                    .map_err(NicError::of(index))?,
                NicFabric::Ofi(ofi) => OfiNic::open(nic, ofi, 1)
                    .map(ServerNic::Ofi)
                    .map_err(NicError::of(index))?,
            });
        }
        let control = runtime.block_on(control::Server::bind(
            config.control.listen,
            ServerParams {
                node: config.node.clone(),
                auth: settings::auth(config.auth())?,
                model: params.model.clone(),
                engine: params.engine_info.clone(),
                facts: node_facts(&config.nics),
                timing: settings::timing(&config.deadlines),
                pending: places.max(FEWEST_PLACES),
            },
        ))?;
        let back: Arc<OnceLock<Weak<Shared>>> = Arc::default();
        let weak = back.clone();
        let lost: Arc<OnConnectionLost> = Arc::new(move |l: ConnectionLost| {
            if let Some(shared) = weak.get().and_then(Weak::upgrade) {
                shared.lost(&l);
            }
        });
        let near: Arc<[Near]> = near(&config.nics).into();
        let crew = accelerator_crew(config);
        let share = |nic: &usize| settings::nic_thread(*nic, &config.nics[*nic], &near[*nic]);
        let shares = crew.nic_of.iter().map(share).collect();
        let shared = Arc::new(Shared {
            server: Server::with_crew(shares, &crew, service, &lost)?,
            service: service.clone(),
            sessions: AtomicU64::new(0),
            current: Mutex::default(),
            budget: Budget::new(),
            settled: Mutex::default(),
        });
        let _ = back.set(Arc::downgrade(&shared));
        let (stop, _) = watch::channel(None);
        Ok(Node {
            config: Arc::new(config.clone()),
            params: Arc::new(params),
            shared,
            control,
            nics: nics.into(),
            links: links.into(),
            near,
            data,
            runtime,
            strangers: (places / config.nics.len().max(1)).max(FEWEST_PLACES),
            stop,
        })
    }

    /// Address of the control plane, with the port that the system chose.
    pub fn control_address(&self) -> SocketAddr {
        self.control.address()
    }

    /// Handle that stops the node.
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Serves frontends, one after another, until stopped (with `once`: one frontend). Returns the
    /// reason of the stop, if it was stopped.
    pub fn run(self) -> Option<String> {
        self.run_with(&mut |_| {})
    }

    /// As [`Node::run`]; `served` gets the report of each frontend once its connections are down.
    pub fn run_with(self, served: &mut dyn FnMut(&ServedReport)) -> Option<String> {
        let Node {
            config,
            params,
            shared,
            mut control,
            nics,
            links,
            near,
            data,
            runtime,
            strangers,
            stop,
        } = self;
        let why = runtime.block_on(async {
            for (nic_index, listener, cfgs) in data {
                let shared = shared.clone();
                let elsewhere = format!(
                    "this is the data port of nics[{nic_index}] of {}, whose control port is {}: name that in \
                     accelerators[].control",
                    config.node,
                    control.address().port()
                );
                let guests = (strangers, elsewhere);
                tokio::spawn(let_in(listener, guests, nic_index, shared, cfgs));
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
                let counts = shared.server.counts();
                let state = Arc::new(Session {
                    id: shared.sessions.fetch_add(1, Ordering::Relaxed) + 1,
                    config: config.clone(),
                    params: params.clone(),
                    shared: Arc::downgrade(&shared),
                    handle: session.handle(),
                    local: session.local_address(),
                    stream: session.stream(),
                    nics: nics.clone(),
                    connections: Mutex::default(),
                    arrived_before: counts.arrived,
                    settled_before: *lock(&shared.settled),
                    engine_before: (params.engine)(),
                    waits_before: (counts.sleeps, counts.wakeups),
                    losses: tokio::sync::Notify::new(),
                    ended: Mutex::default(),
                    lost: Mutex::default(),
                    reasons: Arc::default(),
                    drained: Drained::default(),
                    side: Side::default(),
                    links: links.clone(),
                    near: near.clone(),
                });
                *lock(&shared.current) = Some(state.clone());
                let handle = session.handle();
                let watching = tokio::spawn(state.clone().watch());
                let gathering = tokio::spawn(Side::gather(state.clone()));
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
                gathering.abort();
                // NIC threads still report the connections that they take down, so the session
                // stays current until then.
                state.release(config.deadlines.drain()).await;
                *lock(&shared.current) = None;
                let clean = matches!(&ended, Ok(Ok(cause)) if cause.is_clean());
                served(&state.report(&peer, clean));
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
        shared.server.stop();
        runtime.shutdown_timeout(Duration::from_millis(200));
        why
    }

    /// Totals of the NIC threads so far.
    pub fn counts(&self) -> ServeCounts {
        self.shared.server.counts()
    }
}

impl Shared {
    fn lost(&self, l: &ConnectionLost) {
        let current = lock(&self.current).clone();
        if let Some(session) = current.filter(|s| s.id == l.session) {
            session.lost_here(l);
        }
    }
}

/// Waits for the stop, and returns its reason.
async fn told(stopped: &mut watch::Receiver<Option<String>>) -> String {
    match stopped.wait_for(Option::is_some).await {
        Ok(why) => why.clone().unwrap_or_default(),
        // Impossible: the node holds the sender.
        Err(_) => std::future::pending().await,
    }
}
