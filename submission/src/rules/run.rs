//! Checks a run of LoadGen: its settings, verdict and latencies, and the nodes that answered.

use std::collections::{BTreeMap, BTreeSet};

use super::*;
use crate::round::{NS_PER_MS, ScenarioRow};

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

fn ms(ns: u64) -> String {
    format!("{:.3} ms", ns as f64 / NS_PER_MS as f64)
}

/// Whether LoadGen's text of a flag says that it is on.
fn is_on(text: &str) -> bool {
    text == "true" || text.parse::<f64>().is_ok_and(|n| n != 0.0)
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

    /// Adds a finding if the text of LoadGen's setting is not right; empty: LoadGen has none.
    fn setting(
        &mut self,
        rule: &'static SubmissionRule,
        name: &str,
        wanted: impl std::fmt::Display,
        is_right: impl FnOnce(&str) -> bool,
    ) {
        // LoadGen logs some settings as requested alone.
        let of = |kind: &str| self.detail.and_then(|d| d.get(&format!("{kind}_{name}")));
        let found = of("effective").or(of("requested")).unwrap_or_default();
        if !is_right(found) {
            let by = self.by(name);
            let found = if found.is_empty() { "nothing" } else { found };
            self.say(rule, format!("{name} is {found}{by}, the round's {wanted}"));
        }
    }

    fn at_least(&mut self, rule: &'static SubmissionRule, name: &str, least: f64) {
        let is_right = |text: &str| text.parse().is_ok_and(|found: f64| found >= least);
        self.setting(rule, name, least, is_right);
    }

    /// Checks LoadGen's settings, and its results if the run is over.
    pub(crate) fn log(&mut self) {
        let Some(detail) = self.detail else { return };
        self.general(detail);
        if self.is_over() {
            self.nodes(detail);
            self.loadgen(detail);
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
        let wanted = match self.kind {
            RunKind::Accuracy => "AccuracyOnly",
            _ => "PerformanceOnly",
        };
        let is_mode = |mode: &str| mode == wanted || mode == "SubmissionRun";
        self.setting(RUN_MODE, "test_mode", wanted, is_mode);
        let wanted = self.round.loadgen_scenario(self.scenario);
        self.setting(RUN_SCENARIO, "scenario", wanted, |text| text == wanted);
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

    /// Checks that the round's release of LoadGen, unchanged, wrote the log.
    fn loadgen(&mut self, detail: &Detail) {
        let (version, wanted) = (detail.text("loadgen_version"), &self.round.loadgen.version);
        if version != *wanted {
            self.say(RUN_LOADGEN, format!("LoadGen {version:?}, not {wanted:?}"));
        }
        if !detail.text("loadgen_git_status_message").trim().is_empty() {
            self.say(RUN_LOADGEN, "LoadGen was built from changed sources");
        }
        let files = detail.text("loadgen_file_sha1");
        let files: BTreeMap<String, String> = serde_json::from_str(&files).unwrap_or_default();
        let lines = files.iter().map(|(name, sha1)| format!("{sha1} {name}"));
        let lines = lines.collect::<Vec<_>>().join("\n");
        if fabric::os::sha256_of(lines.as_bytes()) != self.round.loadgen.files {
            let what = "LoadGen's files, by loadgen_file_sha1, are not those of";
            self.say(RUN_LOADGEN, format!("{what} {wanted}"));
        }
    }

    /// Checks LoadGen's settings in a performance run.
    fn settings(&mut self, detail: &Detail) {
        let (round, model) = (self.round, self.model);
        for (key, seed) in &round.seeds {
            self.setting(RUN_SEEDS, key, seed, |text| text == seed.to_string());
        }
        if self.is_measured() {
            let least = round.min_duration_ms(model) as f64;
            self.at_least(RUN_DURATION, "min_duration_ms", least);
            let is_long = |text: &str| text.parse().map_or(true, |n: f64| n == 0.0 || n >= least);
            self.setting(RUN_DURATION, "max_duration_ms", least, is_long);
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
        if model.tokens {
            self.setting(RUN_TOKENS, "use_token_latencies", true, is_on);
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
            let mut why = Vec::from(why);
            why.retain(|(key, _)| detail.flag(key) == Some(false));
            let why: Vec<_> = why.into_iter().map(|(_, words)| words).collect();
            let why = if why.is_empty() {
                "and not why".to_owned()
            } else {
                why.join(", ")
            };
            self.say(RUN_VALID, format!("LoadGen says {verdict:?}, {why}"));
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
            // The checker judges Closed by LoadGen's own samples per query alone.
            Division::Closed => whole("samples_per_query"),
            _ => whole("min_sample_count").max(whole("samples_per_query")),
        };
        let (query, least) = (query.unwrap_or(0), model.samples.offline);
        if self.round.is_one_query(self.scenario) && query < least {
            let by = self.by("min_query_count");
            let what = format!("the query has {query} samples{by}, the round's {least}");
            self.say(RUN_QUERY, what);
        }
        for key in ["performance_issue_unique", "performance_issue_same"] {
            self.setting(RUN_TRAVERSAL, key, false, |text| !is_on(text));
        }
        if model.equal_issue {
            self.setting(RUN_TRAVERSAL, "sample_concatenate_permutation", true, is_on);
        }
        if self.is_over() {
            let key = "accuracy_log_sampling_target";
            self.setting(RUN_SAMPLED, key, 0, |text| !is_on(text));
        }
    }

    /// Checks LoadGen's latency limits and the measured latencies.
    fn latency(&mut self, detail: &Detail) {
        let Some(limits) = self.model.limits.get(self.scenario) else {
            return;
        };
        // Verifiers, not latencies, judge most tests' runs.
        let measured = self.is_measured() && self.is_over();
        let row = self.round.scenarios.get(self.scenario);
        let prefix = row.map_or(String::new(), ScenarioRow::prefix);
        let percent = row.and_then(|row| row.percentile).unwrap_or(0.99) * 100.0;
        for (limit, setting, result) in [
            (
                limits.ttft_ms,
                format!("{prefix}_ttft_latency"),
                format!("result_first_token_{percent:.2}_percentile_latency_ns"),
            ),
            (
                limits.tpot_ms,
                format!("{prefix}_tpot_latency"),
                format!("result_time_per_output_token_{percent:.2}_percentile_ns"),
            ),
            (
                limits.latency_ms,
                "target_latency_ns".to_owned(),
                format!("result_{percent:.2}_percentile_latency_ns"),
            ),
        ] {
            let Some(limit) = limit else { continue };
            let most = limit.saturating_mul(NS_PER_MS);
            let is_kept = |text: &str| text.parse().is_ok_and(|ns: u64| ns <= most);
            self.setting(RUN_LIMITS, &setting, format!("{most} ns"), is_kept);
            let found = detail.whole(&result);
            if measured && found.is_none_or(|ns| ns >= most) {
                let found = found.map_or("not logged".to_owned(), ms);
                let what = format!("{result} is {found}; {} allows {limit} ms", self.scenario);
                self.say(RUN_LATENCY, what);
            }
        }
    }
}
