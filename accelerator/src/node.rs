//! Builds a serving node from a configuration: engine, pipeline, NIC threads, control plane.

use std::{
    fmt::Display,
    sync::{Arc, Mutex, OnceLock},
    time::Duration,
};

use engines::{
    EngineConfig, EngineKind, EngineParams, Hashing, describe as describe_engine,
    pipeline::Options,
    pipelines::{self, Pipelines},
};
use fabric::os::{Near, lock};
use machine::Role;
use program::metrics::{Endpoint, Family, Figures};
use qdl::{
    config::{AcceleratorConfig, NicConfig},
    control::Token,
    model::ModelSpec,
    run::{Describe, LoadingNode, Node, NodeFigures, NodeParams, Stop},
    serve::Service,
    topology::Topology,
    wire::Description,
};
use record::{EngineInfo, NodeRole, ServedReport, secrets};

/// Makes the callback that describes this node and its machine at the time of a request. Values in
/// the configuration that look like keys are masked.
fn describe(node: &str, text: &str) -> Describe {
    let (node, config) = (node.to_owned(), secrets::mask(text).with_count());
    Arc::new(move || {
        let version = env!("CARGO_PKG_VERSION");
        Ok(Description {
            machine: machine::Node::describe_as_json(Role::Accelerator, version, &node)?,
            config: config.clone(),
        })
    })
}

/// A node ready to serve.
pub struct Accelerator {
    node: Node,
    _metrics: Option<Endpoint>,
    /// The running engines.
    pub pipelines: Arc<Pipelines>,
    /// The first error of any engine during a run.
    fatal: Arc<Mutex<Option<String>>>,
    /// The line that announces the node as ready.
    pub ready_line: String,
    /// The engine's content (file hash, settings or server) as one line; `None` without a model.
    pub content: Option<String>,
    /// The served model.
    pub model: ModelSpec,
    /// The engine's parameters, as one line of text.
    pub engine: String,
}

impl Accelerator {
    /// Binds the control port, loads the model, warms the engine up and binds the other ports. A
    /// frontend may request `text`, the text of the configuration file. With `once`, the node
    /// serves one frontend, then ends.
    ///
    /// # Errors
    /// Text: the key, file or port that is wrong.
    pub fn start(
        config: &AcceleratorConfig,
        engine: &EngineConfig,
        text: &str,
        once: bool,
    ) -> Result<Self, String> {
        let loading = LoadingNode::listen(config).map_err(line)?;
        let started = Arc::default();
        let metrics = start_metrics(config, engine.kind, &started)?;
        let spec = config.model.spec();
        let file = config.model.file.as_deref();
        let mut params = EngineParams::of(engine, &config.model.name, file, spec.as_ref());
        // Without sysfs the topology is empty, and threads are not bound.
        let topology = Topology::of_this_machine().unwrap_or_default();
        let mut options = Options::from(&params);
        let mut engines = Vec::new();
        let hashing = Hashing::begin(&params);
        for gpu in engine.all_gpus() {
            let near = engine_near(gpu, &config.nics, &topology);
            // Threads that the engine starts inherit this binding.
            engines.extend(
                near.run(|| pipelines::create(&params, &[gpu]))
                    .map_err(line)?,
            );
            options.near.insert(gpu, near);
        }
        let engine = engines[0].1.clone();
        if let Some(fixed) = engine.fixed_batch() {
            params.engine.max_batch = params.engine.max_batch.min(fixed);
        }
        let hashed = hashing.end().map_err(line)?;
        // An engine without a model file, or one that answers inline, has the configured model. A
        // model file must match the configured model.
        let model = match (&spec, engine.inline().is_some() || file.is_none()) {
            (Some(spec), true) => spec.clone(),
            (Some(spec), false) => {
                let checked = spec.check_against(engine.model());
                checked.map_err(|e| e.between("the configuration", "the model file"))?;
                spec.clone()
            }
            (None, _) => engine.model().clone(),
        };
        let fatal: Arc<Mutex<Option<String>>> = Arc::default();
        let stopper: Arc<OnceLock<Stop>> = Arc::default();
        let (first, stop) = (fatal.clone(), stopper.clone());
        let pipelines = Pipelines::start(engines, &options, move |e| {
            let why = format!("engine: {e}");
            lock(&first).get_or_insert_with(|| why.clone());
            if let Some(stop) = stop.get() {
                stop.stop(&why);
            }
        });
        let pipelines = Arc::new(pipelines.map_err(line)?);
        let counting = pipelines.clone();
        let service: Arc<dyn Service> = pipelines.clone();
        let node = loading.start(
            NodeParams {
                sut_name: format!(
                    "{} ({} on {}{})",
                    config.node,
                    model.name,
                    engine.name(),
                    match params.engine.role {
                        NodeRole::Both => "",
                        NodeRole::Prefill => ", prefill",
                        NodeRole::Decode => ", decode",
                    }
                ),
                model: model.clone(),
                engine_info: EngineInfo {
                    at_once: pipelines.at_once(),
                    role: params.engine.role,
                    ..hashed.info(engine.as_ref())
                },
                once,
                engine: Arc::new(move || counting.totals()),
                describe: describe(&config.node, text),
            },
            &service,
        );
        let node = node.map_err(line)?;
        let _ = stopper.set(node.stopper());
        let (running, figures) = (pipelines.clone(), node.figures());
        let _ = started.set(Box::new(move |to| add_figures(&running, figures(), to)));
        let ready_line = format!(
            "ready: node {}, control {}, engine {}, model {}",
            config.node,
            node.control_address(),
            engine.name(),
            config.model.name
        );
        Ok(Accelerator {
            node,
            _metrics: metrics,
            pipelines,
            fatal,
            ready_line,
            content: hashed.line(),
            model,
            engine: describe_engine(&params),
        })
    }

    /// A handle that stops the node from another thread.
    pub fn stopper(&self) -> Stop {
        self.node.stopper()
    }

    /// Serves until stopped. Calls `served` with a report after each frontend. Returns the
    /// engine's error, if the engine failed.
    pub fn run(self, served: &mut dyn FnMut(&ServedReport)) -> Option<String> {
        self.node.run_with(served);
        if let Err(e) = self.pipelines.stop(Duration::from_secs(5)) {
            tracing::warn!("{e}");
        }
        lock(&self.fatal).take()
    }
}

fn line(error: impl Display) -> String {
    error.to_string()
}

type AddFigures = Box<dyn Fn(&mut Figures) + Send + Sync>;

/// Starts the endpoint of the key `metrics`. `started` is set once the engine is loaded.
fn start_metrics(
    config: &AcceleratorConfig,
    engine: EngineKind,
    started: &Arc<OnceLock<AddFigures>>,
) -> Result<Option<Endpoint>, String> {
    let Some(at) = config.metrics else {
        return Ok(None);
    };
    let (node, engine) = (config.node.clone(), engine.as_str());
    let started = started.clone();
    let read = move || {
        let mut figures = Figures::new("accelerator", &node, engine);
        started.get().iter().for_each(|add| add(&mut figures));
        figures
    };
    let token = config.metrics_token_file.as_deref();
    let token = token.map(|path| Token::from_file("metrics_token_file", path));
    let endpoint = Endpoint::start(at, token.transpose().map_err(line)?, read);
    endpoint.map(Some).map_err(|e| format!("metrics: {e}"))
}

fn add_figures(pipelines: &Pipelines, (sums, [up, lost]): NodeFigures, to: &mut Figures) {
    to.add(Family::InFlight, pipelines.in_flight() as f64);
    let counters = pipelines.counters();
    to.add(Family::Samples, counters.samples as f64);
    match pipelines.sequences() {
        Some(_) => to.add(Family::Tokens, counters.tokens as f64),
        None => to.add_batches(&counters.batch_sizes),
    }
    to.add(Family::Busy, counters.busy_ns as f64 / 1e9);
    let failures = [
        ("refused", sums.refused),
        ("dropped_late", sums.dropped_late),
        ("server_busy", pipelines.used().server_busy),
    ];
    to.add_each(Family::Failures, failures);
    to.add_each(Family::Connections, [("up", up), ("lost", lost)]);
}

/// CPUs and memory for the engine of `gpu`: near the GPU's own NICs; without any, near all NICs.
fn engine_near(gpu: usize, nics: &[NicConfig], topology: &Topology) -> Near {
    let own = |n: &&NicConfig| n.gpu == u32::try_from(gpu).ok();
    match nics.iter().any(|n| own(&n)) {
        true => topology.near_nics(nics.iter().filter(own)),
        false => topology.near_nics(nics),
    }
}

#[cfg(test)]
mod tests {
    use qdl::testkit::machine;

    use super::*;

    #[test]
    fn an_engine_runs_near_the_nics_that_feed_it() {
        let root = tempfile::tempdir().expect("a folder");
        let addresses = machine::expand(
            "node 0 cpus=0-3\nnode 1 cpus=4-7\n\
             pci pci0000:10/0000:10:01.0 vendor=0x15b3 numa=0\n  net eth0 addr=10.0.0.2\n\
             pci pci0000:80/0000:80:03.0 vendor=0x15b3 numa=1\n  net eth1 addr=10.0.1.2\n",
            root.path(),
        );
        let addresses = addresses.expect("a good description");
        let topology = Topology::read(root.path(), &addresses).expect("a tree");
        let nic = |address: &str, gpu| NicConfig {
            gpu,
            ..NicConfig::tcp(address.parse().expect("an address"))
        };
        let nics = [nic("10.0.0.2:1", Some(0)), nic("10.0.1.2:1", Some(1))];
        let nodes = |gpu, nics: &[NicConfig]| engine_near(gpu, nics, &topology).nodes;
        assert_eq!(nodes(0, &nics), [0]);
        assert_eq!(nodes(1, &nics), [1]);
        assert_eq!(nodes(2, &nics), [0, 1], "any NIC's samples may come to it");
        let any = [nic("10.0.1.2:1", None), nic("127.0.0.1:1", None)];
        assert_eq!(nodes(0, &any), [1]);
        assert!(nodes(0, &any[1..]).is_empty());
    }
}
