//! Checks the nodes' configurations, which the programs' own parser reads: before a run those that
//! the nodes have, in a tree the copies that the run kept.

use std::{collections::BTreeSet, net::IpAddr};

use qdl::config::{
    AcceleratorConfig, DatasetKind, EngineConfig, FrontendConfig, ModelFiles, NicConfig, NicFabric,
    QslMode, Verify,
};

use super::{nodes::words, run::RunCheck, *};
use crate::manifest::{FRONTEND_YAML, accelerator_yaml};

/// Whether an address, with or without a port, is of this machine alone.
fn is_loopback(address: &str) -> bool {
    let host = address.rsplit_once(':').map_or(address, |(host, _)| host);
    let bare = |text: &str| text.trim_matches(['[', ']']).parse::<IpAddr>().ok();
    match bare(address).or(bare(host)) {
        Some(ip) => ip.to_canonical().is_loopback(),
        None => host == "localhost" || host.ends_with(".localhost"),
    }
}

/// The fabrics of NICs.
fn fabrics(nics: &[NicConfig]) -> BTreeSet<&'static str> {
    nics.iter().map(|nic| nic.fabric.as_str()).collect()
}

impl RunCheck<'_> {
    /// Checks all configurations that are known.
    pub(crate) fn configs(&mut self, configs: &RunConfigs) {
        if let Some(frontend) = &configs.frontend {
            self.frontend(frontend);
        }
        for (node, config) in &configs.accelerators {
            self.accelerator(node, config, configs.frontend.as_ref());
        }
    }

    fn frontend(&mut self, config: &FrontendConfig) {
        let file = FRONTEND_YAML;
        if config.qsl == QslMode::Staged {
            let what = "qsl: staged copies samples before they are sent";
            (self.say)(CONFIG_STAGED, file, what.into());
        }
        let synthetic = match config.dataset.kind {
            DatasetKind::Raw => false,
            DatasetKind::Tokens => config.dataset.samples.is_none(),
            _ => true,
        };
        if synthetic {
            let what = "the data set is made up from a seed: dataset";
            (self.say)(CONFIG_DATASET, file, what.into());
        }
        if config.verify != Verify::None {
            let what = "verify compares made-up answers: remove it";
            (self.say)(CONFIG_ENGINE, file, what.into());
        }
        if config.model_files == ModelFiles::Any {
            let what = "model_files: any lets accelerators run different models";
            (self.say)(CONFIG_MODEL, file, what.into());
        }
        self.loopback(file, &config.nics);
        for accelerator in &config.accelerators {
            if is_loopback(&accelerator.control) {
                let what = format!("an accelerator is at {}: loopback", accelerator.control);
                (self.say)(RECORD_NETWORK, file, what);
            }
        }
        let Some(manifest) = self.manifest else {
            return;
        };
        if manifest.local
            && let Some(engine) = &config.engine
        {
            let output = config.model.output.shape.first().copied();
            self.engine(file, engine, output.unwrap_or(0));
        }
        if self.is_over() {
            let settings = &config.loadgen.settings;
            for (key, value) in settings.iter().filter(|(key, _)| self.round.overrides(key)) {
                let what = format!("loadgen.settings.{key} = {value} goes before user.conf");
                (self.say)(RECORD_OVERRIDE, file, what);
            }
            if let Some(n) = config.performance_sample_count {
                let what = format!("performance_sample_count: {n} goes before user.conf");
                (self.say)(RECORD_OVERRIDE, file, what);
            }
            if *self.kind == RunKind::Performance && config.loadgen.audit_config.is_some() {
                (self.say)(RUN_SAMPLED, file, "loadgen.audit_config is set".into());
            }
            self.is_of(file, "node", &config.node, &manifest.frontend.node);
            self.is_of(file, "model", config.loadgen_model(), &manifest.model);
            let (n, of) = (config.accelerators.len(), manifest.accelerators.len());
            if n != of && !manifest.local {
                let what = format!("it names {n} accelerators, the record has {of}");
                (self.say)(RECORD_YAML, file, what);
            }
            let (own, recorded) = (fabrics(&config.nics), words(&manifest.fabric));
            if !manifest.local && !recorded.iter().all(|f| own.contains(f)) {
                let own = Vec::from_iter(own).join(", ");
                let what = format!("its NICs are {own}, the record says {}", manifest.fabric);
                (self.say)(RECORD_NETWORK, file, what);
            }
        }
    }

    fn accelerator(
        &mut self,
        node: &Name,
        config: &AcceleratorConfig,
        frontend: Option<&FrontendConfig>,
    ) {
        let file = &accelerator_yaml(node);
        self.is_of(file, "node", &config.node, node);
        self.loopback(file, &config.nics);
        if config.control.listen.ip().to_canonical().is_loopback() {
            let what = format!("it listens at {}: loopback", config.control.listen);
            (self.say)(RECORD_NETWORK, file, what);
        }
        let spec = config.model.spec();
        let output = spec.as_ref().and_then(|m| m.output.shape.first().copied());
        self.engine(file, &config.engine, output.unwrap_or(0));
        let cache = self.manifest.map(|m| m.prefix_caches.contains_key(&**node));
        if config.engine.kind.has_server() && cache == Some(false) && self.is_over() {
            let what = "nothing says whether its server keeps a prefix cache";
            (self.say)(RECORD_CACHE, file, what.into());
        }
        let Some(frontend) = frontend else { return };
        if let Some(spec) = spec
            && let Err(differs) = frontend.model.check_against(&spec)
        {
            let what = format!("its model's {} is not the frontend's", differs.field);
            (self.say)(CONFIG_MODEL, file, what);
        }
        let (own, theirs) = (fabrics(&config.nics), fabrics(&frontend.nics));
        if !theirs.is_subset(&own) {
            let [own, theirs] = [own, theirs].map(|all| Vec::from_iter(all).join(", "));
            let what = format!("its NICs are {own}, the frontend's {theirs}");
            (self.say)(RECORD_NETWORK, file, what);
        }
    }

    /// Checks that a value is the record's: the file is this run's, and this node's.
    fn is_of(&mut self, file: &str, what: &str, found: &str, recorded: &str) {
        if found != recorded {
            let what = format!("it is of {what} {found:?}, the record's is {recorded:?}");
            (self.say)(RECORD_YAML, file, what);
        }
    }

    fn loopback(&mut self, file: &str, nics: &[NicConfig]) {
        for (i, nic) in nics.iter().enumerate() {
            let address = match &nic.fabric {
                NicFabric::Tcp(tcp) => tcp.address.or(tcp.listen.map(|at| at.ip())),
                NicFabric::Ofi(ofi) => ofi.address,
                NicFabric::Ib(_) => None,
            };
            if let Some(ip) = address.filter(|ip| ip.to_canonical().is_loopback()) {
                let what = format!("nics[{i}] is at {ip}: loopback");
                (self.say)(RECORD_NETWORK, file, what);
            }
        }
    }

    /// Checks an engine, whose answers have at most `output` tokens by the model's output.
    fn engine(&mut self, file: &str, engine: &EngineConfig, output: usize) {
        let kind = engine.kind;
        if !kind.runs_a_model() {
            let what = format!("engine `{}` makes its answers up", kind.as_str());
            return (self.say)(CONFIG_ENGINE, file, what);
        }
        if self.model.tokens && !kind.streams() {
            let what = format!("engine `{}` does not count its tokens", kind.as_str());
            (self.say)(RUN_TOKENS, file, what);
        }
        let http = engine.http.as_ref();
        let vllm = engine.vllm.as_ref();
        let lines = http.map(|c| &c.command).into_iter();
        let lines = lines.chain(vllm.into_iter().flat_map(|c| [&c.command, &c.args]));
        let line = lines
            .flatten()
            .fold(String::from(" "), |all, word| all + word + " ");
        let line = line
            .to_ascii_lowercase()
            .replace('_', "-")
            .replace('=', " ");
        for (rule, options) in &self.round.server_options {
            let Some(rule) = ALL.iter().find(|known| known.id == rule) else {
                continue;
            };
            let permitted = *rule == CONFIG_SPECULATION
                && self.model.speculative.iter().any(|s| s == self.scenario);
            if let Some(option) = options.iter().find(|o| !permitted && line.contains(*o)) {
                let what = format!("the server is started with `{}`", option.trim());
                (self.say)(rule, file, what);
            }
        }
        if !kind.streams() {
            return;
        }
        let most = http
            .and_then(|c| c.max_tokens)
            .or(vllm.and_then(|c| c.max_tokens));
        let most = most.or(engine.llm.and_then(|c| c.max_tokens));
        let most = most.map_or(output, |most| most.min(output));
        let wanted = self.model.max_tokens_of(*self.kind == RunKind::Accuracy);
        if !wanted.is_empty() && !wanted.contains(&most) {
            let what = format!("answers have at most {most} tokens, the round's {wanted:?}");
            (self.say)(CONFIG_LENGTH, file, what);
        }
        let ignores = http.is_some_and(|c| c.ignore_eos) || vllm.is_some_and(|c| c.ignore_eos);
        if ignores {
            let what = "ignore_eos lets answers go on behind their end";
            (self.say)(CONFIG_LENGTH, file, what.into());
        }
        let is = http
            .map(|c| c.temperature)
            .or(vllm.map(|c| c.temperature))
            .unwrap_or(0.0);
        let temperature = self.model.temperature;
        if let Some(wanted) = temperature.filter(|wanted| *wanted != is) {
            let what = format!("the sampling temperature is {is}, the round's {wanted}");
            (self.say)(CONFIG_SAMPLING, file, what);
        }
    }
}
