//! A round's requirements for runs and trees, read from a file.

use std::{
    borrow::Cow,
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use loadgen_log::Detail;
use serde::Deserialize;
use serde_json::{Map, Value};

use crate::{
    error::{self, Error},
    layout::{Below, Division, Name},
};

pub(crate) const NS_PER_MS: u64 = 1_000_000;

/// The files of `configs/rounds` by name, oldest first.
const BUILT_IN: &[(&str, &str)] = include!(concat!(env!("OUT_DIR"), "/rounds.rs"));
/// Maximum number of rounds that extend each other.
const LAYERS: usize = 8;

/// Name of the newest built-in round, which is the default.
pub fn newest() -> &'static str {
    BUILT_IN.last().map_or("", |(name, _)| name)
}

/// A round's requirements. Each field is a key of the files in `configs/rounds`, which explain it
/// and name its source.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// The round's name.
    pub round: String,
    pub(crate) sources: BTreeMap<String, String>,
    pub(crate) checker_version: String,
    pub(crate) loadgen: LoadgenRelease,
    pub(crate) system_type: String,
    /// The seeds by their names in LoadGen's log, without `effective_`.
    pub(crate) seeds: BTreeMap<String, u64>,
    pub(crate) min_duration_ms: u64,
    pub(crate) scenarios: BTreeMap<String, ScenarioRow>,
    pub(crate) days_apart: u64,
    pub(crate) server_options: BTreeMap<String, Vec<String>>,
    pub(crate) sut_name_holds: String,
    pub(crate) accuracy_log_max_bytes: u64,
    pub(crate) statuses: Vec<String>,
    pub(crate) fabrics: Vec<String>,
    pub(crate) user_conf: Vec<String>,
    pub(crate) system: SystemFields,
    /// Fields of measurements.json; none may be empty.
    pub(crate) measurements: Vec<String>,
    pub(crate) tests: BTreeMap<Name, ComplianceTest>,
    /// The models, by folder name.
    pub models: BTreeMap<Name, Model>,
    /// Rules that a tree of this round cannot keep, with the reason: those of a rehearsal.
    #[serde(default)]
    pub(crate) cannot_have: BTreeMap<String, String>,
    /// Further such rules without a checkout of mlcommons/inference.
    #[serde(default)]
    pub(crate) without_checker: BTreeMap<String, String>,
}

/// A scenario's row.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ScenarioRow {
    pub(crate) loadgen: String,
    pub(crate) flag: String,
    pub(crate) targets: Vec<String>,
    pub(crate) percentile: Option<f64>,
    #[serde(default)]
    pub(crate) early_stopping: bool,
    #[serde(default)]
    pub(crate) batching: bool,
    /// Whether all samples are in one query.
    #[serde(default)]
    pub(crate) one_query: bool,
    /// Whether each model must have limits on latency.
    #[serde(default)]
    pub(crate) limits: bool,
    /// LoadGen's figure of samples per second; `None`: the inverse of the mean latency.
    pub(crate) rate: Option<String>,
}

impl ScenarioRow {
    /// Begin of LoadGen's names of the scenario's settings.
    pub(crate) fn prefix(&self) -> String {
        self.flag.replace('-', "_")
    }

    /// Samples per second that LoadGen logged.
    pub(crate) fn rate(&self, log: &Detail) -> Option<f64> {
        match &self.rate {
            Some(figure) => log.number(figure),
            None => Some(1e9 / log.number("result_mean_latency_ns")?.max(1.0)),
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct SystemFields {
    pub(crate) fields: Vec<String>,
    /// Fields of every division that may not be empty.
    pub(crate) filled: Vec<String>,
    /// Fields of the Network division, which may not be empty.
    pub(crate) network: Vec<String>,
    /// Fields whose value must be a whole number.
    pub(crate) numbers: Vec<String>,
}

impl SystemFields {
    /// Fields on the network that `division` requires: none outside the Network division.
    pub(crate) fn network_of(&self, division: Division) -> &[String] {
        match division {
            Division::Network => &self.network,
            Division::Closed | Division::Open => &[],
        }
    }
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct ComplianceTest {
    pub(crate) args: Vec<String>,
    /// File for the verifier's standard output, if the verifier writes no file.
    pub(crate) output: Option<Name>,
    /// Whether a performance run's duration and counts apply, as audit.config sets neither.
    #[serde(default)]
    pub(crate) measured: bool,
    /// The end-of-sequence token of a test that keeps answers of tokens: as many as the SUT
    /// reported, beginning with the reported first token, at most one end of sequence.
    pub(crate) eos: Option<u64>,
    /// Files that the test's folder must contain.
    pub(crate) files: Vec<Below>,
    /// How accuracy figures stand for a file's lines, where answers are not deterministic.
    pub(crate) baseline: Option<Baseline>,
    /// Lines that a file must contain.
    pub(crate) passes: BTreeMap<Below, Vec<String>>,
}

/// Outputs of the accuracy script over the accuracy run's answers to a test's samples, and over the
/// test's own answers. Figures near each other pass the test instead of lines in a file.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Baseline {
    pub(crate) instead_of: Below,
    pub(crate) files: [Below; 2],
}

#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LoadgenRelease {
    pub(crate) version: String,
    /// SHA-256 over the SHA-1 of LoadGen's files: lines `SHA1 NAME`, sorted by name.
    pub(crate) files: String,
}

/// A model's requirements.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// The model's name in user.conf.
    pub(crate) conf: String,
    /// Other names of the model in user.conf, by scenario.
    #[serde(default)]
    pub(crate) conf_in: BTreeMap<String, String>,
    /// Scenarios that a submission must have.
    pub required: Vec<String>,
    /// Scenarios of which a submission must have at least one.
    #[serde(default)]
    pub one_of: Vec<String>,
    /// Counts of samples.
    pub samples: SampleCounts,
    #[serde(default)]
    pub(crate) tests: Vec<Name>,
    #[serde(default)]
    pub(crate) tokens: bool,
    /// Whether LoadGen must issue all samples equally often (`sample_concatenate_permutation`).
    #[serde(default)]
    pub(crate) equal_issue: bool,
    #[serde(default)]
    pub(crate) limits: BTreeMap<String, LatencyLimits>,
    pub(crate) accuracy: Vec<AccuracyFigure>,
    /// Other required figures, by scenario.
    #[serde(default)]
    pub(crate) accuracy_in: BTreeMap<String, Vec<AccuracyFigure>>,
    /// Files that an accuracy run keeps beside its log.
    #[serde(default)]
    pub(crate) accuracy_files: Vec<Below>,
    pub(crate) script: String,
    /// Type of an answer's elements.
    #[serde(default = "int32")]
    pub(crate) dtype: String,
    /// Processing of samples that the rules allow in the QSL.
    pub(crate) input: String,
    /// Minimum duration in ms, if not the round's.
    pub(crate) min_duration_ms: Option<u64>,
    pub(crate) ingress: Option<u64>,
    pub(crate) ingress_bytes: Option<u64>,
    pub(crate) egress: Option<u64>,
    /// Maximum lengths of an answer, in tokens, of which the engine has one; empty: any.
    #[serde(default)]
    pub(crate) max_tokens: Vec<usize>,
    /// The same in an accuracy run; if empty, as `max_tokens`.
    #[serde(default)]
    pub(crate) max_tokens_accuracy: Vec<usize>,
    pub(crate) temperature: Option<f64>,
    #[serde(default)]
    pub(crate) speculative: Vec<String>,
    /// Whether samples must be answered in the order of their timestamps; an answer's first f32 is
    /// its timestamp.
    #[serde(default)]
    pub(crate) in_order: bool,
    pub(crate) notes: Option<String>,
}

fn int32() -> String {
    "int32".to_owned()
}

/// Counts of samples.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SampleCounts {
    /// Minimum number of samples that the QSL keeps loaded.
    pub performance: u64,
    pub(crate) accuracy: u64,
    /// Other numbers of samples in an accuracy run, by scenario.
    #[serde(default)]
    pub(crate) accuracy_in: BTreeMap<String, u64>,
    /// Minimum number of samples in an Offline query.
    pub offline: u64,
}

/// Limits on latency at the scenario's percentile, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct LatencyLimits {
    pub(crate) ttft_ms: Option<u64>,
    pub(crate) tpot_ms: Option<u64>,
    pub(crate) latency_ms: Option<u64>,
}

#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct AccuracyFigure {
    pub(crate) metric: String,
    /// Text directly before the metric's value.
    pub(crate) pattern: String,
    pub(crate) reference: f64,
    /// Minimum, as a share of the reference; 0 accepts any value.
    #[serde(default)]
    pub(crate) at_least: f64,
    /// Maximum, as a share of the reference.
    pub(crate) at_most: Option<f64>,
    /// Whether the figure is the mean number of tokens, and no script prints it.
    #[serde(default)]
    pub(crate) counted: bool,
}

impl Round {
    /// Reads a built-in round by name, or a file if `name` ends in `.yaml`.
    pub fn find(name: &str) -> Result<Self, Error> {
        let path = match name.ends_with(".yaml") {
            true => name.to_owned(),
            false => format!("configs/rounds/{name}.yaml"),
        };
        Self::parse(&text_of(name)?).map_err(Error::content(Path::new(&path)))
    }

    /// Reads a round's text, and the rounds that it extends.
    pub(crate) fn parse(text: &str) -> Result<Self, String> {
        let mut rows: Map<String, Value> = error::yaml(text)?;
        // Parse the text itself where nothing is extended: errors then have a line.
        let round: Round = match rows.get("extends") {
            None => error::yaml(text)?,
            Some(_) => {
                extend(&mut rows, LAYERS)?;
                serde_json::from_value(Value::Object(rows)).map_err(|e| e.to_string())?
            }
        };
        round.check()?;
        Ok(round)
    }

    /// Whether all samples of the scenario are in one query.
    pub(crate) fn is_one_query(&self, scenario: &str) -> bool {
        self.scenarios
            .get(scenario)
            .is_some_and(|row| row.one_query)
    }

    /// LoadGen's scenario of a scenario's folder; the folder's name if the round lacks it.
    pub(crate) fn loadgen_scenario<'a>(&'a self, folder: &'a str) -> &'a str {
        self.scenarios
            .get(folder)
            .map_or(folder, |row| &row.loadgen)
    }

    /// Whether a setting, `NAME=VALUE` or `--target-qps VALUE`, sets more than a target.
    pub(crate) fn overrides(&self, setting: &str) -> bool {
        let key = setting.trim_start_matches("loadgen.settings.");
        let key = key.strip_prefix("--set ").unwrap_or(key);
        let key = key.split([' ', '=']).next().unwrap_or_default();
        let mut targets = self.scenarios.values().flat_map(|row| &row.targets);
        key != "--target-qps" && !targets.any(|target| target == key)
    }

    fn check(&self) -> Result<(), String> {
        for (name, model) in &self.models {
            let unknown = |s: &&String| !self.scenarios.contains_key(*s);
            if let Some(odd) = model.scenarios().chain(&model.speculative).find(unknown) {
                return Err(format!("models.{name}: {odd} is not under scenarios"));
            }
            if model.required.is_empty() {
                return Err(format!("models.{name}.required: a model needs a scenario"));
            }
            for test in &model.tests {
                if !self.tests.contains_key(test) {
                    return Err(format!("models.{name}.tests: {test} is not under tests"));
                }
            }
            let scenarios: BTreeSet<_> = model.scenarios().collect();
            if let Some(odd) = model.limits.keys().find(|s| !scenarios.contains(s)) {
                return Err(format!(
                    "models.{name}.limits: {odd} is none of its scenarios"
                ));
            }
            let is_open =
                |s: &&&String| self.scenarios[**s].limits && !model.limits.contains_key(**s);
            if let Some(open) = scenarios.iter().find(is_open) {
                return Err(format!("models.{name}.limits: {open} has no limit"));
            }
        }
        Ok(())
    }

    /// Folder names of all models named `conf` in user.conf.
    pub(crate) fn models_of(&self, conf: &str) -> Vec<&Name> {
        let all = self.models.iter();
        let named = all.filter(|(_, model)| model.names().any(|name| name == conf));
        named.map(|(name, _)| name).collect()
    }

    /// The scenario's folder of a run of LoadGen's scenario `ran`: the scenario in which the model
    /// is named `conf`. Without such a name, the one with the tightest limit that LoadGen judged
    /// by, `judged_ns`.
    pub(crate) fn scenario_of<'a>(
        &self,
        model: &'a Model,
        conf: &str,
        ran: &'a str,
        judged_ns: Option<u64>,
    ) -> &'a str {
        let is_it = |s: &&String| self.loadgen_scenario(s) == ran;
        let mut named = model.conf_in.iter().filter(|(s, _)| is_it(s));
        if let Some((scenario, _)) = named.find(|(_, name)| *name == conf) {
            return scenario;
        }
        let unnamed = model.scenarios().filter(is_it);
        let unnamed: Vec<_> = unnamed
            .filter(|s| !model.conf_in.contains_key(*s))
            .collect();
        let judged = judged_ns.filter(|ns| *ns > 0).unwrap_or(u64::MAX);
        let limited = unnamed.iter();
        let limited = limited.filter_map(|s| Some((model.limits.get(*s)?.latency_ms?, s.as_str())));
        let kept = limited.filter(|(ms, _)| judged <= ms.saturating_mul(NS_PER_MS));
        let same = || unnamed.iter().find(|s| **s == ran).or(unnamed.first());
        let kept = kept.min().map(|(_, scenario)| scenario);
        kept.or_else(|| same().map(|s| s.as_str())).unwrap_or(ran)
    }

    /// Why a tree of this round cannot keep the rule `id`; `None` if it must.
    pub(crate) fn excuse(&self, id: &str, has_checker: bool) -> Option<&String> {
        let without = self.without_checker.get(id).filter(|_| !has_checker);
        self.cannot_have.get(id).or(without)
    }

    /// Minimum duration of a model's performance run, in ms.
    pub(crate) fn min_duration_ms(&self, model: &Model) -> u64 {
        model.min_duration_ms.unwrap_or(self.min_duration_ms)
    }
}

impl Model {
    pub(crate) fn scenarios(&self) -> impl Iterator<Item = &String> {
        self.required.iter().chain(&self.one_of)
    }

    /// Maximum lengths of an answer in tokens; empty: any.
    pub(crate) fn max_tokens_of(&self, is_accuracy: bool) -> &[usize] {
        match is_accuracy && !self.max_tokens_accuracy.is_empty() {
            true => &self.max_tokens_accuracy,
            false => &self.max_tokens,
        }
    }

    /// All names of the model in user.conf.
    pub fn names(&self) -> impl Iterator<Item = &String> {
        std::iter::once(&self.conf).chain(self.conf_in.values())
    }

    /// The model's name in user.conf for a scenario.
    pub(crate) fn conf_of(&self, scenario: &str) -> &str {
        self.conf_in.get(scenario).unwrap_or(&self.conf)
    }

    pub(crate) fn accuracy_samples(&self, scenario: &str) -> u64 {
        let own = self.samples.accuracy_in.get(scenario);
        own.copied().unwrap_or(self.samples.accuracy)
    }

    /// The command that writes accuracy.txt for the run in `folder`.
    pub(crate) fn accuracy_command(&self, checker: &str, folder: &str) -> String {
        let log = format!("{folder}/{}", loadgen_log::ACCURACY);
        let with = [
            ("{python}", "python3"),
            ("{checker}", checker),
            ("{log_dir}", folder),
            ("{log}", &log),
        ];
        let filled = with.iter();
        let script = filled.fold(self.script.clone(), |s, (from, to)| s.replace(from, to));
        format!("{script} > {folder}/accuracy.txt")
    }

    pub(crate) fn accuracy_of(&self, scenario: &str) -> &[AccuracyFigure] {
        self.accuracy_in.get(scenario).unwrap_or(&self.accuracy)
    }
}

impl AccuracyFigure {
    /// The value in a line: the first number after the pattern, if any.
    pub fn find(&self, line: &str) -> Option<f64> {
        let (_, rest) = line.split_once(&self.pattern)?;
        let rest = rest.trim_start_matches([' ', '\'', '"', '=', ':']);
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        rest[..end.unwrap_or(rest.len())].parse().ok()
    }

    pub(crate) fn least(&self) -> f64 {
        self.reference * self.at_least
    }

    pub(crate) fn most(&self) -> Option<f64> {
        self.at_most.map(|share| self.reference * share)
    }
}

/// The text of a built-in round, or of a file that ends in `.yaml`.
fn text_of(name: &str) -> Result<Cow<'static, str>, Error> {
    if name.ends_with(".yaml") {
        return error::read(Path::new(name)).map(Cow::Owned);
    }
    let known = BUILT_IN.iter().find(|(known, _)| *known == name);
    known.map(|(_, text)| Cow::Borrowed(*text)).ok_or_else(|| {
        let all: Vec<_> = BUILT_IN.iter().map(|(n, _)| *n).collect();
        let all = all.join(", ");
        Error(format!(
            "round {name:?} is not built in; there is {all}, or give a file that ends in .yaml"
        ))
    })
}

/// Puts a round's keys over those of the round that it extends.
fn extend(rows: &mut Map<String, Value>, layers: usize) -> Result<(), String> {
    let Some(base) = rows.remove("extends") else {
        return Ok(());
    };
    let base = base.as_str().ok_or("extends: it must be a round's name")?;
    if layers == 0 {
        return Err(format!(
            "extends: {base}: rounds extend each other in a circle"
        ));
    }
    let text = text_of(base).map_err(|e| format!("extends: {e}"))?;
    let mut below: Map<String, Value> = error::yaml(&text)?;
    extend(&mut below, layers - 1)?;
    merge(&mut below, std::mem::take(rows));
    *rows = below;
    Ok(())
}

/// Sets the keys of `over`, mapping by mapping; `null` removes a key.
fn merge(base: &mut Map<String, Value>, over: Map<String, Value>) {
    for (key, value) in over {
        match (base.get_mut(&key), value) {
            (Some(Value::Object(base)), Value::Object(over)) => merge(base, over),
            (_, Value::Null) => drop(base.remove(&key)),
            (_, value) => drop(base.insert(key, value)),
        }
    }
}

#[cfg(test)]
mod tests;
