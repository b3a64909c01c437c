//! The accelerator's side of a run: serves one frontend at a time, with its connections and memory.

use std::{
    net::SocketAddr,
    sync::{Arc, Mutex},
    time::Duration,
};

use record::ServedReport;
use tokio::sync::{oneshot, watch};

use super::{
    budget::Budget,
    data_port::admit_all,
    node_state::{NodeFigures, NodeParams, NodeState},
    session::{CurrentSession, Session},
};
use crate::{
    config::{AcceleratorConfig, Auth},
    control::{self, ErrorCode, LocalNode, RolePart},
    model::ModelSpec,
    run::{
        crew::{accelerator_crew, near},
        error::NodeError,
        facts::node_facts,
        lock,
        nics::{self, DataPort},
        request_stride, response_stride, settings,
    },
    serve::{ConnectionLost, OnConnectionLost, Server, Service},
};
use fabric::os::more_open_files;

/// Most places in the lobby of the control port, and in the lobbies of all data ports together. The
/// limit of open files is raised for them; otherwise each uses a quarter of the limit.
const PLACES: usize = 2_048;
const FEWEST_PLACES: usize = 32;

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

/// The accelerator's node, before [`Node::run_with`].
pub struct Node {
    state: Arc<NodeState>,
    current: Arc<CurrentSession>,
    control: control::Server,
    /// Listeners of the data ports, with the index of the NIC.
    data: Vec<(usize, DataPort)>,
    runtime: tokio::runtime::Runtime,
    /// Places in the lobby of each data port.
    strangers: usize,
    stop: watch::Sender<Option<String>>,
}

/// A node whose control port is open while its engine loads: frontends hear that they have to wait.
pub struct LoadingNode {
    config: AcceleratorConfig,
    control: control::Server,
    /// Places in the lobby of the control port.
    places: usize,
    /// Drives the control port until `loaded` is dropped; returns the runtime.
    driver: std::thread::JoinHandle<tokio::runtime::Runtime>,
    loaded: oneshot::Sender<()>,
}

impl LoadingNode {
    /// Binds the control port.
    ///
    /// # Errors
    /// [`NodeError`] names the port or key at fault.
    pub fn listen(config: &AcceleratorConfig) -> Result<LoadingNode, NodeError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()?;
        let (files, more) = more_open_files(2 * PLACES as u64);
        let places = (more / 2).max(files / 4).min(PLACES as u64) as usize;
        if config.auth() == Auth::None {
            tracing::warn!(
                "auth: none: sessions are encrypted and not authenticated, and any frontend that \
                 reaches {} is served",
                config.control.listen
            );
        }
        let control = runtime.block_on(control::Server::bind(
            config.control.listen,
            places.max(FEWEST_PLACES),
            LocalNode {
                node: config.node.clone(),
                auth: settings::auth(config.auth())?,
                // The engine determines the model.
                model: ModelSpec::opaque(&config.model.name, 0, 0),
                own: RolePart::Loading,
                facts: node_facts(&config.nics),
                timing: settings::timing(&config.deadlines),
            },
        ))?;
        let (loaded, is_loaded) = oneshot::channel::<()>();
        let driver = std::thread::Builder::new().name("qdl-control".to_owned());
        let driver = driver.spawn(move || {
            // The error is the sender's drop.
            let _ = runtime.block_on(is_loaded);
            runtime
        })?;
        Ok(LoadingNode {
            config: config.clone(),
            control,
            places,
            driver,
            loaded,
        })
    }

    /// Address of the control plane, with the port that the system chose.
    pub fn control_address(&self) -> SocketAddr {
        self.control.address()
    }

    /// Binds the other ports and starts the NIC threads, which deliver to `service`.
    ///
    /// # Errors
    /// [`NodeError`] names the port or key at fault.
    pub fn start(self, params: NodeParams, service: &Arc<dyn Service>) -> Result<Node, NodeError> {
        let LoadingNode {
            config,
            control,
            places,
            driver,
            loaded,
        } = self;
        let overflow = || NodeError::Model(params.model.name.clone());
        request_stride(&params.model).ok_or_else(overflow)?;
        response_stride(&params.model).ok_or_else(overflow)?;
        drop(loaded);
        let panicked = |_| std::io::Error::other("the thread of the control port panicked");
        let runtime = driver.join().map_err(panicked)?;
        let _inside = runtime.enter();
        let (mut open, mut data, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for (index, nic) in config.nics.iter().enumerate() {
            links.push(settings::link(nic));
            let (nic, port) = nics::listen(index, nic, &config.deadlines)?;
            open.push(nic);
            data.extend(port.map(|port| (index, port)));
        }
        let current: Arc<CurrentSession> = Arc::new(Mutex::default());
        // Weak, since the session holds the server, which holds this callback.
        let weak = Arc::downgrade(&current);
        let lost: Arc<OnConnectionLost> = Arc::new(move |l: ConnectionLost| {
            let session = weak.upgrade().and_then(|current| lock(&current).clone());
            if let Some(session) = session.filter(|s| s.id == l.session) {
                session.lost_here(&l);
            }
        });
        let near = near(&config.nics);
        let crew = accelerator_crew(&config);
        let share = |nic: &usize| settings::nic_thread(*nic, &config.nics[*nic], &near[*nic]);
        let shares = crew.nic_of.iter().map(share).collect();
        let strangers = (places / config.nics.len().max(1)).max(FEWEST_PLACES);
        control.loaded(params.model.clone(), params.engine_info.clone());
        let state = Arc::new(NodeState {
            config,
            params,
            nics: open,
            links,
            near,
            server: Server::with_crew(shares, &crew, service, &lost)?,
            service: service.clone(),
            budget: Budget::new(),
            ended: Mutex::default(),
        });
        let (stop, _) = watch::channel(None);
        Ok(Node {
            state,
            current,
            control,
            data,
            runtime,
            strangers,
            stop,
        })
    }
}

impl Node {
    /// A node whose engine is ready ([`LoadingNode`]).
    ///
    /// # Errors
    /// As [`LoadingNode::listen`] and [`LoadingNode::start`].
    pub fn start(
        config: &AcceleratorConfig,
        params: NodeParams,
        service: &Arc<dyn Service>,
    ) -> Result<Node, NodeError> {
        LoadingNode::listen(config)?.start(params, service)
    }

    /// Address of the control plane, with the port that the system chose.
    pub fn control_address(&self) -> SocketAddr {
        self.control.address()
    }

    /// Handle that stops the node.
    pub fn stopper(&self) -> Stop {
        Stop(self.stop.clone())
    }

    /// Returns a reader of the node's figures for any thread, also while no frontend is served.
    pub fn figures(&self) -> impl Fn() -> NodeFigures + Send + Sync + 'static {
        let (state, current) = (self.state.clone(), self.current.clone());
        move || {
            let session = lock(&current).clone();
            session.map_or_else(|| (*lock(&state.ended), [0; 2]), |s| s.figures())
        }
    }

    /// Serves frontends, one after another, until stopped (with `once`: one frontend). Returns the
    /// reason of the stop, if it was stopped; `served` gets the report of each frontend once its
    /// connections are down.
    pub fn run_with(self, served: &mut dyn FnMut(&ServedReport)) -> Option<String> {
        let Node {
            state,
            current,
            mut control,
            data,
            runtime,
            strangers,
            stop,
        } = self;
        let config = &state.config;
        let why = runtime.block_on(async {
            for (nic_index, (listener, cfgs)) in data {
                let elsewhere = format!(
                    "this is the data port of nics[{nic_index}] of {}, whose control port is {}: \
                     name that in accelerators[].control",
                    config.node,
                    control.address().port()
                );
                let guests = (strangers, elsewhere);
                let current = current.clone();
                tokio::spawn(admit_all(listener, guests, nic_index, current, cfgs));
            }
            let mut stopped = stop.subscribe();
            let mut sessions = 0;
            loop {
                let session = tokio::select! {
                    s = control.accept_session() => s,
                    why = stop_reason(&mut stopped) => break Some(why),
                };
                let session = match session {
                    Ok(s) => s,
                    Err(e) => break Some(e.to_string()),
                };
                let peer = session.peer_node.clone();
                tracing::info!("serving {peer} ({})", session.peer_address);
                sessions += 1;
                let own = Arc::new(Session::new(sessions, state.clone(), &session));
                *lock(&current) = Some(own.clone());
                let handle = session.handle.clone();
                let watching = tokio::spawn(own.clone().watch());
                let reading = tokio::spawn(own.clone().take_readings());
                let mut running = tokio::spawn(session.run(own.clone()));
                let ended = tokio::select! {
                    cause = &mut running => Ok(cause),
                    why = stop_reason(&mut stopped) => {
                        handle.close(ErrorCode::ShuttingDown, &why);
                        let _ = tokio::time::timeout(Duration::from_secs(1), &mut running).await;
                        Err(why)
                    }
                };
                watching.abort();
                reading.abort();
                // NIC threads report what they take down, so the session stays current until then.
                own.release(config.deadlines.drain()).await;
                *lock(&current) = None;
                let clean = matches!(&ended, Ok(Ok(cause)) if cause.is_clean());
                served(&own.report(&peer, clean));
                match ended {
                    Ok(Ok(cause)) if cause.is_clean() => tracing::info!("{peer} is done"),
                    Ok(Ok(cause)) => tracing::warn!("the session with {peer} ended: {cause}"),
                    Ok(Err(e)) => tracing::warn!("the session with {peer} failed: {e}"),
                    Err(why) => break Some(why),
                }
                if state.params.once {
                    break None;
                }
            }
        });
        state.server.stop();
        runtime.shutdown_timeout(Duration::from_millis(200));
        why
    }
}

async fn stop_reason(stopped: &mut watch::Receiver<Option<String>>) -> String {
    match stopped.wait_for(Option::is_some).await {
        Ok(why) => why.clone().unwrap_or_default(),
        // Impossible: the node holds the sender.
        Err(_) => std::future::pending().await,
    }
}
