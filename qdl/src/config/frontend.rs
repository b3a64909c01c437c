//! What a frontend is told.

use std::{
    collections::{BTreeMap, BTreeSet},
    net::IpAddr,
    path::{Path, PathBuf},
};

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{
    Auth, Deadlines, EngineConfig, NicConfig, Policy, Scalar,
    auth::AuthWord,
    load::resolve,
    nic_file::{NicFile, Side},
    rules::{Findings, check_model, name, within, within_some},
};
use crate::model::ModelSpec;

/// Default of `count` of a random data set, in samples.
pub const DEFAULT_RANDOM_COUNT: usize = 1024;
/// Default of `min_bytes` of a random data set of log-uniform sizes.
pub const DEFAULT_RANDOM_MIN_BYTES: usize = 1;
/// Default of `seed` of a random data set.
pub const DEFAULT_RANDOM_SEED: u64 = 1;
/// Default of [`LoadgenConfig::output_dir`]: a folder in the working directory.
pub const DEFAULT_OUTPUT_DIR: &str = "results";

/// Most samples of a data set.
const MAX_SAMPLES: usize = 1 << 32;

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

/// Where samples come from.
#[derive(Clone, Debug, PartialEq, Eq)]
pub enum DatasetConfig {
    /// `kind: raw`: a file of samples of equal size, back to back.
    Raw {
        /// Samples, each of the model's input size, in the order of their indices.
        samples: PathBuf,
        /// One label for each sample, little-endian, either of the model's output type or `i64`: the length of
        /// the file decides. Needed for accuracy alone.
        labels: Option<PathBuf>,
    },
    /// `kind: random`: synthetic bytes, the same for the same seed.
    Random {
        /// Samples; default 1024.
        count: usize,
        /// Bytes of the shortest sample; default 1 for `log_uniform`, and `max_bytes` for `fixed`.
        min_bytes: usize,
        /// Bytes of the longest sample; default the model's input size.
        max_bytes: usize,
        /// Seed of sizes and bytes; default 1.
        seed: u64,
        /// How sizes are distributed; default `log_uniform` for a model with a ragged input, else `fixed`.
        distribution: SizeDistribution,
    },
}

/// How the sizes of random samples are distributed.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum SizeDistribution {
    /// Every magnitude is equally likely.
    LogUniform,
    /// All samples have `max_bytes`.
    Fixed,
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

/// LoadGen's scenarios.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Scenario {
    /// One query of one sample after the other.
    SingleStream,
    /// One query of several samples after the other.
    MultiStream,
    /// Queries of one sample at random times.
    Server,
    /// One query of all samples.
    Offline,
}

/// What LoadGen is told.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields, default)]
pub struct LoadgenConfig {
    /// Scenario; default none, then the command line must name one.
    pub scenario: Option<Scenario>,
    /// Name of the model in `user.conf`; default the name in `model`.
    pub model: Option<String>,
    /// LoadGen's `user.conf`; default none.
    pub user_conf: Option<PathBuf>,
    /// LoadGen's `audit.config`; default none.
    pub audit_config: Option<PathBuf>,
    /// Folder for logs and histograms; default `results` in the working directory.
    pub output_dir: PathBuf,
    /// Further settings by the names of LoadGen's own fields, such as `target_qps`; default none.
    pub settings: BTreeMap<String, Scalar>,
}

impl Default for LoadgenConfig {
    fn default() -> Self {
        LoadgenConfig {
            scenario: None,
            model: None,
            user_conf: None,
            audit_config: None,
            output_dir: PathBuf::from(DEFAULT_OUTPUT_DIR),
            settings: BTreeMap::new(),
        }
    }
}

impl FrontendConfig {
    /// Name of the model in `user.conf`.
    pub fn loadgen_model(&self) -> &str {
        self.loadgen.model.as_deref().unwrap_or(&self.model.name)
    }

    /// The files it names that must be there at the start, with the keys that name them.
    pub(super) fn files(&self) -> Vec<(&'static str, &Path)> {
        let mut files: Vec<(&'static str, &Path)> = Vec::new();
        if let DatasetConfig::Raw { samples, labels } = &self.dataset {
            files.push(("dataset.samples", samples));
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
        self.check_dataset(out);
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

    fn check_dataset(&self, out: &mut Findings) {
        let Some(largest) = self.model.max_input_bytes() else {
            return; // The model has been complained of.
        };
        match &self.dataset {
            DatasetConfig::Raw { .. } => {
                if !self.model.fixed_size() {
                    out.add(
                        "dataset.kind",
                        "a raw data set has samples of equal size, and the model has a ragged input",
                        "remove `ragged` from the model's inputs, or use `kind: random`",
                    );
                }
            }
            DatasetConfig::Random {
                count,
                min_bytes,
                max_bytes,
                distribution,
                ..
            } => {
                if let Err(error) = within(1..=MAX_SAMPLES)(count, &()) {
                    out.garde("dataset.count", &error);
                }
                if *max_bytes > largest || *max_bytes == 0 {
                    out.add(
                        "dataset.max_bytes",
                        format!("max_bytes is {max_bytes}"),
                        format!("it must be 1 to {largest}, the size of the model's input"),
                    );
                } else if *min_bytes > *max_bytes || *min_bytes == 0 {
                    out.add(
                        "dataset.min_bytes",
                        format!("min_bytes is {min_bytes}"),
                        format!("it must be 1 to {max_bytes}, which is max_bytes"),
                    );
                } else if *distribution == SizeDistribution::Fixed && min_bytes != max_bytes {
                    out.add(
                        "dataset.min_bytes",
                        format!("samples of fixed size have max_bytes, {max_bytes}, all of them"),
                        "remove `min_bytes`, or use `distribution: log_uniform`",
                    );
                } else if self.model.fixed_size() && *min_bytes != largest {
                    out.add(
                        "dataset",
                        format!(
                            "samples of {min_bytes} to {max_bytes} bytes do not fit the model, which takes \
                             {largest} bytes and no fewer"
                        ),
                        "use `distribution: fixed` without `min_bytes` and `max_bytes`, or mark the input \
                         `ragged: true`",
                    );
                }
                if let Some(loaded) = self.performance_sample_count
                    && loaded > *count
                {
                    out.add(
                        "performance_sample_count",
                        format!(
                            "performance_sample_count is {loaded}, the data set has {count} samples"
                        ),
                        format!("set it to at most {count}"),
                    );
                }
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
    deadlines: Deadlines,
    #[serde(default)]
    verify: Verify,
    #[serde(default)]
    loadgen: LoadgenConfig,
    engine: Option<EngineConfig>,
    model_file: Option<PathBuf>,
}

#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "snake_case")]
enum DatasetKind {
    Raw,
    Random,
}

/// The keys of every kind of data set.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct DatasetFile {
    kind: DatasetKind,
    samples: Option<PathBuf>,
    labels: Option<PathBuf>,
    count: Option<usize>,
    min_bytes: Option<usize>,
    max_bytes: Option<usize>,
    seed: Option<u64>,
    distribution: Option<SizeDistribution>,
}

impl DatasetFile {
    fn into_config(
        self,
        model: &ModelSpec,
        base: &Path,
        out: &mut Findings,
    ) -> Option<DatasetConfig> {
        let (kind, foreign) = match self.kind {
            DatasetKind::Raw => (
                "raw",
                [
                    ("count", self.count.is_some()),
                    ("min_bytes", self.min_bytes.is_some()),
                    ("max_bytes", self.max_bytes.is_some()),
                    ("seed", self.seed.is_some()),
                    ("distribution", self.distribution.is_some()),
                ]
                .to_vec(),
            ),
            DatasetKind::Random => (
                "random",
                [
                    ("samples", self.samples.is_some()),
                    ("labels", self.labels.is_some()),
                ]
                .to_vec(),
            ),
        };
        for (key, _) in foreign.into_iter().filter(|(_, present)| *present) {
            out.add(
                format!("dataset.{key}"),
                format!("a data set of kind `{kind}` has no `{key}`"),
                format!("remove `{key}`, or use another kind"),
            );
        }
        match self.kind {
            DatasetKind::Raw => {
                let Some(samples) = self.samples else {
                    out.add(
                        "dataset",
                        "a data set of kind `raw` needs `samples`",
                        "add `samples: PATH`, a file of samples of equal size, back to back",
                    );
                    return None;
                };
                Some(DatasetConfig::Raw {
                    samples: resolve(base, samples),
                    labels: self.labels.map(|labels| resolve(base, labels)),
                })
            }
            DatasetKind::Random => {
                let distribution = self.distribution.unwrap_or(if model.fixed_size() {
                    SizeDistribution::Fixed
                } else {
                    SizeDistribution::LogUniform
                });
                // A model whose size overflows is complained of elsewhere.
                let max_bytes = self.max_bytes.or(model.max_input_bytes()).unwrap_or(1);
                let min_bytes = self.min_bytes.unwrap_or(match distribution {
                    SizeDistribution::LogUniform => DEFAULT_RANDOM_MIN_BYTES,
                    SizeDistribution::Fixed => max_bytes,
                });
                Some(DatasetConfig::Random {
                    count: self.count.unwrap_or(DEFAULT_RANDOM_COUNT),
                    min_bytes,
                    max_bytes,
                    seed: self.seed.unwrap_or(DEFAULT_RANDOM_SEED),
                    distribution,
                })
            }
        }
    }
}

impl FrontendFile {
    /// Sorts the keys out and resolves paths against `base`. `None` only with a finding.
    pub(super) fn into_config(self, base: &Path, out: &mut Findings) -> Option<FrontendConfig> {
        let auth = Auth::from_keys(self.token_file.map(|f| resolve(base, f)), self.auth, out);
        let dataset = self.dataset.into_config(&self.model, base, out);
        let nics = super::nic_file::into_nics(self.nics, Side::Frontend, out);
        let mut loadgen = self.loadgen;
        loadgen.user_conf = loadgen.user_conf.map(|f| resolve(base, f));
        loadgen.audit_config = loadgen.audit_config.map(|f| resolve(base, f));
        if loadgen.output_dir.as_os_str() != DEFAULT_OUTPUT_DIR {
            loadgen.output_dir = resolve(base, loadgen.output_dir);
        }
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
            deadlines: self.deadlines,
            verify: self.verify,
            loadgen,
            engine,
            model_file: self.model_file.map(|f| resolve(base, f)),
        })
    }
}
