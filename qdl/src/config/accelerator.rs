//! Configuration file of an accelerator.

use std::{
    collections::BTreeMap,
    net::SocketAddr,
    path::{Path, PathBuf},
};

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{
    auth::{Auth, AuthWord},
    deadlines::Deadlines,
    engine::{EngineConfig, EngineKind},
    nic::{MAX_THREADS, NicConfig},
    root::ConfigFile,
    rules::{
        ConfigSide, Findings, MAX_SAMPLE_BYTES, auto_within, check_model, name, resolve, within,
        within_some,
    },
    values::port_or_address,
};
use crate::model::{DType, ModelSpec, TensorSpec};
use fabric::keys::{Auto, socket_address};

/// Default length of a response in bytes, and the minimum for `digest`.
const OUTPUT_BYTES: usize = 8;
/// Maximum memory budget: 16 TiB.
const MAX_MEMORY_MIB: usize = 16 << 20;

/// Configuration of an accelerator node.
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct AcceleratorConfig {
    /// Name of the node, unique in the system and part of the SUT's name: 1 to 64 of `A-Z a-z 0-9 .
    /// _ -`.
    #[garde(custom(name))]
    pub node: String,
    /// The control plane.
    pub control: ControlConfig,
    /// File of the shared token that authenticates the nodes; see [`Self::auth`].
    pub token_file: Option<PathBuf>,
    /// `none` turns authentication off; see [`Self::auth`].
    pub auth: Option<AuthWord>,
    /// The model.
    #[garde(dive)]
    pub model: AcceleratorModel,
    /// Engine and batcher.
    #[garde(dive)]
    pub engine: EngineConfig,
    /// The NICs of this node; at least one.
    #[garde(dive)]
    pub nics: Vec<NicConfig>,
    /// Maximum number of threads that poll the NICs; never more than connections. Default `auto`:
    /// from the number of cores of this machine.
    #[serde(default)]
    #[garde(custom(auto_within(1..=MAX_THREADS)))]
    pub nic_threads: Auto<usize>,
    /// Memory budget for all slots of this node, in MiB; default 4096.
    #[serde(default = "memory_mib")]
    #[garde(custom(within(1..=MAX_MEMORY_MIB)))]
    pub memory_mib: usize,
    /// Address of `GET /metrics`; a bare port is one of 127.0.0.1. Default: no endpoint. Another
    /// address than loopback needs [`Self::metrics_token_file`].
    #[serde(default, deserialize_with = "port_or_address")]
    pub metrics: Option<SocketAddr>,
    /// File of the token that a request for `/metrics` must bring.
    pub metrics_token_file: Option<PathBuf>,
    /// Deadlines of this node.
    #[serde(default)]
    #[garde(dive)]
    pub deadlines: Deadlines,
}

fn memory_mib() -> usize {
    4096
}

/// The control plane of an accelerator.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct ControlConfig {
    /// Listening address and port; with port 0 the system chooses the port.
    #[serde(deserialize_with = "socket_address")]
    pub listen: SocketAddr,
}

/// The model of an accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize, Validate)]
#[serde(deny_unknown_fields)]
#[garde(allow_unvalidated)]
pub struct AcceleratorModel {
    /// Name of the model, equal on both nodes.
    pub name: String,
    /// The model file; `onnx` requires it.
    pub file: Option<PathBuf>,
    /// Inputs in the order in which a slot holds them. An engine with a model file reads missing
    /// inputs from the file; given inputs must agree with the file.
    pub inputs: Option<Vec<TensorSpec>>,
    /// The output; an engine reads or checks the output in the same way.
    pub output: Option<TensorSpec>,
    /// Further outputs, in their order behind `output` in a response; checked in the same way.
    #[serde(default)]
    pub other_outputs: Vec<TensorSpec>,
    /// Maximum sample length in bytes, for `null` and `digest`, which accept any bytes.
    #[garde(custom(within_some(1..=MAX_SAMPLE_BYTES)))]
    pub max_input_bytes: Option<usize>,
    /// Response length in bytes, for `null` and `digest`; default 8, the minimum for `digest`.
    #[garde(custom(within_some(1..=MAX_SAMPLE_BYTES)))]
    pub output_bytes: Option<usize>,
}

impl AcceleratorModel {
    /// Returns the model for the wire; `None` if the model file must be read.
    pub fn spec(&self) -> Option<ModelSpec> {
        if let (Some(inputs), Some(output)) = (&self.inputs, &self.output) {
            return Some(ModelSpec {
                name: self.name.clone(),
                inputs: inputs.clone(),
                output: output.clone(),
                other_outputs: self.other_outputs.clone(),
            });
        }
        let output = self.output_bytes.unwrap_or(OUTPUT_BYTES);
        self.max_input_bytes
            .map(|input| ModelSpec::opaque(&self.name, input, output))
    }
}

impl AcceleratorConfig {
    /// Returns the authentication between the nodes.
    pub fn auth(&self) -> Auth<'_> {
        Auth::of(self.token_file.as_ref(), self.auth)
    }

    /// Returns the budget for all slots in bytes.
    pub fn memory(&self) -> usize {
        self.memory_mib << 20
    }

    fn check_model(&self, out: &mut Findings<'_>) {
        let model = &self.model;
        let kind = self.engine.kind.as_str();
        out.rule("model.name", &model.name, name);
        if model.inputs.is_some() != model.output.is_some() {
            out.add(
                "model",
                "`inputs` and `output` go together, and only one of them is here",
                "give both, or neither",
            );
        }
        let engine = self.engine.kind;
        let others = &*model.other_outputs;
        if !others.is_empty() && model.output.is_none() {
            out.add(
                "model.other_outputs",
                "`other_outputs` follow `output`, and there is none",
                "give `inputs` and `output` too, or none of the three",
            );
        }
        if !others.is_empty() && !engine.takes_any_bytes() && engine != EngineKind::Onnx {
            out.add_key(
                "model.other_outputs",
                format!("engine `{kind}` gives one output"),
                "remove `other_outputs`, or use `kind: onnx`",
            );
        }
        if let (Some(inputs), Some(output)) = (&model.inputs, &model.output) {
            check_model("model", &model.name, inputs, (output, others), out);
            let one_size = !engine.streams() && engine != EngineKind::Digest;
            if output.ragged && one_size {
                out.add(
                    "model.output",
                    format!("engine `{kind}` answers with outputs of one size"),
                    "remove `ragged` from the output",
                );
            }
        }
        for (key, present) in [
            ("file", model.file.is_some()),
            ("max_input_bytes", model.max_input_bytes.is_some()),
            ("output_bytes", model.output_bytes.is_some()),
        ] {
            let (what, help) = match engine {
                EngineKind::Http | EngineKind::Vllm => (
                    format!("engine `{kind}` leaves the model to a second program"),
                    format!("remove `{key}`, and give `inputs` and `output`"),
                ),
                _ if key == "file" => continue,
                _ if engine.takes_any_bytes() && model.inputs.is_none() => continue,
                _ if engine.takes_any_bytes() => (
                    format!("`{key}` and `inputs` both say how large a sample is"),
                    format!("remove `{key}`, or `inputs` and `output`"),
                ),
                _ if engine.streams() => (
                    format!("engine `{kind}` counts tokens, not bytes"),
                    format!("remove `{key}`"),
                ),
                _ => (
                    format!("engine `{kind}` takes its sizes from the model file"),
                    format!("remove `{key}`"),
                ),
            };
            if present {
                out.add_key(format!("model.{key}"), what, help);
            }
        }
        let in_pairs = model.inputs.is_some() == model.output.is_some();
        if engine.takes_any_bytes() && in_pairs && model.spec().is_none() {
            out.add(
                "model",
                format!("engine `{kind}` takes any bytes and must be told how many"),
                "add `max_input_bytes`, the size of the largest sample",
            );
        } else if engine == EngineKind::Tokens && model.inputs.is_none() {
            out.add(
                "model",
                format!("engine `{kind}` must be told how long prompts and answers can be"),
                "add `inputs` and `output`, each `dtype: i32` and `ragged: true`, as in \
                 `output: {name: tokens, dtype: i32, shape: [1024], ragged: true}`",
            );
        } else if engine.reads_file() && model.file.is_none() {
            out.add(
                "model",
                format!("engine `{kind}` needs a model file"),
                "add `file: PATH`",
            );
        }
        let answer = model.spec().and_then(|m| m.max_output_bytes());
        if let Some(bytes) = answer.filter(|bytes| *bytes < OUTPUT_BYTES)
            && engine == EngineKind::Digest
        {
            let key = model.output.as_ref().map_or("output_bytes", |_| "output");
            out.add(
                format!("model.{key}"),
                format!("the output has {bytes} bytes"),
                format!("engine `digest` answers with {OUTPUT_BYTES} bytes or more"),
            );
        }
        if engine.has_server() {
            self.check_prompts(out);
        }
    }

    /// Checks that the tensors of a server's model are token ids.
    fn check_prompts(&self, out: &mut Findings<'_>) {
        let model = &self.model;
        let ids = |tensor: &TensorSpec| tensor.dtype == DType::I32 && tensor.shape.len() == 1;
        let inputs = model.inputs.as_deref().unwrap_or_default();
        let output = model.output.as_ref();
        if inputs.len() != 1
            || !inputs.iter().all(ids)
            || !output.is_some_and(|o| ids(o) && o.ragged)
        {
            out.add(
                "model",
                format!(
                    "engine `{}` takes the token ids of a prompt and gives those of an answer",
                    self.engine.kind.as_str()
                ),
                "give one input and a ragged output, both i32 of one dimension, as in \
                 `inputs: [{name: prompt, dtype: i32, shape: [2048], ragged: true}]`",
            );
        }
    }

    /// Checks that each NIC's GPU has a pipeline and that each pipeline has a NIC.
    fn check_gpus(&self, out: &mut Findings<'_>) {
        if !self.engine.minds_gpus() {
            return;
        }
        let served = self.engine.all_gpus();
        let named: Vec<_> = self.nics.iter().map(|nic| nic.gpu).collect();
        for (i, gpu) in named.iter().enumerate() {
            let gpu = gpu.map(|g| g as usize);
            if let Some(gpu) = gpu.filter(|g| !served.contains(g)) {
                out.add(
                    format!("nics[{i}].gpu"),
                    format!("no engine runs on GPU {gpu}; the configuration has one on {served:?}"),
                    "list every GPU that NICs name in `engine.gpus`, as in `gpus: [0, 1]`",
                );
            }
        }
        for gpu in served {
            if !named.is_empty() && named.iter().all(|n| n.is_some_and(|n| n as usize != gpu)) {
                out.add(
                    "engine",
                    format!("GPU {gpu} gets no samples: every entry of `nics` names another one"),
                    format!("give an entry of `nics` the key `gpu: {gpu}`, or leave that GPU out"),
                );
            }
        }
    }

    /// Reports figures that other machines can read without a token of their own.
    fn check_metrics(&self, out: &mut Findings<'_>) {
        let token = self.metrics_token_file.as_ref();
        if let Some(address) = self.metrics
            && token.is_none()
            && !address.ip().to_canonical().is_loopback()
        {
            out.add(
                "metrics",
                format!("{address} is not a loopback address, and there is no token for it"),
                "add `metrics_token_file: FILE` (`qdl token -o FILE` makes one), which Prometheus \
                 reads as authorization.credentials_file",
            );
        }
        if token.is_some() && token == self.token_file.as_ref() {
            out.add(
                "metrics_token_file",
                "it is the token of the nodes, which a monitor must not hold",
                "make another with `qdl token -o FILE`",
            );
        }
    }

    fn check_addresses(&self, out: &mut Findings<'_>) {
        let mut taken: BTreeMap<SocketAddr, String> = BTreeMap::new();
        let mut check = |address: SocketAddr, path: String, auth: Auth<'_>| {
            let loopback = address.ip().is_loopback();
            auth.check_address(loopback, &address.to_string(), &path, out);
            if address.port() == 0 {
                return;
            }
            if let Some(other) = taken.insert(address, path.clone()) {
                out.add(
                    path,
                    format!("{address} is taken by `{other}`"),
                    "give every port once; port 0 lets the system choose",
                );
            }
        };
        check(
            self.control.listen,
            "control.listen".to_owned(),
            self.auth(),
        );
        if let Some(address) = self.metrics {
            check(address, "metrics".to_owned(), Auth::None);
        }
        for (i, nic) in self.nics.iter().enumerate() {
            if let Some(listen) = nic.facts().listen {
                check(listen, format!("nics[{i}].listen"), self.auth());
            }
        }
    }
}

impl ConfigFile for AcceleratorConfig {
    const SIDE: ConfigSide = ConfigSide::Accelerator;

    fn resolve(&mut self, base: &Path) {
        self.engine.resolve(base);
        for file in [
            &mut self.token_file,
            &mut self.metrics_token_file,
            &mut self.model.file,
        ] {
            file.iter_mut().for_each(|file| resolve(base, file));
        }
    }

    fn nics(&mut self) -> &mut [NicConfig] {
        &mut self.nics
    }

    fn files(&self) -> Vec<(&'static str, Option<&Path>)> {
        vec![
            ("model.file", self.model.file.as_deref()),
            ("token_file", self.token_file.as_deref()),
            ("metrics_token_file", self.metrics_token_file.as_deref()),
            ("engine.library", self.engine.library.as_deref()),
        ]
    }

    fn check(&self, out: &mut Findings<'_>) {
        self.auth().check(self.auth, out);
        self.check_metrics(out);
        self.check_model(out);
        self.check_addresses(out);
        self.engine.check(out);
        self.check_gpus(out);
        self.deadlines.check(Self::SIDE, out);
    }
}
