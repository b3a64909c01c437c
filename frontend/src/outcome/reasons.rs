//! Reasons why LoadGen's result is not valid: the cause, and the setting to change with the origin
//! of its value.

use loadgen_bridge::{Scenario, TestOutcome, Verdict};
use record::{DEFAULT, EarlyStopping, LimitRecord, LimitUnit, LoadgenLatency, LoadgenRecord};
use view::time_us;

use crate::settings::provenance::{MLPERF_CONF, Provenance};

/// In microseconds. A shorter Offline run tells the rate only from half the minimum duration on.
const SURE_US: f64 = 1e6;
/// Minimum ratio of completed to scheduled rate of a system that keeps up.
pub const KEEPS_UP: f64 = 0.95;

/// LoadGen's text for an early end, and the responsible setting.
const ENDS: [(&str, &str); 3] = [
    ("Too many outstanding queries", "server_max_async_queries"),
    ("Max query count reached", "max_query_count"),
    ("Max test duration reached", "max_duration_ms"),
];

pub struct JudgedRun<'a> {
    pub outcome: &'a TestOutcome,
    pub record: &'a LoadgenRecord,
    pub given: &'a Provenance,
    /// Seconds from the first query to the last answer.
    pub seconds: f64,
    /// A node that stood still, which alone can spoil a percentile.
    pub standstill: Option<&'a str>,
}

/// Returns why a run is not valid, each reason with the setting to change; then LoadGen's errors.
pub fn reasons(run: &JudgedRun<'_>) -> Vec<String> {
    let mut all = Vec::new();
    if run.outcome.verdict == Verdict::Invalid {
        let limits = &run.record.limits;
        all.extend(limits.iter().filter(|limit| !limit.met).map(|limit| {
            if limit.at_most {
                run.too_slow(limit)
            } else {
                run.too_little(limit)
            }
        }));
        let early = run.record.early_stopping.as_ref();
        all.extend(early.and_then(|early| run.not_sure(early)));
        if all.is_empty() {
            // An unknown reason: use LoadGen's text.
            all.clone_from(&run.record.reasons);
        }
    }
    let errors = run.outcome.detail.error_messages.iter();
    // The reasons of an invalid run already name the end.
    let named = run.outcome.verdict == Verdict::Invalid;
    let advice = |m: &String| {
        let end = run.end(Some(m)).filter(|_| !named);
        end.map_or_else(String::new, |end| format!("; {end}"))
    };
    all.extend(errors.map(|m| format!("LoadGen logged an error: {m}{}", advice(m))));
    all
}

impl JudgedRun<'_> {
    /// Origin of a field's value, in brackets; empty for a default and for the flag of the rate.
    fn by(&self, field: &str) -> String {
        match self.given.of(field) {
            Some(given) if ![DEFAULT, "--target-qps"].contains(&given.from.as_str()) => {
                format!(" ({})", given.from)
            }
            _ => String::new(),
        }
    }

    /// Name of the setting to change: the flag, unless a setting that overrides the flag is given.
    fn lever(&self, field: &str, flag: &str) -> String {
        match self.given.of(field).map(|given| given.from.as_str()) {
            Some("--set") => format!("{field} (--set goes before {flag})"),
            Some(from) if from.starts_with("audit.config") => {
                format!("{field} ({from} goes before {flag})")
            }
            _ => flag.to_owned(),
        }
    }

    fn rate_field(&self) -> &'static str {
        match self.outcome.detail.scenario() {
            Some(Scenario::Offline) => "offline_expected_qps",
            Some(Scenario::SingleStream) => "single_stream_expected_latency_ns",
            Some(Scenario::MultiStream) => "multi_stream_expected_latency_ns",
            Some(Scenario::Server) | None => "server_target_qps",
        }
    }

    /// The maximum that ended the run, with advice, from LoadGen's message `error`; from any
    /// message if `error` is `None`.
    fn end(&self, error: Option<&String>) -> Option<String> {
        let detail = &self.outcome.detail;
        let said = |words: &str| match error {
            Some(error) => error.contains(words),
            None => detail.error_messages.iter().any(|e| e.contains(words)),
        };
        let (_, setting) = ENDS.into_iter().find(|(words, ..)| said(words))?;
        let key = setting.trim_start_matches("server_");
        let value = detail.text(&format!("effective_{key}"));
        let by = self.by(setting);
        let turn = match setting {
            "server_max_async_queries" => {
                "more queries than that were outstanding: raise it, or set it to 0, no limit"
            }
            "max_query_count" => "raise it above what the run needs, or set it to 0, no limit",
            _ => "raise it above min_duration_ms, or set it to 0, no limit",
        };
        Some(format!("{setting}, {value}{by}, ended the run; {turn}"))
    }

    fn too_slow(&self, limit: &LimitRecord) -> String {
        let l = self.record;
        let was = limit.was.map_or_else(|| "more".to_owned(), time_us);
        let what = format!(
            "{} was {was} of at most {}",
            limit.name,
            time_us(limit.limit)
        );
        let raise = match self.given.of(&limit.setting) {
            Some(given) if given.from == MLPERF_CONF => String::new(),
            _ => format!(", or raise {}", limit.setting),
        };
        let behind = l.scheduled_per_s.zip(l.completed_per_s);
        let behind = behind.filter(|(scheduled, completed)| *completed < KEEPS_UP * scheduled);
        let table = match limit.setting.as_str() {
            "server_ttft_latency" => &l.ttft,
            "server_tpot_latency" => &l.tpot,
            _ => &l.latency,
        };
        if let Some(standstill) = self.standstill {
            return format!("{what}: {standstill}; run it again");
        }
        if let Some(table) = table
            && let Some((which, us)) = alone(table, limit.limit, behind.is_some())
        {
            let us = time_us(us);
            return format!(
                "{what}: {which} is {us}, above the bound by itself; a lower rate does not mend that: \
                 let the system answer sooner{raise}"
            );
        }
        let done = behind.map_or_else(String::new, |(scheduled, completed)| {
            let (scheduled, completed) = (shortly(scheduled), shortly(completed));
            format!(": {completed} samples/s of {scheduled} were completed")
        });
        let by = self.by(self.rate_field());
        let now = target_qps(l).map_or_else(String::new, |qps| format!(", now {qps}{by}"));
        let lever = self.lever(self.rate_field(), "--target-qps");
        format!("{what}{done}; lower {lever}{now}{raise}")
    }

    fn too_little(&self, limit: &LimitRecord) -> String {
        let detail = &self.outcome.detail;
        let (name, least) = (&limit.name, limit.limit);
        let what = match (limit.unit, limit.was) {
            (LimitUnit::Us, Some(was)) => {
                format!("{name} was {} of at least {}", time_us(was), time_us(least))
            }
            (LimitUnit::Us, None) => format!("{name} was below {}", time_us(least)),
            (_, Some(was)) => format!("{was:.0} {name} of at least {least:.0} were issued"),
            (_, None) => format!("fewer than {least:.0} {name} were issued"),
        };
        if let Some(end) = self.end(None) {
            return format!("{what}; {end}");
        }
        if detail.flag("effective_performance_issue_unique") == Some(true) {
            let by = self.by("performance_issue_unique");
            return format!(
                "{what}; performance_issue_unique{by} issues each loaded sample once: load more \
                 (performance_sample_count), or leave it out"
            );
        }
        let scenario = detail.scenario();
        let longer = match scenario.filter(|_| limit.unit == LimitUnit::Us) {
            Some(Scenario::Offline) => self.larger_offline(limit),
            Some(Scenario::SingleStream | Scenario::MultiStream) => self.more_queries(),
            _ => None,
        };
        match longer {
            Some(longer) => format!("{what}; {longer}"),
            None => {
                let all: Vec<_> = std::iter::once(what)
                    .chain(self.record.reasons.iter().cloned())
                    .collect();
                all.join("; LoadGen: ")
            }
        }
    }

    /// Advice if Offline's query was answered before the minimum duration.
    fn larger_offline(&self, limit: &LimitRecord) -> Option<String> {
        let l = self.record;
        let (rate, now, was) = (l.completed_per_s?, target_qps(l)?, limit.was?);
        let lever = self.lever(self.rate_field(), "--target-qps");
        let by = self.by(self.rate_field());
        let made = format!("LoadGen made samples for {now} a second{by} beforehand: raise {lever}");
        // The latency of the first and last samples lowers the rate, most in a short run.
        if was < SURE_US && was < limit.limit / 2.0 {
            return Some(format!(
                "{made} to {}, twice what was completed: {} are too short to tell the rate, so it \
                 may take another run",
                shortly((2.0 * rate).ceil()),
                time_us(was)
            ));
        }
        Some(format!(
            "{made} to {}, a tenth above what was completed",
            shortly((1.1 * rate).ceil())
        ))
    }

    /// Advice if all prepared queries were answered before the minimum duration.
    fn more_queries(&self) -> Option<String> {
        let queries = self.record.queries.filter(|_| self.seconds > 0.0)?;
        let rate = queries as f64 / self.seconds;
        let field = self.rate_field();
        let lever = self.lever(field, "--target-qps");
        let to = match lever.as_str() {
            "--target-qps" => shortly((1.1 * rate).ceil()),
            _ => format!("{:.0}, to lower it", (1e9 / (1.1 * rate)).floor()),
        };
        let (turn, by) = match lever.as_str() {
            "--target-qps" => ("raise", self.by(field)),
            _ => ("set", String::new()),
        };
        Some(format!(
            "LoadGen made {queries} queries beforehand, from {field}{by}, and {} a second were \
             answered: {turn} {lever} to {to}",
            shortly(rate)
        ))
    }

    /// Text for a run that fails early stopping, if no other reason explains the failure.
    fn not_sure(&self, early: &EarlyStopping) -> Option<String> {
        let l = self.record;
        if early.met {
            return None;
        }
        let (Some(needs), Some(queries)) = (early.needs, early.queries) else {
            return Some(format!("early stopping: {}", early.text));
        };
        let slow = l.limits.iter().any(|limit| limit.at_most && !limit.met);
        if slow || (self.end(None).is_some() && l.limits.iter().any(|limit| !limit.met)) {
            // More queries would not help, and another reason names the cause.
            return None;
        }
        let few =
            format!("early stopping: {queries} queries are too few to be sure of the percentile");
        if let Some(end) = self.end(None) {
            return Some(format!("{few}, which takes {needs}; {end}"));
        }
        let rate = l.scheduled_per_s.or(l.completed_per_s);
        let longer = rate
            .filter(|rate| *rate > 0.0)
            .map_or_else(String::new, |rate| {
                let lever = self.lever("min_duration_ms", "--duration-s");
                format!(", or {lever} to {:.0}", (needs as f64 / rate).ceil())
            });
        let lever = self.lever("min_query_count", "--samples");
        let lever = match lever.as_str() {
            "--samples" => "--samples (min_query_count)",
            other => other,
        };
        Some(format!("{few}; raise {lever} to {needs}{longer}"))
    }
}

/// Name and time of a latency that would exceed the bound even at a lower rate: the minimum or, if
/// the system keeps up with the rate, the median.
fn alone(l: &LoadgenLatency, bound_us: f64, behind: bool) -> Option<(&'static str, f64)> {
    match l {
        _ if l.min_us > bound_us => Some(("the least", l.min_us)),
        _ if l.p50_us > bound_us && !behind => Some(("p50", l.p50_us)),
        _ => None,
    }
}

fn target_qps(l: &LoadgenRecord) -> Option<f64> {
    l.effective.get("target_qps")?.parse().ok()
}

/// Formats a rate without meaningless decimals.
fn shortly(rate: f64) -> String {
    if rate < 100.0 {
        format!("{:.2}", rate)
    } else {
        format!("{rate:.0}")
    }
}
