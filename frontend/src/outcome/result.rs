//! Converts LoadGen's result into the summary's terms: rates, latencies, and limits with the
//! measured values.

use loadgen_bridge::{Detail, Figure, Scenario, TestMode, TestOutcome, Verdict};
use qdl::counters::Histograms;
use record::{
    EarlyStopping, LimitRecord, LimitUnit, LoadgenLatency, LoadgenRecord, Mode, ScheduledToIssue,
    Stage, StageTable,
};

/// Names of percentiles in LoadGen's logs; `{}` stands for a number such as `99.00`.
const LATENCY: &str = "{}_percentile_latency_ns";
const TTFT: &str = "first_token_{}_percentile_latency_ns";
const TPOT: &str = "time_per_output_token_{}_percentile_ns";

/// Converts LoadGen's mode into the summary's.
pub fn mode(mode: TestMode) -> Mode {
    match mode {
        TestMode::AccuracyOnly => Mode::Accuracy,
        TestMode::FindPeakPerformance => Mode::FindPeak,
        TestMode::PerformanceOnly => Mode::Performance,
        TestMode::SubmissionRun => Mode::Submission,
    }
}

/// This node's own records of the phase that LoadGen's result describes.
#[derive(Clone, Copy, Debug)]
pub struct OwnRecords<'a> {
    pub histograms: &'a Histograms,
    pub stages: &'a StageTable,
    /// The shortest round trip of the phase's samples, in microseconds.
    pub shortest_us: f64,
    /// Mean duration of the completion calls to LoadGen, in microseconds.
    pub told_us: f64,
}

/// Converts LoadGen's result; `asked` is the requested mode, `ours` records the judged phase.
pub fn record(
    outcome: &TestOutcome,
    asked: TestMode,
    ours: Option<OwnRecords<'_>>,
) -> LoadgenRecord {
    let detail = &outcome.detail;
    let ran = detail.mode();
    let scenario = detail.scenario();
    let judged = outcome.verdict != Verdict::NotJudged;
    let result = |name: &str| detail.number(&format!("result_{name}")).filter(|_| judged);
    let latency = judged.then(|| latency(detail, scenario)).flatten();
    let total = ours
        .and_then(|ours| ours.stages.get(Stage::Total))
        .filter(|row| row.count > 0);
    // In MultiStream, LoadGen's latencies are of queries and ours of samples.
    let comparable = scenario.is_some_and(|s| s != Scenario::MultiStream);
    let late = |theirs: fn(&LoadgenLatency) -> f64, ours: f64| {
        let theirs = latency.as_ref().filter(|_| comparable).map(theirs)?;
        Some(((theirs - ours) * 1000.0).round() / 1000.0)
    };
    // LoadGen logs latencies of samples in every scenario.
    let of_samples = || latency_of_samples(detail).filter(|_| judged);
    let scheduled_to_issue = ours.zip(total).and_then(|(ours, total)| {
        let theirs = of_samples()?;
        let new = ScheduledToIssue::new;
        Some(new(&theirs, total, ours.shortest_us, ours.told_us))
    });
    let completed = [
        "completed_samples_per_sec",
        "samples_per_second",
        "qps_with_loadgen_overhead",
    ];
    let tokens = ["completed_tokens_per_second", "tokens_per_second"];
    let figure = match outcome.figure {
        Some(Figure::Latency { percentile, ns }) => Some((percentile, ns as f64 / 1000.0)),
        _ => None,
    };
    let first = |names: &[&str]| names.iter().find_map(|name| result(name));
    // The summary has more digits of a large rate than the log.
    let rate = match outcome.figure {
        Some(Figure::CompletedSamplesPerSecond(r) | Figure::SamplesPerSecond(r)) => Some(r),
        _ => None,
    };
    let token_rates = ["Completed tokens per second", "Tokens per second"].iter();
    let token_rate = token_rates.filter_map(|name| outcome.statistics.get(*name));
    LoadgenRecord {
        version: detail.get("loadgen_version").map(str::to_owned),
        scenario: scenario.map_or_else(String::new, |s| s.name().to_owned()),
        mode: ran.map_or_else(String::new, |m| m.name().to_owned()),
        asked_mode: ran
            .filter(|ran| *ran != asked)
            .map(|_| asked.name().to_owned()),
        valid: judged.then(|| outcome.is_valid()),
        queries: result("query_count").map(|n| n as u64),
        // Where LoadGen measures tokens, this count is against a latency bound not in force.
        over_limit: result("overlatency_query_count")
            .filter(|_| detail.get("requested_server_ttft_latency").is_none())
            .map(|n| n as u64),
        scheduled_per_s: result("scheduled_samples_per_sec"),
        completed_per_s: rate.or_else(|| first(&completed)),
        percentile: figure.map(|(percentile, _)| percentile),
        percentile_us: figure.map(|(_, us)| us),
        tokens_per_s: token_rate.copied().next().or_else(|| first(&tokens)),
        late_mean_us: total.and_then(|row| late(|l| l.mean_us, row.mean_us)),
        late_p99_us: total.and_then(|row| late(|l| l.p99_us, row.p99_us)),
        scheduled_to_issue,
        ttft: judged
            .then(|| row(detail, "first_token_{}_latency_ns", TTFT))
            .flatten(),
        tpot: judged
            .then(|| row(detail, "time_to_output_token_{}", TPOT))
            .flatten(),
        latency,
        limits: if judged { limits(outcome) } else { Vec::new() },
        early_stopping: judged.then(|| early_stopping(outcome, scenario)).flatten(),
        peak_qps: detail.peak_qps,
        reasons: outcome.reasons.clone(),
        errors: outcome.errors,
        warnings: outcome.warnings,
        warning_messages: detail.warning_messages.clone(),
        effective: detail.effective(),
    }
}

/// Reads a row of latencies. `{}` stands for `min` or `mean` in `ends`, and for a percentile such
/// as `50.00` in `percentiles`.
fn row(detail: &Detail, ends: &str, percentiles: &str) -> Option<LoadgenLatency> {
    let us = |template: &str, what: &str| {
        let ns = detail.number(&format!("result_{}", template.replace("{}", what)));
        ns.map(|ns| ns / 1000.0)
    };
    Some(LoadgenLatency {
        min_us: us(ends, "min")?,
        mean_us: us(ends, "mean")?,
        p50_us: us(percentiles, "50.00")?,
        p90_us: us(percentiles, "90.00")?,
        p99_us: us(percentiles, "99.00")?,
        p999_us: us(percentiles, "99.90")?,
        max_us: us(ends, "max")?,
    })
}

fn latency(detail: &Detail, scenario: Option<Scenario>) -> Option<LoadgenLatency> {
    match scenario {
        Some(Scenario::MultiStream) => {
            let percentiles = "{}_percentile_per_query_latency_ns";
            row(detail, "{}_query_latency_ns", percentiles)
        }
        _ => latency_of_samples(detail),
    }
}

fn latency_of_samples(detail: &Detail) -> Option<LoadgenLatency> {
    row(detail, "{}_latency_ns", LATENCY)
}

fn limits(outcome: &TestOutcome) -> Vec<LimitRecord> {
    let detail = &outcome.detail;
    let mut limits = Vec::new();
    if detail.scenario() == Some(Scenario::Server) {
        limits.extend(bounds(detail));
    }
    limits.extend(duration(outcome));
    limits.extend(queries(detail));
    limits
}

fn bounds(detail: &Detail) -> Vec<LimitRecord> {
    let met = detail.flag("result_perf_constraints_met").unwrap_or(false);
    let fraction = detail.number("effective_target_latency_percentile");
    let percent = percent(fraction.unwrap_or(0.99));
    let bound = |what: &str, setting: &str, limit_ns: f64, percentile: &str| {
        let name = percentile.replace("{}", &format!("{percent:.2}"));
        let was = detail.number(&format!("result_{name}"));
        LimitRecord {
            was: was.map(|ns| ns / 1000.0),
            // For the two token bounds LoadGen reports only a common verdict.
            met: was.map_or(met, |was| was <= limit_ns),
            ..at_most(percent, what, setting, limit_ns)
        }
    };
    let requested = |name: &str| detail.number(&format!("requested_{name}"));
    let tokens = [
        ("TTFT", "server_ttft_latency", TTFT),
        ("TPOT", "server_tpot_latency", TPOT),
    ];
    let of_tokens: Vec<LimitRecord> = tokens
        .iter()
        .filter_map(|(what, setting, name)| Some(bound(what, setting, requested(setting)?, name)))
        .collect();
    if !of_tokens.is_empty() {
        return of_tokens;
    }
    let latency = detail.number("effective_target_latency_ns");
    let setting = "server_target_latency_ns";
    let latency = latency.map(|ns| bound("latency", setting, ns, LATENCY));
    latency.into_iter().collect()
}

/// The measured duration, by LoadGen's rule for the scenario.
fn duration(outcome: &TestOutcome) -> Option<LimitRecord> {
    let detail = &outcome.detail;
    let met = detail.flag("result_min_duration_met")?;
    let limit = detail.number("effective_min_duration_ms")? * 1000.0;
    let queries = detail.number("result_query_count");
    // LoadGen's duration ends at the issue of the last query; LoadGen logs the rate until then.
    let by_rate = |rate: &str| {
        let rate = detail.number(rate).filter(|rate| *rate > 0.0)?;
        Some((queries? - 1.0) / rate * 1e6)
    };
    let was = match detail.scenario()? {
        Scenario::Offline => detail.number("result_max_latency_ns").map(|ns| ns / 1000.0),
        Scenario::Server => by_rate("result_scheduled_samples_per_sec"),
        Scenario::SingleStream => by_rate("result_qps_with_loadgen_overhead"),
        Scenario::MultiStream => None,
    };
    // The rate has six digits: clamp the duration, so that rounding agrees with the verdict.
    let was = was.map(|was| if met { was.max(limit) } else { was.min(limit) });
    let name = ("duration", "min_duration_ms");
    Some(at_least(name, LimitUnit::Us, limit, was, met))
}

/// The record of a minimum: `was` is the measured value, `setting` sets the limit.
pub fn at_least(
    (name, setting): (&str, &str),
    unit: LimitUnit,
    limit: f64,
    was: Option<f64>,
    met: bool,
) -> LimitRecord {
    LimitRecord {
        name: name.to_owned(),
        setting: setting.to_owned(),
        unit,
        limit,
        was,
        at_most: false,
        met,
    }
}

/// Server's bound on a percentile, in percent, of `what`.
pub fn at_most(percent: f64, what: &str, setting: &str, limit_ns: f64) -> LimitRecord {
    LimitRecord {
        name: format!("p{percent} {what}"),
        setting: setting.to_owned(),
        unit: LimitUnit::Us,
        limit: limit_ns / 1000.0,
        was: None,
        at_most: true,
        met: true,
    }
}

/// Returns a share in percent; rounds 99.00000000000001 to 99.
pub fn percent(share: f64) -> f64 {
    (share * 1e7).round() / 1e5
}

fn queries(detail: &Detail) -> Option<LimitRecord> {
    let met = detail.flag("result_min_queries_met")?;
    let offline = detail.scenario() == Some(Scenario::Offline);
    let was = detail.number("result_query_count");
    if !offline {
        let limit = detail.number("effective_min_query_count")?;
        let name = ("queries", "min_query_count");
        return Some(at_least(name, LimitUnit::Queries, limit, was, met));
    }
    // Offline has a single query, so count samples.
    let samples = detail.number("effective_samples_per_query");
    let was = was.and_then(|queries| Some(queries * samples?));
    let limit = detail.number("effective_min_sample_count")?;
    let name = ("samples", "min_query_count");
    Some(at_least(name, LimitUnit::Samples, limit, was, met))
}

fn early_stopping(outcome: &TestOutcome, scenario: Option<Scenario>) -> Option<EarlyStopping> {
    let detail = &outcome.detail;
    let met = detail.flag("early_stopping_met")?;
    let [own, ttft, tpot] = ["", "ttft_", "tpot_"].map(|of| {
        let text = detail.text(&format!("early_stopping_{of}result"));
        let words = text.split_whitespace().filter(|word| *word != "*");
        words.collect::<Vec<_>>().join(" ")
    });
    let texts = [("", &own), ("TTFT: ", &ttft), ("TPOT: ", &tpot)];
    let texts = texts.iter().filter(|(_, text)| !text.is_empty());
    let texts: Vec<String> = texts.map(|(of, text)| format!("{of}{text}")).collect();
    if texts.is_empty() {
        return None;
    }
    let text = texts.join(" ");
    let queries = detail.number("result_query_count").map(|n| n as u64);
    let more = number_behind(&text, "Would need to run at least ");
    let needs = match more {
        Some(more) => queries.map(|queries| queries + more),
        None => number_behind(&text, "Need to process at least "),
    };
    // With tokens, `early_stopping_latency_ss` is the estimate of TTFT: LoadGen sets it last.
    let of_tokens = |text: &str| {
        let single = met && scenario == Some(Scenario::SingleStream);
        let ns = number_behind(text, "percentile estimate: ").filter(|_| single)?;
        Some(ns as f64 / 1000.0)
    };
    let estimate = match scenario {
        Some(Scenario::SingleStream) if tpot.is_empty() => {
            detail.number("early_stopping_latency_ss")
        }
        Some(Scenario::MultiStream) => detail.number("early_stopping_latency_ms"),
        _ => None,
    };
    Some(EarlyStopping {
        met,
        queries,
        needs,
        estimate_us: estimate.filter(|ns| met && *ns > 0.0).map(|ns| ns / 1000.0),
        ttft_estimate_us: of_tokens(&ttft),
        tpot_estimate_us: of_tokens(&tpot),
        text,
    })
}

fn number_behind(text: &str, words: &str) -> Option<u64> {
    let (_, rest) = text.split_once(words)?;
    rest.split(' ').next()?.parse().ok()
}

#[cfg(test)]
mod tests;
