//! Checks whether a run would count, before the frontend measures it: the rules of
//! [`crate::rules`], over a run that has no results yet.

use std::collections::BTreeMap;

use loadgen_log::Detail;
use record::Manifest;
use serde_json::{Map, Value};

pub use crate::configs::RunConfigs;
use crate::{
    layout::{Division, RunKind},
    round::{Round, ScenarioRow},
    rules::{MODEL_KNOWN, RECORD_CONF, RunCheck, SCENARIO_KNOWN, SubmissionRule},
};

/// A reason why a run would not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The broken rule.
    pub rule: &'static SubmissionRule,
    /// Description of the fault, with the setting or node.
    pub what: String,
}

/// A run that has not begun.
#[derive(Clone, Default)]
pub struct PlannedRun {
    /// The run's record so far, without nodes until they are connected.
    pub manifest: Manifest,
    /// The nodes' configurations, as far as they are known.
    pub configs: RunConfigs,
    /// LoadGen's name of the mode.
    pub mode: String,
    /// LoadGen's `TestSettings` by field name, without the changes of an audit.config.
    pub fields: Map<String, Value>,
    /// Source of each field: `mlperf.conf`, `user.conf:3`, `--set`.
    pub sources: BTreeMap<String, String>,
    /// Whether the run has a user.conf.
    pub has_user_conf: bool,
    /// Number of samples that the QSL keeps loaded.
    pub loaded: u64,
    /// Number of samples in the data set.
    pub total: u64,
}

impl PlannedRun {
    /// The settings as LoadGen will log them.
    fn detail(&self, prefix: &str) -> Detail {
        let text = |value: &Value| match value {
            Value::String(text) => text.clone(),
            other => other.to_string(),
        };
        let field = |name: String| self.fields.get(&name).map(text);
        let covered = field("accuracy_sample_count_override".to_owned());
        let covered = covered.and_then(|n| n.parse().ok()).filter(|n| *n > 0);
        let own = [
            ("scenario", Some(self.manifest.scenario.clone())),
            ("test_mode", Some(self.mode.clone())),
            ("performance_sample_count", Some(self.loaded.to_string())),
            (
                "accuracy_sample_count",
                Some(self.total.min(covered.unwrap_or(u64::MAX)).to_string()),
            ),
            ("min_sample_count", field("min_query_count".to_owned())),
            (
                "target_latency_percentile",
                field(format!("{prefix}_target_latency_percentile")),
            ),
            (
                "target_latency_ns",
                field(format!("{prefix}_target_latency_ns")),
            ),
        ];
        let own = own
            .into_iter()
            .filter_map(|(name, value)| Some((name, value?)));
        let all = self
            .fields
            .iter()
            .map(|(name, value)| (name.as_str(), text(value)));
        let logged = |(name, value): (&str, String)| {
            let [one, other] = ["effective", "requested"].map(|kind| format!("{kind}_{name}"));
            [(one, value.clone()), (other, value)]
        };
        all.chain(own).flat_map(logged).collect()
    }
}

/// Checks a run as far as it is known.
pub fn check(round: &Round, run: &PlannedRun) -> Vec<Refusal> {
    let mut found: Vec<Refusal> = Vec::new();
    let mut say = |rule: &'static SubmissionRule, _: &str, what: String| {
        let refusal = Refusal { rule, what };
        if !found.contains(&refusal) {
            found.push(refusal);
        }
    };
    let manifest = &run.manifest;
    let models = round.models_of(&manifest.model);
    let Some(name) = models.last() else {
        let (model, round) = (&manifest.model, &round.round);
        let what = format!("loadgen.model {model:?} is no datacenter model of round {round}");
        say(MODEL_KNOWN, "", what);
        // The other checks need the model.
        return found;
    };
    if !run.has_user_conf {
        say(RECORD_CONF, "", "no user.conf is given".to_owned());
    }
    let model = &round.models[*name];
    let rows = round.scenarios.values();
    let mut rows = rows.filter(|row| row.loadgen == manifest.scenario);
    let prefix = rows.next().map_or(String::new(), ScenarioRow::prefix);
    let detail = run.detail(&prefix);
    let judged = detail.whole("effective_target_latency_ns");
    let scenario = round.scenario_of(model, &manifest.model, &manifest.scenario, judged);
    if model.scenarios().all(|s| s != scenario) {
        let all: Vec<_> = model.scenarios().map(String::as_str).collect();
        let what = format!("{name} has no {scenario}; it has {}", all.join(", "));
        say(SCENARIO_KNOWN, "", what);
    }
    let kinds = match &*run.mode {
        "AccuracyOnly" => vec![RunKind::Accuracy],
        "SubmissionRun" => vec![RunKind::Accuracy, RunKind::Performance],
        _ => vec![RunKind::Performance],
    };
    for kind in &kinds {
        let mut one = RunCheck {
            round,
            division: Division::Network,
            model,
            scenario,
            kind,
            detail: Some(&detail),
            manifest: Some(manifest),
            sources: Some(&run.sources),
            say: &mut say,
        };
        one.log();
        one.record();
        one.configs(&run.configs);
    }
    found
}

#[cfg(test)]
mod tests;
