//! One run of LoadGen: what it was told, what it said, and who answered.

use std::collections::BTreeSet;

use super::*;
use crate::round::loadgen_scenario;

/// Checks that hold for every run.
pub(super) fn check(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran) {
    let Some(detail) = &ran.detail else { return };
    let at = layout::run_folder(&result.folder, &ran.run).join(loadgen_log::DETAIL);
    let make = command(look, result, &ran.run);
    let is_accuracy = ran.run == layout::ACCURACY;
    let mut say = |rule, what: String| look.say_make(rule, &at, what, make.clone());

    for line in detail.unreadable.iter().take(1) {
        say(
            RUN_LOG,
            format!("line {line} is no JSON: the checker ends there"),
        );
    }
    if let Some(first) = detail.error_messages.first() {
        let n = detail.errors;
        say(RUN_ERRORS, format!("{n} errors; the first: {first}"));
    }
    let mode = detail.text("effective_test_mode");
    let wanted = if is_accuracy {
        "AccuracyOnly"
    } else {
        "PerformanceOnly"
    };
    if mode != wanted && mode != "SubmissionRun" {
        say(
            RUN_MODE,
            format!("LoadGen ran in mode {mode:?}, not {wanted}"),
        );
    }
    let scenario = detail.text("effective_scenario");
    let wanted = loadgen_scenario(&result.place.scenario);
    if scenario != wanted {
        say(
            RUN_SCENARIO,
            format!("LoadGen ran {scenario:?}, not {wanted}"),
        );
    }
    name(
        detail,
        &look.round.sut_name_holds.clone(),
        &mut |rule, what| {
            look.say_make(rule, &at, what, make.clone());
        },
    );
    if !is_accuracy {
        performance(look, result, ran, detail);
        latency::check(look, result, ran, detail);
    }
}

fn name(detail: &Detail, holds: &str, say: &mut dyn FnMut(&'static Rule, String)) {
    let name = detail.text("sut_name");
    if !name.contains(holds) {
        say(
            RUN_NAME,
            format!("the SUT's name {name:?} has no {holds:?} in it"),
        );
        return;
    }
    if name.contains("(no answer)") {
        say(
            RUN_ANSWER,
            format!("a node did not answer Name(): {name:?}"),
        );
    }
    let nodes = detail.nodes();
    if nodes.is_empty() {
        say(RUN_ANSWER, format!("the SUT's name {name:?} names no node"));
    }
    let mut seen = BTreeSet::new();
    for twice in nodes.iter().filter(|n| !seen.insert(n.as_str())) {
        say(RUN_UNIQUE, format!("two nodes are called {twice:?}"));
    }
}

/// What LoadGen was told, in a run that is measured.
fn performance(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran, detail: &Detail) {
    let (round, model) = (look.round, result.model);
    let at = layout::run_folder(&result.folder, &ran.run).join(loadgen_log::DETAIL);
    let make = command(look, result, &ran.run);
    let held = is_measured(look, ran);
    let mut say = |rule, what: String| look.say_make(rule, &at, what, make.clone());
    let whole = |key: &str| detail.whole(&format!("effective_{key}"));
    let said = |n: Option<u64>| n.map_or("nothing".to_owned(), |n| n.to_string());

    for (key, seed) in round.seeds.named() {
        if whole(key) != Some(seed) {
            say(
                RUN_SEEDS,
                format!("{key} is {}, not {seed}", said(whole(key))),
            );
        }
    }
    // A test's audit.config sets durations and counts of its own, too few for LoadGen's VALID in
    // Server; the verifiers of those that need it ask for it.
    let own = ran.run == layout::PERFORMANCE;
    let verdict = detail.text("result_validity");
    if held && verdict != "VALID" {
        let why = [
            ("result_min_duration_met", "it was too short"),
            ("result_min_queries_met", "it had too few queries"),
            ("result_perf_constraints_met", "it was too slow"),
            ("early_stopping_met", "early stopping was not met"),
        ];
        let why = why
            .iter()
            .filter(|(key, _)| detail.flag(key) == Some(false));
        let why: Vec<_> = why.map(|(_, words)| *words).collect();
        say(
            RUN_VALID,
            format!("LoadGen says {verdict:?}: {}", why.join(", ")),
        );
    }
    let least = round.min_duration_ms(model);
    if held && whole("min_duration_ms").unwrap_or(0) < least {
        let found = said(whole("min_duration_ms"));
        say(
            RUN_DURATION,
            format!("min_duration is {found} ms, the round's {least}"),
        );
    }
    let loaded = model.samples.performance;
    if held && whole("performance_sample_count").unwrap_or(0) < loaded {
        let found = said(whole("performance_sample_count"));
        say(
            RUN_LOADED,
            format!("{found} samples are loaded, the round's {loaded}"),
        );
    }
    let query = whole("min_sample_count").max(whole("samples_per_query"));
    if own && result.place.scenario == "Offline" && query.unwrap_or(0) < model.samples.offline {
        let least = model.samples.offline;
        say(
            RUN_QUERY,
            format!("the query has {} samples, the round's {least}", said(query)),
        );
    }
    let flag = |key: &str| detail.flag(&format!("effective_{key}"));
    for key in ["performance_issue_unique", "performance_issue_same"] {
        if own && flag(key) == Some(true) {
            say(RUN_TRAVERSAL, format!("{key} is on"));
        }
    }
    if own && model.equal_issue && flag("sample_concatenate_permutation") != Some(true) {
        say(
            RUN_TRAVERSAL,
            "sample_concatenate_permutation is off: not each sample as often".into(),
        );
    }
    let scenario = loadgen_scenario(&result.place.scenario);
    if let Some(least) = round.percentiles.get(scenario) {
        let found = detail.number("effective_target_latency_percentile");
        if found.unwrap_or(0.0) < *least {
            let found = found.unwrap_or(0.0);
            say(
                RUN_PERCENTILE,
                format!("LoadGen judges at {found}, the round at {least}"),
            );
        }
    }
    if model.tokens && detail.flag("requested_use_token_latencies") != Some(true) {
        say(RUN_TOKENS, "use_token_latencies is off".into());
    }
    let sampled = whole("accuracy_log_sampling_target").unwrap_or(0);
    if own && sampled > 0 {
        say(
            RUN_SAMPLED,
            format!("{sampled} answers are logged: it is a compliance run"),
        );
    }
}

/// Whether a run is held to a performance run's durations and counts.
pub(super) fn is_measured(look: &Look<'_>, ran: &Ran) -> bool {
    let test = look.round.tests.get(&ran.run);
    ran.run == layout::PERFORMANCE || test.is_some_and(|test| test.measured)
}

/// What must be the same in all runs of a result.
pub(super) fn together(look: &mut Look<'_>, result: &Result<'_>, runs: &[Ran]) {
    let with_log = runs.iter().filter_map(|r| Some((r, r.detail.as_ref()?)));
    let mut first: Option<(&str, BTreeSet<String>, String)> = None;
    for (ran, detail) in with_log {
        let at = layout::run_folder(&result.folder, &ran.run).join(loadgen_log::DETAIL);
        let nodes: BTreeSet<String> = detail.nodes().into_iter().collect();
        let loadgen = detail.text("loadgen_version");
        if !detail.text("loadgen_git_status_message").trim().is_empty() {
            look.say(RUN_LOADGEN, &at, "LoadGen was built from changed sources");
        }
        let Some((of, others, version)) = &first else {
            first = Some((&ran.run, nodes, loadgen));
            continue;
        };
        if nodes != *others {
            let list = |set: &BTreeSet<String>| Vec::from_iter(set.iter().cloned()).join(", ");
            let what = format!("nodes {}; the {of} run's: {}", list(&nodes), list(others));
            look.say(RUN_SAME, &at, what);
        }
        if loadgen != *version {
            look.say(
                RUN_LOADGEN,
                &at,
                format!("LoadGen {loadgen:?}; the {of} run's {version:?}"),
            );
        }
    }
}
