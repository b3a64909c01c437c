//! Checks before a run is measured whether the run would count. [`crate::rules`] checks the same on
//! the finished tree, ten minutes later.

use std::collections::BTreeMap;

use record::{CacheState, NodeRecord, PrefixCache};
use serde_json::{Map, Value};

use crate::{
    round::{LatencyLimits, Model, NS_PER_MS, Round},
    rules::{Rule, rules},
};

rules! {
    USER_CONF "guard.user-conf" "a user.conf is given";
    MODEL "guard.model" "user.conf's model is one of the round's datacenter models";
    SCENARIO "guard.scenario" "the scenario is one of the model's";
    MODE "guard.mode" "the mode makes a result";
    SEEDS "guard.seeds" "LoadGen's seeds are the round's";
    DURATION "guard.duration" "the run lasts as long as the round says";
    COUNTS "guard.counts" "samples loaded, and samples of an Offline query, are as many as the round says";
    DATA "guard.data" "the data set has as many samples as an accuracy run covers";
    LIMITS "guard.limits" "limits and percentile are the scenario's";
    TRAVERSAL "guard.traversal" "LoadGen draws the samples, evenly where the model asks for it";
    TOKENS "guard.tokens" "tokens are measured, and counted by the engine, where the model asks for it";
    OVERRIDE "guard.override" "nothing on the command line or in the YAML sets more than the target";
    LOCAL "guard.local" "samples go over a network";
    STAGED "guard.staged" "samples leave from the memory that the QSL loaded them into";
    COMPRESSION "guard.compression" "samples are compressed only where the round allows it for the model";
    FABRIC "guard.fabric" "fabric and link layer are permitted, and no loopback";
    CACHE "guard.prefix-cache" "engines keep no prompt's beginning for later prompts, and somebody says so";
    MACHINES "guard.machines" "frontend and accelerators are different machines";
    BUILD "guard.build" "every node is of the same build, and says which";
    CLEAN "guard.clean" "that build is of a commit and nothing else";
}

/// Fields of LoadGen's settings that the submitter may set from any source.
const TARGETS: [&str; 6] = [
    "server_target_qps",
    "offline_expected_qps",
    "single_stream_expected_latency_ns",
    "multi_stream_expected_latency_ns",
    "scenario",
    "mode",
];
/// Fields whose values the round fixes: only mlperf.conf and user.conf may set them.
const ROUNDS: [&str; 18] = [
    "min_duration_ms",
    "max_duration_ms",
    "min_query_count",
    "max_query_count",
    "qsl_rng_seed",
    "sample_index_rng_seed",
    "schedule_rng_seed",
    "performance_sample_count_override",
    "accuracy_sample_count_override",
    "performance_issue_unique",
    "performance_issue_same",
    "sample_concatenate_permutation",
    "use_token_latencies",
    "server_ttft_latency",
    "server_tpot_latency",
    "server_target_latency_ns",
    "server_target_latency_percentile",
    "single_stream_target_latency_percentile",
];

/// A reason why a run would not count.
#[derive(Clone, Debug, PartialEq, Eq)]
pub struct Refusal {
    /// The broken rule.
    pub rule: &'static Rule,
    /// What is wrong, with the setting or node.
    pub what: String,
}

/// The run's settings, with the source of each LoadGen setting.
pub struct Told<'a> {
    /// The model's name in user.conf.
    pub model: &'a str,
    /// LoadGen's name of the scenario.
    pub scenario: &'a str,
    /// LoadGen's name of the mode.
    pub mode: &'a str,
    /// Whether the run has a user.conf.
    pub user_conf: bool,
    /// LoadGen's `TestSettings` by field name, without the changes of an audit.config.
    pub fields: &'a Map<String, Value>,
    /// Source of each field: `mlperf.conf`, `user.conf:3`, `--set`.
    pub from: &'a BTreeMap<String, String>,
    /// The name that `from` uses for user.conf.
    pub user_conf_name: &'a str,
    /// Number of samples that the QSL keeps loaded.
    pub loaded: u64,
    /// Number of samples in the data set.
    pub total: u64,
    /// Whether the run is one process without a network (`--local`).
    pub local: bool,
    /// Whether the QSL copies samples before they are sent (`qsl: staged`).
    pub staged: bool,
    /// Whether samples are compressed (`model.compression`).
    pub compressed: bool,
}

/// What the nodes reported when they connected.
pub struct Nodes<'a> {
    /// The frontend.
    pub frontend: &'a NodeRecord,
    /// The accelerators.
    pub accelerators: &'a [NodeRecord],
    /// Reasons why the fabric is not permitted, one a line.
    pub fabric: &'a [String],
    /// Accelerators whose engine does not count its tokens.
    pub uncounted: &'a [String],
    /// State of each engine's prefix cache, for accelerators whose engine can have one.
    pub caches: &'a BTreeMap<String, PrefixCache>,
}

/// Checks a run's settings. Needs no connection to a node.
pub fn settings(round: &Round, told: &Told<'_>) -> Vec<Refusal> {
    let mut found = Found::default();
    let models = round.models_of(told.model);
    let Some((name, interactive)) = models.last() else {
        let (model, round) = (told.model, &round.round);
        let what = format!("loadgen.model {model:?} is no datacenter model of round {round}");
        found.say(MODEL, what);
        // The other checks need the model.
        return found.0;
    };
    if !told.user_conf {
        found.say(
            USER_CONF,
            "no user.conf is given: --user-conf, or loadgen.user_conf",
        );
    }
    if told.mode == "FindPeakPerformance" {
        found.say(
            MODE,
            "find-peak makes no result: --mode performance or accuracy",
        );
    }
    if told.local {
        found.say(LOCAL, "--local is one process");
    }
    if told.staged {
        found.say(
            STAGED,
            "qsl: staged copies samples before they are sent; say why in your notes",
        );
    }
    let overridden = told.from.iter().filter(|(field, from)| {
        let from_file = from.starts_with(told.user_conf_name) && !told.user_conf_name.is_empty();
        let nobody = ["default", "mlperf.conf"].contains(&from.as_str()) || from_file;
        !nobody && ROUNDS.contains(&field.as_str()) && !TARGETS.contains(&field.as_str())
    });
    for (field, from) in overridden {
        found.say(OVERRIDE, format!("{field} is set by {from}"));
    }
    let model = &round.models[*name];
    if told.compressed && !model.lossless {
        let (round, input) = (&round.round, &model.input);
        found.say(
            COMPRESSION,
            format!("model.compression: round {round} allows none for {name} ({input})"),
        );
    }
    let scenario = match (interactive, told.scenario) {
        (true, "Server") => "Interactive",
        (_, other) => other,
    };
    if model.scenarios().all(|s| s != scenario) {
        let all: Vec<_> = model.scenarios().map(String::as_str).collect();
        found.say(
            SCENARIO,
            format!("{name} has no {scenario}; it has {}", all.join(", ")),
        );
        return found.0;
    }
    values(round, model, scenario, told, &mut found);
    found.0
}

/// Checks the nodes of a run. `model` is the model's name in user.conf.
pub fn nodes(round: &Round, model: &str, nodes: &Nodes<'_>) -> Vec<Refusal> {
    let mut found = Found::default();
    for note in nodes.fabric {
        found.say(FABRIC, note.clone());
    }
    let models = round.models_of(model);
    let tokens = models.iter().any(|(name, _)| round.models[*name].tokens);
    for node in nodes.uncounted.iter().filter(|_| tokens) {
        found.say(TOKENS, format!("{node}'s engine does not count its tokens"));
    }
    for (node, cache) in nodes.caches {
        let how = &cache.how;
        match cache.state {
            CacheState::Off => {}
            CacheState::On => found.say(CACHE, format!("{node}'s prefix cache is on: {how}")),
            CacheState::Unknown => found.say(
                CACHE,
                format!("{node}'s engine cannot tell whether its prefix cache is off: {how}"),
            ),
        }
    }
    for node in nodes.accelerators {
        match nodes.frontend.same_machine(node) {
            Some(false) => {}
            Some(true) => {
                let what = format!(
                    "{} runs on this machine, {}",
                    node.node, nodes.frontend.host
                );
                found.say(MACHINES, what);
            }
            None => found.say(
                MACHINES,
                format!("whether {} is another machine cannot be told", node.node),
            ),
        }
    }
    let all: Vec<&NodeRecord> = std::iter::once(nodes.frontend)
        .chain(nodes.accelerators)
        .collect();
    for node in &all {
        match (&node.commit, node.dirty) {
            (None, _) => found.say(
                BUILD,
                format!(
                    "{} does not say its commit: build with QDL_COMMIT and QDL_DIRTY set",
                    node.node
                ),
            ),
            (Some(_), Some(false)) => {}
            (Some(_), Some(true)) => found.say(
                CLEAN,
                format!("{} was built from changed sources", node.node),
            ),
            (Some(_), None) => found.say(
                CLEAN,
                format!("{} does not say that it is clean: QDL_DIRTY=0", node.node),
            ),
        }
    }
    let mut differ =
        |what: &str, of: &dyn Fn(&NodeRecord) -> Option<String>, all: &[&NodeRecord]| {
            let with = all.iter().filter_map(|n| Some((n.node.as_str(), of(n)?)));
            let with: Vec<_> = with.collect();
            let first = with.first().map(|(_, value)| value.clone());
            if let Some((node, value)) = with.iter().find(|(_, v)| Some(v) != first.as_ref()) {
                let (other, first) = with.first().map_or(("", ""), |(n, v)| (*n, v.as_str()));
                found.say(BUILD, format!("{what}: {other} {first}, {node} {value}"));
            }
        };
    differ("commits differ", &|n| n.commit.clone(), &all);
    // The frontend is a different program, so only the accelerators' programs are compared.
    differ("programs differ", &|n| n.program.clone(), &all[1..]);
    found.0
}

/// Compares the settings that LoadGen will use with the round's values for the scenario.
fn values(round: &Round, model: &Model, scenario: &str, told: &Told<'_>, found: &mut Found) {
    let whole = |field: &str| told.fields.get(field).and_then(Value::as_u64).unwrap_or(0);
    let on = |field: &str| match told.fields.get(field) {
        Some(Value::Bool(on)) => *on,
        Some(other) => other.as_f64() != Some(0.0),
        None => false,
    };
    let by = |field: &str| match told.from.get(field) {
        Some(from) => format!(" ({from})"),
        None => String::new(),
    };
    for (field, seed) in round.seeds.named() {
        if whole(field) != seed {
            found.say(
                SEEDS,
                format!(
                    "{field} is {}{}, the round's {seed}",
                    whole(field),
                    by(field)
                ),
            );
        }
    }
    let (least, ms) = (round.min_duration_ms(model), whole("min_duration_ms"));
    if ms < least {
        let by = by("min_duration_ms");
        found.say(
            DURATION,
            format!("min_duration_ms is {ms}{by}, the round's {least}"),
        );
    }
    if whole("max_duration_ms") > 0 && whole("max_duration_ms") < least {
        let by = by("max_duration_ms");
        found.say(
            DURATION,
            format!(
                "max_duration_ms is {}{by}, the round's least {least}",
                whole("max_duration_ms")
            ),
        );
    }
    let wanted = model.samples.performance;
    if told.loaded < wanted {
        found.say(
            COUNTS,
            format!(
                "{} samples are kept loaded, the round's {wanted}",
                told.loaded
            ),
        );
    }
    if scenario == "Offline" && whole("min_query_count") < model.samples.offline {
        let (n, by) = (whole("min_query_count"), by("min_query_count"));
        let least = model.samples.offline;
        found.say(
            COUNTS,
            format!("min_query_count is {n}{by}, the round's Offline query has {least} samples"),
        );
    }
    let (total, wanted) = (told.total, model.accuracy_samples(scenario));
    let covered = match whole("accuracy_sample_count_override") {
        0 => total,
        n => n.min(total),
    };
    if told.mode != "PerformanceOnly" && covered != wanted {
        found.say(
            DATA,
            format!("an accuracy run covers {covered} samples, the round's data set has {wanted}"),
        );
    }
    for field in ["performance_issue_unique", "performance_issue_same"] {
        if on(field) {
            found.say(TRAVERSAL, format!("{field} is on{}", by(field)));
        }
    }
    if model.equal_issue && !on("sample_concatenate_permutation") {
        let by = by("sample_concatenate_permutation");
        found.say(
            TRAVERSAL,
            format!("sample_concatenate_permutation is off{by}"),
        );
    }
    if model.tokens && !on("use_token_latencies") {
        found.say(
            TOKENS,
            format!("use_token_latencies is off{}", by("use_token_latencies")),
        );
    }
    limits(round, model, scenario, told, found);
}

fn limits(round: &Round, model: &Model, scenario: &str, told: &Told<'_>, found: &mut Found) {
    let by = |field: &str| match told.from.get(field) {
        Some(from) => format!(" ({from})"),
        None => String::new(),
    };
    let percentile = match told.scenario {
        "Server" => "server_target_latency_percentile",
        "SingleStream" => "single_stream_target_latency_percentile",
        _ => "",
    };
    if let Some(wanted) = round.percentiles.get(told.scenario) {
        let is = told
            .fields
            .get(percentile)
            .and_then(Value::as_f64)
            .unwrap_or(0.0);
        if is < *wanted {
            found.say(
                LIMITS,
                format!(
                    "{percentile} is {is}{}, the round's {wanted}",
                    by(percentile)
                ),
            );
        }
    }
    let LatencyLimits {
        ttft_ms,
        tpot_ms,
        latency_ms,
    } = model.limits.get(scenario).copied().unwrap_or_default();
    for (limit, field) in [
        (ttft_ms, "server_ttft_latency"),
        (tpot_ms, "server_tpot_latency"),
        (latency_ms, "server_target_latency_ns"),
    ] {
        let Some(limit) = limit else { continue };
        let is = told.fields.get(field).and_then(Value::as_u64);
        if is.is_none_or(|ns| ns > limit.saturating_mul(NS_PER_MS)) {
            let is = is.map_or("nothing".to_owned(), |ns| {
                format!("{} ms", ns as f64 / NS_PER_MS as f64)
            });
            found.say(
                LIMITS,
                format!("{field} is {is}{}, {scenario} allows {limit} ms", by(field)),
            );
        }
    }
}

#[derive(Default)]
struct Found(Vec<Refusal>);

impl Found {
    fn say(&mut self, rule: &'static Rule, what: impl Into<String>) {
        self.0.push(Refusal {
            rule,
            what: what.into(),
        });
    }
}

#[cfg(test)]
mod tests;
