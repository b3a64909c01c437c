//! Checks before the measurement whether a submission would accept the run: applies
//! `submission::guard` to the run's settings and its nodes' facts.

use std::collections::BTreeMap;

use frontend_config::FrontendFile;
use loadgen_bridge::QuerySampleLibrary;
use record::{EngineInfo, Manifest, PrefixCache, ServerVersion, SettingRecord};
use submission::{
    Name,
    guard::{self, PlannedRun, Refusal, RunConfigs},
    round::{Round, newest},
};

use crate::{
    loadgen::qsl::Qsl,
    settings::{self, Settings, cli::Args},
};

/// Reasons why a submission would reject the run, and whether the run is a submission.
pub struct Guard {
    round: Round,
    run: PlannedRun,
    submission: bool,
    refusals: Vec<Refusal>,
}

impl Guard {
    /// Checks the settings of a run; `manifest` is its record so far.
    /// Error: the round is unknown or, with `--submission`, a rule refuses the run; one line per
    /// refusal.
    pub fn of_settings(
        args: &Args,
        config: &FrontendFile,
        settings: &Settings,
        qsl: &Qsl,
        manifest: Manifest,
    ) -> anyhow::Result<Self> {
        let asked = args
            .submission
            .as_deref()
            .or(config.run.submission.as_deref());
        let records = settings.provenance.records(settings.test.scenario);
        let mut guard = Guard {
            round: Round::find(asked.unwrap_or(newest()))?,
            run: PlannedRun {
                manifest,
                configs: RunConfigs {
                    frontend: Some(config.clone()),
                    ..RunConfigs::default()
                },
                mode: settings.test.mode.name().to_owned(),
                fields: settings::fields(&settings.test),
                sources: origins(&records, settings),
                has_user_conf: settings.user_conf.is_some(),
                loaded: qsl.performance_sample_count() as u64,
                total: qsl.total_sample_count() as u64,
            },
            submission: asked.is_some(),
            refusals: Vec::new(),
        };
        guard.refuse()?;
        Ok(guard)
    }

    /// Adds the nodes: the run's record, and the accelerators' configurations by node.
    /// Error: with `--submission`, a rule refuses the run; one line per refusal.
    pub fn check_nodes<'a>(
        &mut self,
        manifest: &Manifest,
        configs: impl Iterator<Item = (&'a Name, &'a str)>,
    ) -> anyhow::Result<()> {
        self.run.manifest = manifest.clone();
        for (node, text) in configs {
            // A node of another release has other keys; `submit` reports it.
            let _ = self.run.configs.read(Some(node), text);
        }
        self.refuse()
    }

    fn refuse(&mut self) -> anyhow::Result<()> {
        self.refusals = guard::check(&self.round, &self.run);
        if !self.submission || self.refusals.is_empty() {
            return Ok(());
        }
        let all = self.lines().zip(&self.refusals);
        let all = all.map(|(line, r)| format!("\n   = {line}: {}", r.rule.advice));
        let all: String = all.collect();
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

/// Versions of the servers behind the engines, by node.
pub fn servers(engines: &[(String, EngineInfo)]) -> BTreeMap<String, ServerVersion> {
    let known = engines.iter();
    known
        .filter_map(|(node, e)| Some((node.clone(), e.server.clone()?)))
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
