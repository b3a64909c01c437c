//! Checks whether a run would count, before the frontend measures it. [`crate::rules`] checks the
//! same on the finished tree, after all runs.

use std::collections::BTreeMap;

use record::{NodeRecord, PrefixCache};
use serde_json::{Map, Value};

use crate::{
    round::{Model, NS_PER_MS, Round},
    rules::{SubmissionRule, build_fault, cache_fault, machine_fault, rules},
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
    pub rule: &'static SubmissionRule,
    /// Description of the fault, with the setting or node.
    pub what: String,
}

/// The run's settings, with the source of each LoadGen setting.
#[derive(Clone)]
pub struct RunSettings {
    /// The model's name in user.conf.
    pub model: String,
    /// LoadGen's name of the scenario.
    pub scenario: &'static str,
    /// LoadGen's name of the mode.
    pub mode: &'static str,
    /// LoadGen's `TestSettings` by field name, without the changes of an audit.config.
    pub fields: Map<String, Value>,
    /// Source of each field: `mlperf.conf`, `user.conf:3`, `--set`.
    pub from: BTreeMap<String, String>,
    /// The name that `from` uses for user.conf, if the run has one.
    pub user_conf: Option<String>,
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
#[derive(Clone)]
pub struct RunNodes {
    /// The frontend.
    pub frontend: NodeRecord,
    /// The accelerators.
    pub accelerators: Vec<NodeRecord>,
    /// Reasons why the fabric is not permitted, one a line.
    pub fabric: Vec<String>,
    /// Accelerators whose engine does not count its tokens.
    pub uncounted: Vec<String>,
    /// State of each engine's prefix cache, for accelerators whose engine can have one.
    pub caches: BTreeMap<String, PrefixCache>,
}

/// The refusals found so far.
#[derive(Default)]
struct Refusals(Vec<Refusal>);

impl Refusals {
    fn say(&mut self, rule: &'static SubmissionRule, what: impl Into<String>) {
        let what = what.into();
        self.0.push(Refusal { rule, what });
    }
}

/// Checks a run's settings. Needs no connection to a node.
pub fn check_settings(round: &Round, run: &RunSettings) -> Vec<Refusal> {
    let mut found = Refusals::default();
    let models = round.models_of(&run.model);
    let Some((name, interactive)) = models.last() else {
        let (model, round) = (&run.model, &round.round);
        let what = format!("loadgen.model {model:?} is no datacenter model of round {round}");
        found.say(MODEL, what);
        // The other checks need the model.
        return found.0;
    };
    if run.user_conf.is_none() {
        let what = "no user.conf is given: --user-conf, or loadgen.user_conf";
        found.say(USER_CONF, what);
    }
    if run.mode == "FindPeakPerformance" {
        let what = "find-peak makes no result: --mode performance or accuracy";
        found.say(MODE, what);
    }
    if run.local {
        found.say(LOCAL, "--local is one process");
    }
    if run.staged {
        let what = "qsl: staged copies samples before they are sent; say why in your notes";
        found.say(STAGED, what);
    }
    let user_conf = run.user_conf.as_deref().filter(|name| !name.is_empty());
    for (field, from) in &run.from {
        let by_file = user_conf.is_some_and(|name| from.starts_with(name));
        let by_round = by_file || ["default", "mlperf.conf"].contains(&from.as_str());
        let field = field.as_str();
        if !by_round && ROUNDS.contains(&field) {
            found.say(OVERRIDE, format!("{field} is set by {from}"));
        }
    }
    let model = &round.models[*name];
    if run.compressed && !model.lossless {
        let (round, input) = (&round.round, &model.input);
        let what = format!("model.compression: round {round} allows none for {name} ({input})");
        found.say(COMPRESSION, what);
    }
    let scenario = match (interactive, run.scenario) {
        (true, "Server") => "Interactive",
        (_, other) => other,
    };
    if model.scenarios().all(|s| s != scenario) {
        let all: Vec<_> = model.scenarios().map(String::as_str).collect();
        let what = format!("{name} has no {scenario}; it has {}", all.join(", "));
        found.say(SCENARIO, what);
        return found.0;
    }
    check_values(round, model, scenario, run, &mut found);
    check_limits(round, model, scenario, run, &mut found);
    found.0
}

/// Checks the nodes of a run. `model` is the model's name in user.conf.
pub fn check_nodes(round: &Round, model: &str, nodes: &RunNodes) -> Vec<Refusal> {
    let mut found = Refusals::default();
    for note in &nodes.fabric {
        found.say(FABRIC, note.clone());
    }
    let models = round.models_of(model);
    let tokens = models.iter().any(|(name, _)| round.models[*name].tokens);
    for node in nodes.uncounted.iter().filter(|_| tokens) {
        found.say(TOKENS, format!("{node}'s engine does not count its tokens"));
    }
    for (node, cache) in &nodes.caches {
        if let Some(what) = cache_fault(node, cache) {
            found.say(CACHE, what);
        }
    }
    for accelerator in &nodes.accelerators {
        if let Some(what) = machine_fault(&nodes.frontend, accelerator) {
            found.say(MACHINES, what);
        }
    }
    let all = std::iter::once(&nodes.frontend).chain(&nodes.accelerators);
    let all: Vec<&NodeRecord> = all.collect();
    for node in &all {
        if let Some((has_commit, what)) = build_fault(node) {
            let rule = if has_commit { CLEAN } else { BUILD };
            found.say(rule, format!("{} {what}", node.node));
        }
    }
    let mut compare = |what: &str, of: fn(&NodeRecord) -> &Option<String>, all: &[&NodeRecord]| {
        let values = all.iter().filter_map(|n| Some((&n.node, of(n).as_ref()?)));
        let mut values = values.collect::<Vec<_>>().into_iter();
        if let Some((other, first)) = values.next()
            && let Some((node, value)) = values.find(|(_, value)| *value != first)
        {
            found.say(BUILD, format!("{what}: {other} {first}, {node} {value}"));
        }
    };
    compare("commits differ", |n| &n.commit, &all);
    // The frontend is a different program, so only the accelerators' programs are compared.
    compare("programs differ", |n| &n.program, &all[1..]);
    found.0
}

impl RunSettings {
    fn whole(&self, field: &str) -> u64 {
        let value = self.fields.get(field).and_then(Value::as_u64);
        value.unwrap_or(0)
    }

    fn is_on(&self, field: &str) -> bool {
        match self.fields.get(field) {
            Some(Value::Bool(on)) => *on,
            Some(other) => other.as_f64() != Some(0.0),
            None => false,
        }
    }

    /// The source of a field in parentheses.
    fn by(&self, field: &str) -> String {
        let from = self.from.get(field);
        from.map_or(String::new(), |from| format!(" ({from})"))
    }
}

/// Compares the settings that LoadGen will use with the round's values for the scenario.
fn check_values(
    round: &Round,
    model: &Model,
    scenario: &str,
    run: &RunSettings,
    found: &mut Refusals,
) {
    for (field, seed) in round.seeds.named() {
        let (n, by) = (run.whole(field), run.by(field));
        if n != seed {
            found.say(SEEDS, format!("{field} is {n}{by}, the round's {seed}"));
        }
    }
    let least = round.min_duration_ms(model);
    let (ms, by) = (run.whole("min_duration_ms"), run.by("min_duration_ms"));
    if ms < least {
        let what = format!("min_duration_ms is {ms}{by}, the round's {least}");
        found.say(DURATION, what);
    }
    let (ms, by) = (run.whole("max_duration_ms"), run.by("max_duration_ms"));
    if ms > 0 && ms < least {
        let what = format!("max_duration_ms is {ms}{by}, the round's least {least}");
        found.say(DURATION, what);
    }
    let (loaded, wanted) = (run.loaded, model.samples.performance);
    if loaded < wanted {
        let what = format!("{loaded} samples are kept loaded, the round's {wanted}");
        found.say(COUNTS, what);
    }
    let (n, by) = (run.whole("min_query_count"), run.by("min_query_count"));
    let least = model.samples.offline;
    if scenario == "Offline" && n < least {
        let what = format!("the round's Offline query has {least} samples");
        found.say(COUNTS, format!("min_query_count is {n}{by}, {what}"));
    }
    let (total, wanted) = (run.total, model.accuracy_samples(scenario));
    let covered = match run.whole("accuracy_sample_count_override") {
        0 => total,
        n => n.min(total),
    };
    if run.mode != "PerformanceOnly" && covered != wanted {
        let what = format!("an accuracy run covers {covered} samples");
        found.say(DATA, format!("{what}, the round's data set has {wanted}"));
    }
    for field in ["performance_issue_unique", "performance_issue_same"] {
        if run.is_on(field) {
            found.say(TRAVERSAL, format!("{field} is on{}", run.by(field)));
        }
    }
    for (rule, wanted, field) in [
        (
            TRAVERSAL,
            model.equal_issue,
            "sample_concatenate_permutation",
        ),
        (TOKENS, model.tokens, "use_token_latencies"),
    ] {
        if wanted && !run.is_on(field) {
            found.say(rule, format!("{field} is off{}", run.by(field)));
        }
    }
}

fn check_limits(
    round: &Round,
    model: &Model,
    scenario: &str,
    run: &RunSettings,
    found: &mut Refusals,
) {
    let percentile = match run.scenario {
        "Server" => "server_target_latency_percentile",
        "SingleStream" => "single_stream_target_latency_percentile",
        _ => "",
    };
    if let Some(wanted) = round.percentiles.get(run.scenario) {
        let is = run.fields.get(percentile).and_then(Value::as_f64);
        let (is, by) = (is.unwrap_or(0.0), run.by(percentile));
        if is < *wanted {
            let what = format!("{percentile} is {is}{by}, the round's {wanted}");
            found.say(LIMITS, what);
        }
    }
    let limits = model.limits.get(scenario).copied().unwrap_or_default();
    for (limit, field) in [
        (limits.ttft_ms, "server_ttft_latency"),
        (limits.tpot_ms, "server_tpot_latency"),
        (limits.latency_ms, "server_target_latency_ns"),
    ] {
        let Some(limit) = limit else { continue };
        let is = run.fields.get(field).and_then(Value::as_u64);
        if is.is_none_or(|ns| ns > limit.saturating_mul(NS_PER_MS)) {
            let is = is.map(|ns| format!("{} ms", ns as f64 / NS_PER_MS as f64));
            let (is, by) = (is.unwrap_or("nothing".to_owned()), run.by(field));
            let what = format!("{field} is {is}{by}, {scenario} allows {limit} ms");
            found.say(LIMITS, what);
        }
    }
}

#[cfg(test)]
mod tests;
