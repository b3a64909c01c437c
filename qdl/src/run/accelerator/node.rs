//! The accelerator's side of a run: serves one frontend at a time, with its connections and memory.

use std::{net::SocketAddr, sync::Arc, time::Duration};

use fabric::{
    kinds::DataPort,
    os::{more_open_files, thread_times},
};
use record::ServedReport;
use tokio::sync::oneshot;

use super::{
    data_port::admit_all,
    node_core::{NodeCore, NodeParts, Stop, starting},
    node_state::{NodeFigures, NodeParams},
};
use crate::{
    config::{AcceleratorConfig, Auth},
    control::{self, LocalNode, RolePart},
    model::ModelSpec,
    run::{
        crew::{accelerator_crew, near},
        error::RunError,
        facts::node_facts,
        nics, settings,
    },
    serve::{OnConnectionLost, Server, Service},
    topology::LinkWatch,
};

/// Most places in the lobby of the control port, and in the lobbies of all data ports together. The
/// limit of open files is raised for them; otherwise each uses a quarter of the limit.
const PLACES: usize = 2_048;
const FEWEST_PLACES: usize = 32;

/// The accelerator's node, before [`Node::run_with`].
pub struct Node {
    core: NodeCore,
    /// Listeners of the data ports, with the index of the NIC.
    data: Vec<(usize, DataPort)>,
    runtime: tokio::runtime::Runtime,
    /// Places in the lobby of each data port.
    strangers: usize,
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
    /// [`RunError`] names the port or key at fault.
    pub fn listen(config: &AcceleratorConfig) -> Result<LoadingNode, RunError> {
        let runtime = tokio::runtime::Builder::new_current_thread()
            .enable_all()
            .max_blocking_threads(2)
            .build()
            .map_err(|e| starting(&e))?;
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
        });
        let driver = driver.map_err(|e| starting(&e))?;
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
    /// [`RunError`] names the port or key at fault.
    pub fn start(self, params: NodeParams, service: &Arc<dyn Service>) -> Result<Node, RunError> {
        let LoadingNode {
            config,
            control,
            places,
            driver,
            loaded,
        } = self;
        drop(loaded);
        let panicked = |_| RunError::new("starting: the thread of the control port panicked");
        let runtime = driver.join().map_err(panicked)?;
        let _inside = runtime.enter();
        let (mut open, mut data, mut links) = (Vec::new(), Vec::new(), Vec::new());
        for (index, nic) in config.nics.iter().enumerate() {
            links.push(LinkWatch::of_nic(nic));
            let (nic, port) = nics::listen(index, nic, &config.deadlines)?;
            open.push(nic);
            data.extend(port.map(|port| (index, port)));
        }
        let near = near(&config.nics);
        let crew = accelerator_crew(&config);
        let share = |nic: &usize| settings::nic_thread(*nic, &config.nics[*nic], &near[*nic]);
        let shares = crew.nic_of.iter().map(share).collect();
        let strangers = (places / config.nics.len().max(1)).max(FEWEST_PLACES);
        let parts = NodeParts {
            nics: open,
            links,
            near,
            service: service.clone(),
            thread_times,
        };
        let make = |lost: &Arc<OnConnectionLost>| Server::with_crew(shares, &crew, service, lost);
        let core = NodeCore::new(config, params, parts, control, make)?;
        Ok(Node {
            core,
            data,
            runtime,
            strangers,
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
    ) -> Result<Node, RunError> {
        LoadingNode::listen(config)?.start(params, service)
    }

    /// Address of the control plane, with the port that the system chose.
    pub fn control_address(&self) -> SocketAddr {
        self.core.control.address()
    }

    /// Handle that stops the node.
    pub fn stopper(&self) -> Stop {
        self.core.stopper()
    }

    /// Returns a reader of the node's figures for any thread, also while no frontend is served.
    pub fn figures(&self) -> impl Fn() -> NodeFigures + Send + Sync + 'static {
        self.core.figures()
    }

    /// Serves frontends, one after another, until stopped (with `once`: one frontend). Returns the
    /// reason of the stop, if it was stopped; `served` gets the report of each frontend once its
    /// connections are down.
    pub fn run_with(self, served: &mut dyn FnMut(&ServedReport)) -> Option<String> {
        let Node {
            core,
            data,
            runtime,
            strangers,
        } = self;
        let state = core.state.clone();
        let why = runtime.block_on(async {
            for (nic_index, (listener, link)) in data {
                let elsewhere = format!(
                    "this is the data port of nics[{nic_index}] of {}, whose control port is {}: \
                     name that in accelerators[].control",
                    state.config.node,
                    core.control.address().port()
                );
                let guests = (strangers, elsewhere);
                let current = core.current.clone();
                tokio::spawn(admit_all(listener, guests, nic_index, current, link));
            }
            core.serve(served).await
        });
        state.server.stop();
        runtime.shutdown_timeout(Duration::from_millis(200));
        why
    }
}
