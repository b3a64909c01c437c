//! Checks a run of LoadGen: its settings, verdict and latencies, and the nodes that answered.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::round::{LoadgenRelease, NS_PER_MS, loadgen_scenario};

/// Checks the rules for every kind of run.
pub(super) fn check(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, run: &CheckedRun) {
    let Some(detail) = &run.detail else { return };
    let at = layout::run_folder(&result.folder, &run.kind).join(loadgen_log::DETAIL);
    let make = command(check, result, &run.kind);
    let is_measured = match &run.kind {
        RunKind::Performance => true,
        RunKind::Accuracy => false,
        RunKind::Test(name) => check
            .round
            .tests
            .get(name)
            .is_some_and(|test| test.measured),
    };
    let mut check = LogCheck {
        result,
        kind: &run.kind,
        detail,
        is_measured,
        round: check.round,
        division: check.tree.division,
        say: &mut |rule, what| check.say_make(rule, &at, what, make.clone()),
    };
    check.general();
    check.nodes();
    if run.kind != RunKind::Accuracy {
        check.performance();
        check.latency();
    }
}

struct LogCheck<'a> {
    result: &'a CheckedResult<'a>,
    kind: &'a RunKind,
    detail: &'a Detail,
    /// Whether the run must meet a performance run's duration and counts.
    is_measured: bool,
    round: &'a Round,
    division: Division,
    say: &'a mut dyn FnMut(&'static SubmissionRule, String),
}

fn shown(n: Option<u64>) -> String {
    n.map_or("nothing".to_owned(), |n| n.to_string())
}

fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / NS_PER_MS as f64)
}

impl LogCheck<'_> {
    fn say(&mut self, rule: &'static SubmissionRule, what: impl Into<String>) {
        (self.say)(rule, what.into());
    }

    /// A whole number among LoadGen's effective settings.
    fn whole(&self, key: &str) -> Option<u64> {
        self.detail.whole(&format!("effective_{key}"))
    }

    fn general(&mut self) {
        let detail = self.detail;
        if let Some(line) = detail.unreadable.first() {
            let what = format!("line {line} is no JSON: the checker ends there");
            self.say(RUN_LOG, what);
        }
        if let Some(first) = detail.error_messages.first() {
            let n = detail.errors;
            self.say(RUN_ERRORS, format!("{n} errors; the first: {first}"));
        }
        let mode = detail.text("effective_test_mode");
        let wanted = match self.kind {
            RunKind::Accuracy => "AccuracyOnly",
            _ => "PerformanceOnly",
        };
        if mode != wanted && mode != "SubmissionRun" {
            let what = format!("LoadGen ran in mode {mode:?}, not {wanted}");
            self.say(RUN_MODE, what);
        }
        let scenario = detail.text("effective_scenario");
        let wanted = loadgen_scenario(&self.result.id.scenario);
        if scenario != wanted {
            let what = format!("LoadGen ran {scenario:?}, not {wanted}");
            self.say(RUN_SCENARIO, what);
        }
    }

    /// Checks the SUT's name and the nodes in it.
    fn nodes(&mut self) {
        let name = self.detail.text("sut_name");
        let holds = &self.round.sut_name_holds;
        if !name.contains(holds) {
            let what = format!("the SUT's name {name:?} has no {holds:?} in it");
            return self.say(RUN_NAME, what);
        }
        if name.contains("(no answer)") {
            let what = format!("a node did not answer Name(): {name:?}");
            self.say(RUN_ANSWER, what);
        }
        let nodes = self.detail.nodes();
        if nodes.is_empty() {
            self.say(RUN_ANSWER, format!("the SUT's name {name:?} names no node"));
        }
        if let Some(odd) = nodes.iter().find(|n| Name::new(n).is_err()) {
            self.say(RUN_ANSWER, format!("{odd:?} is no node's name"));
        }
        let mut seen = BTreeSet::new();
        for twice in nodes.iter().filter(|n| !seen.insert(n.as_str())) {
            self.say(RUN_UNIQUE, format!("two nodes are called {twice:?}"));
        }
    }

    /// Checks LoadGen's settings and verdict in a performance run.
    fn performance(&mut self) {
        let (round, model, detail) = (self.round, self.result.model, self.detail);
        for (key, seed) in round.seeds.named() {
            let found = self.whole(key);
            if found != Some(seed) {
                self.say(RUN_SEEDS, format!("{key} is {}, not {seed}", shown(found)));
            }
        }
        // A test's audit.config sets its own duration and counts, often too few for VALID in
        // Server: verifiers judge such tests, which are not measured.
        let verdict = detail.text("result_validity");
        if self.is_measured && verdict != "VALID" {
            let why = [
                ("result_min_duration_met", "it was too short"),
                ("result_min_queries_met", "it had too few queries"),
                ("result_perf_constraints_met", "it was too slow"),
                ("early_stopping_met", "early stopping was not met"),
            ];
            let why = why.iter();
            let why = why.filter(|(key, _)| detail.flag(key) == Some(false));
            let why: Vec<_> = why.map(|(_, words)| *words).collect();
            let what = match why.join(", ") {
                why if why.is_empty() => format!("LoadGen says {verdict:?}, and not why"),
                why => format!("LoadGen says {verdict:?}: {why}"),
            };
            self.say(RUN_VALID, what);
        }
        let (least, found) = (round.min_duration_ms(model), self.whole("min_duration_ms"));
        if self.is_measured && found.unwrap_or(0) < least {
            let found = shown(found);
            let what = format!("min_duration is {found} ms, the round's {least}");
            self.say(RUN_DURATION, what);
        }
        let loaded = model.samples.performance;
        let found = self.whole("performance_sample_count");
        if self.is_measured && found.unwrap_or(0) < loaded {
            let found = shown(found);
            let what = format!("{found} samples are loaded, the round's {loaded}");
            self.say(RUN_LOADED, what);
        }
        if *self.kind == RunKind::Performance {
            self.sampling();
        }
        let scenario = loadgen_scenario(&self.result.id.scenario);
        if let Some(least) = round.percentiles.get(scenario) {
            let found = detail.number("effective_target_latency_percentile");
            let found = found.unwrap_or(0.0);
            if found < *least {
                let what = format!("LoadGen judges at {found}, the round at {least}");
                self.say(RUN_PERCENTILE, what);
            }
        }
        if model.tokens && detail.flag("requested_use_token_latencies") != Some(true) {
            self.say(RUN_TOKENS, "use_token_latencies is off");
        }
    }

    /// Checks how LoadGen chose and logged samples in a performance run that is no test.
    fn sampling(&mut self) {
        let (model, detail) = (self.result.model, self.detail);
        let query = match self.division {
            // In the Closed division the checker takes LoadGen's own samples per query.
            Division::Closed => self.whole("samples_per_query"),
            _ => self
                .whole("min_sample_count")
                .max(self.whole("samples_per_query")),
        };
        let least = model.samples.offline;
        if &*self.result.id.scenario == "Offline" && query.unwrap_or(0) < least {
            let found = shown(query);
            let what = format!("the query has {found} samples, the round's {least}");
            self.say(RUN_QUERY, what);
        }
        let flag = |key: &str| detail.flag(&format!("effective_{key}")) == Some(true);
        for key in ["performance_issue_unique", "performance_issue_same"] {
            if flag(key) {
                self.say(RUN_TRAVERSAL, format!("{key} is on"));
            }
        }
        if model.equal_issue && !flag("sample_concatenate_permutation") {
            let what = "sample_concatenate_permutation is off: not each sample as often";
            self.say(RUN_TRAVERSAL, what);
        }
        let sampled = self.whole("accuracy_log_sampling_target").unwrap_or(0);
        if sampled > 0 {
            let what = format!("{sampled} answers are logged: it is a compliance run");
            self.say(RUN_SAMPLED, what);
        }
    }

    /// Checks early stopping, LoadGen's latency limits and the measured latencies.
    fn latency(&mut self) {
        let (detail, scenario) = (self.detail, &*self.result.id.scenario);
        let judged = ["Server", "Interactive", "SingleStream", "MultiStream"].contains(&scenario);
        if self.is_measured && judged && detail.flag("early_stopping_met") != Some(true) {
            let why = detail.text("early_stopping_result");
            let what = format!("early stopping is not met {why}");
            self.say(RUN_EARLY, what.trim_end());
        }
        let Some(limits) = self.result.model.limits.get(scenario) else {
            return;
        };
        let all = [
            (
                limits.ttft_ms,
                "requested_server_ttft_latency",
                "to the first token",
                "result_first_token_99.00_percentile_latency_ns",
                "first tokens",
            ),
            (
                limits.tpot_ms,
                "requested_server_tpot_latency",
                "to each other token",
                "result_time_per_output_token_99.00_percentile_ns",
                "other tokens",
            ),
            (
                limits.latency_ms,
                "effective_target_latency_ns",
                "to the answer",
                "result_99.00_percentile_latency_ns",
                "answers",
            ),
        ];
        for (limit, setting, to, ..) in all {
            let Some(limit) = limit else { continue };
            let found = detail.whole(setting);
            if found.is_none_or(|ns| ns > limit.saturating_mul(NS_PER_MS)) {
                let found = found.map_or("none".to_owned(), ms);
                let what = format!("LoadGen's limit {to} is {found}, {scenario}'s {limit} ms");
                self.say(RUN_LIMITS, what);
            }
        }
        // Verifiers, not latencies, judge most tests' runs.
        let measured = if self.is_measured { &all[..] } else { &[] };
        for &(limit, .., result, of) in measured {
            let Some(limit) = limit else { continue };
            let found = detail.whole(result);
            if found.is_none_or(|ns| ns >= limit.saturating_mul(NS_PER_MS)) {
                let found = found.map(|ns| format!("{} at p99", ms(ns)));
                let found = found.unwrap_or("no time is logged".to_owned());
                let what = format!("{of}: {found}; {scenario} allows {limit} ms");
                self.say(RUN_LATENCY, what);
            }
        }
    }
}

/// Checks that the same nodes answered in all runs of a result, and that the LoadGen of each run
/// is the release that the round requires.
pub(super) fn compare(check: &mut TreeCheck<'_>, result: &CheckedResult<'_>, runs: &[CheckedRun]) {
    let with_log = runs.iter().filter_map(|r| Some((r, r.detail.as_ref()?)));
    let mut first: Option<(&RunKind, BTreeSet<String>)> = None;
    for (run, detail) in with_log {
        let at = layout::run_folder(&result.folder, &run.kind).join(loadgen_log::DETAIL);
        for what in loadgen(&check.round.loadgen, detail) {
            check.say(RUN_LOADGEN, &at, what);
        }
        let nodes: BTreeSet<String> = detail.nodes().into_iter().collect();
        let Some((of, others)) = &first else {
            first = Some((&run.kind, nodes));
            continue;
        };
        if nodes != *others {
            let list = |set: &BTreeSet<String>| Vec::from_iter(set.iter().cloned()).join(", ");
            let what = format!("nodes {}; the {of} run's: {}", list(&nodes), list(others));
            check.say(RUN_SAME, &at, what);
        }
    }
}

/// Reports how the LoadGen that wrote a log differs from the round's release.
fn loadgen(release: &LoadgenRelease, detail: &Detail) -> Vec<String> {
    let mut found = Vec::new();
    let (version, wanted) = (detail.text("loadgen_version"), &release.version);
    if version != *wanted {
        found.push(format!("LoadGen {version:?}, not {wanted:?}"));
    }
    if !detail.text("loadgen_git_status_message").trim().is_empty() {
        found.push("LoadGen was built from changed sources".to_owned());
    }
    let files = detail.text("loadgen_file_sha1");
    let files: BTreeMap<String, String> = serde_json::from_str(&files).unwrap_or_default();
    let lines = files.iter().map(|(name, sha1)| format!("{sha1} {name}"));
    let lines: Vec<_> = lines.collect();
    if fabric::os::sha256_of(lines.join("\n").as_bytes()) != release.files {
        let what = "LoadGen's files, by loadgen_file_sha1, are not those of";
        found.push(format!("{what} {wanted}"));
    }
    found
}
