//! Checks a run of LoadGen: its settings, verdict and latencies, and the nodes that answered.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::round::{LoadgenRelease, NS_PER_MS};

/// A run as far as it is known: its settings before it begins, and its results when it is over.
pub(crate) struct RunCheck<'a> {
    pub(crate) round: &'a Round,
    pub(crate) division: Division,
    pub(crate) model: &'a Model,
    /// The scenario's folder.
    pub(crate) scenario: &'a str,
    pub(crate) kind: &'a RunKind,
    /// LoadGen's log, or the settings that it will log.
    pub(crate) detail: Option<&'a Detail>,
    pub(crate) manifest: Option<&'a Manifest>,
    /// The source of each setting, before the run; `None` if the run is over.
    pub(crate) sources: Option<&'a BTreeMap<String, String>>,
    /// Takes a finding: its rule, the file's name, and what is wrong.
    pub(crate) say: &'a mut dyn FnMut(&'static SubmissionRule, &str, String),
}

fn shown(n: Option<u64>) -> String {
    n.map_or("nothing".to_owned(), |n| n.to_string())
}

fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / NS_PER_MS as f64)
}

impl<'a> RunCheck<'a> {
    pub(super) fn is_over(&self) -> bool {
        self.sources.is_none()
    }

    /// Whether the run must meet a performance run's duration and counts.
    pub(super) fn is_measured(&self) -> bool {
        match self.kind {
            RunKind::Performance => true,
            RunKind::Accuracy => false,
            RunKind::Test(name) => {
                let test = self.round.tests.get(name);
                test.is_some_and(|test| test.measured)
            }
        }
    }

    /// Adds a finding on LoadGen's log, or on the settings that it will have.
    pub(super) fn say(&mut self, rule: &'static SubmissionRule, what: impl Into<String>) {
        (self.say)(rule, loadgen_log::DETAIL, what.into());
    }

    /// The source of a setting in parentheses, if the run is not over.
    fn by(&self, setting: &str) -> String {
        let from = self.sources.and_then(|sources| sources.get(setting));
        from.map_or(String::new(), |from| format!(" ({from})"))
    }

    /// Checks LoadGen's settings, and its results if the run is over.
    pub(crate) fn log(&mut self) {
        let Some(detail) = self.detail else { return };
        self.general(detail);
        if self.is_over() {
            self.nodes(detail);
        }
        if *self.kind != RunKind::Accuracy {
            self.settings(detail);
            self.latency(detail);
            if self.is_measured() && self.is_over() {
                self.verdict(detail);
            }
        } else {
            let wanted = self.model.accuracy_samples(self.scenario);
            let found = detail.whole("effective_accuracy_sample_count");
            let found = found.or_else(|| detail.whole("qsl_reported_total_count"));
            if found != Some(wanted) {
                let (found, by) = (
                    found.unwrap_or(0),
                    self.by("accuracy_sample_count_override"),
                );
                let what = format!("{found} samples{by}, the data set has {wanted}");
                self.say(ACCURACY_SAMPLES, what);
            }
        }
    }

    fn general(&mut self, detail: &Detail) {
        if let Some(line) = detail.unreadable.first() {
            let what = format!("line {line} is no JSON: the checker ends there");
            self.say(RUN_LOG, what);
        }
        if let Some(key) = &detail.repeated {
            let what = format!("{key} is there twice: the file has the logs of several runs");
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
            let what = format!("LoadGen's mode is {mode:?}, not {wanted}");
            self.say(RUN_MODE, what);
        }
        let scenario = detail.text("effective_scenario");
        let wanted = self.round.loadgen_scenario(self.scenario);
        if scenario != wanted {
            let what = format!("LoadGen's scenario is {scenario:?}, not {wanted}");
            self.say(RUN_SCENARIO, what);
        }
    }

    /// Checks the SUT's name and the nodes in it.
    fn nodes(&mut self, detail: &Detail) {
        let name = detail.text("sut_name");
        let holds = &self.round.sut_name_holds;
        if !name.contains(holds) {
            let what = format!("the SUT's name {name:?} has no {holds:?} in it");
            return self.say(RUN_NAME, what);
        }
        if name.contains("(no answer)") {
            let what = format!("a node did not answer Name(): {name:?}");
            self.say(RUN_ANSWER, what);
        }
        let nodes = detail.nodes();
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

    /// Adds a finding if LoadGen's setting is below the round's.
    fn at_least(&mut self, rule: &'static SubmissionRule, setting: &str, least: f64) {
        let detail = self
            .detail
            .and_then(|d| d.get(&format!("effective_{setting}")));
        let found = detail.and_then(|text| text.parse::<f64>().ok());
        if found.unwrap_or(0.0) < least {
            let (found, by) = (detail.unwrap_or("nothing"), self.by(setting));
            self.say(
                rule,
                format!("{setting} is {found}{by}, the round's {least}"),
            );
        }
    }

    /// Checks LoadGen's settings in a performance run.
    fn settings(&mut self, detail: &Detail) {
        let (round, model) = (self.round, self.model);
        for (key, seed) in round.seeds.named() {
            let found = detail.whole(&format!("effective_{key}"));
            if found != Some(seed) {
                let (found, by) = (shown(found), self.by(key));
                self.say(
                    RUN_SEEDS,
                    format!("{key} is {found}{by}, the round's {seed}"),
                );
            }
        }
        if self.is_measured() {
            let least = round.min_duration_ms(model);
            self.at_least(RUN_DURATION, "min_duration_ms", least as f64);
            let most = detail.whole("effective_max_duration_ms").unwrap_or(0);
            if most > 0 && most < least {
                let by = self.by("max_duration_ms");
                let what = format!("max_duration_ms is {most}{by}, the round's least {least}");
                self.say(RUN_DURATION, what);
            }
            let loaded = model.samples.performance as f64;
            self.at_least(RUN_LOADED, "performance_sample_count", loaded);
        }
        if *self.kind == RunKind::Performance {
            self.sampling(detail);
        }
        if let Some(least) = round
            .scenarios
            .get(self.scenario)
            .and_then(|s| s.percentile)
        {
            self.at_least(RUN_PERCENTILE, "target_latency_percentile", least);
        }
        if model.tokens && detail.flag("requested_use_token_latencies") != Some(true) {
            let by = self.by("use_token_latencies");
            self.say(RUN_TOKENS, format!("use_token_latencies is off{by}"));
        }
        if model.in_order {
            let what = "LoadGen draws samples at random, and the model's go in the order of time";
            self.say(RUN_ORDER, what);
        }
    }

    /// Checks LoadGen's verdict and early stopping.
    fn verdict(&mut self, detail: &Detail) {
        // A test's audit.config sets its own duration and counts, often too few for VALID in
        // Server: verifiers judge such tests, which are not measured.
        let verdict = detail.text("result_validity");
        if verdict != "VALID" {
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
        let row = self.round.scenarios.get(self.scenario);
        let judged = row.is_some_and(|row| row.early_stopping);
        if judged && detail.flag("early_stopping_met") != Some(true) {
            let why = detail.text("early_stopping_result");
            let what = format!("early stopping is not met {why}");
            self.say(RUN_EARLY, what.trim_end());
        }
    }

    /// Checks how LoadGen chooses and logs samples in a performance run that is no test.
    fn sampling(&mut self, detail: &Detail) {
        let model = self.model;
        let whole = |key: &str| detail.whole(&format!("effective_{key}"));
        let query = match self.division {
            // In the Closed division the checker takes LoadGen's own samples per query.
            Division::Closed => whole("samples_per_query"),
            _ => whole("min_sample_count").max(whole("samples_per_query")),
        };
        let least = model.samples.offline;
        if self.scenario == "Offline" && query.unwrap_or(0) < least {
            let (found, by) = (shown(query), self.by("min_query_count"));
            let what = format!("the query has {found} samples{by}, the round's {least}");
            self.say(RUN_QUERY, what);
        }
        let flag = |key: &str| detail.flag(&format!("effective_{key}")) == Some(true);
        for key in ["performance_issue_unique", "performance_issue_same"] {
            if flag(key) {
                self.say(RUN_TRAVERSAL, format!("{key} is on{}", self.by(key)));
            }
        }
        let key = "sample_concatenate_permutation";
        if model.equal_issue && !flag(key) {
            let by = self.by(key);
            self.say(
                RUN_TRAVERSAL,
                format!("{key} is off{by}: not each sample as often"),
            );
        }
        let sampled = whole("accuracy_log_sampling_target").unwrap_or(0);
        if sampled > 0 && self.is_over() {
            let what = format!("{sampled} answers are logged: it is a compliance run");
            self.say(RUN_SAMPLED, what);
        }
    }

    /// Checks LoadGen's latency limits and the measured latencies.
    fn latency(&mut self, detail: &Detail) {
        let Some(limits) = self.model.limits.get(self.scenario) else {
            return;
        };
        // Verifiers, not latencies, judge most tests' runs.
        let measured = self.is_measured() && self.is_over();
        let scenario = self.scenario;
        for (limit, setting, result, of) in [
            (
                limits.ttft_ms,
                "requested_server_ttft_latency",
                "result_first_token_99.00_percentile_latency_ns",
                "first tokens",
            ),
            (
                limits.tpot_ms,
                "requested_server_tpot_latency",
                "result_time_per_output_token_99.00_percentile_ns",
                "other tokens",
            ),
            (
                limits.latency_ms,
                "effective_target_latency_ns",
                "result_99.00_percentile_latency_ns",
                "answers",
            ),
        ] {
            let Some(limit) = limit else { continue };
            let most = limit.saturating_mul(NS_PER_MS);
            let found = detail.whole(setting);
            if found.is_none_or(|ns| ns > most) {
                let by = self.by(setting.trim_start_matches("requested_"));
                let found = found.map_or("none".to_owned(), ms);
                let what =
                    format!("LoadGen's limit of {of} is {found}{by}, {scenario}'s {limit} ms");
                self.say(RUN_LIMITS, what);
            }
            let found = detail.whole(result);
            if measured && found.is_none_or(|ns| ns >= most) {
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
