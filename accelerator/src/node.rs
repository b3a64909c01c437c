//! From a configuration to a node that serves: engine, pipeline, rail threads, control plane.

use std::{
    sync::{Arc, Mutex, OnceLock, PoisonError},
    time::Duration,
};

use qdl::{
    config::{self, AcceleratorConfig, EngineConfig, NicConfig},
    control::{Auth, AuthError, HeartbeatCfgs, Timing, Token},
    fabric::tcp::TcpCfgs,
    model::{ModelMismatch, ModelSpec},
    rail::RailCfgs,
    serve::Service,
    session::{Node, NodeError, NodeFabric, NodeNic, NodeParams, Stop},
    stats::ServedReport,
};

use crate::{
    engine::{EngineError, EngineKind, EngineParams},
    pipeline::Options,
    pipelines::{self, Pipelines},
};

/// A node that could not be made.
#[derive(Debug, thiserror::Error)]
pub enum SetupError {
    /// The engine or its model.
    #[error(transparent)]
    Engine(#[from] EngineError),
    /// What the configuration says of the model is not what its file holds.
    #[error("model.file and the configuration disagree: {0}")]
    Model(#[from] ModelMismatch),
    /// Ports and threads.
    #[error(transparent)]
    Node(#[from] NodeError),
    /// The token.
    #[error(transparent)]
    Auth(#[from] AuthError),
    /// An engine that the configuration knows and this build does not.
    #[error("engine.kind: this build has no engine `{0}`")]
    NoEngine(&'static str),
}

/// The engine's parameters, from the part of a configuration that both programs share.
///
/// # Errors
/// [`SetupError::NoEngine`].
pub fn engine_params(
    engine: &EngineConfig,
    model: &str,
    file: Option<&std::path::Path>,
    spec: Option<&ModelSpec>,
) -> Result<EngineParams, SetupError> {
    let kind = match engine.kind {
        config::EngineKind::Null => EngineKind::Null,
        config::EngineKind::Digest => EngineKind::Digest,
        config::EngineKind::Onnx => EngineKind::Onnx,
        config::EngineKind::Aoti => EngineKind::Aoti,
        config::EngineKind::TensorRt => EngineKind::TensorRt,
        other => return Err(SetupError::NoEngine(other.as_str())),
    };
    let defaults = EngineParams::default();
    let ragged = |s: &ModelSpec| {
        let named = s.inputs.iter().filter(|t| t.ragged);
        named.map(|t| t.name.clone()).collect()
    };
    Ok(EngineParams {
        kind,
        model: model.to_owned(),
        file: file.map(Into::into),
        max_input: spec
            .and_then(ModelSpec::max_input_bytes)
            .unwrap_or(defaults.max_input),
        output_bytes: spec
            .and_then(ModelSpec::max_output_bytes)
            .unwrap_or(defaults.output_bytes),
        max_batch: engine.max_batch,
        max_delay_us: engine.max_delay_us,
        threads: engine.threads,
        intra_threads: engine.intra_threads,
        library: engine.library.clone(),
        delay_us: engine.delay_us,
        inline: true,
        ragged: spec.map(ragged).unwrap_or_default(),
        spin_us: engine.spin_us,
        spec: spec.cloned(),
        cuda: engine.provider == config::Provider::Cuda,
        gpu: engine.gpu,
        gather: engine.gather,
        batch_sizes: engine.batch_sizes.clone(),
        latency_us: engine.latency_us,
        precision: engine.precision,
        profiles: engine.profiles.clone(),
        optimization_level: engine.optimization_level,
    })
}

/// A node ready to serve.
pub struct Accelerator {
    node: Node,
    pipelines: Arc<Pipelines>,
    /// The first error of the engine in mid-run.
    fatal: Arc<Mutex<Option<String>>>,
    ready: String,
}

impl Accelerator {
    /// Loads the model, warms the engine up, binds every port.
    ///
    /// # Errors
    /// [`SetupError`] names the key, file or port.
    pub fn start(config: &AcceleratorConfig, once: bool) -> Result<Self, SetupError> {
        let spec = config.model.spec();
        let file = config.model.file.as_deref();
        let params = engine_params(&config.engine, &config.model.name, file, spec.as_ref())?;
        let engines = pipelines::create(&params, &config.engine.all_gpus())?;
        let engine = engines[0].1.clone();
        // The opaque engines take any bytes, whatever the configuration calls them; a model file has its say.
        let model = match (&spec, engine.runs_inline() || file.is_none()) {
            (Some(spec), true) => spec.clone(),
            (Some(spec), false) => {
                spec.check_against(engine.model())?;
                spec.clone()
            }
            (None, _) => engine.model().clone(),
        };
        let fatal: Arc<Mutex<Option<String>>> = Arc::default();
        let stopper: Arc<OnceLock<Stop>> = Arc::default();
        let (told, stop) = (fatal.clone(), stopper.clone());
        let pipelines = Arc::new(Pipelines::start(
            engines,
            &Options::from(&params),
            move |e| {
                let why = format!("engine: {e}");
                told.lock()
                    .unwrap_or_else(PoisonError::into_inner)
                    .get_or_insert_with(|| why.clone());
                if let Some(stop) = stop.get() {
                    stop.stop(&why);
                }
            },
        )?);
        let counting = pipelines.clone();
        let service: Arc<dyn Service> = pipelines.clone();
        let d = &config.deadlines;
        let node = Node::start(
            NodeParams {
                node: config.node.clone(),
                sut_name: format!("{} ({} on {})", config.node, model.name, engine.name()),
                control: config.control.listen,
                auth: auth(&config.auth)?,
                nics: nics(config),
                memory: config.memory_mib << 20,
                timing: Timing {
                    connect: d.connect(),
                    handshake: d.connect(),
                    heartbeat: HeartbeatCfgs {
                        every: d.heartbeat_interval(),
                        gone_after: d.heartbeat_timeout(),
                    },
                },
                drain: d.drain(),
                once,
                engine: Arc::new(move || counting.totals()),
                model,
            },
            &service,
        )?;
        let _ = stopper.set(node.stopper());
        let ready = format!(
            "ready: node {}, control {}, engine {}, model {}",
            config.node,
            node.control_address(),
            engine.name(),
            config.model.name
        );
        Ok(Accelerator {
            node,
            pipelines,
            fatal,
            ready,
        })
    }

    /// The line that says so.
    pub fn ready_line(&self) -> &str {
        &self.ready
    }

    /// How warming up went, for engines that have something to warm.
    pub fn warm_up(&self) -> Option<(u32, u32)> {
        self.pipelines.warm_up().map(|w| (w.cold_us, w.warm_us))
    }

    /// For ending it from another thread.
    pub fn stopper(&self) -> Stop {
        self.node.stopper()
    }

    /// Serves until stopped; `served` hears what each frontend's connections did. Returns what broke the engine, if that
    /// is why it ended.
    pub fn run(self, served: &mut dyn FnMut(&ServedReport)) -> Option<String> {
        self.node.run_with(served);
        if let Err(e) = self.pipelines.stop(Duration::from_secs(5)) {
            tracing::warn!("{e}");
        }
        self.fatal
            .lock()
            .unwrap_or_else(PoisonError::into_inner)
            .take()
    }
}

fn auth(auth: &config::Auth) -> Result<Auth, AuthError> {
    Ok(match auth {
        config::Auth::LoopbackOnly => Auth::Unset,
        config::Auth::None => Auth::None,
        config::Auth::Token(path) => Auth::Token(Token::from_file(path)?),
    })
}

fn nics(config: &AcceleratorConfig) -> Vec<NodeNic> {
    let each = |(index, nic): (usize, &NicConfig)| NodeNic {
        gpu: nic.gpu(),
        rail: RailCfgs {
            name: format!("rail-{index}"),
            spin: nic.completion().spin(),
            tick_ns: 25_000_000,
            cpus: nic.cpus().unwrap_or_default().to_vec(),
        },
        fabric: match nic {
            NicConfig::Tcp(t) => NodeFabric::Tcp {
                listen: t.bind,
                cfgs: TcpCfgs {
                    send_buffer: t.send_buffer_bytes,
                    inline_bytes: t.inline_bytes,
                    user_timeout_ms: config.deadlines.echo_timeout_ms.min(u64::from(u32::MAX))
                        as u32,
                    ..TcpCfgs::default()
                },
            },
            NicConfig::Ib(ib) => NodeFabric::Ib(ib.clone()),
        },
    };
    config.nics.iter().enumerate().map(each).collect()
}
