//! What a frontend is told.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{
    Auth, DatasetConfig, Deadlines, EngineConfig, HealthConfig, LoadgenConfig, NicConfig, Policy,
    WarmUpConfig,
    auth::AuthWord,
    dataset::{DatasetFile, MAX_SAMPLES},
    load::resolve,
    nic_file::{NicFile, Side},
    rules::{Findings, check_model, name, within, within_some},
};
use crate::model::ModelSpec;

/// Default of [`FrontendConfig::doorbell_wait_us`].
pub const DEFAULT_DOORBELL_WAIT_US: u64 = 20;

/// Configuration of a frontend node.
#[derive(Clone, Debug, PartialEq, Validate)]
pub struct FrontendConfig {
    /// Name of the node, unique in the system: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    #[garde(custom(name))]
    pub node: String,
    /// The model that the accelerators must have; sizes and names are compared at the start.
    #[garde(skip)]
    pub model: ModelSpec,
    /// Where the samples come from.
    #[garde(skip)]
    pub dataset: DatasetConfig,
    /// Where samples lie while they are sent; default `registered`.
    #[garde(skip)]
    pub qsl: QslMode,
    /// Samples that LoadGen may hold loaded at a time; default: all of the data set, as far as memory goes.
    #[garde(custom(within_some(1..=MAX_SAMPLES)))]
    pub performance_sample_count: Option<usize>,
    /// How the nodes prove who they are.
    #[garde(skip)]
    pub auth: Auth,
    /// The accelerators behind this frontend; at least one.
    #[garde(skip)]
    pub accelerators: Vec<AcceleratorAddress>,
    /// The NICs of this node; at least one. Each has a rail thread.
    #[garde(dive)]
    pub nics: Vec<NicConfig>,
    /// Which connection takes the next sample; default `least_outstanding`.
    #[garde(skip)]
    pub arbiter: Policy,
    /// How the health of rails is judged, where `arbiter` goes by it.
    #[garde(dive)]
    pub health: HealthConfig,
    /// A small sample, posted while many are in flight and so many microseconds after the last doorbell at most, may wait for
    /// the next to share its system call; the rail thread rings at its next turn. Each stays a message of its own. 0: none
    /// waits. Default 20.
    #[garde(custom(within(0..=1000)))]
    pub doorbell_wait_us: u64,
    /// What connections do before LoadGen's clock.
    #[garde(dive)]
    pub warm_up: WarmUpConfig,
    /// How long to wait for what.
    #[garde(dive)]
    pub deadlines: Deadlines,
    /// Whether each response is compared with its own sample; default `none`.
    #[garde(skip)]
    pub verify: Verify,
    /// What LoadGen is told. The command line goes before it.
    #[garde(skip)]
    pub loadgen: LoadgenConfig,
    /// The engine of `--local`, the run without a network; default none.
    #[garde(dive)]
    pub engine: Option<EngineConfig>,
    /// The model file of that engine; `onnx` needs one.
    #[garde(skip)]
    pub model_file: Option<PathBuf>,
}

/// Where samples lie while they are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QslMode {
    /// In memory that the fabric sends from: no copy.
    #[default]
    Registered,
    /// In other memory: each is copied once before it is sent, and counted.
    Staged,
}

/// Whether responses are compared with their samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// They are not.
    #[default]
    None,
    /// Each response must be the xxh3-64 of its own sample, 8 bytes little-endian.
    Digest,
}

/// Where an accelerator is found.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorAddress {
    /// `HOST:PORT` of its control plane; the host is a name or an address (IPv6 in brackets).
    pub control: String,
}

impl FrontendConfig {
    /// Name of the model in `user.conf`.
    pub fn loadgen_model(&self) -> &str {
        self.loadgen.model.as_deref().unwrap_or(&self.model.name)
    }

    /// The files it names that must be there at the start, with the keys that name them.
    pub(super) fn files(&self) -> Vec<(&'static str, &Path)> {
        let mut files: Vec<(&'static str, &Path)> = Vec::new();
        if let DatasetConfig::Raw {
            samples,
            lengths,
            labels,
        } = &self.dataset
        {
            files.push(("dataset.samples", samples));
            files.extend(lengths.as_deref().map(|f| ("dataset.lengths", f)));
            files.extend(labels.as_deref().map(|f| ("dataset.labels", f)));
        }
        if let Auth::Token(file) = &self.auth {
            files.push(("token_file", file));
        }
        files.extend(
            self.loadgen
                .user_conf
                .as_deref()
                .map(|f| ("loadgen.user_conf", f)),
        );
        files.extend(
            self.loadgen
                .audit_config
                .as_deref()
                .map(|f| ("loadgen.audit_config", f)),
        );
        files
    }

    /// What garde's ranges do not say: how keys go together.
    pub(super) fn relations(&self, out: &mut Findings) {
        check_model(
            "model",
            &self.model.name,
            &self.model.inputs,
            &self.model.output,
            out,
        );
        self.check_accelerators(out);
        self.dataset
            .check(&self.model, self.performance_sample_count, out);
        if self.nics.is_empty() {
            out.add(
                "nics",
                "the list of NICs is empty",
                "add at least one, as in `- address: 127.0.0.1`",
            );
        }
        if self.verify == Verify::Digest && self.model.max_output_bytes() != Some(8) {
            out.add(
                "verify",
                format!(
                    "`verify: digest` expects responses of 8 bytes, the model's output is {}",
                    self.model.output
                ),
                "use a u8[8] output and accelerators with `engine: {kind: digest}`, or `verify: none`",
            );
        }
        self.deadlines.relations(out);
        self.health.relations(out);
        if let Some(engine) = &self.engine {
            engine.relations(out);
            if !engine.kind.takes_any_bytes() && self.model_file.is_none() {
                out.add(
                    "engine.kind",
                    format!("engine `{}` needs a model file", engine.kind.as_str()),
                    "add `model_file: PATH`",
                );
            }
        }
    }

    fn check_accelerators(&self, out: &mut Findings) {
        if self.accelerators.is_empty() {
            out.add(
                "accelerators",
                "the list of accelerators is empty",
                "add at least one, as in `- control: 127.0.0.1:7400`",
            );
        }
        let mut seen = BTreeSet::new();
        for (i, accelerator) in self.accelerators.iter().enumerate() {
            let path = format!("accelerators[{i}].control");
            let address = &accelerator.control;
            let Some(host) = host(address) else {
                out.add(
                    path,
                    format!("`{address}` is not HOST:PORT"),
                    "write a host name or address and a port, as in `127.0.0.1:7400` or `[::1]:7400`",
                );
                continue;
            };
            let loopback = match host.parse::<IpAddr>() {
                Ok(ip) => ip.is_loopback(),
                Err(_) => host == "localhost",
            };
            self.auth.check_address(loopback, address, &path, out);
            if !seen.insert(address) {
                out.add(
                    path,
                    format!("{address} is listed twice"),
                    "list each accelerator once; `connections` says how many connections it gets",
                );
            }
        }
    }
}

/// The host of `HOST:PORT`; `None` where it is no such thing.
fn host(address: &str) -> Option<&str> {
    let (host, port) = address.rsplit_once(':')?;
    port.parse::<u16>().ok().filter(|port| *port != 0)?;
    let bare = host.strip_prefix('[').and_then(|h| h.strip_suffix(']'));
    match bare {
        Some(v6) => v6.parse::<std::net::Ipv6Addr>().ok().map(|_| v6),
        None => {
            let ok = |c: char| c.is_ascii_alphanumeric() || matches!(c, '.' | '-' | '_');
            (!host.is_empty() && host.chars().all(ok)).then_some(host)
        }
    }
}

/// A frontend's file as it is written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(super) struct FrontendFile {
    node: String,
    model: ModelSpec,
    dataset: DatasetFile,
    #[serde(default)]
    qsl: QslMode,
    performance_sample_count: Option<usize>,
    token_file: Option<PathBuf>,
    auth: Option<AuthWord>,
    accelerators: Vec<AcceleratorAddress>,
    nics: Vec<NicFile>,
    #[serde(default)]
    arbiter: Policy,
    #[serde(default)]
    health: HealthConfig,
    #[serde(default)]
    warm_up: WarmUpConfig,
    doorbell_wait_us: Option<u64>,
    #[serde(default)]
    deadlines: Deadlines,
    #[serde(default)]
    verify: Verify,
    loadgen: Option<LoadgenConfig>,
    engine: Option<EngineConfig>,
    model_file: Option<PathBuf>,
}

impl FrontendFile {
    /// Sorts the keys out and resolves paths against `base`. `None` only with a finding.
    pub(super) fn into_config(self, base: &Path, out: &mut Findings) -> Option<FrontendConfig> {
        let auth = Auth::from_keys(self.token_file.map(|f| resolve(base, f)), self.auth, out);
        let dataset = self.dataset.into_config(&self.model, base, out);
        let nics = super::nic_file::into_nics(self.nics, Side::Frontend, out);
        let loadgen = self.loadgen.map(|l| l.resolved(base)).unwrap_or_default();
        let mut engine = self.engine;
        if let Some(engine) = &mut engine {
            engine.library = engine.library.take().map(|f| resolve(base, f));
        }
        Some(FrontendConfig {
            node: self.node,
            model: self.model,
            dataset: dataset?,
            qsl: self.qsl,
            performance_sample_count: self.performance_sample_count,
            auth,
            accelerators: self.accelerators,
            nics: nics?,
            arbiter: self.arbiter,
            health: self.health,
            doorbell_wait_us: self.doorbell_wait_us.unwrap_or(DEFAULT_DOORBELL_WAIT_US),
            warm_up: self.warm_up,
            deadlines: self.deadlines,
            verify: self.verify,
            loadgen,
            engine,
            model_file: self.model_file.map(|f| resolve(base, f)),
        })
    }
}
