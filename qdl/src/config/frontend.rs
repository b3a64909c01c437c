//! Configuration file of a frontend.

use std::{
    collections::BTreeSet,
    net::IpAddr,
    path::{Path, PathBuf},
};

use garde::Validate;
use record::NodeRole;
use serde::{Deserialize, Serialize};

use super::{
    auth::{Auth, AuthWord},
    deadlines::{Deadlines, WarmUpConfig},
    health::HealthConfig,
    nic::{MAX_THREADS, NicConfig},
    root::ConfigFile,
    rules::{ConfigSide, Findings, auto_within, check_model, name, resolve},
};
use crate::{
    model::{DType, ModelSpec},
    wire::Policy,
};
use fabric::{keys::Auto, wire::Stream};

with_defaults! {
/// The keys of a frontend's network. In code, begin with [`FrontendConfig::default`] and check the
/// result with [`check`](super::check).
#[derive(Clone, Debug, PartialEq, Serialize, Deserialize, Validate)]
#[garde(allow_unvalidated)]
pub struct FrontendConfig {
    /// Name of the node, unique in the system: 1 to 64 of `A-Z a-z 0-9 . _ -`.
    #[garde(custom(name))]
    pub node: String,
    /// The model that the accelerators must run; names and sizes are compared at the start.
    pub model: ModelSpec = ModelSpec::opaque("", 0, 0),
    /// File of the shared token that authenticates the nodes; see [`Self::auth`].
    pub token_file: Option<PathBuf>,
    /// `none` turns authentication off; see [`Self::auth`].
    pub auth: Option<AuthWord>,
    /// The accelerators behind this frontend; at least one.
    pub accelerators: Vec<AcceleratorAddress>,
    /// The NICs of this node; at least one.
    #[garde(dive)]
    pub nics: Vec<NicConfig>,
    /// Maximum number of threads that poll the NICs; never more than connections. Default `auto`:
    /// by the cores of this machine.
    #[serde(default)]
    #[garde(custom(auto_within(1..=MAX_THREADS)))]
    pub nic_threads: Auto<usize>,
    /// Policy that chooses the connection for the next sample; default `least_outstanding`.
    #[serde(default)]
    pub arbiter: Policy,
    /// Settings of rail health, if `arbiter` is a policy by health.
    #[serde(default)]
    #[garde(dive)]
    pub health: HealthConfig,
    /// Warm-up of the connections before LoadGen's clock starts.
    #[serde(default)]
    #[garde(dive)]
    pub warm_up: WarmUpConfig,
    /// `true`: one system call or doorbell per sample, for a strict reading of "no batching".
    /// Default `false`: samples that are ready together share a call or doorbell. In both cases
    /// each sample is a separate message.
    #[serde(default)]
    pub one_by_one: bool,
    /// Tokens of an answer that the accelerator sends before the answer's end, if the engine
    /// streams. Default `first` if LoadGen measures tokens, otherwise `none`. `None` until
    /// LoadGen's settings are known.
    pub stream: Option<Stream>,
    /// Deadlines of this node.
    #[serde(default)]
    #[garde(dive)]
    pub deadlines: Deadlines,
    /// Whether all accelerators must run the same model content; default `same`.
    #[serde(default)]
    pub model_files: ModelFiles,
}
}

/// Whether accelerators may run different models of one name.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum ModelFiles {
    /// The run does not begin if accelerators report different contents.
    #[default]
    Same,
    /// Contents may differ; the summary names every content.
    Any,
}

/// Address of an accelerator.
#[derive(Clone, Debug, PartialEq, Eq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct AcceleratorAddress {
    /// `HOST:PORT` of the control plane; the host is a name or an address (IPv6 in brackets).
    pub control: String,
    /// Phase of an answer that the accelerator computes, equal to its own `engine.role`; default
    /// `both`.
    #[serde(default, skip_serializing_if = "NodeRole::is_both")]
    pub role: NodeRole,
}

impl FrontendConfig {
    /// Returns the authentication between the nodes.
    pub fn auth(&self) -> Auth<'_> {
        Auth::of(self.token_file.as_ref(), self.auth)
    }

    fn check_stream(&self, out: &mut Findings<'_>) {
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
    }

    /// Prefill and decode need each other, a model of tokens, and a choice by load.
    fn check_roles(&self, out: &mut Findings<'_>) {
        let count = |role| self.accelerators.iter().filter(|a| a.role == role).count();
        let [both, prefill, decode] =
            [NodeRole::Both, NodeRole::Prefill, NodeRole::Decode].map(count);
        if prefill + decode == 0 {
            return;
        }
        if both > 0 || prefill == 0 || decode == 0 {
            out.add(
                "accelerators",
                format!("{prefill} prefill nodes, {decode} decode nodes, and {both} of both roles"),
                "give each accelerator a role, at least one `prefill` and one `decode`",
            );
        }
        if self.arbiter.is_by_health() {
            out.add(
                "arbiter",
                "policies by health know no roles",
                "remove `arbiter` or the accelerators' `role`",
            );
        }
        if !self.model.answers_tokens() {
            out.add(
                "accelerators",
                "roles are for models that answer with tokens",
                "give the model's output `dtype: i32` and `ragged: true`, or remove `role`",
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

impl ConfigFile for FrontendConfig {
    const SIDE: ConfigSide = ConfigSide::Frontend;

    fn resolve(&mut self, base: &Path) {
        let file = self.token_file.iter_mut();
        file.for_each(|file| resolve(base, file));
    }

    fn nics(&mut self) -> &mut [NicConfig] {
        &mut self.nics
    }

    fn files(&self) -> Vec<(&'static str, Option<&Path>)> {
        vec![("token_file", self.token_file.as_deref())]
    }

    fn check(&self, out: &mut Findings<'_>) {
        let model = &self.model;
        let outputs = (&model.output, &*model.other_outputs);
        check_model("model", &model.name, &model.inputs, outputs, out);
        self.auth().check(self.auth, out);
        self.check_accelerators(out);
        self.check_roles(out);
        self.check_stream(out);
        self.deadlines.check(Self::SIDE, out);
        self.health.check(out);
    }
}

/// Returns the host of `HOST:PORT`; `None` for any other text.
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
