//! Checks the nodes' configurations, which the programs' own parser reads: before a run those that
//! the nodes have, in a tree the copies that the run kept.

use std::{collections::BTreeSet, net::IpAddr};

use engines::EngineConfig;
use frontend_config::{DatasetKind, FrontendFile, QslMode, Verify};
use qdl::config::{AcceleratorConfig, ModelFiles, NicConfig, NicPlace};

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
    nics.iter().map(|nic| nic.facts().fabric).collect()
}

impl RunCheck<'_> {
    /// Checks all configurations that are known.
    pub(crate) fn configs(&mut self, configs: &RunConfigs) {
        if let Some(frontend) = &configs.frontend {
            self.frontend(frontend);
            if let Some(manifest) = self.manifest.filter(|_| self.is_over()) {
                self.of_record(frontend, manifest);
            }
        }
        for (node, config) in &configs.accelerators {
            self.accelerator(node, config, configs.frontend.as_ref());
            if let Some(engine) = configs.engines.get(node) {
                self.node_engine(node, config, engine);
            }
        }
    }

    fn frontend(&mut self, FrontendFile { cluster, run }: &FrontendFile) {
        let file = FRONTEND_YAML;
        let is_made_up = match run.dataset.kind {
            DatasetKind::Raw => false,
            DatasetKind::Tokens => run.dataset.samples.is_none(),
            _ => true,
        };
        let mut refuse = |is_wrong: bool, rule, what: &str| {
            if is_wrong {
                (self.say)(rule, file, what.to_owned());
            }
        };
        let is_staged = run.qsl == QslMode::Staged;
        let what = "qsl: staged copies samples before they are sent";
        refuse(is_staged, CONFIG_STAGED, what);
        let what = "the data set is made up from a seed: dataset";
        refuse(is_made_up, CONFIG_DATASET, what);
        let what = "verify compares made-up answers: remove it";
        refuse(run.verify != Verify::None, CONFIG_ENGINE, what);
        let is_any = cluster.model_files == ModelFiles::Any;
        let what = "model_files: any lets accelerators run different models";
        refuse(is_any, CONFIG_MODEL, what);
        let control = cluster.accelerators.iter();
        let control = control.map(|a| ("an accelerator".to_owned(), a.control.clone()));
        self.node(file, &cluster.nics, control.collect());
        if let Some(engine) = &run.engine
            && self.manifest.is_some_and(|manifest| manifest.local)
        {
            let output = cluster.model.output.shape.first().copied();
            self.engine(file, engine, output.unwrap_or(0));
        }
    }

    /// Checks the frontend's configuration against the record of the run.
    fn of_record(&mut self, config: &FrontendFile, manifest: &Manifest) {
        let file = FRONTEND_YAML;
        let FrontendFile { cluster, run } = config;
        let settings = run.loadgen.settings.iter();
        let settings = settings.filter(|(key, _)| self.round.overrides(key));
        let settings = settings.map(|(key, value)| format!("loadgen.settings.{key} = {value}"));
        let samples = run.performance_sample_count;
        let samples = samples.map(|n| format!("performance_sample_count: {n}"));
        for setting in settings.chain(samples) {
            (self.say)(
                RECORD_OVERRIDE,
                file,
                format!("{setting} goes before user.conf"),
            );
        }
        if *self.kind == RunKind::Performance && run.loadgen.audit_config.is_some() {
            (self.say)(RUN_SAMPLED, file, "loadgen.audit_config is set".into());
        }
        self.is_of(file, "node", &cluster.node, &manifest.frontend.node);
        self.is_of(file, "model", config.loadgen_model(), &manifest.model);
        if manifest.local {
            return;
        }
        let (n, of) = (cluster.accelerators.len(), manifest.accelerators.len());
        if n != of {
            let what = format!("it names {n} accelerators, the record has {of}");
            (self.say)(RECORD_YAML, file, what);
        }
        let (own, recorded) = (fabrics(&cluster.nics), words(&manifest.fabric));
        if !recorded.iter().all(|f| own.contains(f)) {
            let (own, fabric) = (list(&own), &manifest.fabric);
            let what = format!("its NICs are {own}, the record says {fabric}");
            (self.say)(RECORD_NETWORK, file, what);
        }
    }

    fn accelerator(
        &mut self,
        node: &Name,
        config: &AcceleratorConfig,
        frontend: Option<&FrontendFile>,
    ) {
        let file = &accelerator_yaml(node);
        self.is_of(file, "node", &config.node, node);
        let control = ("control".to_owned(), config.control.listen.to_string());
        self.node(file, &config.nics, vec![control]);
        let spec = config.model.spec();
        let Some(frontend) = frontend else { return };
        if let Some(spec) = spec
            && let Err(differs) = frontend.cluster.model.check_against(&spec)
        {
            let what = format!("its model's {} is not the frontend's", differs.field);
            (self.say)(CONFIG_MODEL, file, what);
        }
        let (own, theirs) = (fabrics(&config.nics), fabrics(&frontend.cluster.nics));
        if !theirs.is_subset(&own) {
            let (own, theirs) = (list(&own), list(&theirs));
            let what = format!("its NICs are {own}, the frontend's {theirs}");
            (self.say)(RECORD_NETWORK, file, what);
        }
    }

    /// Checks an accelerator's engine.
    fn node_engine(&mut self, node: &Name, config: &AcceleratorConfig, engine: &EngineConfig) {
        let file = &accelerator_yaml(node);
        let spec = config.model.spec();
        let output = spec.and_then(|m| m.output.shape.first().copied());
        self.engine(file, engine, output.unwrap_or(0));
        let cache = self.manifest.map(|m| m.prefix_caches.contains_key(&**node));
        if engine.kind.has_server() && cache == Some(false) && self.is_over() {
            let what = "nothing says whether its server keeps a prefix cache";
            (self.say)(RECORD_CACHE, file, what.into());
        }
    }

    /// Checks that a value is the record's: the file is this run's, and this node's.
    fn is_of(&mut self, file: &str, what: &str, found: &str, recorded: &str) {
        if found != recorded {
            let what = format!("it is of {what} {found:?}, the record's is {recorded:?}");
            (self.say)(RECORD_YAML, file, what);
        }
    }

    /// Checks what both kinds of nodes have: NICs, and addresses by their names.
    fn node(&mut self, file: &str, nics: &[NicConfig], mut addresses: Vec<(String, String)>) {
        for (i, nic) in nics.iter().enumerate() {
            if let NicPlace::Address(ip) = nic.facts().place {
                addresses.push((format!("nics[{i}]"), ip.to_string()));
            }
        }
        for (what, address) in addresses.iter().filter(|(_, at)| is_loopback(at)) {
            (self.say)(
                RECORD_NETWORK,
                file,
                format!("{what} is at {address}: loopback"),
            );
        }
    }

    /// Checks an engine, whose answers have at most `output` tokens by the model's output.
    fn engine(&mut self, file: &str, engine: &EngineConfig, output: usize) {
        let (kind, model) = (engine.kind, self.model);
        if !kind.runs_a_model() {
            let what = format!("engine `{}` makes its answers up", kind.as_str());
            return (self.say)(CONFIG_ENGINE, file, what);
        }
        if model.tokens && !kind.streams() {
            let what = format!("engine `{}` does not count its tokens", kind.as_str());
            (self.say)(RUN_TOKENS, file, what);
        }
        let (http, vllm) = (engine.http.as_ref(), engine.vllm.as_ref());
        let words = http.map(|c| &c.command).into_iter();
        let words = words.chain(vllm.into_iter().flat_map(|c| [&c.command, &c.args]));
        let line: String = words.flatten().map(|word| format!(" {word}")).collect();
        let line = line.to_ascii_lowercase() + " ";
        let line = line.replace('_', "-").replace('=', " ");
        for (rule, options) in &self.round.server_options {
            let Some(rule) = ALL.iter().find(|known| known.id == rule) else {
                continue;
            };
            let permitted =
                *rule == CONFIG_SPECULATION && model.speculative.iter().any(|s| s == self.scenario);
            if let Some(option) = options.iter().find(|o| !permitted && line.contains(*o)) {
                let what = format!("the server is started with `{}`", option.trim());
                (self.say)(rule, file, what);
            }
        }
        if !kind.streams() {
            return;
        }
        // Longest answer, whether answers go on behind their end, temperature.
        let (most, goes_on, temperature) = match (http, vllm, engine.llm) {
            (Some(c), ..) => (c.max_tokens, c.ignore_eos, c.temperature),
            (_, Some(c), _) => (c.max_tokens, c.ignore_eos, c.temperature),
            (.., llm) => (llm.and_then(|c| c.max_tokens), false, 0.0),
        };
        let most = most.map_or(output, |most| most.min(output));
        let wanted = model.max_tokens_of(*self.kind == RunKind::Accuracy);
        if !wanted.is_empty() && !wanted.contains(&most) {
            let what = format!("answers have at most {most} tokens, the round's {wanted:?}");
            (self.say)(CONFIG_LENGTH, file, what);
        }
        if goes_on {
            let what = "ignore_eos lets answers go on behind their end";
            (self.say)(CONFIG_LENGTH, file, what.into());
        }
        if let Some(wanted) = model.temperature.filter(|wanted| *wanted != temperature) {
            let what = format!("the sampling temperature is {temperature}, the round's {wanted}");
            (self.say)(CONFIG_SAMPLING, file, what);
        }
    }
}
