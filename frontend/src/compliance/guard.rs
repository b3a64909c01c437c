//! Checks before the measurement whether a submission would accept the run: applies
//! `submission::guard` to the run's settings and its nodes' facts.

use std::collections::BTreeMap;

use loadgen_bridge::QuerySampleLibrary;
use qdl::config::{FrontendConfig, QslMode};
use record::{EngineInfo, NodeRecord, PrefixCache, SettingRecord};
use submission::{
    guard::{self, Refusal, RunNodes, RunSettings},
    round::Round,
};

use crate::{
    backend::Backend,
    loadgen::qsl::Qsl,
    settings::{self, ROUND, Settings, cli::Args},
};

/// Reasons why a submission would reject the run, and whether the run is a submission.
pub struct Guard {
    round: Round,
    model: String,
    submission: bool,
    refusals: Vec<Refusal>,
}

impl Guard {
    /// Checks the settings of a run.
    /// Error: the round is unknown or, with `--submission`, a rule refuses the run; one line per
    /// refusal.
    pub fn of_settings(
        args: &Args,
        config: &FrontendConfig,
        settings: &Settings,
        qsl: &Qsl,
    ) -> anyhow::Result<Self> {
        let asked = args.submission.as_deref().or(config.submission.as_deref());
        let round = Round::find(asked.unwrap_or(ROUND))?;
        let scenario = settings.test.scenario;
        let records = settings.provenance.records(scenario);
        let user_conf = settings.user_conf.as_ref();
        let name = user_conf.and_then(|path| path.file_name());
        let run = RunSettings {
            model: config.loadgen_model().to_owned(),
            scenario: scenario.name(),
            mode: settings.test.mode.name(),
            fields: settings::fields(&settings.test),
            from: origins(&records, settings),
            user_conf: user_conf.map(|_| name.unwrap_or_default().to_string_lossy().into_owned()),
            loaded: qsl.performance_sample_count() as u64,
            total: qsl.total_sample_count() as u64,
            local: args.local,
            staged: config.qsl == QslMode::Staged,
            compressed: config.model.compression.is_some(),
        };
        let guard = Guard {
            refusals: guard::check_settings(&round, &run),
            model: run.model,
            submission: asked.is_some(),
            round,
        };
        guard.refuse()?;
        Ok(guard)
    }

    /// Adds the facts of the nodes.
    /// Error: with `--submission`, a rule refuses the run; one line per refusal.
    pub fn check_nodes(&mut self, node: &str, backend: &dyn Backend) -> anyhow::Result<()> {
        let (own, peers) = backend.facts();
        let accelerators: Vec<_> = peers.iter().map(|(n, f)| NodeRecord::of(n, f)).collect();
        let engines = backend.engines();
        let caches = prefix_caches(&engines);
        let uncounted = engines.into_iter().filter(|(_, e)| !e.tokens);
        let nodes = RunNodes {
            frontend: NodeRecord::of(node, &own),
            accelerators,
            fabric: backend.link_notes(),
            uncounted: uncounted.map(|(node, _)| node).collect(),
            caches,
        };
        let more = guard::check_nodes(&self.round, &self.model, &nodes);
        self.refusals.extend(more);
        self.refuse()
    }

    fn refuse(&self) -> anyhow::Result<()> {
        if !self.submission || self.refusals.is_empty() {
            return Ok(());
        }
        let all: String = self.lines().map(|line| format!("\n   = {line}")).collect();
        anyhow::bail!(
            "submission {}: this run would not count, nothing was measured{all}",
            self.round.round
        )
    }

    pub fn lines(&self) -> impl Iterator<Item = String> {
        self.refusals
            .iter()
            .map(|r| format!("{}: {}", r.rule.id, r.what))
    }
}

/// Prefix-cache settings, by node, of the engines that can keep prefixes.
pub fn prefix_caches(engines: &[(String, EngineInfo)]) -> BTreeMap<String, PrefixCache> {
    let known = engines.iter();
    known
        .filter_map(|(node, e)| Some((node.clone(), e.prefix_cache.clone()?)))
        .collect()
}

/// Origin of each field's value; if audit.config sets the field, the origin of the value before.
fn origins(records: &[SettingRecord], settings: &Settings) -> BTreeMap<String, String> {
    let audit = settings.audit.as_ref().and_then(|path| path.file_name());
    let audit = audit.map(|name| format!("{}:", name.to_string_lossy()));
    let of_audit = |from: &str| audit.as_ref().is_some_and(|name| from.starts_with(name));
    let origin = |record: &SettingRecord| {
        let before = record
            .overrode
            .first()
            .map_or("default", |given| &given.from);
        let from = match record.given.from.as_str() {
            from if of_audit(from) => before,
            from => from,
        };
        (record.name.clone(), from.to_owned())
    };
    records.iter().map(origin).collect()
}
