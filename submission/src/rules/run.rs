//! Checks a run of LoadGen: its settings, its verdict, and the nodes that answered.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::round::{Loadgen, loadgen_scenario};

/// Checks what every run must meet.
pub(super) fn check(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran) {
    let Some(detail) = &ran.detail else { return };
    let at = layout::run_folder(&result.folder, &ran.run).join(loadgen_log::DETAIL);
    let make = command(look, result, &ran.run);
    let is_accuracy = ran.run == Kind::Accuracy;
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
    if let Some(odd) = nodes.iter().find(|n| Name::new(n).is_err()) {
        say(RUN_ANSWER, format!("{odd:?} is no node's name"));
    }
    let mut seen = BTreeSet::new();
    for twice in nodes.iter().filter(|n| !seen.insert(n.as_str())) {
        say(RUN_UNIQUE, format!("two nodes are called {twice:?}"));
    }
}

/// Checks LoadGen's settings and verdict in a performance run.
fn performance(look: &mut Look<'_>, result: &Result<'_>, ran: &Ran, detail: &Detail) {
    let (round, model, division) = (look.round, result.model, look.tree.division());
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
    // A test's audit.config sets its own duration and counts, often too few for VALID in Server.
    // `held` excludes such tests: their verifiers judge the run.
    let own = ran.run == Kind::Performance;
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
    let query = match division {
        // The checker takes LoadGen's own figure in the Closed division.
        Division::Closed => whole("samples_per_query"),
        _ => whole("min_sample_count").max(whole("samples_per_query")),
    };
    if own && result.place.scenario == *"Offline" && query.unwrap_or(0) < model.samples.offline {
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

/// Whether a run must meet a performance run's duration and counts.
pub(super) fn is_measured(look: &Look<'_>, ran: &Ran) -> bool {
    match &ran.run {
        Kind::Performance => true,
        Kind::Accuracy => false,
        Kind::Test(name) => look.round.tests.get(name).is_some_and(|test| test.measured),
    }
}

/// Checks what must be equal in all runs of a result.
pub(super) fn together(look: &mut Look<'_>, result: &Result<'_>, runs: &[Ran]) {
    let with_log = runs.iter().filter_map(|r| Some((r, r.detail.as_ref()?)));
    let mut first: Option<(&Kind, BTreeSet<String>)> = None;
    for (ran, detail) in with_log {
        let at = layout::run_folder(&result.folder, &ran.run).join(loadgen_log::DETAIL);
        for what in loadgen(&look.round.loadgen, detail) {
            look.say(RUN_LOADGEN, &at, what);
        }
        let nodes: BTreeSet<String> = detail.nodes().into_iter().collect();
        let Some((of, others)) = &first else {
            first = Some((&ran.run, nodes));
            continue;
        };
        if nodes != *others {
            let list = |set: &BTreeSet<String>| Vec::from_iter(set.iter().cloned()).join(", ");
            let what = format!("nodes {}; the {of} run's: {}", list(&nodes), list(others));
            look.say(RUN_SAME, &at, what);
        }
    }
}

/// Reports how the LoadGen that wrote a log differs from the round's release.
fn loadgen(round: &Loadgen, detail: &Detail) -> Vec<String> {
    let mut found = Vec::new();
    let version = detail.text("loadgen_version");
    if version != round.version {
        found.push(format!("LoadGen {version:?}, not {:?}", round.version));
    }
    if !detail.text("loadgen_git_status_message").trim().is_empty() {
        found.push("LoadGen was built from changed sources".to_owned());
    }
    let files = detail.text("loadgen_file_sha1");
    let files: BTreeMap<String, String> = serde_json::from_str(&files).unwrap_or_default();
    let lines: Vec<_> = files
        .iter()
        .map(|(name, sha1)| format!("{sha1} {name}"))
        .collect();
    if fabric::os::sha256_of(lines.join("\n").as_bytes()) != round.files {
        let release = &round.version;
        found.push(format!(
            "LoadGen's files, by loadgen_file_sha1, are not those of {release}"
        ));
    }
    found
}
