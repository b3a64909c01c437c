//! A frontend's file.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

use garde::Validate;
use serde::Deserialize;

use super::{
    auth::{Auth, AuthWord},
    dataset::{DatasetConfig, MAX_SAMPLES},
    deadlines::Deadlines,
    engine::EngineConfig,
    health::HealthConfig,
    loadgen::LoadgenConfig,
    nic::{MAX_THREADS, NicConfig},
    root::Root,
    rules::{Findings, Side, auto_within, check_model, name, resolve, within_some},
    values::Auto,
    warm_up::WarmUpConfig,
};
use crate::{
    model::{DType, ModelSpec},
    wire::Policy,
};
use fabric::wire::Stream;

/// Configuration of a frontend node.
#[derive(Clone, Debug, PartialEq, Deserialize, Validate)]
#[serde(deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct FrontendConfig {
    /// Name of the node, unique in the system: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    #[garde(custom(name))]
    pub node: String,
    /// The model that the accelerators must have; sizes and names are compared at the start.
    pub model: ModelSpec,
    /// Where the samples come from.
    pub dataset: DatasetConfig,
    /// Where samples lie while they are sent; default `registered`.
    #[serde(default)]
    pub qsl: QslMode,
    /// Samples that LoadGen may hold loaded at a time; default: all of the data set, as far as
    /// memory goes.
    #[garde(custom(within_some(1..=MAX_SAMPLES)))]
    pub performance_sample_count: Option<usize>,
    /// The same bytes on every node, by which they know each other; see [`Self::auth`].
    pub token_file: Option<PathBuf>,
    /// `none` where no authentication is wanted; see [`Self::auth`].
    pub auth: Option<AuthWord>,
    /// The accelerators behind this frontend; at least one.
    pub accelerators: Vec<AcceleratorAddress>,
    /// The NICs of this node; at least one.
    #[garde(dive)]
    pub nics: Vec<NicConfig>,
    /// Threads that poll the NICs: so many, as far as there are connections for them. Default
    /// `auto`: by the cores of this machine.
    #[serde(default)]
    #[garde(custom(auto_within(1..=MAX_THREADS)))]
    pub nic_threads: Auto<usize>,
    /// Which connection takes the next sample; default `least_outstanding`.
    #[serde(default)]
    pub arbiter: Policy,
    /// How the health of rails is judged, where `arbiter` goes by it.
    #[serde(default)]
    #[garde(dive)]
    pub health: HealthConfig,
    /// What connections do before LoadGen's clock.
    #[serde(default)]
    #[garde(dive)]
    pub warm_up: WarmUpConfig,
    /// One system call or doorbell for each sample, for a strict reading of "no batching"; default
    /// `false`: those that are ready together share one. Each sample is a message of its own in
    /// either case.
    #[serde(default)]
    pub one_by_one: bool,
    /// When the tokens of an answer leave the accelerator, where its engine's answers grow. Default
    /// `first` where LoadGen measures tokens as they come, else `none`: LoadGen's settings have
    /// their say, so it is `None` until they are known.
    pub stream: Option<Stream>,
    /// How long to wait for what.
    #[serde(default)]
    #[garde(dive)]
    pub deadlines: Deadlines,
    /// Whether each response is compared with its own sample; default `none`.
    #[serde(default)]
    pub verify: Verify,
    /// The round that the run is to count in, as `--submission`: whatever would not count is
    /// refused before anything is measured. Default none.
    pub submission: Option<String>,
    /// What LoadGen is given. The command line goes before it.
    #[serde(default)]
    pub loadgen: LoadgenConfig,
    /// Whether all accelerators must run the same model, by its content; default `same`.
    #[serde(default)]
    pub model_files: ModelFiles,
    /// The engine of `--local`, the run without a network; default none.
    #[garde(dive)]
    pub engine: Option<EngineConfig>,
    /// The model file of that engine; `onnx` needs one.
    pub model_file: Option<PathBuf>,
}

/// Where samples lie while they are sent.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum QslMode {
    /// In memory that the fabric sends from: no copy.
    #[default]
    Registered,
    /// In other memory: each is copied once before it is sent, and counted.
    Staged,
}

/// Whether responses are compared with their samples.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Verify {
    /// They are not.
    #[default]
    None,
    /// Each response must be what the engine `digest` makes of its own sample: its xxh3-64, 8 bytes
    /// little-endian, and behind it words that count on from it, to the answer's length.
    Digest,
    /// Each answer, its first token and their number must be what the engine `tokens` makes of its
    /// own sample.
    Tokens,
}

/// Whether accelerators may run different models under one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelFiles {
    /// A run whose accelerators say that they have different ones does not begin.
    #[default]
    Same,
    /// They may: the summary names each.
    Any,
}

/// Where an accelerator is found.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
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

    /// How the nodes prove who they are.
    pub fn auth(&self) -> Auth<'_> {
        Auth::of(self.token_file.as_ref(), self.auth)
    }

    /// What goes with answers in tokens alone.
    fn check_tokens(&self, out: &mut Findings<'_>) {
        let output = &self.model.output;
        let tokens = output.ragged && output.dtype == DType::I32;
        if let Some(stream @ (Stream::First | Stream::All)) = self.stream
            && !tokens
        {
            out.add(
                "stream",
                format!(
                    "`stream: {stream}` is for answers in tokens, the model's output is {output}"
                ),
                "give the output `dtype: i32` and `ragged: true`, or remove `stream`",
            );
        }
        if self.verify == Verify::Tokens && !tokens {
            out.add(
                "verify",
                format!("`verify: tokens` expects tokens, the model's output is {output}"),
                "give the output `dtype: i32` and `ragged: true`, or use `verify: none`",
            );
        }
    }

    fn check_accelerators(&self, out: &mut Findings<'_>) {
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
                    "write a host name or address and a port, as in `127.0.0.1:7400` or \
                     `[::1]:7400`",
                );
                continue;
            };
            let loopback = match host.parse::<IpAddr>() {
                Ok(ip) => ip.is_loopback(),
                Err(_) => host == "localhost",
            };
            self.auth().check_address(loopback, address, &path, out);
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

impl Root for FrontendConfig {
    const SIDE: Side = Side::Frontend;

    fn resolve(&mut self, base: &Path) {
        self.dataset.resolve(base);
        self.loadgen.resolve(base);
        if let Some(engine) = &mut self.engine {
            engine.resolve(base);
        }
        for file in [&mut self.token_file, &mut self.model_file] {
            file.iter_mut().for_each(|file| resolve(base, file));
        }
    }

    fn nics(&mut self) -> &mut [NicConfig] {
        &mut self.nics
    }

    fn files(&self) -> Vec<(&'static str, &Path)> {
        let own = [
            ("token_file", &self.token_file),
            ("loadgen.user_conf", &self.loadgen.user_conf),
            ("loadgen.audit_config", &self.loadgen.audit_config),
        ];
        let own = own
            .into_iter()
            .filter_map(|(key, file)| Some((key, file.as_deref()?)));
        self.dataset.files().chain(own).collect()
    }

    fn check(&self, out: &mut Findings<'_>) {
        let model = &self.model;
        let outputs = (&model.output, &*model.other_outputs);
        check_model("model", &model.name, &model.inputs, outputs, out);
        self.auth().check(self.auth, out);
        self.check_accelerators(out);
        self.dataset
            .check(model, self.performance_sample_count, out);
        if self.verify == Verify::Digest && model.max_output_bytes() < Some(8) {
            out.add(
                "verify",
                format!(
                    "`verify: digest` expects responses of 8 bytes or more, the model's output \
                     is {}",
                    model
                        .outputs()
                        .map(ToString::to_string)
                        .collect::<Vec<_>>()
                        .join(", ")
                ),
                "use a u8[8] output and accelerators with `engine: {kind: digest}`, or \
                 `verify: none`",
            );
        }
        self.check_tokens(out);
        self.deadlines.check(Self::SIDE, out);
        self.health.check(out);
        if let Some(engine) = &self.engine {
            engine.check(out);
            if engine.kind.reads_file() && self.model_file.is_none() {
                out.add(
                    "engine.kind",
                    format!("engine `{}` needs a model file", engine.kind.as_str()),
                    "add `model_file: PATH`",
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
