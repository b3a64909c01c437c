//! Configuration file of an accelerator.

use std::{
    collections::BTreeMap,
    net::{Ipv4Addr, SocketAddr},
    path::{Path, PathBuf},
};

use garde::Validate;
use serde::{Deserialize, Serialize};

use super::{
    auth::{Auth, AuthWord},
    deadlines::Deadlines,
    nic::{MAX_THREADS, NicConfig},
    root::ConfigFile,
    rules::{
        ConfigSide, Findings, MAX_SAMPLE_BYTES, auto_within, check_model, name, resolve, within,
        within_some,
    },
    values::port_or_address,
};
use crate::model::{ModelSpec, TensorSpec};
use fabric::keys::{Auto, socket_address};

/// Default length of a response in bytes, and the minimum for `digest`.
const OUTPUT_BYTES: usize = 8;
/// Maximum memory budget: 16 TiB.
const MAX_MEMORY_MIB: usize = 16 << 20;

with_defaults! {
/// Configuration of an accelerator node without its engine. In code, begin with
/// [`AcceleratorConfig::default`] and check the result with [`check`](super::check).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Validate)]
#[garde(allow_unvalidated)]
pub struct AcceleratorConfig {
    /// Name of the node, unique in the system and part of the SUT's name: 1 to 64 of `A-Z a-z 0-9 .
    /// _ -`.
    #[garde(custom(name))]
    pub node: String,
    /// The control plane.
    pub control: ControlConfig = ControlConfig { listen: (Ipv4Addr::LOCALHOST, 0).into() },
    /// File of the shared token that authenticates the nodes; see [`Self::auth`].
    pub token_file: Option<PathBuf>,
    /// `none` turns authentication off; see [`Self::auth`].
    pub auth: Option<AuthWord>,
    /// The model.
    #[garde(dive)]
    pub model: AcceleratorModel,
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
    pub memory_mib: usize = memory_mib(),
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
#[derive(Clone, Debug, Default, PartialEq, Eq, Serialize, Deserialize, Validate)]
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
    /// The keys of this model.
    pub fn of(spec: &ModelSpec) -> Self {
        AcceleratorModel {
            name: spec.name.clone(),
            inputs: Some(spec.inputs.clone()),
            output: Some(spec.output.clone()),
            other_outputs: spec.other_outputs.clone(),
            ..AcceleratorModel::default()
        }
    }

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
        out.rule("model.name", &model.name, name);
        if model.inputs.is_some() != model.output.is_some() {
            out.add(
                "model",
                "`inputs` and `output` go together, and only one of them is here",
                "give both, or neither",
            );
        }
        let others = &*model.other_outputs;
        if !others.is_empty() && model.output.is_none() {
            out.add(
                "model.other_outputs",
                "`other_outputs` follow `output`, and there is none",
                "give `inputs` and `output` too, or none of the three",
            );
        }
        if let (Some(inputs), Some(output)) = (&model.inputs, &model.output) {
            check_model("model", &model.name, inputs, (output, others), out);
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
        ]
    }

    fn check(&self, out: &mut Findings<'_>) {
        self.auth().check(self.auth, out);
        self.check_metrics(out);
        self.check_model(out);
        self.check_addresses(out);
        self.deadlines.check(Self::SIDE, out);
    }
}
