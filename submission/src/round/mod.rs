//! One round: what it asks of a run and of a tree. All of it is read from a file.

use std::{
    collections::{BTreeMap, BTreeSet},
    path::Path,
};

use serde::Deserialize;

use crate::{
    error::{self, Error},
    layout::{Below, Division, Name},
};

/// The rounds that are built in, by name.
const BUILT_IN: &[(&str, &str)] = &[("v6.1", include_str!("../../../configs/rounds/v6.1.yaml"))];

/// See the module. Every field is a key of `configs/rounds/v6.1.yaml`, which says what it means and
/// where it comes from.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Round {
    /// Its name.
    pub round: String,
    /// Where its figures come from.
    pub sources: BTreeMap<String, String>,
    /// What the official checker calls it.
    pub checker_version: String,
    /// LoadGen's release.
    pub loadgen: Loadgen,
    /// `datacenter`.
    pub system_type: String,
    /// LoadGen's seeds.
    pub seeds: Seeds,
    /// The shortest run.
    pub min_duration_ms: u64,
    /// The percentile that LoadGen judges a scenario by.
    pub percentiles: BTreeMap<String, f64>,
    /// What the SUT's name must hold.
    pub sut_name_holds: String,
    /// The largest accuracy log in a tree, in bytes.
    pub accuracy_log_max_bytes: u64,
    /// What `status` may be.
    pub statuses: Vec<String>,
    /// What `network_type` may be.
    pub fabrics: Vec<String>,
    /// Keys that a user.conf may set.
    pub user_conf: Vec<String>,
    /// Fields of the system's JSON.
    pub system: SystemFields,
    /// Fields of measurements.json; none may be empty.
    pub measurements: Vec<String>,
    /// The compliance tests.
    pub tests: BTreeMap<Name, Test>,
    /// What the official checker says of what [`crate::rules`] find too.
    pub complaints: Vec<Complaint>,
    /// The models, by the name of their folder.
    pub models: BTreeMap<Name, Model>,
}

/// LoadGen's seeds.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Seeds {
    /// Which samples are loaded.
    pub qsl_rng_seed: u64,
    /// In which order they are sent.
    pub sample_index_rng_seed: u64,
    /// When.
    pub schedule_rng_seed: u64,
}

impl Seeds {
    /// By the names in LoadGen's log, behind `effective_`.
    pub fn named(&self) -> [(&'static str, u64); 3] {
        [
            ("qsl_rng_seed", self.qsl_rng_seed),
            ("sample_index_rng_seed", self.sample_index_rng_seed),
            ("schedule_rng_seed", self.schedule_rng_seed),
        ]
    }
}

/// Fields of the system's JSON.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct SystemFields {
    /// All but the network's.
    pub fields: Vec<String>,
    /// Those that may not be empty.
    pub filled: Vec<String>,
    /// The network's; none may be empty.
    pub network: Vec<String>,
    /// Those that must be whole numbers.
    pub numbers: Vec<String>,
}

impl SystemFields {
    /// The network's, where a division has them: that is the Network division.
    pub fn network_of(&self, division: Division) -> &[String] {
        match division {
            Division::Network => &self.network,
            Division::Closed | Division::Open => &[],
        }
    }
}

/// A compliance test.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Test {
    /// Arguments of its `run_verification.py`, with names in braces.
    pub args: Vec<String>,
    /// The file that its standard output becomes, where it writes none itself.
    pub output: Option<Name>,
    /// Its audit.config leaves durations and counts alone: its run is held to those of a
    /// performance run.
    #[serde(default)]
    pub measured: bool,
    /// What its answers must be.
    pub answers: Option<Answers>,
    /// What must lie in its folder.
    pub files: Vec<Below>,
    /// Lines that its files must hold.
    pub passes: BTreeMap<Below, Vec<String>>,
}

/// What the answers of a compliance test must be.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Answers {
    /// As many tokens as LoadGen was told of, beginning with the first token, one EOS at most.
    Tokens,
    /// Those of the accuracy run.
    Same,
}

/// LoadGen, as the round's runs are measured with.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Loadgen {
    /// Version and commit, as its log names them.
    pub version: String,
    /// SHA-256 of its files' SHA-1: `SHA1 NAME` for each, by name, with newlines between them.
    pub files: String,
}

/// A line of the official checker, and who says the same here.
#[derive(Clone, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Complaint {
    /// Words that such a line holds.
    pub says: String,
    /// The rules of which one finds it; none: it follows from other lines.
    #[serde(default)]
    pub rules: Vec<String>,
}

/// A model.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Model {
    /// Its name in user.conf.
    pub conf: String,
    /// That of its Interactive scenario, where it has another.
    pub interactive: Option<String>,
    /// Scenarios that must be there.
    pub required: Vec<String>,
    /// Scenarios of which one must be there.
    #[serde(default)]
    pub one_of: Vec<String>,
    /// Counts.
    pub samples: Samples,
    /// Compliance tests.
    #[serde(default)]
    pub tests: Vec<Name>,
    /// LoadGen measures tokens.
    #[serde(default)]
    pub tokens: bool,
    /// Each sample as often as any other (`sample_concatenate_permutation`).
    #[serde(default)]
    pub equal_issue: bool,
    /// Limits by scenario.
    #[serde(default)]
    pub limits: BTreeMap<String, Limits>,
    /// What accuracy.txt must say.
    pub accuracy: Vec<Accuracy>,
    /// The same for Interactive, where it differs.
    #[serde(default)]
    pub accuracy_interactive: Vec<Accuracy>,
    /// Files that an accuracy run keeps beside its log.
    #[serde(default)]
    pub accuracy_files: Vec<Below>,
    /// The command that makes accuracy.txt.
    pub script: String,
    /// The type of an answer's elements, for the verifiers.
    #[serde(default = "int32")]
    pub dtype: String,
    /// What the QSL may do to samples.
    pub input: String,
    /// It may compress each by itself and without loss.
    #[serde(default)]
    pub lossless: bool,
    /// The shortest run, where it is not the round's.
    pub min_duration_ms: Option<u64>,
    /// Elements of a sample in the bandwidth formula.
    pub ingress: Option<u64>,
    /// Elements of an answer.
    pub egress: Option<u64>,
    /// Where sources contradict each other.
    pub notes: Option<String>,
}

fn int32() -> String {
    "int32".to_owned()
}

/// Counts of samples.
#[derive(Clone, Copy, Debug, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Samples {
    /// The fewest that the QSL keeps loaded.
    pub performance: u64,
    /// Those of an accuracy run.
    pub accuracy: u64,
    /// The same in Interactive, where it differs.
    pub accuracy_interactive: Option<u64>,
    /// The fewest in an Offline query.
    pub offline: u64,
}

/// Limits on latency at the 99th percentile, in milliseconds.
#[derive(Clone, Copy, Debug, Default, PartialEq, Eq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    /// To the first token.
    pub ttft_ms: Option<u64>,
    /// To each other token.
    pub tpot_ms: Option<u64>,
    /// To the whole answer.
    pub latency_ms: Option<u64>,
}

/// One figure of accuracy.txt.
#[derive(Clone, Debug, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Accuracy {
    /// Its name.
    pub metric: String,
    /// What stands before the number.
    pub pattern: String,
    /// The reference's.
    pub reference: f64,
    /// The smallest share of it; none: any.
    #[serde(default)]
    pub at_least: f64,
    /// The largest.
    pub at_most: Option<f64>,
}

impl Round {
    /// A built-in one by its name, or the file of this path where it ends in `.yaml`.
    ///
    /// # Errors
    /// A name that is not built in, a file that cannot be read or contradicts itself.
    pub fn find(name: &str) -> Result<Self, Error> {
        if name.ends_with(".yaml") {
            let path = Path::new(name);
            return Self::parse(&error::read(path)?).map_err(|what| Error::Content {
                path: path.to_owned(),
                what,
            });
        }
        let known = BUILT_IN.iter().find(|(n, _)| *n == name);
        let Some((_, text)) = known else {
            let all: Vec<_> = BUILT_IN.iter().map(|(n, _)| *n).collect();
            return Err(Error::Usage(format!(
                "round {name:?} is not built in; there is {}, or give a file that ends in .yaml",
                all.join(", ")
            )));
        };
        Self::parse(text).map_err(|what| Error::Content {
            path: format!("configs/rounds/{name}.yaml").into(),
            what,
        })
    }

    /// From text.
    ///
    /// # Errors
    /// What is wrong with it, in a line.
    pub fn parse(text: &str) -> Result<Self, String> {
        let round: Round = error::yaml(text)?;
        round.check()?;
        Ok(round)
    }

    fn check(&self) -> Result<(), String> {
        for (name, model) in &self.models {
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
            let timed = |s: &&&String| ["Server", "Interactive"].contains(&s.as_str());
            let open = scenarios.iter().filter(timed);
            if let Some(open) = open.clone().find(|s| !model.limits.contains_key(**s)) {
                return Err(format!("models.{name}.limits: {open} has no limit"));
            }
        }
        Ok(())
    }

    /// The folder names of the models whose user.conf has this name, and whether it is the name of
    /// their Interactive scenario.
    pub fn models_of(&self, conf: &str) -> Vec<(&Name, bool)> {
        let all = self.models.iter();
        all.filter_map(|(name, model)| {
            let interactive = model.interactive.as_deref() == Some(conf);
            (interactive || model.conf == conf).then_some((name, interactive))
        })
        .collect()
    }

    /// The shortest run of a model, in ms.
    pub fn min_duration_ms(&self, model: &Model) -> u64 {
        model.min_duration_ms.unwrap_or(self.min_duration_ms)
    }
}

impl Model {
    /// All scenarios that it may have.
    pub fn scenarios(&self) -> impl Iterator<Item = &String> {
        self.required.iter().chain(&self.one_of)
    }

    /// Samples of an accuracy run.
    pub fn accuracy_samples(&self, scenario: &str) -> u64 {
        let interactive = self.samples.accuracy_interactive;
        let interactive = interactive.filter(|_| scenario == "Interactive");
        interactive.unwrap_or(self.samples.accuracy)
    }

    /// The command that makes accuracy.txt of the run in `folder`.
    pub fn accuracy_command(&self, checker: &str, folder: &str) -> String {
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

    /// What accuracy.txt must say.
    pub fn accuracy_of(&self, scenario: &str) -> &[Accuracy] {
        if scenario == "Interactive" && !self.accuracy_interactive.is_empty() {
            return &self.accuracy_interactive;
        }
        &self.accuracy
    }
}

impl Accuracy {
    /// The figure in a line, where it has one: the first number behind the pattern.
    pub fn find(&self, line: &str) -> Option<f64> {
        let (_, rest) = line.split_once(&self.pattern)?;
        let rest = rest.trim_start_matches([' ', '\'', '"', '=', ':']);
        let end = rest.find(|c: char| !c.is_ascii_digit() && c != '.');
        rest[..end.unwrap_or(rest.len())].parse().ok()
    }

    /// The smallest that is accepted.
    pub fn least(&self) -> f64 {
        self.reference * self.at_least
    }

    /// The largest.
    pub fn most(&self) -> Option<f64> {
        self.at_most.map(|share| self.reference * share)
    }
}

/// LoadGen's name of the scenario whose results lie in the folder `folder`.
pub fn loadgen_scenario(folder: &str) -> &str {
    if folder == "Interactive" {
        "Server"
    } else {
        folder
    }
}

#[cfg(test)]
mod tests;
